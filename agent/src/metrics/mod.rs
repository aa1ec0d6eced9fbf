//! The agent's own metrics, under the names of the kubelet's; `server::metrics` adds those that are computed from its
//! state at scrape time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use windlass_kit::{
    events::Recorder,
    metrics::{Counter, Gauge, Histogram, exponential_buckets},
    prometheus::{Kind, Text},
};

use crate::certificates::Purpose;

/// Buckets of pod start latencies in seconds; upstream's.
const POD_START_BUCKETS: &[f64] = &[
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0,
    600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
];
/// Prometheus's default buckets.
const DEFAULT_BUCKETS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// Buckets of calls to Docker in seconds; upstream's.
const OPERATION_BUCKETS: &[f64] = &exponential_buckets::<14>(0.005, 2.5);
/// Buckets of writes of statuses in seconds; upstream's.
const STATUS_BUCKETS: &[f64] = &[0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0];
/// Buckets of operations on volumes in seconds; upstream's.
const STORAGE_BUCKETS: &[f64] = &[0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];
/// Buckets of image pulls in seconds; upstream's.
const PULL_BUCKETS: &[f64] = &[
    1.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0,
    3600.0,
];
/// Buckets of certificate ages in seconds; upstream's, from a minute to four years.
const ROTATION_BUCKETS: &[f64] =
    &[60.0, 3600.0, 14_400.0, 86_400.0, 604_800.0, 2_592_000.0, 7_776_000.0, 15_552_000.0, 31_104_000.0, 124_416_000.0];
/// Size classes of images in pull metrics: the upper bound in bytes, and the label.
const IMAGE_SIZE_BUCKETS: [(i64, &str); 7] = [
    (10 << 20, "0-10MB"),
    (100 << 20, "10MB-100MB"),
    (500 << 20, "100MB-500MB"),
    (1 << 30, "500MB-1GB"),
    (5 << 30, "1GB-5GB"),
    (10 << 30, "5GB-10GB"),
    (20 << 30, "10GB-20GB"),
];

/// The kinds of the agent's periodic writes to the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteKind {
    PodStatus,
    /// The status of a mirror pod.
    MirrorStatus,
    NodeStatus,
    Lease,
    Event,
}

impl WriteKind {
    const fn label(self) -> &'static str {
        match self {
            Self::PodStatus => "pod_status",
            Self::MirrorStatus => "mirror_pod_status",
            Self::NodeStatus => "node_status",
            Self::Lease => "lease",
            Self::Event => "event",
        }
    }
}

/// The metric families, as fields named after what follows `kubelet_`.
#[derive(Debug)]
pub struct Metrics {
    pub(crate) operations: Counter<1>,
    pub(crate) operation_errors: Counter<1>,
    pub(crate) operation_seconds: Histogram<1>,
    pub(crate) sandbox_seconds: Histogram<1>,
    pub(crate) sandbox_errors: Counter<1>,
    pub(crate) started_pods: Counter<0>,
    pub(crate) started_pod_errors: Counter<0>,
    pub(crate) started_containers: Counter<1>,
    pub(crate) started_container_errors: Counter<2>,
    pub(crate) terminated_containers: Counter<3>,
    pub(crate) pod_start: Histogram<0>,
    pub(crate) pod_start_sli: Histogram<0>,
    pub(crate) status_sync: Histogram<0>,
    pub(crate) relist: Histogram<0>,
    pub(crate) relist_interval: Histogram<0>,
    pub(crate) last_seen: Gauge<0>,
    pub(crate) worker_seconds: Histogram<1>,
    pub(crate) cgroup_seconds: Histogram<1>,
    pub(crate) storage_seconds: Histogram<4>,
    pub(crate) evictions: Counter<1>,
    pub(crate) preemptions: Counter<1>,
    pub(crate) rejections: Counter<1>,
    pub(crate) pulls: Histogram<1>,
    pub(crate) images_collected: Counter<1>,
    pub(crate) infeasible_resizes: Counter<1>,
    pub(crate) completed_resizes: Counter<0>,
    pub(crate) hook_fallbacks: Counter<0>,
    pub(crate) sleeps_cut: Counter<0>,
    pub(crate) requests: Counter<4>,
    pub(crate) request_seconds: Histogram<4>,
    pub(crate) requests_in_flight: Gauge<4>,
    pub(crate) streams: Counter<1>,
    empty_writes: Counter<1>,
    pub(crate) client_renewal_errors: Counter<0>,
    pub(crate) serving_renewal_errors: Counter<0>,
    pub(crate) serving_rotation: Histogram<0>,
    /// Expiration of the node's client certificate in seconds since 1970; `i64::MAX` while it has none.
    client_expiration: AtomicI64,
    /// File-system calls of volumes that hang.
    pub(crate) hung_volume_calls: AtomicI64,
    /// Start and end of the last graceful shutdown in seconds since 1970; zero before there was one.
    shutdown: [AtomicI64; 2],
}

impl Default for Metrics {
    /// Long, since it is the list of metrics.
    fn default() -> Self {
        Self {
            operations: Counter::new(
                "kubelet_runtime_operations_total",
                "Calls to Docker, by what they do.",
                ["operation_type"],
            ),
            operation_errors: Counter::new(
                "kubelet_runtime_operations_errors_total",
                "Calls to Docker that failed; what was not there is no failure.",
                ["operation_type"],
            ),
            operation_seconds: Histogram::new(
                "kubelet_runtime_operations_duration_seconds",
                "How long calls to Docker took.",
                ["operation_type"],
                OPERATION_BUCKETS,
            ),
            sandbox_seconds: Histogram::new(
                "kubelet_run_podsandbox_duration_seconds",
                "How long it took to make and start the sandbox of a pod.",
                ["runtime_handler"],
                DEFAULT_BUCKETS,
            ),
            sandbox_errors: Counter::new(
                "kubelet_run_podsandbox_errors_total",
                "Sandboxes that could not be made or started.",
                ["runtime_handler"],
            ),
            started_pods: Counter::new("kubelet_started_pods_total", "Sandboxes that were started.", []),
            started_pod_errors: Counter::new(
                "kubelet_started_pods_errors_total",
                "Sandboxes that could not be made or started.",
                [],
            ),
            started_containers: Counter::new(
                "kubelet_started_containers_total",
                "Containers that were started.",
                ["container_type"],
            ),
            started_container_errors: Counter::new(
                "kubelet_started_containers_errors_total",
                "Containers that could not be made or started, by reason.",
                ["container_type", "code"],
            ),
            terminated_containers: Counter::new(
                "kubelet_terminated_containers_total",
                "Containers that ended.",
                ["container_type", "exit_code", "reason"],
            ),
            pod_start: Histogram::new(
                "kubelet_pod_start_duration_seconds",
                "From the agent's first sight of a pod until all its containers have started.",
                [],
                POD_START_BUCKETS,
            ),
            pod_start_sli: Histogram::new(
                "kubelet_pod_start_sli_duration_seconds",
                "From a pod's creation until all its containers have started, without the time in which images were pulled.",
                [],
                POD_START_BUCKETS,
            ),
            status_sync: Histogram::new(
                "kubelet_pod_status_sync_duration_seconds",
                "How long the API took to take the status of a pod.",
                [],
                STATUS_BUCKETS,
            ),
            relist: Histogram::new(
                "kubelet_pleg_relist_duration_seconds",
                "How long it took to list all containers again, in case an event was lost.",
                [],
                DEFAULT_BUCKETS,
            ),
            relist_interval: Histogram::new(
                "kubelet_pleg_relist_interval_seconds",
                "Time between two such lists.",
                [],
                DEFAULT_BUCKETS,
            ),
            last_seen: Gauge::new(
                "kubelet_pleg_last_seen_seconds",
                "When all containers were listed last, since 1970.",
                [],
            ),
            worker_seconds: Histogram::new(
                "kubelet_pod_worker_duration_seconds",
                "How long the steps of pods took that were started: of the start of a pod (create), of its end (terminate), and others (sync).",
                ["operation_type"],
                DEFAULT_BUCKETS,
            ),
            cgroup_seconds: Histogram::new(
                "kubelet_cgroup_manager_duration_seconds",
                "How long changes of pods' cgroups took.",
                ["operation_type"],
                DEFAULT_BUCKETS,
            ),
            storage_seconds: Histogram::new(
                "storage_operation_duration_seconds",
                "How long volumes took to be set up.",
                ["volume_plugin", "operation_name", "status", "migrated"],
                STORAGE_BUCKETS,
            ),
            evictions: Counter::new(
                "kubelet_evictions",
                "Pods that were evicted, by what was short.",
                ["eviction_signal"],
            ),
            preemptions: Counter::new(
                "kubelet_preemptions",
                "Pods that had to go for a critical one, by what that asked for.",
                ["preemption_signal"],
            ),
            rejections: Counter::new(
                "kubelet_admission_rejections_total",
                "Pods that the node did not take, by reason.",
                ["reason"],
            ),
            pulls: Histogram::new(
                "kubelet_image_pull_duration_seconds",
                "How long pulls took, without the time in which they waited for others.",
                ["image_size_in_bytes"],
                PULL_BUCKETS,
            ),
            images_collected: Counter::new(
                "kubelet_image_garbage_collected_total",
                "Unused images that were removed, for their age or for space.",
                ["reason"],
            ),
            infeasible_resizes: Counter::new(
                "kubelet_pod_infeasible_resizes_total",
                "Wishes for other resources that this node can never grant, by what stands against them.",
                ["reason_detail"],
            ),
            completed_resizes: Counter::new("windlass_pod_resizes_total", "Resizes of pods that have come true.", []),
            hook_fallbacks: Counter::new(
                "kubelet_lifecycle_handler_http_fallbacks_total",
                "Hooks by HTTPS that were answered over HTTP.",
                [],
            ),
            sleeps_cut: Counter::new(
                "kubelet_sleep_action_terminated_early_total",
                "Hooks that sleep and were cut.",
                [],
            ),
            requests: Counter::new(
                "kubelet_http_requests_total",
                "Requests to the node's API.",
                ["method", "path", "server_type", "long_running"],
            ),
            request_seconds: Histogram::new(
                "kubelet_http_requests_duration_seconds",
                "How long requests to the node's API took, until the answer's body began.",
                ["method", "path", "server_type", "long_running"],
                DEFAULT_BUCKETS,
            ),
            requests_in_flight: Gauge::new(
                "kubelet_http_inflight_requests",
                "Requests to the node's API that are being answered.",
                ["method", "path", "server_type", "long_running"],
            ),
            streams: Counter::new(
                "kubelet_websocket_streaming_requests_total",
                "Requests over WebSockets, by what they connect to.",
                ["subresource"],
            ),
            empty_writes: Counter::new(
                "windlass_empty_writes_total",
                "Writes to the API that changed nothing: the object's resourceVersion stayed as it was.",
                ["kind"],
            ),
            client_renewal_errors: Counter::new(
                "kubelet_certificate_manager_client_expiration_renew_errors",
                "Tries to have a certificate as a client of the API that came to nothing.",
                [],
            ),
            serving_renewal_errors: Counter::new(
                "kubelet_server_expiration_renew_errors",
                "Tries to have a certificate for the node's API that came to nothing.",
                [],
            ),
            serving_rotation: Histogram::new(
                "kubelet_certificate_manager_server_rotation_seconds",
                "How old a certificate of the node's API was when another one took its place.",
                [],
                ROTATION_BUCKETS,
            ),
            client_expiration: AtomicI64::new(i64::MAX),
            hung_volume_calls: AtomicI64::default(),
            shutdown: Default::default(),
        }
    }
}

impl Metrics {
    pub(crate) fn shutdown_started(&self) {
        self.shutdown[0].store(jiff::Timestamp::now().as_second(), Ordering::Relaxed);
        self.shutdown[1].store(0, Ordering::Relaxed);
    }

    pub(crate) fn shutdown_ended(&self) {
        self.shutdown[1].store(jiff::Timestamp::now().as_second(), Ordering::Relaxed);
    }

    /// Counts a write that the API accepted without a change: the object already had the sent content.
    pub(crate) fn count_empty_write(&self, what: WriteKind, name: &str) {
        self.empty_writes.add([what.label()]);
        tracing::warn!(kind = what.label(), name, "the API accepted a write that changed nothing");
    }

    /// A recorder of the agent's events that counts their empty writes.
    pub fn recorder(self: &Arc<Self>, client: kube::Client, node: &str) -> Recorder {
        let metrics = Arc::clone(self);
        Recorder::counting(client, "kubelet", node, move |name| metrics.count_empty_write(WriteKind::Event, name))
    }

    /// An operation on a volume has ended, such as `volume_mount`.
    pub(crate) fn storage_operation(&self, plugin: &str, operation: &str, works: bool, took: Duration) {
        let status = if works { "success" } else { "fail-unknown" };
        self.storage_seconds.observe_duration([plugin, operation, status, "false"], took);
    }

    /// Counts a write as empty if the resourceVersion after it is that `before` it.
    pub(crate) fn record_write(&self, what: WriteKind, name: &str, before: Option<&str>, after: Option<&str>) {
        if before.is_some() && before == after {
            self.count_empty_write(what, name);
        }
    }

    /// Sets when the node's client certificate expires, in seconds since 1970; `None` while it has none.
    pub(crate) fn set_client_certificate_expiration(&self, at: Option<i64>) {
        self.client_expiration.store(at.unwrap_or(i64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn count_certificate_failure(&self, purpose: Purpose) {
        match purpose {
            Purpose::Client => self.client_renewal_errors.add([]),
            Purpose::Serving => self.serving_renewal_errors.add([]),
        }
    }

    /// Records an issued certificate; `age` is that of its predecessor in seconds.
    pub(crate) fn record_certificate(&self, purpose: Purpose, age: Option<i64>) {
        if let (Purpose::Serving, Some(age)) = (purpose, age) {
            self.serving_rotation.observe_duration([], Duration::from_secs(u64::try_from(age).unwrap_or_default()));
        }
    }

    /// Writes all families.
    pub(crate) fn write(&self, page: &mut Text) {
        self.operations.write(page);
        self.operation_errors.write(page);
        self.operation_seconds.write(page);
        self.sandbox_seconds.write(page);
        self.sandbox_errors.write(page);
        self.started_pods.write(page);
        self.started_pod_errors.write(page);
        self.started_containers.write(page);
        self.started_container_errors.write(page);
        self.terminated_containers.write(page);
        self.pod_start.write(page);
        self.pod_start_sli.write(page);
        self.status_sync.write(page);
        self.relist.write(page);
        self.relist_interval.write(page);
        self.last_seen.write(page);
        self.worker_seconds.write(page);
        self.cgroup_seconds.write(page);
        self.storage_seconds.write(page);
        self.evictions.write(page);
        self.preemptions.write(page);
        self.rejections.write(page);
        self.pulls.write(page);
        self.images_collected.write(page);
        self.infeasible_resizes.write(page);
        self.completed_resizes.write(page);
        self.hook_fallbacks.write(page);
        self.sleeps_cut.write(page);
        self.requests.write(page);
        self.request_seconds.write(page);
        self.requests_in_flight.write(page);
        self.streams.write(page);
        self.empty_writes.write(page);
        self.client_renewal_errors.write(page);
        self.serving_renewal_errors.write(page);
        self.serving_rotation.write(page);
        let ends = self.client_expiration.load(Ordering::Relaxed);
        page.family(
            "kubelet_certificate_manager_client_ttl_seconds",
            "How long the node's certificate as a client of the API is good for; below zero when it has ended.",
            Kind::Gauge,
        );
        #[allow(clippy::cast_precision_loss, reason = "seconds of this century")]
        let left = if ends == i64::MAX { f64::INFINITY } else { (ends - jiff::Timestamp::now().as_second()) as f64 };
        page.sample("kubelet_certificate_manager_client_ttl_seconds", &[], left);
        let hung = self.hung_volume_calls.load(Ordering::Relaxed);
        let [begun, ended] = [0, 1].map(|i| self.shutdown[i].load(Ordering::Relaxed));
        for (name, help, at) in [
            ("kubelet_graceful_shutdown_start_time_seconds", "When the end of the machine was heard of.", begun),
            ("kubelet_graceful_shutdown_end_time_seconds", "When pods had ended before it.", ended),
            ("windlass_volume_calls_hung", "File-system calls of volumes that have not come back.", hung),
        ] {
            page.family(name, help, Kind::Gauge);
            #[allow(clippy::cast_precision_loss, reason = "seconds of this century, and few threads")]
            page.sample(name, &[], at as f64);
        }
    }
}

/// The label of an image's size in bytes.
pub(crate) fn image_size_label(size: i64) -> &'static str {
    IMAGE_SIZE_BUCKETS.iter().find(|(bound, _)| size <= *bound).map_or("GT20GB", |(_, word)| word)
}

#[cfg(test)]
mod tests;
