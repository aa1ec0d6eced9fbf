//! The node agent: pods on Docker, their network and volumes, the node's own object, its HTTP API.
//!
//! Knows the Kubernetes API through a `kube::Client` only, embedded or remote alike; imports `kit` and
//! `cadvisor`, never `control` or `proxy`. Only `engine` talks to Docker.

pub mod certificates;
mod cgroup;
pub mod engine;
pub mod images;
pub mod live;
pub mod logs;
pub mod metrics;
pub mod network;
pub mod node;
mod node_authorizer;
pub mod node_watch;
pub mod pods;
pub mod probe_metrics;
pub mod server;
pub mod volumes;

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
    path::PathBuf,
};

use jiff::Timestamp;
use windlass_kit::{net::NodeIps, quantity::Quantity};

/// Settings of the part that runs pods.
#[derive(Debug, Clone)]
pub struct Config {
    /// The node's name; only its pods are run.
    pub node_name: String,
    /// The node's addresses, shown as `hostIP` and `hostIPs`.
    pub node_ips: NodeIps,
    /// Pods' folders are made below `pods/` of it.
    pub data_dir: PathBuf,
    /// Name servers of the cluster; empty when there are none.
    pub cluster_dns: Vec<IpAddr>,
    /// Domain of the cluster's names.
    pub cluster_domain: String,
    /// The resolv.conf that pods get the host's name servers from, none where it is empty; found where it is not set.
    pub resolv_conf: Option<PathBuf>,
    /// A process that is killed for want of memory does not take the others of its container with it.
    pub single_process_oom_kill: bool,
    /// Kernel settings beyond the safe ones that pods may ask for; `*` at an end stands for any.
    pub allowed_unsafe_sysctls: Vec<String>,
    /// Links to containers' logs, by pod.
    pub pod_logs_dir: PathBuf,
    /// Links to containers' logs, flat.
    pub container_logs_dir: PathBuf,
    /// The folder of the node's own pods, if there is one.
    pub static_pods_dir: Option<PathBuf>,
    /// How many pods the node takes; upstream's default is 110.
    pub max_pods: usize,
    /// How many processes and threads one pod may have; `None` for as many as the node.
    pub pod_pids_limit: Option<u32>,
    /// What pods may have of this machine, by resource.
    pub allocatable: BTreeMap<String, Quantity>,
    /// How much of a container's log is kept.
    pub log_limits: LogLimits,
}

/// How much of a container's log is kept, by Docker: files of a size, the older ones rotated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogLimits {
    /// Bytes of one file.
    pub file_bytes: u64,
    /// Files, with the one that is written.
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
            allocatable: BTreeMap::new(),
            log_limits: LogLimits::default(),
        }
    }
}

/// What the node is short of; no pod is taken that would make it worse.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pressure {
    /// Memory.
    pub memory: bool,
    /// Disk.
    pub disk: bool,
    /// Process ids.
    pub pid: bool,
}

/// One running container of a pod, for whoever measures it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerRecord {
    /// Docker's id, 64 hex digits.
    pub id: String,
    /// The first process, in the host's numbering.
    pub pid: i32,
    /// Docker's name.
    pub docker_name: String,
    /// The image as the pod names it.
    pub image: String,
    /// The pod's name.
    pub pod_name: String,
    /// The pod's namespace.
    pub pod_namespace: String,
    /// The pod's uid.
    pub pod_uid: String,
    /// The container's name in the pod; `POD` for the sandbox.
    pub container_name: String,
    /// Holds the pod's namespaces and does nothing else.
    pub is_sandbox: bool,
    /// Since when it runs.
    pub started_at: Timestamp,
    /// Its weight for CPU time, as it was asked for.
    pub cpu_shares: u64,
    /// All that Docker says it is held to: another list means other limits.
    pub held_to: Vec<i64>,
}
