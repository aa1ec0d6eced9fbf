//! The agent's `/metrics` page, and metrics of requests.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Instant,
};

use axum::{
    extract::{Request, State},
    http::{Method, header},
    middleware::Next,
    response::Response,
};
use k8s_openapi::api::core::v1::Pod;
use windlass_cadvisor::Target;
use windlass_kit::{
    build_info, process_metrics,
    prometheus::{Kind, Text},
    rest_client,
    serve::connection_counts,
};

use super::ServerState;
use crate::{
    engine::Health,
    metrics::Metrics,
    pods::{is_mirror_pod, is_terminal},
};

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
    let in_flight = InFlight::new(Arc::clone(&request_metrics.metrics), labels);
    let response = next.run(request).await;
    drop(in_flight);
    request_metrics.metrics.requests.add(labels);
    request_metrics.metrics.request_seconds.observe_duration(labels, begun.elapsed());
    response
}

/// A request that counts as in flight until this is dropped, whether it is answered or its client leaves.
struct InFlight {
    metrics: Arc<Metrics>,
    labels: [&'static str; 4],
}

impl InFlight {
    fn new(metrics: Arc<Metrics>, labels: [&'static str; 4]) -> Self {
        metrics.requests_in_flight.add(labels, 1);
        Self { metrics, labels }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.metrics.requests_in_flight.add(self.labels, -1);
    }
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
    pods(page, &state.pods.borrow(), &state.containers.values());
    page.family("windlass_docker_up", "Whether Docker answers.", Kind::Gauge);
    let up = matches!(*state.docker.borrow(), Health::Up { .. });
    page.sample("windlass_docker_up", &[], f64::from(u8::from(up)));
    page.family("kubelet_node_name", "The node's name, as a label.", Kind::Gauge);
    page.sample("kubelet_node_name", &[("node", &state.node_info.node_name)], 1.0);
    page.family("kubelet_cgroup_version", "The version of the machine's cgroups.", Kind::Gauge);
    page.sample("kubelet_cgroup_version", &[], f64::from(crate::cgroup::version()));
    build_info::write(page);
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

fn pods(page: &mut Text, pods: &[Arc<Pod>], containers: &[Arc<Target>]) {
    let statics = pods.iter().filter(|pod| is_mirror_pod(pod)).count();
    page.family("kubelet_desired_pods", "Pods that the node is to run.", Kind::Gauge);
    page.sample("kubelet_desired_pods", &[("static", "")], count_of(pods.len() - statics));
    page.sample("kubelet_desired_pods", &[("static", "true")], count_of(statics));
    let (mut active, mut active_statics, mut ephemeral) = (0, 0, 0);
    for pod in pods.iter().filter(|pod| !is_terminal(pod)) {
        *if is_mirror_pod(pod) { &mut active_statics } else { &mut active } += 1;
        ephemeral += pod.spec.iter().flat_map(|spec| spec.ephemeral_containers.iter().flatten()).count();
    }
    page.family("kubelet_active_pods", "Pods that have not ended.", Kind::Gauge);
    page.sample("kubelet_active_pods", &[("static", "")], count_of(active));
    page.sample("kubelet_active_pods", &[("static", "true")], count_of(active_statics));
    page.family("kubelet_managed_ephemeral_containers", "Ephemeral containers of these.", Kind::Gauge);
    page.sample("kubelet_managed_ephemeral_containers", &[], count_of(ephemeral));
    resizes(page, pods);
    page.family("kubelet_mirror_pods", "Static pods that the API shows.", Kind::Gauge);
    page.sample("kubelet_mirror_pods", &[], count_of(statics));
    let sandboxes = containers.iter().filter(|c| c.is_sandbox()).count();
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

/// Pods that wait for other resources, or are being given them, as their conditions say.
fn resizes(page: &mut Text, pods: &[Arc<Pod>]) {
    let mut pending: BTreeMap<String, usize> = BTreeMap::new();
    let mut in_progress = 0;
    let conditions = pods.iter().flat_map(|pod| pod.status.iter().flat_map(|s| s.conditions.iter().flatten()));
    for condition in conditions.filter(|condition| condition.status == "True") {
        match condition.type_.as_str() {
            "PodResizePending" => {
                let reason = condition.reason.as_deref().unwrap_or_default().to_lowercase();
                *pending.entry(reason).or_default() += 1;
            }
            "PodResizeInProgress" => in_progress += 1,
            _ => {}
        }
    }
    page.family("kubelet_pod_pending_resizes", "Pods that wait for other resources, by reason.", Kind::Gauge);
    for (reason, count) in &pending {
        page.sample("kubelet_pod_pending_resizes", &[("reason", reason)], count_of(*count));
    }
    page.family("kubelet_pod_in_progress_resizes", "Pods that are being given other resources.", Kind::Gauge);
    page.sample("kubelet_pod_in_progress_resizes", &[], count_of(in_progress));
}

/// The volumes of all pods, and of those that run, whose volumes are set up.
fn volumes(page: &mut Text, pods: &[Arc<Pod>], containers: &[Arc<Target>]) {
    const NAME: &str = "volume_manager_total_volumes";
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let sandboxes = containers.iter().filter(|container| container.is_sandbox());
    let running: HashSet<&str> = sandboxes.map(|sandbox| sandbox.pod_uid.as_str()).collect();
    for pod in pods {
        let runs = running.contains(pod.metadata.uid.as_deref().unwrap_or_default());
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
    fn families_of_pods_are_upstreams() {
        let pod: Pod = serde_json::from_str(
            r#"{"metadata":{"uid":"u"},"spec":{"containers":[],"ephemeralContainers":[{"name":"e"}],
                    "volumes":[{"name":"v","emptyDir":{}}]},
                "status":{"phase":"Running","conditions":[
                    {"type":"PodResizePending","status":"True","reason":"Deferred"},
                    {"type":"PodResizeInProgress","status":"True"}]}}"#,
        )
        .unwrap();
        let ended: Pod = serde_json::from_str(r#"{"status":{"phase":"Failed"}}"#).unwrap();
        let mut page = Text::new();
        pods(&mut page, &[Arc::new(pod), Arc::new(ended)], &[]);
        let page = page.finish();
        assert_eq!(windlass_tests::metrics_table::unlike("node", &page), [""; 0]);
        for line in [
            r#"kubelet_desired_pods{static=""} 2"#,
            r#"kubelet_active_pods{static=""} 1"#,
            "kubelet_managed_ephemeral_containers 1",
            r#"kubelet_pod_pending_resizes{reason="deferred"} 1"#,
            "kubelet_pod_in_progress_resizes 1",
        ] {
            assert!(page.lines().any(|found| found == line), "{line}\n{page}");
        }
    }

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
