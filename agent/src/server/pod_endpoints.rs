//! Endpoints of pods (`/pods`, `/runningpods`, checkpoint) and of the node's z-pages (`/configz`, `/flagz`,
//! `/statusz`).

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use axum::{
    Json,
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::ListMeta};
use serde::Serialize;
use serde_json::{Value, json};
use windlass_cadvisor::Target;
use windlass_kit::redact;

use super::{ServerState, known_pod, refuse};

/// The warning on upstream's z-pages.
const HEADER_WARNING: &str = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.";

/// The pods as last seen in the API.
pub(super) async fn pods(State(state): State<ServerState>) -> Response {
    let pods = state.pods.borrow().clone();
    list(pods.iter().map(AsRef::as_ref).collect::<Vec<&Pod>>())
}

/// The same without credentials: redacted of everything that may hold a secret.
pub(super) async fn pods_without_secrets(State(state): State<ServerState>) -> Response {
    let pods = state.pods.borrow().clone();
    list(pods.iter().map(|pod| redact::pod(serde_json::to_value(pod.as_ref()).unwrap_or_default())).collect::<Vec<_>>())
}

/// Image pulls and their progress.
pub(super) async fn pulls(State(state): State<ServerState>) -> Response {
    Json(state.pulls.borrow().values().cloned().collect::<Vec<_>>()).into_response()
}

/// A PodList that serializes pods without copying them.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PodList<T> {
    kind: &'static str,
    api_version: &'static str,
    metadata: ListMeta,
    items: Vec<T>,
}

fn list<T: Serialize>(items: Vec<T>) -> Response {
    Json(PodList { kind: "PodList", api_version: "v1", metadata: ListMeta::default(), items }).into_response()
}

/// Running pods, by Docker's containers alone.
pub(super) async fn running_pods(State(state): State<ServerState>) -> Response {
    list(running(&state.containers.values()))
}

fn running(all: &[Arc<Target>]) -> Vec<Value> {
    let mut pods: BTreeMap<&str, (&Target, Vec<Value>)> = BTreeMap::new();
    for record in all {
        let (_, containers) = pods.entry(&record.pod_uid).or_insert((record, Vec::new()));
        if !record.is_sandbox() {
            containers.push(json!({"name": record.container_name, "image": record.image, "resources": {}}));
        }
    }
    let pods = pods.into_values().map(|(first, containers)| {
        let metadata = json!({"name": first.pod_name, "namespace": first.pod_namespace, "uid": first.pod_uid});
        json!({"metadata": metadata, "spec": {"containers": containers}, "status": {}})
    });
    pods.collect()
}

/// Docker cannot write checkpoint archives, so that, as at a kubelet whose runtime cannot, every existing container is
/// answered with an error.
pub(super) async fn checkpoint(
    State(state): State<ServerState>,
    Path((namespace, pod, container)): Path<(String, String, String)>,
) -> Response {
    let Some(found) = known_pod(&state, &namespace, &pod).await else {
        return refuse(StatusCode::NOT_FOUND, "pod does not exist");
    };
    let spec = found.spec.iter();
    let mut containers = spec.flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()));
    if !containers.any(|c| c.name == container) {
        return refuse(StatusCode::NOT_FOUND, format!("container {container} does not exist"));
    }
    let what = format!("checkpointing of {namespace}/{pod}/{container} failed");
    refuse(StatusCode::INTERNAL_SERVER_ERROR, format!("{what} (Docker cannot make checkpoint archives)"))
}

/// The effective configuration as a KubeletConfiguration.
pub(super) async fn configz(State(state): State<ServerState>) -> Response {
    Json(json!({"kubeletconfig": state.node_info.settings})).into_response()
}

/// The effective flags, one per line.
pub(super) async fn flagz(State(state): State<ServerState>) -> Response {
    let mut page = format!("\nkubelet flags\n{HEADER_WARNING}\n\n");
    for (name, value) in &state.node_info.flags {
        page.push_str(&format!("{name}={value}\n"));
    }
    page.into_response()
}

pub(super) async fn statusz(State(state): State<ServerState>) -> Response {
    let node_info = &state.node_info;
    let up = Instant::now().saturating_duration_since(node_info.started).as_secs();
    let begun = jiff::Timestamp::now() - jiff::SignedDuration::from_secs(i64::try_from(up).unwrap_or(0));
    let page = format!(
        "\nkubelet statusz\n{HEADER_WARNING}\n\nStarted: {}\nUp: {} hr {:02} min {:02} sec\nBinary version: {}\nLoops: {}\n",
        begun.strftime("%a %b %e %H:%M:%S UTC %Y"),
        up / 3600,
        up / 60 % 60,
        up % 60,
        node_info.version,
        state.heartbeats.names().join(", ")
    );
    page.into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_that_run() {
        let record = |pod: &str, container: &str| {
            Arc::new(Target {
                image: "i".into(),
                pod_name: pod.into(),
                pod_namespace: "n".into(),
                pod_uid: format!("uid-{pod}"),
                container_name: container.into(),
                ..Target::default()
            })
        };
        let pods = running(&[record("a", "POD"), record("a", "x"), record("b", "POD"), record("a", "y")]);
        assert_eq!(pods.len(), 2);
        assert_eq!(pods[0]["metadata"], json!({"name": "a", "namespace": "n", "uid": "uid-a"}));
        assert_eq!(pods[0]["spec"]["containers"][1]["name"], "y");
        assert_eq!(pods[1]["spec"]["containers"], json!([]));
    }
}
