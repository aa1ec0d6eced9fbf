//! Kubeconfigs: clients and certificate authorities from them.

use std::path::Path;

use anyhow::Context as _;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use kube::{
    Client,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::json;
use windlass_kit::client::{Access, Limits};

/// A client from a kubeconfig, for a short command.
pub(crate) async fn client_of(kubeconfig: &Path) -> anyhow::Result<Client> {
    install_crypto();
    let access = Access::new(access_of(kubeconfig).await?).with_context(|| unusable(kubeconfig))?;
    Ok(access.client(Limits::DEFAULT))
}

pub(crate) fn unusable(kubeconfig: &Path) -> String {
    format!("the kubeconfig {} cannot be used", kubeconfig.display())
}

/// The server and credentials of a kubeconfig.
pub(crate) async fn access_of(kubeconfig: &Path) -> anyhow::Result<kube::Config> {
    let read = Kubeconfig::read_from(kubeconfig).with_context(|| unusable(kubeconfig))?;
    let access = kube::Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await;
    access.with_context(|| unusable(kubeconfig))
}

/// The certificate authority of the cluster of a kubeconfig's current context; `None` if it names none, since the system
/// trusts the API server.
pub(crate) fn authority_of(kubeconfig: &Path) -> anyhow::Result<Option<String>> {
    let read = Kubeconfig::read_from(kubeconfig).with_context(|| unusable(kubeconfig))?;
    let authority = authority_in(&read).with_context(|| {
        format!(
            "{} names no clients' certificate authority for the node's API; set --client-ca-file",
            kubeconfig.display()
        )
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

/// Other clusters of the file do not count: their clients are not this cluster's.
fn authority_in(kubeconfig: &Kubeconfig) -> anyhow::Result<Option<Authority>> {
    let current = kubeconfig.current_context.as_deref().filter(|name| !name.is_empty());
    let current = current.context("it names no current-context")?;
    let context = kubeconfig.contexts.iter().find(|c| c.name == current).and_then(|c| c.context.as_ref());
    let context = context.with_context(|| format!("it has no context {current:?}, its current-context"))?;
    let cluster = kubeconfig.clusters.iter().find(|c| c.name == context.cluster).and_then(|c| c.cluster.as_ref());
    let cluster =
        cluster.with_context(|| format!("it has no cluster {:?}, that of its current context", context.cluster))?;
    if let Some(data) = &cluster.certificate_authority_data {
        let bytes = STANDARD.decode(data).context("certificate-authority-data is not base64")?;
        let pem = String::from_utf8(bytes).context("certificate-authority-data is not PEM")?;
        return Ok(Some(Authority::Pem(pem)));
    }
    Ok(cluster.certificate_authority.clone().map(Authority::File))
}

/// A node's kubeconfig as kubelet writes it, with upstream's names. JSON is YAML.
pub(crate) fn node_kubeconfig(config: &kube::Config, current: &Path) -> anyhow::Result<String> {
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
/// Installs the cryptography provider of the process; idempotent.
pub(crate) fn install_crypto() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(current: &str) -> Kubeconfig {
        let cluster = |data: &str| json!({"server": "https://192.0.2.1", "certificate-authority-data": data});
        let context = |cluster: &str| json!({"cluster": cluster, "user": "u"});
        let encoded = |text: &str| STANDARD.encode(text);
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
                {"name": "dangling", "context": context("nowhere")},
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
            [("", "no current-context"), ("gone", "no context \"gone\""), ("dangling", "no cluster \"nowhere\"")]
        {
            let why = authority_in(&file(current)).unwrap_err().to_string();
            assert!(why.contains(words), "{current}: {why}");
        }
    }
}
