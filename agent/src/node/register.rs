//! Registration of the node in the API.

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
    status::{self, StatusInputs},
};

/// Creates the Node, or reconciles the existing one; retried until it works or `shutdown`.
pub async fn register(client: &Client, config: &NodeConfig, shutdown: &CancellationToken) -> Option<Node> {
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(7));
    loop {
        let server = server_version(client).await;
        match try_register(&Api::all(client.clone()), config, server).await {
            Ok(node) => return Some(node),
            Err(error) => {
                tracing::warn!(node = config.name, error = %windlass_kit::client::message(&error), "failed to register node; retrying")
            }
        }
        tokio::select! {
            () = shutdown.cancelled() => return None,
            () = tokio::time::sleep(backoff.next_delay()) => {}
        }
    }
}

/// The API server's version; `None` if it cannot be read.
pub(super) async fn server_version(client: &Client) -> Option<Version> {
    let info = client.apiserver_version().await;
    let info = info.inspect_err(|error| tracing::debug!(%error, "failed to read API server version")).ok()?;
    Version::of_server(&info.major, &info.minor, &info.git_version)
}

/// One attempt to register.
pub(super) async fn try_register(api: &Api<Node>, config: &NodeConfig, server: Option<Version>) -> kube::Result<Node> {
    let inputs = StatusInputs { api_version: server, ..StatusInputs::default() };
    let machine = Machine::read_on_lane(&config.data_dir).await.map_err(|e| kube::Error::Service(Box::new(e)))?;
    let new = new_node(config, &machine, &inputs, Timestamp::now());
    let node = match api.create(&PostParams::default(), &new).await {
        // Creation may be forbidden although the Node exists.
        Err(kube::Error::Api(refusal)) if matches!(refusal.code, 403 | 409) => match api.get(&config.name).await {
            Ok(found) => reconcile(api, config, found, &new).await?,
            Err(kube::Error::Api(answer)) if answer.code == 404 => return Err(kube::Error::Api(refusal)),
            Err(error) => return Err(error),
        },
        other => other?,
    };
    write_marker(config);
    Ok(node)
}

async fn reconcile(api: &Api<Node>, config: &NodeConfig, found: Node, new: &Node) -> kube::Result<Node> {
    let fresh = !marker_file(config).exists();
    match status::diff(&found, &reconciled(&found, new, fresh)) {
        Some(patch) => api.patch_status(&config.name, &PatchParams::default(), &Patch::Strategic(patch)).await,
        None => Ok(found),
    }
}

/// The marker file that the node has registered: without it, devices of an earlier installation are not known.
fn marker_file(config: &NodeConfig) -> PathBuf {
    config.data_dir.join("registered")
}

fn write_marker(config: &NodeConfig) {
    let path = marker_file(config);
    if !path.exists()
        && let Err(error) = atomic_file::write(&path, b"", 0o600)
    {
        tracing::warn!(path = %path.display(), %error, "failed to write registration marker; the next start resets extended resources");
    }
}
