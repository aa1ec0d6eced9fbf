//! Builds the agent from its configuration and starts it: the channels that connect its parts, and its long-running
//! tasks, are made here.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Client;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use windlass_cadvisor::{EngineDirs, Usage};
use windlass_kit::{
    announced_pod::Announcer,
    events::Recorder,
    liveness::Heartbeats,
    serve::{InProcessListener, ServeError, Tls},
    supervise::Supervisor,
};

#[cfg(feature = "cri")]
use crate::cri;
use crate::{
    Config, Pressure,
    cadvisor_inputs::{self, Inputs},
    cgroup::Cgroups,
    engine::{
        ConnectError, Engine, Health, data_root,
        unmanaged::{self, UnmanagedPublisher},
    },
    images::{ImageManager, Images, ImagesConfig},
    metrics::Metrics,
    network::{CniConfig, Network, NetworkConfig, NetworkError},
    node::{
        self, NodeClients, NodeConfig, NodeInputs, Watched,
        eviction::{self, EvictionConfig, EvictionInputs},
        shutdown::{self, GracePeriod, ShutdownInputs},
    },
    node_watch,
    pod_containers::PodContainers,
    pods::{NodeHandles, PodFeeds, Pods},
    probe_metrics::ProbeMetrics,
    server::{self, Listeners, NodeInfo, ServerConfig, ServerState, Streaming, SystemLogs},
    volumes::registry::VolumeRegistry,
};

/// The configuration of the agent.
#[derive(Debug, Clone)]
pub struct AgentConfig {
    /// The configuration of pods; `allocatable` is computed from `node`.
    pub pods: Config,
    /// The configuration of the Node's registration, status and lease.
    pub node: NodeConfig,
    /// The configuration of the node's API.
    pub server: ServerConfig,
    /// The configuration of the image manager.
    pub images: ImagesConfig,
    /// The pod network.
    pub network: PodNetworkConfig,
    /// Refuse to start while the machine has swap.
    pub fail_swap_on: bool,
    /// Docker's socket.
    pub docker_socket: PathBuf,
    /// The socket of the façade of CRI, if any; a build without the feature `cri` refuses it.
    pub cri_socket: Option<PathBuf>,
    /// `evictionPressureTransitionPeriod`.
    pub eviction_transition_period: Duration,
    /// `evictionMaxPodGracePeriod`, in seconds.
    pub eviction_max_pod_grace_period: i64,
    /// The grace periods of pods at shutdown, by priority; empty turns graceful shutdown off.
    pub shutdown_grace_periods: Vec<GracePeriod>,
    /// What `/logs/` serves.
    pub system_logs: SystemLogs,
    /// What `/configz` serves.
    pub configz: serde_json::Value,
    /// What `/flagz` serves.
    pub flagz: Vec<(String, String)>,
}

/// The pod network's configuration.
#[derive(Debug, Clone)]
pub enum PodNetworkConfig {
    /// The built-in network.
    Routed(NetworkConfig),
    /// CNI plugins.
    Cni(CniConfig),
}

/// What the agent is given from outside.
pub struct AgentInputs {
    /// A client with a node's rights.
    pub client: Client,
    /// Another for the lease and the status, with short timeouts and connections of its own.
    pub heartbeat: Client,
    /// The serving certificate of the node's API, and the authority of its clients.
    pub tls: Tls,
    /// Connections to the node's API from this process.
    pub in_process: Option<InProcessListener>,
    /// The liveness of loops.
    pub heartbeats: Heartbeats,
    /// Whom pods of the built-in network are announced to, where NetworkPolicies are enforced.
    pub announcer: Option<Announcer>,
    /// The agent's metrics.
    pub metrics: Arc<Metrics>,
}

/// Why the agent cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A port cannot be bound.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// Docker's socket is invalid.
    #[error(transparent)]
    Engine(#[from] ConnectError),
    /// The pod network's state cannot be read.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The machine has swap, which the configuration does not allow. Upstream's words, with our setting's name.
    #[error("running with swap on is not supported, please disable swap or set failSwapOn to false")]
    SwapOn,
    /// The socket of the façade of CRI cannot be made.
    #[cfg(feature = "cri")]
    #[error(transparent)]
    Cri(#[from] cri::SocketError),
    /// The façade of CRI is not in this build.
    #[cfg(not(feature = "cri"))]
    #[error("criSocket is set, and this program was built without the feature cri")]
    NoCri,
    /// It cannot be read whether the machine has swap.
    #[error("cannot read whether swap is on, which failSwapOn: true asks for, from /proc/swaps: {0}")]
    Swaps(std::io::Error),
}

/// The agent, built. Its ports are bound; [`Agent::start`] starts its tasks.
pub struct Agent {
    /// Usage of the node, its pods and containers.
    pub usage: Usage,
    /// Whether Docker answers.
    pub engine_health: watch::Receiver<Health>,
    /// The pods of this node.
    pub pods: watch::Receiver<Arc<Vec<Arc<Pod>>>>,
    /// The Node in the API; `None` if it does not exist.
    pub node: watch::Receiver<Option<Arc<Node>>>,
    /// The same, from this process's first report of its status on.
    pub reported_node: watch::Receiver<Option<Arc<Node>>>,
    config: AgentConfig,
    inputs: AgentInputs,
    parts: Parts,
    owned: Owned,
}

/// The parts of the agent that others use.
struct Parts {
    engine: Engine,
    network: Network,
    images: Images,
    recorder: Recorder,
    probe_metrics: ProbeMetrics,
    feeds: PodFeeds,
    pressure: watch::Receiver<Pressure>,
    shutting_down: watch::Receiver<bool>,
    cgroups: Arc<Cgroups>,
    #[cfg(feature = "cri")]
    containers: PodContainers,
}

/// What single tasks own: the sending ends of channels, and the tasks' own parts.
struct Owned {
    listeners: Listeners,
    #[cfg(feature = "cri")]
    cri: Option<cri::SocketListener>,
    image_manager: ImageManager,
    pods: Pods,
    engine_dirs: watch::Sender<EngineDirs>,
    unmanaged: UnmanagedPublisher,
    node: watch::Sender<Option<Arc<Node>>>,
    reported_node: watch::Sender<Option<Arc<Node>>>,
    pressure: watch::Sender<Pressure>,
    shutting_down: watch::Sender<bool>,
}

impl std::fmt::Debug for AgentInputs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AgentInputs").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agent").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Agent {
    /// Binds the ports, connects the parts, and starts measuring usage until `shutdown`.
    ///
    /// # Errors
    /// When a port is taken, Docker's socket is invalid, or the pod network's state cannot be read.
    pub async fn build(
        mut config: AgentConfig,
        mut inputs: AgentInputs,
        shutdown: &CancellationToken,
    ) -> Result<Self, BuildError> {
        if config.fail_swap_on && is_swap_on(&std::fs::read_to_string("/proc/swaps").map_err(BuildError::Swaps)?) {
            return Err(BuildError::SwapOn);
        }
        let mut listeners = server::listen(&config.server).await?;
        if let Some(in_process) = inputs.in_process.take() {
            listeners = listeners.with_inside(in_process);
        }
        #[cfg(not(feature = "cri"))]
        let containers =
            if config.cri_socket.is_some() { return Err(BuildError::NoCri) } else { PodContainers::default() };
        #[cfg(feature = "cri")]
        let (cri, containers) = match &config.cri_socket {
            Some(path) => (Some(cri::SocketListener::bind(path).await?), PodContainers::kept()),
            None => (None, PodContainers::default()),
        };
        let metrics = Arc::clone(&inputs.metrics);
        let engine = Engine::new(&config.docker_socket.to_string_lossy(), Arc::clone(&metrics))?;
        let network = match &config.network {
            PodNetworkConfig::Routed(config) => Network::routed(config.clone(), inputs.announcer.take()),
            PodNetworkConfig::Cni(config) => Network::cni(config.clone())?,
        };
        config.pods.allocatable = node::allocatable(&config.node);
        let (images, image_manager) = Images::build(engine.clone(), config.images.clone(), Arc::clone(&metrics));
        let unmanaged_tx = UnmanagedPublisher::default();
        let (node_tx, node) = watch::channel(None);
        let (reported_tx, reported_node) = watch::channel(None);
        let (pressure_tx, pressure) = watch::channel(Pressure::default());
        let (shutting_down_tx, shutting_down) = watch::channel(false);
        let (probe_metrics, volumes) = (ProbeMetrics::default(), VolumeRegistry::default());
        let cgroups = Arc::new(Cgroups::default());
        let (pods, feeds) = Pods::build(NodeHandles {
            config: config.pods.clone(),
            client: inputs.client.clone(),
            engine: engine.clone(),
            network: network.clone(),
            images: images.clone(),
            node: node.clone(),
            pressure: pressure.clone(),
            shutting_down: shutting_down.clone(),
            heartbeats: inputs.heartbeats.clone(),
            metrics: Arc::clone(&metrics),
            probe_metrics: probe_metrics.clone(),
            volumes: volumes.clone(),
            cgroups: Arc::clone(&cgroups),
            containers: containers.clone(),
        });
        let (dirs_tx, engine_dirs) = watch::channel(EngineDirs::default());
        let usage = cadvisor_inputs::start_usage(
            windlass_cadvisor::Config {
                node_name: config.node.name.clone(),
                data_dir: config.node.data_dir.clone(),
                engine_dirs,
                pods_dir: Some(config.pods.data_dir.join("pods")),
                pods_memory_bytes: pods_memory(&config.node),
                ..windlass_cadvisor::Config::default()
            },
            Inputs {
                containers: feeds.containers.clone(),
                unmanaged: unmanaged_tx.subscribe(),
                volumes: volumes.follow(),
                images: images.list(),
                engine: engine.clone(),
            },
            shutdown,
        );
        Ok(Self {
            usage,
            engine_health: feeds.engine_health.clone(),
            pods: feeds.pods.clone(),
            node,
            reported_node,
            parts: Parts {
                recorder: metrics.recorder(inputs.client.clone(), &config.node.name),
                engine,
                network,
                images,
                probe_metrics,
                feeds,
                pressure,
                shutting_down,
                cgroups,
                #[cfg(feature = "cri")]
                containers,
            },
            owned: Owned {
                listeners,
                #[cfg(feature = "cri")]
                cri,
                image_manager,
                pods,
                engine_dirs: dirs_tx,
                unmanaged: unmanaged_tx,
                node: node_tx,
                reported_node: reported_tx,
                pressure: pressure_tx,
                shutting_down: shutting_down_tx,
            },
            config,
            inputs,
        })
    }

    /// Starts the agent's tasks.
    pub async fn start(self, tasks: &mut Supervisor) {
        let token = tasks.token();
        let state = self.server_state(token.clone());
        let node_inputs = self.node_inputs();
        #[cfg(feature = "cri")]
        let cri = self.cri();
        let Self { usage, pods, node, config, inputs, parts, owned, engine_health, .. } = self;
        let AgentInputs { client, heartbeat, heartbeats, metrics, .. } = inputs;
        let name = config.node.name.clone();

        let watching = node_watch::watch_node(client.clone(), name.clone(), owned.node, token.clone());
        tasks.forever("node watch", watching);
        let (cgroups, shutdown) = (parts.cgroups, token.clone());
        tasks.forever("cgroups", async move { cgroups.keep(shutdown).await });
        let following = data_root::follow(parts.engine.clone(), engine_health, owned.engine_dirs, token.clone());
        tasks.forever("Docker's directories", following);
        let watching = unmanaged::watch_all(parts.engine, owned.unmanaged, token.clone());
        tasks.forever("containers outside pods", watching);
        #[cfg(feature = "cri")]
        if let Some(listener) = owned.cri {
            tasks.forever("CRI socket", cri::run(cri, listener, token.clone()));
        }
        tasks.spawn("node API", server::run(config.server, owned.listeners, state, token.clone()));
        let object = windlass_kit::object_ref::node(&name);
        let managing =
            owned.image_manager.run(object, parts.recorder.clone(), pods.clone(), usage.clone(), token.clone());
        tasks.forever("images", managing);
        let shutdown_inputs = ShutdownInputs {
            node_name: name.clone(),
            grace_periods: config.shutdown_grace_periods,
            recorder: parts.recorder.clone(),
            pods: pods.clone(),
            killer: parts.feeds.killer.clone(),
            shutting_down: owned.shutting_down,
            metrics: Arc::clone(&metrics),
        };
        tasks.forever("graceful node shutdown", shutdown::run(shutdown_inputs, token.clone()));
        let eviction_config = EvictionConfig {
            node_name: name,
            thresholds: config.node.thresholds.clone(),
            transition: config.eviction_transition_period,
            max_pod_grace: config.eviction_max_pod_grace_period,
            pods_memory: pods_memory(&config.node).map_or(i64::MAX, |bytes| i64::try_from(bytes).unwrap_or(i64::MAX)),
            data_dir: config.node.data_dir.clone(),
        };
        let eviction_inputs = EvictionInputs {
            recorder: parts.recorder,
            usage,
            pods,
            metrics: Arc::clone(&metrics),
            killer: parts.feeds.killer,
            images: parts.images,
            pressure: owned.pressure,
        };
        tasks.forever("eviction", eviction::run(eviction_config, eviction_inputs, token.clone()));
        start_node(
            tasks,
            NodeClients { api: client, heartbeat },
            config.node,
            node_inputs,
            Watched { heartbeats, metrics },
        );
        start_network(tasks, &config.network, &config.pods, parts.network, node).await;
        tasks.forever("pods", owned.pods.run(token));
    }

    fn server_state(&self, shutdown: CancellationToken) -> ServerState {
        let (config, inputs, parts) = (&self.config, &self.inputs, &self.parts);
        ServerState {
            client: inputs.client.clone(),
            engine: parts.engine.clone(),
            pods: self.pods.clone(),
            containers: parts.feeds.containers.clone(),
            exits: server::Exits::of(parts.feeds.containers.clone()),
            docker: self.engine_health.clone(),
            pulls: parts.images.progress(),
            usage: self.usage.clone(),
            probes: parts.probe_metrics.clone(),
            streaming: Streaming::new(shutdown),
            heartbeats: inputs.heartbeats.clone(),
            health_checks: Arc::default(),
            metrics: Arc::clone(&inputs.metrics),
            system_logs: config.system_logs.clone(),
            node_info: Arc::new(NodeInfo {
                node_name: config.node.name.clone(),
                certificate: inputs.tls.clone(),
                version: config.node.version.clone(),
                started: Instant::now(),
                settings: config.configz.clone(),
                flags: config.flagz.clone(),
            }),
        }
    }

    #[cfg(feature = "cri")]
    fn cri(&self) -> cri::Cri {
        let parts = &self.parts;
        cri::Cri {
            engine: parts.engine.clone(),
            images: parts.images.clone(),
            containers: parts.containers.clone(),
            pods: self.pods.clone(),
            docker: self.engine_health.clone(),
            network: parts.network.readiness(),
            usage: self.usage.clone(),
        }
    }

    fn node_inputs(&self) -> NodeInputs {
        NodeInputs {
            docker: self.engine_health.clone(),
            pressure: self.parts.pressure.clone(),
            shutting_down: self.parts.shutting_down.clone(),
            images: self.parts.images.list(),
            runtimes: self.parts.feeds.runtimes.clone(),
            node: self.node.clone(),
            network: self.parts.network.readiness(),
            cgroups: Arc::clone(&self.parts.cgroups),
            reported: self.owned.reported_node.clone(),
        }
    }
}

/// The memory limit of all pods together, if there is one.
fn pods_memory(config: &NodeConfig) -> Option<u64> {
    u64::try_from(node::enforced_limits(config).get("memory")?.units()).ok()
}

/// Whether a text of /proc/swaps names swap besides its headings.
fn is_swap_on(swaps: &str) -> bool {
    swaps.trim().lines().count() > 1
}

/// Starts registration, status and lease. They wait for the API, which static pods do not.
fn start_node(tasks: &mut Supervisor, clients: NodeClients, config: NodeConfig, inputs: NodeInputs, watched: Watched) {
    let token = tasks.token();
    tasks.forever("node status", async move {
        if let Some(node) = node::register(&clients.api, &config, &token).await {
            node::run(clients, config, node, inputs, watched, token).await;
        }
    });
}

/// Starts the pod network: the saved pod CIDRs are used at once, since running pods are attached with them.
async fn start_network(
    tasks: &mut Supervisor,
    config: &PodNetworkConfig,
    pods: &Config,
    network: Network,
    node: watch::Receiver<Option<Arc<Node>>>,
) {
    if let PodNetworkConfig::Routed(_) = config {
        let (file, network, token) = (node::pod_cidr_file(&pods.data_dir), network.clone(), tasks.token());
        node::use_saved_pod_cidrs(&network, &file).await;
        tasks.forever("pod ranges", async move { node::sync_pod_cidrs(network, &file, node, token).await });
    }
    let token = tasks.token();
    tasks.forever("pod network", async move { network.keep(token).await });
}

#[cfg(test)]
mod tests {
    use super::is_swap_on;

    #[test]
    fn swap_is_what_stands_below_the_headings() {
        let headings = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n";
        assert!(!is_swap_on(headings) && !is_swap_on(""));
        assert!(is_swap_on(&format!(
            "{headings}/dev/dm-1                               partition\t999420\t\t0\t\t-2\n"
        )));
    }
}
