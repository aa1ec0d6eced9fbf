//! Ways to an API: what kubeconfigs say, and the socket of our own.

use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    path::Path,
};

use anyhow::Context as _;
use base64::Engine as _;
use kube::{
    Client,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::json;
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

/// The authority that a kubeconfig trusts.
pub(super) fn authority_of(kubeconfig: &Path) -> anyhow::Result<String> {
    let missing = || {
        anyhow::anyhow!("the kubeconfig {} names no certificate authority; give --client-ca-file", kubeconfig.display())
    };
    let read = Kubeconfig::read_from(kubeconfig)?;
    let cluster = read.clusters.into_iter().find_map(|c| c.cluster).ok_or_else(missing)?;
    if let Some(data) = cluster.certificate_authority_data {
        let bytes = base64::engine::general_purpose::STANDARD
            .decode(data)
            .context("certificate-authority-data is not base64")?;
        return Ok(String::from_utf8(bytes)?);
    }
    let file = cluster.certificate_authority.ok_or_else(missing)?;
    std::fs::read_to_string(&file).with_context(|| format!("{file} could not be read"))
}

/// One provider of cryptography for the whole process; a second call changes nothing.
pub(super) fn install_crypto() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// A client that reaches our own API over its socket as anybody does, with no name and no rights: to see that it
/// answers.
pub(super) async fn of_own_api(listen: SocketAddr, ca_pem: &str) -> anyhow::Result<Client> {
    let ip = match listen.ip() {
        ip if !ip.is_unspecified() => ip,
        ip if ip.is_ipv4() => Ipv4Addr::LOCALHOST.into(),
        _ => Ipv6Addr::LOCALHOST.into(),
    };
    let read: Kubeconfig = serde_json::from_value(json!({
        "clusters": [{"name": "own", "cluster": {
            "server": format!("https://{}", SocketAddr::new(ip, listen.port())),
            // Every certificate of the server has this name, whatever addresses it has.
            "tls-server-name": "kubernetes",
            "certificate-authority-data": base64::engine::general_purpose::STANDARD.encode(ca_pem),
        }}],
        "contexts": [{"name": "own", "context": {"cluster": "own", "user": "nobody"}}],
        "users": [{"name": "nobody", "user": {}}],
        "current-context": "own",
    }))?;
    let access = kube::Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
    Ok(client(access, Limits::USUAL)?)
}
