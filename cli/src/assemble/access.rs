//! Ways to an API: what kubeconfigs say.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use base64::Engine as _;
use kube::{
    Client,
    config::{KubeConfigOptions, Kubeconfig},
};
use tokio_util::sync::CancellationToken;
use windlass_kit::client::{Access, Limits};

/// A client from a kubeconfig, for a command that ends soon.
pub(crate) async fn client_of(kubeconfig: &Path) -> anyhow::Result<Client> {
    install_crypto();
    let access = Access::new(access_of(kubeconfig).await?).with_context(|| unusable(kubeconfig))?;
    Ok(access.client(Limits::DEFAULT))
}

/// How often credentials that others keep are read again.
const REREAD: Duration = Duration::from_secs(10);

/// Keeps `access` at what a kubeconfig says, with the files and tokens that it names, until `shutdown`. What cannot be
/// used is warned of, and what was used before stays.
pub(super) async fn follow(access: Access, kubeconfig: PathBuf, shutdown: CancellationToken) {
    let mut complained = String::new();
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(REREAD) => {}
            // Not more often than each second, however often we are refused.
            () = async { tokio::time::sleep(Duration::from_secs(1)).await; access.unauthorized().await } => {}
        }
        let replaced = match access_of(&kubeconfig).await {
            Ok(config) => access.replace(config).with_context(|| unusable(&kubeconfig)),
            Err(error) => Err(error),
        };
        match replaced {
            Ok(changed) => {
                complained.clear();
                if changed {
                    tracing::info!(file = %kubeconfig.display(), "the credentials for the API have changed; they are used from now on");
                }
            }
            // What is being replaced does not fit together for a moment: said once, tried again.
            Err(error) => {
                let reason = format!("{error:#}");
                if reason != complained {
                    tracing::warn!(reason, "changed credentials for the API cannot be used; those from before stay");
                    complained = reason;
                }
            }
        }
    }
}

pub(super) fn unusable(kubeconfig: &Path) -> String {
    format!("the kubeconfig {} cannot be used", kubeconfig.display())
}

/// Where the API is and how to show who we are.
pub(super) async fn access_of(kubeconfig: &Path) -> anyhow::Result<kube::Config> {
    let read = Kubeconfig::read_from(kubeconfig).with_context(|| unusable(kubeconfig))?;
    let access = kube::Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await;
    access.with_context(|| unusable(kubeconfig))
}

/// The certificate authority of the cluster that a kubeconfig's current context is of; none where it names none, and the
/// API server is one that the whole machine trusts.
pub(super) fn authority_of(kubeconfig: &Path) -> anyhow::Result<Option<String>> {
    let read = Kubeconfig::read_from(kubeconfig).with_context(|| unusable(kubeconfig))?;
    let authority = authority_in(&read).with_context(|| {
        format!("{} does not tell whom the node's API trusts; give --client-ca-file", kubeconfig.display())
    })?;
    Ok(match authority {
        Some(Authority::Pem(pem)) => Some(pem),
        Some(Authority::File(file)) => {
            Some(std::fs::read_to_string(&file).with_context(|| format!("{file} could not be read"))?)
        }
        None => None,
    })
}

#[derive(Debug, PartialEq, Eq)]
enum Authority {
    Pem(String),
    File(String),
}

/// Others' clusters in the same file are not asked: their clients are not this cluster's.
fn authority_in(kubeconfig: &Kubeconfig) -> anyhow::Result<Option<Authority>> {
    let current = kubeconfig.current_context.as_deref().filter(|name| !name.is_empty());
    let current = current.context("it names no current-context")?;
    let context = kubeconfig.contexts.iter().find(|c| c.name == current).and_then(|c| c.context.as_ref());
    let context = context.with_context(|| format!("it has no context {current:?}, its current-context"))?;
    let cluster = kubeconfig.clusters.iter().find(|c| c.name == context.cluster).and_then(|c| c.cluster.as_ref());
    let cluster =
        cluster.with_context(|| format!("it has no cluster {:?}, that of its current context", context.cluster))?;
    if let Some(data) = &cluster.certificate_authority_data {
        let bytes = base64::engine::general_purpose::STANDARD
            .decode(data)
            .context("certificate-authority-data is not base64")?;
        let pem = String::from_utf8(bytes).context("certificate-authority-data is not PEM")?;
        return Ok(Some(Authority::Pem(pem)));
    }
    Ok(cluster.certificate_authority.clone().map(Authority::File))
}

/// One provider of cryptography for the whole process; a second call changes nothing.
pub(crate) fn install_crypto() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn file(current: &str) -> Kubeconfig {
        let cluster = |data: &str| json!({"server": "https://192.0.2.1", "certificate-authority-data": data});
        let context = |cluster: &str| json!({"cluster": cluster, "user": "u"});
        let encoded = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
        serde_json::from_value(json!({
            "clusters": [
                {"name": "b", "cluster": cluster(&encoded("of b"))},
                {"name": "a", "cluster": cluster(&encoded("of a"))},
                {"name": "none", "cluster": {"server": "https://192.0.2.1"}},
                {"name": "file", "cluster": {"server": "https://192.0.2.1", "certificate-authority": "/etc/ca.crt"}},
            ],
            "contexts": [
                {"name": "to-b", "context": context("b")}, {"name": "to-a", "context": context("a")},
                {"name": "to-none", "context": context("none")}, {"name": "to-file", "context": context("file")},
                {"name": "astray", "context": context("nowhere")},
            ],
            "current-context": current,
        }))
        .unwrap()
    }

    #[test]
    fn the_node_trusts_the_authority_of_the_current_context() {
        assert_eq!(authority_in(&file("to-a")).unwrap(), Some(Authority::Pem("of a".into())));
        assert_eq!(authority_in(&file("to-b")).unwrap(), Some(Authority::Pem("of b".into())));
        assert_eq!(authority_in(&file("to-file")).unwrap(), Some(Authority::File("/etc/ca.crt".into())));
        assert_eq!(authority_in(&file("to-none")).unwrap(), None);
        for (current, words) in
            [("", "no current-context"), ("gone", "no context \"gone\""), ("astray", "no cluster \"nowhere\"")]
        {
            let why = authority_in(&file(current)).unwrap_err().to_string();
            assert!(why.contains(words), "{current}: {why}");
        }
    }
}
