//! Discovers the cluster: reads its description unverified, verifies it by the token's signature and the pins, and
//! reads it again over a verified connection.

use std::{
    collections::BTreeMap,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use http::{Request, Uri};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client, config::AuthInfo};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use windlass_kit::{
    bootstrap::{BadSignature, Pin, Token},
    client::{Access, Limits, message},
};

use super::cluster_info::{self, ClusterInfo, ClusterInfoError};

pub(crate) use cluster_info::parse_server;

/// The poll interval until the description exists and is signed; kubeadm's.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// The timeout of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// A verified cluster.
#[derive(Debug, Clone)]
pub(crate) struct DiscoveredCluster {
    pub(crate) server: Uri,
    /// The address given on the command line, if it differs from the cluster's own.
    pub(crate) typed: Option<Uri>,
    pub(crate) authority: Option<String>,
    pub(crate) credentials: Option<AuthInfo>,
}

impl DiscoveredCluster {
    /// An access with these credentials.
    pub(crate) fn access(&self, credentials: AuthInfo) -> anyhow::Result<Access> {
        let mut config = config(&self.server, self.authority.as_deref())?;
        config.auth_info = credentials;
        let others: Vec<Uri> = self.typed.iter().cloned().collect();
        let access = Access::without_credentials(&config, "there are no credentials yet", &others)?;
        access.replace(config)?;
        Ok(access)
    }
}

/// The token as credentials.
pub(crate) fn bearer(token: &Token) -> AuthInfo {
    AuthInfo { token: Some(token.bearer().into()), ..AuthInfo::default() }
}

fn config(server: &Uri, authority: Option<&str>) -> anyhow::Result<kube::Config> {
    let mut config = kube::Config::new(server.clone());
    config.connect_timeout = Some(REQUEST_TIMEOUT);
    if let Some(pem) = authority {
        let all: Result<Vec<CertificateDer<'_>>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
        let all = all.context("the cluster's certificate authority cannot be read")?;
        config.root_cert = Some(all.into_iter().map(|der| der.to_vec()).collect());
    }
    Ok(config)
}

fn client(config: kube::Config) -> anyhow::Result<Client> {
    Ok(Access::new(config)?.client(Limits { response: REQUEST_TIMEOUT, retry: false, ..Limits::DEFAULT }))
}

/// The description, readable without credentials.
async fn read_cluster_info(client: Client) -> Result<BTreeMap<String, String>, kube::Error> {
    let map = Api::<ConfigMap>::namespaced(client, "kube-public").get("cluster-info").await?;
    Ok(map.data.unwrap_or_default())
}

/// Discovers the cluster with API server `typed` by a token; `report` gets progress messages.
pub(crate) async fn by_token(
    typed: &Uri,
    token: &Token,
    pins: &[Pin],
    limit: Duration,
    report: impl Fn(String),
) -> anyhow::Result<DiscoveredCluster> {
    let mut unverified = config(typed, None)?;
    unverified.accept_invalid_certs = true;
    let unverified_client = client(unverified)?;
    let started_at = Instant::now();
    let mut last_message = String::new();
    let (data, described) = loop {
        let message = match read_cluster_info(unverified_client.clone()).await {
            Ok(data) => match cluster_info::verify(&data, token, pins) {
                Ok(described) => break (data, described),
                Err(ClusterInfoError::Unsigned) => format!(
                    "the cluster's description is not signed with the token {id}: the token is unknown or has expired (see `kubeadm token list`), or was just created",
                    id = token.id()
                ),
                Err(ClusterInfoError::Signature(why @ BadSignature::Wrong)) => bail!(
                    "the signature of the cluster's description with the token {}: {why}; check the token, and that {typed} is the right API server",
                    token.id()
                ),
                Err(ClusterInfoError::Signature(why)) => {
                    bail!("the signature of the cluster's description with the token {}: {why}", token.id())
                }
                Err(ClusterInfoError::Pin(found)) => bail!(
                    "{found}, which matches no --discovery-token-ca-cert-hash: this may be another cluster, so nothing was sent to it but the token's id"
                ),
                Err(ClusterInfoError::Text(why)) => {
                    bail!("the cluster's description (kube-public/cluster-info) cannot be used: {why}")
                }
            },
            Err(error) => format!("failed to read kube-public/cluster-info from {typed}: {}", message(&error)),
        };
        if started_at.elapsed() + POLL_INTERVAL > limit {
            bail!("{message}; gave up after {} s", started_at.elapsed().as_secs());
        }
        if last_message != message {
            report(format!("{message}; retrying for up to {} s", limit.as_secs()));
            last_message = message;
        }
        tokio::time::sleep(POLL_INTERVAL.min(limit)).await;
    };
    if !pins.is_empty() {
        // The server may know the token: the same must come over a connection verified by the pinned authority.
        let verified = client(config(typed, described.authority.as_deref())?)?;
        let verified_data = read_cluster_info(verified).await.map_err(|error| {
            anyhow::anyhow!("{typed} could not be verified by the authority that was pinned: {}", message(&error))
        })?;
        anyhow::ensure!(
            verified_data.get("kubeconfig") == data.get("kubeconfig"),
            "{typed} describes another cluster over a verified connection: the unverified connection was intercepted"
        );
    }
    resolve_server(described, Some(typed), report).await
}

/// Discovers the cluster by a kubeconfig: a file, or an https URL.
pub(crate) async fn by_file(
    named: &str,
    limit: Duration,
    report: impl Fn(String),
) -> anyhow::Result<DiscoveredCluster> {
    let described = if named.starts_with("https://") {
        let url: Uri = named.parse().with_context(|| format!("--discovery-file {named:?} is no URL"))?;
        let mut parts = url.clone().into_parts();
        let path = parts.path_and_query.replace(http::uri::PathAndQuery::from_static("/"));
        let path = path.as_ref().map_or("/", |path| path.as_str());
        let web = client(config(&Uri::from_parts(parts)?, None)?)?;
        let asked = web.request_text(Request::get(path).body(Vec::new())?).await;
        let text = asked.map_err(|error| anyhow::anyhow!("{named} could not be read: {}", message(&error)))?;
        cluster_info::read(&text)
    } else {
        // Relative paths are relative to the file.
        let file = kube::config::Kubeconfig::read_from(Path::new(named))
            .with_context(|| format!("--discovery-file {named} cannot be used"))?;
        cluster_info::from_kubeconfig(&file)
    };
    let mut described = described.map_err(|why| anyhow::anyhow!("--discovery-file {named}: {why}"))?;
    // The cluster's own description is newer than a file.
    match tokio::time::timeout(limit, async {
        read_cluster_info(client(config(&described.server, described.authority.as_deref())?)?)
            .await
            .map_err(anyhow::Error::from)
    })
    .await
    {
        Ok(Ok(data)) => match data.get("kubeconfig").map(|text| cluster_info::read(text)) {
            Some(Ok(newer)) if newer.authority.is_some() => {
                (described.server, described.authority) = (newer.server, newer.authority);
            }
            _ => report("kube-public/cluster-info cannot be used; using the file".to_owned()),
        },
        Ok(Err(error)) => {
            let why = error.downcast_ref::<kube::Error>().map_or_else(|| error.to_string(), |error| message(error));
            report(format!("failed to read kube-public/cluster-info ({why}); using the file"));
        }
        Err(_) => report("reading kube-public/cluster-info timed out; using the file".to_owned()),
    }
    resolve_server(described, None, report).await
}

/// Keeps the given address besides the cluster's own, and reports if only the given one answers.
async fn resolve_server(
    described: ClusterInfo,
    typed: Option<&Uri>,
    report: impl Fn(String),
) -> anyhow::Result<DiscoveredCluster> {
    let ClusterInfo { server, authority, credentials } = described;
    let same = |one: &Uri, other: &Uri| one.authority() == other.authority();
    let typed = typed.filter(|typed| !same(typed, &server)).cloned();
    if let Some(typed) = &typed {
        match client(config(&server, authority.as_deref())?)?.apiserver_version().await {
            Ok(_) => {}
            Err(kube::Error::Api(_)) => {}
            Err(error) => report(format!(
                "the cluster's server {server} does not answer from here ({}); using {typed} until it does",
                message(&error)
            )),
        }
    }
    Ok(DiscoveredCluster { server, typed, authority, credentials })
}
