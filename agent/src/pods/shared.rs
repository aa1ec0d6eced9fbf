//! What all workers of a node share.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError, atomic::AtomicBool},
};

use k8s_openapi::api::core::v1::{Node, ObjectReference, Pod};
use kube::Client;
use tokio::sync::{OnceCell, Semaphore, mpsc, watch};
use windlass_kit::{
    events::{Recorder, Severity},
    heartbeat::Heartbeats,
    quantity::Quantity,
};

use super::{
    admission::{self, Admission, Claim, NodeView},
    files::Dns,
    host,
    orders::Orders,
    preempt,
    resize::{Ledger, Verdict, Wish},
    services, spec,
};
use crate::{
    Config, ContainerRecord, Pressure,
    engine::{Engine, EngineError, Health, calls::Info},
    images::Images,
    metrics::Metrics,
    network::Network,
    probe_counts::ProbeCounts,
    volumes::{Volumes, follow::Following, placed::Placed},
};

/// Docker calls that run at once: more make each slower, since Docker serialises much of its work.
const DOCKER_CALLS: usize = 12;
/// Commands of probes that are being started at once, for the same reason.
const EXEC_PROBES: usize = 8;

pub(crate) struct Shared {
    pub(crate) client: Client,
    pub(crate) engine: Engine,
    pub(crate) network: Network,
    pub(crate) volumes: Volumes,
    pub(crate) following: Following,
    pub(crate) config: Config,
    pub(crate) recorder: Recorder,
    pub(crate) images: Images,
    pub(crate) slots: Semaphore,
    /// The turns of probes that run commands.
    pub(crate) exec_probes: Semaphore,
    pub(crate) health: watch::Receiver<Health>,
    pub(crate) info: watch::Receiver<Info>,
    pub(crate) services: watch::Receiver<services::Listed>,
    pub(crate) allocatable: BTreeMap<String, Quantity>,
    pub(crate) node_memory: i64,
    pub(crate) negative_oom: AtomicBool,
    pause: OnceCell<String>,
    pub(crate) inventory: mpsc::Sender<(String, Vec<ContainerRecord>)>,
    /// Ends pods of this node.
    pub(crate) orders: Orders,
    /// The AppArmor profiles that the kernel has.
    profiles: BTreeSet<String>,
    /// What the node is short of.
    pressure: watch::Receiver<Pressure>,
    going_down: watch::Receiver<bool>,
    /// The node's own object, once the API has told it.
    node: watch::Receiver<Option<Arc<Node>>>,
    /// What each pod of the node holds, and who waits for more.
    ledger: Mutex<Ledger>,
    /// Counts how often those who wait were given reason to look again.
    pub(crate) freed: watch::Sender<u64>,
    pub(crate) heartbeats: Heartbeats,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) probes: ProbeCounts,
    pub(crate) placed: Placed,
}

/// What the dispatcher hands in to make the shared part.
pub(crate) struct Parts {
    pub(crate) client: Client,
    pub(crate) engine: Engine,
    pub(crate) network: Network,
    pub(crate) config: Config,
    pub(crate) health: watch::Receiver<Health>,
    pub(crate) info: watch::Receiver<Info>,
    pub(crate) services: watch::Receiver<services::Listed>,
    pub(crate) node: watch::Receiver<Option<Arc<Node>>>,
    pub(crate) inventory: mpsc::Sender<(String, Vec<ContainerRecord>)>,
    pub(crate) orders: Orders,
    pub(crate) pressure: watch::Receiver<Pressure>,
    pub(crate) going_down: watch::Receiver<bool>,
    pub(crate) images: Images,
    pub(crate) heartbeats: Heartbeats,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) probes: ProbeCounts,
    pub(crate) placed: Placed,
}

impl Shared {
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts {
            client,
            engine,
            network,
            config,
            health,
            info,
            services,
            node,
            inventory,
            orders,
            pressure,
            going_down,
            images,
            heartbeats,
            metrics,
            probes,
            placed,
        } = parts;
        let memory = host::total_memory();
        let allocatable = config.allocatable.clone();
        let volumes = Volumes::new(
            config.data_dir.join("pods"),
            config.node_name.clone(),
            client.clone(),
            engine.clone(),
            allocatable.clone(),
            Arc::clone(&metrics),
        );
        Self {
            recorder: metrics.recorder(client.clone(), &config.node_name),
            negative_oom: AtomicBool::new(host::negative_oom_allowed()),
            following: Following::new(client.clone()),
            images,
            slots: Semaphore::new(DOCKER_CALLS),
            exec_probes: Semaphore::new(EXEC_PROBES),
            pause: OnceCell::new(),
            node_memory: memory,
            client,
            engine,
            network,
            volumes,
            config,
            health,
            info,
            services,
            allocatable,
            inventory,
            orders,
            profiles: host::app_armor_profiles(),
            pressure,
            going_down,
            node,
            ledger: Mutex::default(),
            freed: watch::Sender::new(0),
            heartbeats,
            metrics,
            probes,
            placed,
        }
    }

    fn node_view(&self) -> NodeView {
        let node = self.node.borrow();
        NodeView {
            pressure: *self.pressure.borrow(),
            going_down: *self.going_down.borrow(),
            profiles: self.profiles.clone(),
            unsafe_sysctls: self.config.allowed_unsafe_sysctls.clone(),
            ..NodeView::of(&self.config.node_name, node.as_deref(), &self.allocatable, self.config.max_pods)
        }
    }

    /// Whether this node takes a new pod in; if so, what it asks for is its own in the same breath. A critical pod may
    /// have `room` made.
    pub(crate) fn admit(&self, uid: &str, pod: &Pod, room: bool) -> Admission {
        let (view, claim) = (self.node_view(), Claim::of(pod));
        let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(refused) = admission::refuse(pod, &view, ledger.others(uid).map(|(_, claim)| claim)) else {
            ledger.hold(uid, Some(claim));
            return Admission::TakenIn;
        };
        if room && claim.critical && refused.reason.starts_with("OutOf") {
            let others: Vec<(&str, &Claim)> = ledger.others(uid).collect();
            let victims = preempt::victims(&claim, &view.allocatable, view.max_pods, &others);
            if !victims.is_empty() {
                return Admission::After(victims.into_iter().map(str::to_owned).collect());
            }
        }
        Admission::Refused(refused)
    }

    /// Takes note of what a pod holds, and that it wishes for no more; `None` when it holds nothing any more.
    pub(crate) fn hold(&self, uid: &str, claim: Option<Claim>) {
        let freed = self.ledger.lock().unwrap_or_else(PoisonError::into_inner).hold(uid, claim);
        if freed {
            self.freed.send_modify(|count| *count += 1);
        }
    }

    /// Whether a pod that `has` something may have what it wishes for; if so, that is taken note of in the same breath.
    pub(crate) fn judge(&self, uid: &str, has: Claim, wish: Wish) -> Verdict {
        let view = self.node_view();
        let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        let (verdict, others_turn) = ledger.judge(uid, has, wish, &view.allocatable);
        if others_turn {
            self.freed.send_modify(|count| *count += 1);
        }
        verdict
    }

    /// What is known of names now: the host's file may have changed since another pod was made.
    ///
    /// # Errors
    /// When the file that the settings name cannot be read.
    pub(crate) fn dns(&self) -> Result<Dns, String> {
        Ok(Dns {
            servers: self.config.cluster_dns.clone(),
            domain: self.config.cluster_domain.clone(),
            host: host::resolv_conf(self.config.resolv_conf.as_deref())?,
        })
    }

    /// The pause image's id, loaded into Docker on first use.
    pub(crate) async fn pause(&self) -> Result<String, EngineError> {
        self.pause.get_or_try_init(|| crate::engine::pause::ensure(&self.engine)).await.cloned()
    }

    pub(crate) fn pod_dir(&self, uid: &str) -> PathBuf {
        self.config.data_dir.join("pods").join(uid)
    }

    /// Where a container's termination message is written.
    pub(crate) fn message_file(&self, uid: &str, container: &str, attempt: u32) -> PathBuf {
        self.pod_dir(uid).join("containers").join(container).join(format!("{attempt:08x}"))
    }

    pub(crate) fn docker_answers(&self) -> bool {
        matches!(*self.health.borrow(), Health::Up { .. })
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
        let object = ObjectReference { field_path, ..spec::reference(pod) };
        self.recorder.record(&object, severity, reason, message);
    }
}
