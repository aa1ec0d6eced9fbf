//! The node agent (kubelet): pods on Docker, their network and volumes, the Node object, the node's HTTP API.
//!
//! Knows the Kubernetes API through a `kube::Client` only, embedded or remote alike; imports `kit` and `cadvisor`,
//! never `control` or `proxy`. Only `engine` talks to Docker.

mod agent;
mod applied;
mod async_fd;
mod cadvisor_inputs;
pub mod certificates;
mod cgroup;
#[cfg(feature = "cri")]
pub mod cri;
pub mod dashboard;
mod downward_api;
pub mod engine;
mod go_text;
pub mod images;
mod keyed_lock;
mod known;
pub mod logs;
pub mod metrics;
pub mod network;
pub mod node;
mod node_authorizer;
mod node_watch;
mod pod_containers;
pub mod pods;
pub mod probe_metrics;
pub mod server;
#[cfg(test)]
mod test_api;
#[cfg(test)]
mod testing;
pub mod volumes;

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
    path::PathBuf,
    sync::Arc,
};

pub use agent::{Agent, AgentConfig, AgentInputs, BuildError, PodNetworkConfig};
use windlass_cadvisor::Target;
use windlass_kit::{net::NodeIps, published_map::Published, quantity::Quantity};

/// The configuration of pods.
#[derive(Debug, Clone)]
pub struct Config {
    /// The node's name; only its pods are run.
    pub node_name: String,
    /// The node's addresses, shown as `hostIP` and `hostIPs`.
    pub node_ips: NodeIps,
    /// The data directory; pods' directories are in its `pods/`.
    pub data_dir: PathBuf,
    /// The cluster's name servers; may be empty.
    pub cluster_dns: Vec<IpAddr>,
    /// The cluster's DNS domain.
    pub cluster_domain: String,
    /// The resolv.conf with the host's name servers for pods; an empty path means none. By default it is detected.
    pub resolv_conf: Option<PathBuf>,
    /// The OOM killer kills single processes, not all of a container.
    pub single_process_oom_kill: bool,
    /// Unsafe sysctls that pods may set; a trailing `*` matches any suffix.
    pub allowed_unsafe_sysctls: Vec<String>,
    /// The directory of log symlinks, by pod (`/var/log/pods`).
    pub pod_logs_dir: PathBuf,
    /// The directory of log symlinks, flat (`/var/log/containers`).
    pub container_logs_dir: PathBuf,
    /// The directory of static pod manifests, if any.
    pub static_pods_dir: Option<PathBuf>,
    /// The node's pod capacity; upstream's default is 110.
    pub max_pods: usize,
    /// The PID limit of a pod; `None` for the node's.
    pub pod_pids_limit: Option<u32>,
    /// How pods use the machine's swap.
    pub swap_behavior: SwapBehavior,
    /// The node's allocatable resources.
    pub allocatable: BTreeMap<String, Quantity>,
    /// Limits of container logs.
    pub log_limits: LogLimits,
}

/// How pods use the machine's swap, with cgroup v2; KubeletConfiguration's `memorySwap.swapBehavior`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum SwapBehavior {
    /// Not at all.
    #[default]
    #[serde(alias = "")]
    NoSwap,
    /// Containers of Burstable pods in proportion to their memory request.
    LimitedSwap,
}

/// The size limits of a container's log, which Docker rotates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogLimits {
    /// Maximum bytes of a file.
    pub file_bytes: u64,
    /// Maximum files, the current one included.
    pub files: u32,
}

impl Default for LogLimits {
    /// The defaults of KubeletConfiguration's `containerLogMaxSize` and `containerLogMaxFiles`.
    fn default() -> Self {
        Self { file_bytes: 10 << 20, files: 5 }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            node_name: String::new(),
            node_ips: IpAddr::V4(Ipv4Addr::LOCALHOST).into(),
            data_dir: "/var/lib/windlass".into(),
            cluster_dns: Vec::new(),
            cluster_domain: "cluster.local".to_owned(),
            resolv_conf: None,
            single_process_oom_kill: false,
            allowed_unsafe_sysctls: Vec::new(),
            pod_logs_dir: "/var/log/pods".into(),
            container_logs_dir: "/var/log/containers".into(),
            static_pods_dir: None,
            max_pods: 110,
            pod_pids_limit: None,
            swap_behavior: SwapBehavior::NoSwap,
            allocatable: BTreeMap::new(),
            log_limits: LogLimits::default(),
        }
    }
}

/// The node's pressure conditions; pods that would make them worse are rejected.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pressure {
    /// Memory.
    pub memory: bool,
    /// Disk.
    pub disk: bool,
    /// Process ids.
    pub pid: bool,
}

/// The running containers of pods, sandboxes included, by the engine's id: from the worker of the pod to the pages.
pub type RunningContainers = Published<Arc<str>, Arc<Target>>;
