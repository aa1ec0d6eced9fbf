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
    Ok(Client::try_from(config(kubeconfig).await?)?)
}

/// The same, which sends each request once: otherwise kube repeats those that are answered with 429, 503 or 504, for minutes, and
/// nobody sees these answers.
///
/// # Errors
/// When the file cannot be used.
pub async fn client_without_retries(kubeconfig: &Path) -> anyhow::Result<Client> {
    let mut config = config(kubeconfig).await?;
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}

async fn config(kubeconfig: &Path) -> anyhow::Result<kube::Config> {
    let file = Kubeconfig::read_from(kubeconfig)?;
    Ok(kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?)
}
