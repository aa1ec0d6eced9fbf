//! The credentials of a node whose certificate is asked for from the cluster: what a kubeconfig says, what the
//! certificate manager has, and both together as what clients use.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use windlass_agent::certificates::{Clients, Pair, Requester, Wanted};
use windlass_kit::{
    atomic_file,
    client::{Access, Limits, inlined},
};

use super::access::{access_of, unusable};

/// How often files that others keep are read again.
const REREAD: Duration = Duration::from_secs(10);

/// Where credentials come from.
#[derive(Debug, Clone)]
pub(super) struct Source {
    /// The node's own; may not be there yet.
    pub(super) kubeconfig: PathBuf,
    /// What it is let in with.
    pub(super) bootstrap: Option<PathBuf>,
}

impl Source {
    /// The file that tells of the cluster at the moment.
    pub(super) fn present(&self) -> PathBuf {
        match &self.bootstrap {
            Some(bootstrap) if !self.kubeconfig.exists() => bootstrap.clone(),
            _ => self.kubeconfig.clone(),
        }
    }

    /// How the cluster is reached, with the node's own credentials if there are any.
    pub(super) async fn cluster(&self) -> anyhow::Result<kube::Config> {
        let present = self.present();
        anyhow::ensure!(
            present.exists(),
            "there is no kubeconfig {}; name this node's with --kubeconfig, or one that lets it into the cluster with --bootstrap-kubeconfig",
            present.display()
        );
        let mut config = access_of(&present).await?;
        if present != self.kubeconfig {
            // Those are somebody else's.
            config.auth_info = kube::config::AuthInfo::default();
        }
        Ok(config)
    }

    /// Whether the node's certificate is had from the cluster: it is let in with one file, or has one of its own that
    /// can be renewed. Other credentials are used as they are.
    pub(super) fn is_managed(&self, config: &kube::Config, node: &str) -> anyhow::Result<bool> {
        let own = pair_of(config).with_context(|| unusable(&self.kubeconfig));
        match own {
            Ok(pair) => {
                let is_nodes = pair.and_then(|pair| pair.user()) == Some(Wanted::client(node).user());
                Ok(self.bootstrap.is_some() || is_nodes)
            }
            // The kubeconfig names files that are not there, and there is a way to others.
            Err(error) if self.bootstrap.is_some() => {
                tracing::warn!(
                    reason = format!("{error:#}"),
                    "this node's credentials cannot be used; others are asked for"
                );
                Ok(true)
            }
            Err(error) => Err(error),
        }
    }
}

/// The certificate and key of a kubeconfig's user, if it has any.
pub(super) fn pair_of(config: &kube::Config) -> anyhow::Result<Option<Pair>> {
    let auth = inlined(config.clone())?.auth_info;
    let key = serde_json::to_value(&auth)?;
    let key = key.get("client-key-data").and_then(serde_json::Value::as_str).map(str::to_owned);
    let (Some(cert), Some(key)) = (auth.client_certificate_data, key) else { return Ok(None) };
    let text = |what: &str, data: String| -> anyhow::Result<String> {
        let bytes = STANDARD.decode(data).with_context(|| format!("{what} is not base64"))?;
        String::from_utf8(bytes).with_context(|| format!("{what} is not PEM"))
    };
    let (cert, key) = (text("client-certificate-data", cert)?, text("client-key-data", key)?);
    // One file may hold both, as upstream's does.
    Ok(Some(Pair::of(&format!("{cert}\n{key}")).map_or(Pair { cert, key }, |pair| pair)))
}

/// The same cluster, as the one that a certificate names.
fn with_pair(mut config: kube::Config, pair: &Pair) -> kube::Config {
    config.auth_info = crate::join::place::credentials(pair);
    config
}

/// Clients for the certificate manager.
pub(super) fn clients(access: Access, bootstrap: Option<PathBuf>) -> Clients {
    Box::new(move |requester| {
        let (access, bootstrap) = (access.clone(), bootstrap.clone());
        Box::pin(async move {
            match (requester, bootstrap) {
                (Requester::Node, _) => Ok(access.client(Limits::DEFAULT)),
                (Requester::Bootstrap, None) => Err("this node has no certificate that is good, and nothing to ask for one with; give it --bootstrap-kubeconfig with credentials that may (a token of `kubeadm token create`)".to_owned()),
                (Requester::Bootstrap, Some(file)) => {
                    let read = async { Ok::<_, anyhow::Error>(Access::new(access_of(&file).await?)?) }.await;
                    let access = read.with_context(|| format!("the bootstrap kubeconfig {} cannot be used", file.display()));
                    access.map(|access| access.client(Limits::DEFAULT)).map_err(|error| format!("{error:#}"))
                }
            }
        })
    })
}

/// Keeps `access` at the certificate of the manager and what the kubeconfig says of the cluster, tells the manager of
/// the kubeconfig's own certificate, and writes the kubeconfig once there is a certificate and no such file; until
/// `shutdown`.
pub(super) async fn follow(
    access: Access,
    source: Source,
    mut pairs: watch::Receiver<Option<Pair>>,
    given: watch::Sender<Option<Pair>>,
    current: PathBuf,
    shutdown: CancellationToken,
) {
    let mut complained = String::new();
    loop {
        match once(&access, &source, &mut pairs, &given, &current).await {
            Ok(changed) => {
                complained.clear();
                if changed {
                    tracing::info!("the node's credentials for the API have changed; all connections are made anew");
                }
            }
            Err(error) => {
                let reason = format!("{error:#}");
                if reason != complained {
                    tracing::warn!(reason, "changed credentials for the API cannot be used; those from before stay");
                    complained = reason;
                }
            }
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(REREAD) => {}
            changed = pairs.changed() => if changed.is_err() { shutdown.cancelled().await; return },
        }
    }
}

async fn once(
    access: &Access,
    source: &Source,
    pairs: &mut watch::Receiver<Option<Pair>>,
    given: &watch::Sender<Option<Pair>>,
    current: &Path,
) -> anyhow::Result<bool> {
    let config = source.cluster().await?;
    // Files that it names may be away; then there is nothing to be given.
    let own = pair_of(&config).ok().flatten();
    given.send_if_modified(|now| (*now != own).then(|| now.clone_from(&own)).is_some());
    let pair = pairs.borrow_and_update().clone();
    let Some(pair) = pair.or(own) else { return Ok(false) };
    let changed = access.replace(with_pair(config, &pair))?;
    if !source.kubeconfig.exists() && current.exists() {
        let text = kubeconfig(&access.config(), current)?;
        atomic_file::make_dir(source.kubeconfig.parent().unwrap_or(Path::new("/")), 0o755)?;
        atomic_file::write_durable(&source.kubeconfig, text.as_bytes(), 0o600)
            .with_context(|| format!("the kubeconfig {} could not be written", source.kubeconfig.display()))?;
        tracing::info!(file = %source.kubeconfig.display(), "the node's kubeconfig was written");
    }
    Ok(changed)
}

/// A node's kubeconfig as upstream writes it, with the names that upstream gives. JSON is YAML.
pub(crate) fn kubeconfig(config: &kube::Config, current: &Path) -> anyhow::Result<String> {
    let mut cluster = json!({"server": config.cluster_url.to_string().trim_end_matches('/')});
    if let Some(roots) = &config.root_cert {
        let pem: String = roots.iter().map(|der| certificate_pem(der)).collect();
        cluster["certificate-authority-data"] = json!(STANDARD.encode(pem));
    }
    if let Some(name) = &config.tls_server_name {
        cluster["tls-server-name"] = json!(name);
    }
    if config.accept_invalid_certs {
        cluster["insecure-skip-tls-verify"] = json!(true);
    }
    let text = serde_json::to_string_pretty(&json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "default-cluster", "cluster": cluster}],
        "users": [{"name": "default-auth", "user": {"client-certificate": current, "client-key": current}}],
        "contexts": [{"name": "default-context", "context": {"cluster": "default-cluster", "namespace": "default", "user": "default-auth"}}],
        "current-context": "default-context",
    }))?;
    Ok(text + "\n")
}

fn certificate_pem(der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let lines = text.as_bytes().chunks(64).map(|line| String::from_utf8_lossy(line).into_owned() + "\n");
    format!("-----BEGIN CERTIFICATE-----\n{}-----END CERTIFICATE-----\n", lines.collect::<String>())
}
