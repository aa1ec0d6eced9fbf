//! What all workers and steps of a node share.

use std::{
    fmt,
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
};

use k8s_openapi::api::core::v1::{Node, ObjectReference, Pod};
use kube::{Client, Resource as _};
use parking_lot::Mutex;
use tokio::sync::{OnceCell, Semaphore, mpsc, watch};
use windlass_cadvisor::Target;
use windlass_kit::{
    events::{Recorder, Severity},
    liveness::Heartbeats,
    resolv_conf,
};

use super::{host_facts, runtime_class::RuntimeHandlers};
use crate::{
    Config, Pressure,
    cgroup::Cgroups,
    engine::{Engine, EngineError, Health, containers::Info},
    images::Images,
    metrics::Metrics,
    network::Network,
    pod_containers::PodContainers,
    pods::{
        admission::{
            Admission, preempt,
            reservations::{Reservation, Reservations, ResizeRequest},
            rules::{self, NodeView},
        },
        container::{env::ServiceList, hosts_and_dns::Dns, qos::NodeSwap},
        lifecycle::{observed::ResizeDecision, reasons, spec},
    },
    probe_metrics::ProbeMetrics,
    volumes::{Volumes, object_watch::ObjectWatches, registry::VolumeRegistry},
};

/// Calls of the engine in flight at most: more slow each other down, since Docker serialises much of its work.
const MAX_ENGINE_CALLS: usize = 12;
/// Exec probes being started at most, for the same reason.
const MAX_EXEC_PROBE_STARTS: usize = 8;
/// Lists of running containers, one per change of a pod, that wait to be published.
const RUNNING_QUEUE_CAPACITY: usize = 256;

/// The parts of the agent that pods use, made when the agent is built.
pub struct NodeHandles {
    /// The configuration of pods.
    pub config: Config,
    /// The Kubernetes API.
    pub client: Client,
    /// Docker.
    pub engine: Engine,
    /// Attaches sandboxes to the pod network.
    pub network: Network,
    /// Pulls images.
    pub images: Images,
    /// The node's object, as the API has it.
    pub node: watch::Receiver<Option<Arc<Node>>>,
    /// The pressure conditions of the node, by which pods are rejected.
    pub pressure: watch::Receiver<Pressure>,
    /// Whether the machine is about to shut down, in which case all pods are rejected.
    pub shutting_down: watch::Receiver<bool>,
    /// The liveness of loops.
    pub heartbeats: Heartbeats,
    /// The agent's metrics.
    pub metrics: Arc<Metrics>,
    /// The metrics of probes.
    pub probe_metrics: ProbeMetrics,
    /// Where volumes are mounted.
    pub volumes: VolumeRegistry,
    /// The cgroups of pods.
    pub(crate) cgroups: Arc<Cgroups>,
    /// Their containers, for who asks the agent for them.
    pub(crate) containers: PodContainers,
}

impl fmt::Debug for NodeHandles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeHandles").field("config", &self.config).finish_non_exhaustive()
    }
}

/// The running containers of one pod: its uid, and all of them.
pub(crate) type RunningOfPod = (String, Vec<Arc<Target>>);

/// What all workers and steps share.
pub(crate) struct PodContext {
    pub(crate) node: NodeHandles,
    pub(crate) volumes: Volumes,
    /// Watches of the ConfigMaps and Secrets that pods reference.
    pub(crate) object_watches: ObjectWatches,
    pub(crate) recorder: Recorder,
    pub(crate) engine_calls: Semaphore,
    pub(crate) exec_probe_starts: Semaphore,
    pub(crate) engine_health: watch::Receiver<Health>,
    pub(crate) engine_info: watch::Receiver<Info>,
    pub(crate) services: watch::Receiver<ServiceList>,
    pub(crate) runtime_handlers: watch::Receiver<RuntimeHandlers>,
    /// Bytes of memory of the machine.
    pub(crate) node_memory: i64,
    pub(crate) node_swap: NodeSwap,
    /// Whether containers can be given a negative OOM score.
    pub(crate) negative_oom: AtomicBool,
    pub(crate) running: mpsc::Sender<RunningOfPod>,
    pause_image: OnceCell<String>,
    app_armor: bool,
    reservations: Mutex<Reservations>,
    /// Counts up whenever deferred resizes may fit: capacity was freed, or their turn came.
    pub(crate) capacity_freed: watch::Sender<u64>,
    /// Counts up whenever an image of the engine's store was named, lost a name, or was removed.
    pub(crate) images_changed: watch::Sender<u64>,
}

/// The other ends of the context's channels, for the tasks that feed and drain them.
pub(crate) struct ContextChannels {
    pub(crate) engine_health: watch::Sender<Health>,
    pub(crate) engine_info: watch::Sender<Info>,
    pub(crate) services: watch::Sender<ServiceList>,
    pub(crate) runtime_classes: watch::Sender<RuntimeHandlers>,
    pub(crate) running: mpsc::Receiver<RunningOfPod>,
}

impl PodContext {
    pub(crate) fn new(node: NodeHandles) -> (Self, ContextChannels) {
        let (health_tx, engine_health) = watch::channel(Health::Unknown);
        let (info_tx, engine_info) = watch::channel(Info::default());
        let (services_tx, services) = watch::channel(None);
        let (classes_tx, runtime_handlers) = watch::channel(None);
        let (running, running_rx) = mpsc::channel(RUNNING_QUEUE_CAPACITY);
        let volumes = Volumes::new(
            node.config.data_dir.join("pods"),
            node.config.node_name.clone(),
            node.client.clone(),
            node.engine.clone(),
            node.config.allocatable.clone(),
            Arc::clone(&node.metrics),
        );
        let (node_memory, swap) = host_facts::total_memory_and_swap();
        let node_swap = NodeSwap { behavior: node.config.swap_behavior, memory: node_memory, swap };
        let context = Self {
            recorder: node.metrics.recorder(node.client.clone(), &node.config.node_name),
            object_watches: ObjectWatches::new(node.client.clone()),
            node,
            volumes,
            engine_calls: Semaphore::new(MAX_ENGINE_CALLS),
            exec_probe_starts: Semaphore::new(MAX_EXEC_PROBE_STARTS),
            engine_health,
            engine_info,
            services,
            runtime_handlers,
            node_memory,
            node_swap,
            negative_oom: AtomicBool::new(host_facts::negative_oom_allowed()),
            running,
            pause_image: OnceCell::new(),
            app_armor: host_facts::app_armor_enabled(),
            reservations: Mutex::default(),
            capacity_freed: watch::Sender::new(0),
            images_changed: watch::Sender::new(0),
        };
        let channels = ContextChannels {
            engine_health: health_tx,
            engine_info: info_tx,
            services: services_tx,
            runtime_classes: classes_tx,
            running: running_rx,
        };
        (context, channels)
    }

    fn node_view(&self) -> NodeView {
        let (node, config) = (self.node.node.borrow(), &self.node.config);
        NodeView {
            pressure: *self.node.pressure.borrow(),
            shutting_down: *self.node.shutting_down.borrow(),
            app_armor: self.app_armor,
            unsafe_sysctls: config.allowed_unsafe_sysctls.clone(),
            ..NodeView::of(&config.node_name, node.as_deref(), &config.allocatable, config.max_pods)
        }
    }

    /// Whether the node admits a new pod; its resources are reserved in the same critical section. With `may_preempt` a
    /// critical pod may have others killed.
    pub(crate) fn admit(&self, uid: &str, pod: &Pod, may_preempt: bool) -> Admission {
        let (view, reservation) = (self.node_view(), Reservation::of(pod));
        let mut reservations = self.reservations.lock();
        let Some(reason) = rules::reject(pod, &view, reservations.others(uid).map(|(_, other)| other)) else {
            reservations.set(uid, Some(reservation));
            return Admission::Admitted;
        };
        if may_preempt && reservation.critical && reason.reason.starts_with(reasons::OUT_OF) {
            let others: Vec<(&str, &Reservation)> = reservations.others(uid).collect();
            let victims = preempt::victims(&reservation, &view.allocatable, view.max_pods, &others);
            if !victims.is_empty() {
                return Admission::Preempt(victims.into_iter().map(str::to_owned).collect());
            }
        }
        Admission::Rejected(reason)
    }

    /// Sets the reservation of a pod that was admitted before.
    pub(crate) fn reserve(&self, uid: &str, reservation: Reservation) {
        self.reservations.lock().set(uid, Some(reservation));
    }

    /// Changes or ends a pod's reservation and drops its deferred resize. One that has ended does not come back.
    pub(crate) fn change_reservation(&self, uid: &str, reservation: Option<Reservation>) {
        let freed = self.reservations.lock().change(uid, reservation);
        if freed {
            self.capacity_freed.send_modify(|count| *count += 1);
        }
    }

    /// Evaluates a pod's resize; what is granted is reserved in the same critical section.
    pub(crate) fn evaluate_resize(&self, uid: &str, request: ResizeRequest) -> ResizeDecision {
        let view = self.node_view();
        let mut reservations = self.reservations.lock();
        let (decision, others_granted) = reservations.evaluate(uid, request, &view.allocatable);
        if others_granted {
            self.capacity_freed.send_modify(|count| *count += 1);
        }
        decision
    }

    /// The DNS configuration of the node now: the host's file may have changed since another pod was created.
    ///
    /// # Errors
    /// When the configured `resolvConf` cannot be read.
    pub(crate) fn dns(&self) -> Result<Dns, String> {
        let config = &self.node.config;
        Ok(Dns {
            servers: config.cluster_dns.clone(),
            domain: config.cluster_domain.clone(),
            host: resolv_conf::read(config.resolv_conf.as_deref())?,
        })
    }

    /// The pause image's id; the image is loaded into Docker on first use.
    pub(crate) async fn pause_image(&self) -> Result<String, EngineError> {
        self.pause_image.get_or_try_init(|| crate::engine::pause::ensure(&self.node.engine)).await.cloned()
    }

    pub(crate) fn pod_dir(&self, uid: &str) -> PathBuf {
        self.node.config.data_dir.join("pods").join(uid)
    }

    /// The file on the host that receives a container's termination message.
    pub(crate) fn message_file(&self, uid: &str, container: &str, attempt: u32) -> PathBuf {
        self.pod_dir(uid).join("containers").join(container).join(format!("{attempt:08x}"))
    }

    pub(crate) fn is_engine_up(&self) -> bool {
        matches!(*self.engine_health.borrow(), Health::Up { .. })
    }

    /// Records an event about a pod, or about one of its containers.
    pub(crate) fn event(
        &self,
        pod: &Pod,
        container: Option<&str>,
        severity: Severity,
        reason: &str,
        message: impl Into<String>,
    ) {
        self.recorder.record(&object_of(pod, container), severity, reason, message);
    }

    /// Records how far something of a pod, or of one of its containers, is.
    pub(crate) fn progress(&self, pod: &Pod, container: Option<&str>, reason: &str, message: String) {
        self.recorder.record_progress(&object_of(pod, container), reason, message);
    }
}

/// A pod, or one of its containers, as events name it.
fn object_of(pod: &Pod, container: Option<&str>) -> ObjectReference {
    let field_path = container.map(|name| {
        let spec = pod.spec.as_ref();
        let init = spec.is_some_and(|s| spec::init_containers(s).iter().any(|c| c.name == name));
        let ephemeral = spec.is_some_and(|s| s.ephemeral_containers.iter().flatten().any(|c| c.name == name));
        let list = match (init, ephemeral) {
            (true, _) => "initContainers",
            (_, true) => "ephemeralContainers",
            _ => "containers",
        };
        format!("spec.{list}{{{name}}}")
    });
    ObjectReference { field_path, ..pod.object_ref(&()) }
}
