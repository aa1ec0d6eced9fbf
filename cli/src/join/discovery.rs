//! Finds the cluster: asks for its description without knowing whom, believes it by a token's signature and pins, and asks
//! once more as somebody who verifies.

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
    client::{Access, Limits},
};

use super::cluster_info::{self, Described, Refusal};

pub(crate) use cluster_info::server;

/// kubeadm's: asked this often until the description is there and signed.
const EVERY: Duration = Duration::from_secs(5);
/// For one answer.
const ANSWER: Duration = Duration::from_secs(10);

/// The cluster, believed.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) server: Uri,
    /// The address that somebody typed, where the cluster calls itself otherwise.
    pub(crate) typed: Option<Uri>,
    pub(crate) authority: Option<String>,
    pub(crate) credentials: Option<AuthInfo>,
}

impl Found {
    /// How it is reached with credentials.
    pub(crate) fn access(&self, credentials: AuthInfo) -> anyhow::Result<Access> {
        let mut config = config(&self.server, self.authority.as_deref())?;
        config.auth_info = credentials;
        let others: Vec<Uri> = self.typed.iter().cloned().collect();
        let access = Access::without_credentials(&config, "nobody is known yet", &others)?;
        access.replace(config)?;
        Ok(access)
    }
}

/// A token as credentials.
pub(crate) fn bearer(token: &Token) -> AuthInfo {
    AuthInfo { token: Some(token.bearer().into()), ..AuthInfo::default() }
}

fn config(server: &Uri, authority: Option<&str>) -> anyhow::Result<kube::Config> {
    let mut config = kube::Config::new(server.clone());
    config.connect_timeout = Some(ANSWER);
    if let Some(pem) = authority {
        let all: Result<Vec<CertificateDer<'_>>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
        let all = all.context("the cluster's certificate authority cannot be read")?;
        config.root_cert = Some(all.into_iter().map(|der| der.to_vec()).collect());
    }
    Ok(config)
}

fn client(config: kube::Config) -> anyhow::Result<Client> {
    Ok(Access::new(config)?.client(Limits { response: ANSWER, retry: false, ..Limits::DEFAULT }))
}

/// The description as the API gives it to anybody.
async fn ask(client: Client) -> Result<BTreeMap<String, String>, kube::Error> {
    let map = Api::<ConfigMap>::namespaced(client, "kube-public").get("cluster-info").await?;
    Ok(map.data.unwrap_or_default())
}

/// What was wrong, without the layers of programs around it.
pub(crate) fn reason(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(answer) => format!("{} ({})", answer.message, answer.code),
        other => {
            let mut last: &dyn std::error::Error = other;
            while let Some(source) = last.source() {
                last = source;
            }
            last.to_string()
        }
    }
}

/// Finds the cluster whose API server is at `typed`, by a token; `tell` hears of what is waited for.
pub(crate) async fn by_token(
    typed: &Uri,
    token: &Token,
    pins: &[Pin],
    limit: Duration,
    tell: impl Fn(String),
) -> anyhow::Result<Found> {
    let mut unverified = config(typed, None)?;
    unverified.accept_invalid_certs = true;
    let anybody = client(unverified)?;
    let begun = Instant::now();
    let mut told = String::new();
    let (data, described) = loop {
        let waits = match ask(anybody.clone()).await {
            Ok(data) => match cluster_info::judge(&data, token, pins) {
                Ok(described) => break (data, described),
                Err(Refusal::Unsigned) => format!(
                    "the cluster's description is not signed with the token {id}: the token is unknown or has ended (`kubeadm token list` in the cluster), or was made a moment ago",
                    id = token.id()
                ),
                Err(Refusal::Signature(why @ BadSignature::Wrong)) => bail!(
                    "the signature of the cluster's description with the token {}: {why}; check the token, and that {typed} is the right API server",
                    token.id()
                ),
                Err(Refusal::Signature(why)) => {
                    bail!("the signature of the cluster's description with the token {}: {why}", token.id())
                }
                Err(Refusal::Pin(found)) => bail!(
                    "{found}, and none of --discovery-token-ca-cert-hash is that: this may not be the cluster that you mean, so nothing was told to it but the token's id"
                ),
                Err(Refusal::Text(why)) => {
                    bail!("the cluster's description (kube-public/cluster-info) cannot be used: {why}")
                }
            },
            Err(error) => format!("{typed} was asked for kube-public/cluster-info: {}", reason(&error)),
        };
        if begun.elapsed() + EVERY > limit {
            bail!("{waits}; given up after {} s", begun.elapsed().as_secs());
        }
        if told != waits {
            tell(format!("{waits}; it is asked again for up to {} s", limit.as_secs()));
            told = waits;
        }
        tokio::time::sleep(EVERY.min(limit)).await;
    };
    if !pins.is_empty() {
        // Who answered could have known the token: the same must be heard over a connection that only the pinned one has.
        let verified = client(config(typed, described.authority.as_deref())?)?;
        let again = ask(verified).await.map_err(|error| {
            anyhow::anyhow!("{typed} could not be verified by the authority that was pinned: {}", reason(&error))
        })?;
        anyhow::ensure!(
            again.get("kubeconfig") == data.get("kubeconfig"),
            "{typed} describes the cluster otherwise over a verified connection; somebody stands between"
        );
    }
    settled(described, Some(typed), tell).await
}

/// Finds the cluster by a kubeconfig: a file, or one that a web server gives over https.
pub(crate) async fn by_file(named: &str, limit: Duration, tell: impl Fn(String)) -> anyhow::Result<Found> {
    let described = if named.starts_with("https://") {
        let url: Uri = named.parse().with_context(|| format!("--discovery-file {named:?} is no URL"))?;
        let mut parts = url.clone().into_parts();
        let path = parts.path_and_query.replace(http::uri::PathAndQuery::from_static("/"));
        let path = path.as_ref().map_or("/", |path| path.as_str());
        let web = client(config(&Uri::from_parts(parts)?, None)?)?;
        let asked = web.request_text(Request::get(path).body(Vec::new())?).await;
        let text = asked.map_err(|error| anyhow::anyhow!("{named} could not be had: {}", reason(&error)))?;
        cluster_info::read(&text)
    } else {
        // Relative paths in it are meant from where it is.
        let file = kube::config::Kubeconfig::read_from(Path::new(named))
            .with_context(|| format!("--discovery-file {named} cannot be used"))?;
        cluster_info::of(&file)
    };
    let mut described = described.map_err(|why| anyhow::anyhow!("--discovery-file {named}: {why}"))?;
    // The cluster's own word is newer than a file.
    match tokio::time::timeout(limit, async {
        ask(client(config(&described.server, described.authority.as_deref())?)?).await.map_err(anyhow::Error::from)
    })
    .await
    {
        Ok(Ok(data)) => match data.get("kubeconfig").map(|text| cluster_info::read(text)) {
            Some(Ok(newer)) if newer.authority.is_some() => {
                (described.server, described.authority) = (newer.server, newer.authority);
            }
            _ => tell("kube-public/cluster-info says nothing that can be used; what the file says counts".to_owned()),
        },
        Ok(Err(error)) => {
            let why = error.downcast_ref::<kube::Error>().map_or_else(|| error.to_string(), reason);
            tell(format!("kube-public/cluster-info could not be had ({why}); what the file says counts"));
        }
        Err(_) => tell("kube-public/cluster-info was not answered; what the file says counts".to_owned()),
    }
    settled(described, None, tell).await
}

/// Keeps the typed address beside the one that the cluster calls itself, and says so where only that one answers.
async fn settled(described: Described, typed: Option<&Uri>, tell: impl Fn(String)) -> anyhow::Result<Found> {
    let Described { server, authority, credentials } = described;
    let same = |one: &Uri, other: &Uri| one.authority() == other.authority();
    let typed = typed.filter(|typed| !same(typed, &server)).cloned();
    if let Some(typed) = &typed {
        match client(config(&server, authority.as_deref())?)?.apiserver_version().await {
            Ok(_) => {}
            Err(kube::Error::Api(_)) => {}
            Err(error) => tell(format!(
                "the cluster calls itself {server}, which does not answer here ({}); {typed} is used, and the other one when it answers",
                reason(&error)
            )),
        }
    }
    Ok(Found { server, typed, authority, credentials })
}
