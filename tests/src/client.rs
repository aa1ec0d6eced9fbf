//! A Kubernetes client for tests that ask the API without kubectl.

use std::path::Path;

use kube::{
    Client,
    config::{KubeConfigOptions, Kubeconfig},
};

/// A client with the credentials of a kubeconfig.
///
/// # Errors
/// When the file cannot be used.
pub async fn client(kubeconfig: &Path) -> anyhow::Result<Client> {
    let config =
        kube::Config::from_custom_kubeconfig(Kubeconfig::read_from(kubeconfig)?, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}
