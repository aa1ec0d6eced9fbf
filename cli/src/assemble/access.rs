//! Ways to an API: what kubeconfigs say.

use std::path::Path;

use anyhow::Context as _;
use base64::Engine as _;
use kube::{
    Client,
    config::{KubeConfigOptions, Kubeconfig},
};
use windlass_kit::client::{Limits, client};

/// A client from a kubeconfig.
pub(crate) async fn client_of(kubeconfig: &Path) -> anyhow::Result<Client> {
    install_crypto();
    client(access_of(kubeconfig).await?, Limits::USUAL).with_context(|| unusable(kubeconfig))
}

/// A client from a kubeconfig for lease and node status alone: with connections of its own, and without waiting for
/// what was refused, since the next heartbeat is due before.
pub(super) async fn heartbeat_client_of(kubeconfig: &Path) -> anyhow::Result<Client> {
    let mut access = access_of(kubeconfig).await?;
    access.default_retry = false;
    client(access, Limits::HEARTBEAT).with_context(|| unusable(kubeconfig))
}

fn unusable(kubeconfig: &Path) -> String {
    format!("the kubeconfig {} cannot be used", kubeconfig.display())
}

/// Where the API is and how to show who we are.
pub(super) async fn access_of(kubeconfig: &Path) -> anyhow::Result<kube::Config> {
    let read = Kubeconfig::read_from(kubeconfig).with_context(|| unusable(kubeconfig))?;
    let access = kube::Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await;
    access.with_context(|| unusable(kubeconfig))
}

/// The certificate authority of the cluster that a kubeconfig's current context is of.
pub(super) fn authority_of(kubeconfig: &Path) -> anyhow::Result<String> {
    let read = Kubeconfig::read_from(kubeconfig).with_context(|| unusable(kubeconfig))?;
    let authority = authority_in(&read).with_context(|| {
        format!("{} does not tell whom the node's API trusts; give --client-ca-file", kubeconfig.display())
    })?;
    match authority {
        Authority::Pem(pem) => Ok(pem),
        Authority::File(file) => std::fs::read_to_string(&file).with_context(|| format!("{file} could not be read")),
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Authority {
    Pem(String),
    File(String),
}

/// Others' clusters in the same file are not asked: their clients are not this cluster's.
fn authority_in(kubeconfig: &Kubeconfig) -> anyhow::Result<Authority> {
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
        return Ok(Authority::Pem(String::from_utf8(bytes).context("certificate-authority-data is not PEM")?));
    }
    let file = cluster.certificate_authority.clone();
    file.map(Authority::File)
        .with_context(|| format!("its cluster {:?} names no certificate authority", context.cluster))
}

/// One provider of cryptography for the whole process; a second call changes nothing.
pub(super) fn install_crypto() {
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
        assert_eq!(authority_in(&file("to-a")).unwrap(), Authority::Pem("of a".into()));
        assert_eq!(authority_in(&file("to-b")).unwrap(), Authority::Pem("of b".into()));
        assert_eq!(authority_in(&file("to-file")).unwrap(), Authority::File("/etc/ca.crt".into()));
        for (current, words) in [
            ("", "no current-context"),
            ("gone", "no context \"gone\""),
            ("astray", "no cluster \"nowhere\""),
            ("to-none", "names no certificate authority"),
        ] {
            let why = authority_in(&file(current)).unwrap_err().to_string();
            assert!(why.contains(words), "{current}: {why}");
        }
    }
}
