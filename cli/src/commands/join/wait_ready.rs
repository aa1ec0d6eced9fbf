//! Waits for the node that has joined.

use std::time::{Duration, Instant};

use futures::StreamExt as _;
use kube::{Api, Client, runtime::watcher::watch_object};

use super::step;
use crate::{
    config::{Settings, connect},
    join::{cluster, join_dir::JoinDir},
    service,
};

/// Waits until the node is Ready, reporting why it is not; `run_by_unit` if the systemd unit runs it.
pub(super) async fn wait_ready(
    place: &JoinDir,
    settings: &Settings,
    limit: Duration,
    run_by_unit: bool,
) -> anyhow::Result<bool> {
    let client: Client = connect::client_of(&place.kubeconfig()).await?;
    let api: Api<k8s_openapi::api::core::v1::Node> = Api::all(client);
    let started_at = Instant::now();
    let mut last = String::new();
    let mut seen = std::pin::pin!(watch_object(api, &settings.node_name));
    let mut why = Some("the API has not answered yet".to_owned());
    loop {
        // Each second only for what the API does not report: the unit, and the deadline.
        if let Ok(next) = tokio::time::timeout(Duration::from_secs(1), seen.next()).await {
            why = match next {
                Some(Ok(node)) => cluster::not_ready_reason(node.as_ref()),
                Some(Err(error)) => {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    Some(format!("the request to the API failed: {error}"))
                }
                None => Some("the watch of the node has ended".to_owned()),
            };
        }
        let Some(why) = &why else {
            step("ready", format!("node {} is Ready", settings.node_name));
            return Ok(true);
        };
        if *why != last {
            step("ready", why.as_str());
            last.clone_from(why);
        }
        let failed = run_by_unit.then(service::failure).flatten();
        if failed.is_some() || started_at.elapsed() > limit {
            let journal = if run_by_unit { " (journalctl -u windlass)" } else { "" };
            let failed = failed.map(|failed| format!("; {failed}")).unwrap_or_default();
            step(
                "ready",
                format!(
                    "this machine has joined, but its node is not Ready after {} s: {last}{failed}; see the node's log{journal}, or undo it with `windlass leave`",
                    started_at.elapsed().as_secs()
                ),
            );
            return Ok(false);
        }
    }
}
