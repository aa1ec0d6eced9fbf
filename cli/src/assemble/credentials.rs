//! The credentials of a node whose certificate the cluster issues: combines the kubeconfig with the certificate of the
//! certificate manager into what clients use.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use windlass_agent::certificates::{CertificateTemplate, CertifiedKey, ClientProvider, Requester};
use windlass_kit::{
    atomic_file,
    client::{Access, Limits, inlined},
};

use crate::config::connect::{access_of, node_kubeconfig, unusable};

/// The interval at which kubeconfigs are reread.
const POLL_INTERVAL: Duration = Duration::from_secs(10);

/// The kubeconfigs of a node.
#[derive(Debug, Clone)]
pub(super) struct Source {
    /// The node's own; may not exist yet.
    pub(super) kubeconfig: PathBuf,
    /// The bootstrap kubeconfig, with which the node requests its certificate.
    pub(super) bootstrap: Option<PathBuf>,
}

impl Source {
    /// The file that describes the cluster at the moment.
    pub(super) fn present(&self) -> PathBuf {
        match &self.bootstrap {
            Some(bootstrap) if !self.kubeconfig.exists() => bootstrap.clone(),
            _ => self.kubeconfig.clone(),
        }
    }

    /// The cluster's API server, with the node's own credentials if there are any.
    pub(super) async fn cluster(&self) -> anyhow::Result<kube::Config> {
        let present = self.present();
        anyhow::ensure!(
            present.exists(),
            "there is no kubeconfig {}; set this node's with --kubeconfig, or one for its certificate request with --bootstrap-kubeconfig",
            present.display()
        );
        let mut config = access_of(&present).await?;
        if present != self.kubeconfig {
            // Bootstrap credentials are not the node's.
            config.auth_info = kube::config::AuthInfo::default();
        }
        Ok(config)
    }

    /// Whether the certificate manager maintains the node's certificate: there is a bootstrap kubeconfig, or a client
    /// certificate of the node that can be rotated. Other credentials are used as they are.
    pub(super) fn is_managed(&self, config: &kube::Config, node: &str) -> anyhow::Result<bool> {
        let own = client_certificate(config).with_context(|| unusable(&self.kubeconfig));
        match own {
            Ok(pair) => {
                let is_nodes = pair.and_then(|pair| pair.user()) == Some(CertificateTemplate::client(node).user());
                Ok(self.bootstrap.is_some() || is_nodes)
            }
            // The kubeconfig names missing files, but new credentials can be requested.
            Err(error) if self.bootstrap.is_some() => {
                tracing::warn!(
                    reason = format!("{error:#}"),
                    "this node's credentials are invalid; requesting new ones"
                );
                Ok(true)
            }
            Err(error) => Err(error),
        }
    }
}

/// The client certificate and key of a kubeconfig's user, if any.
pub(super) fn client_certificate(config: &kube::Config) -> anyhow::Result<Option<CertifiedKey>> {
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
    Ok(Some(CertifiedKey::from_pem(&format!("{cert}\n{key}")).map_or(CertifiedKey { cert, key }, |pair| pair)))
}

/// The same cluster, with a client certificate as credentials.
fn with_pair(mut config: kube::Config, pair: &CertifiedKey) -> kube::Config {
    config.auth_info = crate::join::join_dir::credentials(pair);
    config
}

/// Clients for the certificate manager.
pub(super) fn client_provider(access: Access, bootstrap: Option<PathBuf>) -> ClientProvider {
    Box::new(move |requester| {
        let (access, bootstrap) = (access.clone(), bootstrap.clone());
        Box::pin(async move {
            match (requester, bootstrap) {
                (Requester::Node, _) => Ok(access.client(Limits::DEFAULT)),
                (Requester::Bootstrap, None) => Err("this node has no valid certificate, and no credentials to request one; set --bootstrap-kubeconfig with credentials that may (a token of `kubeadm token create`)".to_owned()),
                (Requester::Bootstrap, Some(file)) => {
                    let read = async { Ok::<_, anyhow::Error>(Access::new(access_of(&file).await?)?) }.await;
                    let access = read.with_context(|| format!("the bootstrap kubeconfig {} cannot be used", file.display()));
                    access.map(|access| access.client(Limits::DEFAULT)).map_err(|error| format!("{error:#}"))
                }
            }
        })
    })
}

/// Until `shutdown`, updates `access` with the manager's certificate and the kubeconfig's cluster, passes the kubeconfig's
/// own certificate to the manager, and writes the kubeconfig once there is a certificate and no such file.
pub(super) async fn sync(
    access: Access,
    source: Source,
    mut pairs: watch::Receiver<Option<CertifiedKey>>,
    kubeconfig_certificate: watch::Sender<Option<CertifiedKey>>,
    current: PathBuf,
    shutdown: CancellationToken,
) {
    let mut last_warning = String::new();
    loop {
        match sync_once(&access, &source, &mut pairs, &kubeconfig_certificate, &current).await {
            Ok(changed) => {
                last_warning.clear();
                if changed {
                    tracing::info!("API credentials of the node changed; reconnecting");
                }
            }
            Err(error) => {
                let reason = format!("{error:#}");
                if reason != last_warning {
                    tracing::warn!(reason, "changed API credentials are invalid; keeping the old ones, retrying");
                    last_warning = reason;
                }
            }
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(POLL_INTERVAL) => {}
            changed = pairs.changed() => if changed.is_err() { shutdown.cancelled().await; return },
        }
    }
}

async fn sync_once(
    access: &Access,
    source: &Source,
    pairs: &mut watch::Receiver<Option<CertifiedKey>>,
    kubeconfig_certificate: &watch::Sender<Option<CertifiedKey>>,
    current: &Path,
) -> anyhow::Result<bool> {
    let config = source.cluster().await?;
    // Files that it names may be missing.
    let own = client_certificate(&config).ok().flatten();
    kubeconfig_certificate.send_if_modified(|now| (*now != own).then(|| now.clone_from(&own)).is_some());
    let pair = pairs.borrow_and_update().clone();
    let Some(pair) = pair.or(own) else { return Ok(false) };
    let changed = access.replace(with_pair(config, &pair))?;
    if !source.kubeconfig.exists() && current.exists() {
        let text = node_kubeconfig(&access.config(), current)?;
        atomic_file::make_dir(source.kubeconfig.parent().unwrap_or(Path::new("/")), 0o755)?;
        atomic_file::write_durable(&source.kubeconfig, text.as_bytes(), 0o600)
            .with_context(|| format!("the kubeconfig {} could not be written", source.kubeconfig.display()))?;
        tracing::info!(file = %source.kubeconfig.display(), "wrote the node's kubeconfig");
    }
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use windlass_fixtures::files::key_path;

    use super::*;

    /// A node that is moved here from kubelet brings kubelet's kubeconfig, whose key is in the form of Go.
    #[tokio::test]
    async fn a_kubelets_own_certificate_is_maintained() {
        for algorithm in ["RSA-2048", "ECDSA-P256"] {
            let kubeconfig = key_path(&format!("kubeadm-{algorithm}-kubelet.conf"));
            let source = Source { kubeconfig, bootstrap: None };
            let config = source.cluster().await.unwrap();
            assert!(source.is_managed(&config, "n1").unwrap(), "{algorithm}");
            let pair = client_certificate(&config).unwrap().unwrap();
            let middle = pair.validity().unwrap().at(0.5);
            pair.check(&CertificateTemplate::client("n1"), middle).unwrap_or_else(|why| panic!("{algorithm}: {why}"));
            Access::new(config).unwrap();
        }
    }
}
