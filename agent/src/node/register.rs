//! Registers the node in the API.

use std::{path::PathBuf, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use tokio_util::sync::CancellationToken;
use windlass_kit::{atomic_file, backoff::Backoff};

use super::{
    NodeConfig,
    machine::Machine,
    registration::{new_node, reconciled},
    skew::Version,
    status::{self, Known},
};

/// Makes the node's object, or finds it made and sets it right; tried until it works or `shutdown`.
pub async fn register(client: &Client, config: &NodeConfig, shutdown: &CancellationToken) -> Option<Node> {
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(7));
    loop {
        let server = server_version(client).await;
        match once(&Api::all(client.clone()), config, server).await {
            Ok(node) => return Some(node),
            Err(error) => {
                tracing::warn!(node = config.name, %error, "the node could not be registered; it is tried again")
            }
        }
        tokio::select! {
            () = shutdown.cancelled() => return None,
            () = tokio::time::sleep(backoff.next_delay()) => {}
        }
    }
}

/// The API server's version; `None` where it does not tell.
pub(super) async fn server_version(client: &Client) -> Option<Version> {
    let info = client.apiserver_version().await;
    let info = info.inspect_err(|error| tracing::debug!(%error, "the API server does not tell its version")).ok()?;
    Version::of_server(&info.major, &info.minor, &info.git_version)
}

/// The same, once.
pub(super) async fn once(api: &Api<Node>, config: &NodeConfig, server: Option<Version>) -> kube::Result<Node> {
    let known = Known { server, ..Known::default() };
    let new = new_node(config, &Machine::read(&config.data_dir), &known, Timestamp::now());
    let node = match api.create(&PostParams::default(), &new).await {
        // What may not be made may be there all the same.
        Err(kube::Error::Api(refusal)) if matches!(refusal.code, 403 | 409) => match api.get(&config.name).await {
            Ok(found) => set_right(api, config, found, &new).await?,
            Err(kube::Error::Api(answer)) if answer.code == 404 => return Err(kube::Error::Api(refusal)),
            Err(error) => return Err(error),
        },
        other => other?,
    };
    remember(config);
    Ok(node)
}

async fn set_right(api: &Api<Node>, config: &NodeConfig, found: Node, new: &Node) -> kube::Result<Node> {
    let fresh = !record(config).exists();
    match status::diff(&found, &reconciled(&found, new, fresh)) {
        Some(patch) => api.patch_status(&config.name, &PatchParams::default(), &Patch::Strategic(patch)).await,
        None => Ok(found),
    }
}

/// Is there once the node has registered: a folder without it knows nothing of the devices that an earlier life of the
/// node had.
fn record(config: &NodeConfig) -> PathBuf {
    config.data_dir.join("registered")
}

fn remember(config: &NodeConfig) {
    let path = record(config);
    if !path.exists()
        && let Err(error) = atomic_file::write(&path, b"", 0o600)
    {
        tracing::warn!(path = %path.display(), %error, "that the node has registered could not be recorded; the next start has extended resources counted anew");
    }
}
