//! The agent's `/metrics` page, and metrics of requests.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use axum::{
    extract::{Request, State},
    http::{Method, header},
    middleware::Next,
    response::Response,
};
use k8s_openapi::api::core::v1::Pod;
use windlass_kit::{
    process_metrics,
    prometheus::{Kind, Text},
    rest_client,
    serve::connection_counts,
};

use super::ServerState;
use crate::{ContainerRecord, engine::Health, metrics::Metrics, pods::is_mirror_pod};

/// State of the request metrics middleware.
#[derive(Clone)]
pub(super) struct RequestMetrics {
    pub(super) metrics: Arc<Metrics>,
    /// Upstream's `server_type` of the listener.
    pub(super) server_type: &'static str,
}

/// Middleware: counts a request and its duration.
pub(super) async fn count(State(request_metrics): State<RequestMetrics>, request: Request, next: Next) -> Response {
    let (method, path) = (request.method().clone(), path_label(request.uri().path()));
    let follows = request.uri().query().is_some_and(|q| q.contains("follow=true"));
    let over_websocket = request.headers().get(header::UPGRADE).is_some_and(|v| v.as_bytes() == b"websocket");
    let long = matches!(path, "exec" | "attach" | "portForward") || follows;
    let labels = [method_label(&method), path, request_metrics.server_type, if long { "true" } else { "false" }];
    if over_websocket && long {
        request_metrics.metrics.streams.add([path]);
    }
    let begun = Instant::now();
    let response = next.run(request).await;
    request_metrics.metrics.requests.add(labels);
    request_metrics.metrics.request_seconds.observe_duration(labels, begun.elapsed());
    response
}

fn method_label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::HEAD => "HEAD",
        Method::DELETE => "DELETE",
        _ => "other",
    }
}

/// The label of a path, from a fixed set, so that callers cannot grow the number of series.
fn path_label(path: &str) -> &'static str {
    const KNOWN: [&str; 19] = [
        "metrics/cadvisor",
        "metrics/resource",
        "metrics/probes",
        "metrics",
        "stats/summary",
        "containerLogs",
        "exec",
        "attach",
        "portForward",
        "run",
        "pods",
        "runningpods",
        "logs",
        "configz",
        "flagz",
        "statusz",
        "healthz",
        "api",
        "windlass",
    ];
    let path = path.trim_start_matches('/');
    let is = |known: &str| path.strip_prefix(known).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    KNOWN.into_iter().find(|known| is(known)).unwrap_or("other")
}

/// Writes the agent's own metrics.
pub(super) fn write(state: &ServerState, page: &mut Text) {
    pods(page, &state.pods.borrow(), &state.containers.borrow());
    page.family("windlass_docker_up", "Whether Docker answers.", Kind::Gauge);
    let up = matches!(*state.docker.borrow(), Health::Up { .. });
    page.sample("windlass_docker_up", &[], f64::from(u8::from(up)));
    page.family("kubelet_node_name", "The node's name, as a label.", Kind::Gauge);
    page.sample("kubelet_node_name", &[("node", &state.node_info.node_name)], 1.0);
    page.family("kubernetes_build_info", "The version, as labels.", Kind::Gauge);
    page.sample("kubernetes_build_info", &[("git_version", &state.node_info.version), ("platform", PLATFORM)], 1.0);
    if let Some(ends_at) = state.node_info.certificate.ends_at() {
        page.family(
            "kubelet_certificate_manager_server_ttl_seconds",
            "How long the certificate of the node's API is good for; below zero when it has ended.",
            Kind::Gauge,
        );
        let left = ends_at - jiff::Timestamp::now().as_second();
        page.sample("kubelet_certificate_manager_server_ttl_seconds", &[], number(left));
    }
    state.metrics.write(page);
    connections(page);
    process_metrics::write(page);
    rest_client::write(page);
}

const PLATFORM: &str = if cfg!(target_arch = "aarch64") { "linux/arm64" } else { "linux/amd64" };

fn pods(page: &mut Text, pods: &[Arc<Pod>], containers: &[ContainerRecord]) {
    let statics = pods.iter().filter(|pod| is_mirror_pod(pod)).count();
    page.family("kubelet_desired_pods", "Pods that the node is to run.", Kind::Gauge);
    page.sample("kubelet_desired_pods", &[("static", "")], count_of(pods.len() - statics));
    page.sample("kubelet_desired_pods", &[("static", "true")], count_of(statics));
    page.family("kubelet_mirror_pods", "Static pods that the API shows.", Kind::Gauge);
    page.sample("kubelet_mirror_pods", &[], count_of(statics));
    let sandboxes = containers.iter().filter(|c| c.is_sandbox).count();
    page.family("kubelet_running_pods", "Pods with a sandbox that runs.", Kind::Gauge);
    page.sample("kubelet_running_pods", &[], count_of(sandboxes));
    page.family("kubelet_running_containers", "Containers that run, without sandboxes.", Kind::Gauge);
    page.sample(
        "kubelet_running_containers",
        &[("container_state", "running")],
        count_of(containers.len() - sandboxes),
    );
    volumes(page, pods, containers);
    page.family("windlass_pods", "Pods of this node, by phase.", Kind::Gauge);
    let mut phases: BTreeMap<&str, usize> = BTreeMap::new();
    for pod in pods {
        let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("Pending");
        *phases.entry(phase).or_default() += 1;
    }
    for (phase, count) in phases {
        page.sample("windlass_pods", &[("phase", phase)], count_of(count));
    }
}

/// The volumes of all pods, and of those that run, whose volumes are set up.
fn volumes(page: &mut Text, pods: &[Arc<Pod>], containers: &[ContainerRecord]) {
    const NAME: &str = "volume_manager_total_volumes";
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for pod in pods {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let runs = containers.iter().any(|container| container.is_sandbox && container.pod_uid == uid);
        for volume in pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
            let plugin = crate::volumes::plugin_of(volume);
            *counts.entry((plugin, "desired_state_of_world")).or_default() += 1;
            if runs {
                *counts.entry((plugin, "actual_state_of_world")).or_default() += 1;
            }
        }
    }
    page.family(NAME, "Volumes of pods, wanted and set up.", Kind::Gauge);
    for ((plugin, state), count) in counts {
        page.sample(NAME, &[("plugin_name", plugin), ("state", state)], count_of(count));
    }
}

/// Connections of all HTTP servers of this process.
fn connections(page: &mut Text) {
    let servers = connection_counts();
    page.family("windlass_http_connections", "Connections that are open, by server.", Kind::Gauge);
    for counts in &servers {
        let open = i64::try_from(counts.open).unwrap_or(i64::MAX);
        page.sample("windlass_http_connections", &[("server", counts.server)], number(open));
    }
    const DROPPED: &str = "windlass_http_connections_dropped_total";
    page.family(
        DROPPED,
        "Connections that a server has refused or closed, and streams that it has reset.",
        Kind::Counter,
    );
    for counts in &servers {
        for (reason, count) in &counts.dropped {
            let count = i64::try_from(*count).unwrap_or(i64::MAX);
            page.sample(DROPPED, &[("server", counts.server), ("reason", reason)], number(count));
        }
    }
}

fn count_of(count: usize) -> f64 {
    number(i64::try_from(count).unwrap_or(i64::MAX))
}

#[allow(clippy::cast_precision_loss, reason = "counts and seconds are far from 2^53")]
fn number(value: i64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lose_what_callers_choose() {
        for (path, word) in [
            ("/exec/ns/pod/c", "exec"),
            ("/metrics", "metrics"),
            ("/metrics/cadvisor", "metrics/cadvisor"),
            ("/metrics/other", "metrics"),
            ("/healthz/ping", "healthz"),
            ("/execute", "other"),
            ("/", "other"),
        ] {
            assert_eq!(path_label(path), word, "{path}");
        }
    }
}
