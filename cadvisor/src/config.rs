//! The configuration, and the containers to sample.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use tokio::sync::watch;

/// How and where to read. All paths are as seen by this process.
#[derive(Debug, Clone)]
pub struct Config {
    /// Name of the node as the API knows it.
    pub node_name: String,
    /// Time between two housekeepings; ticks are aligned to it, without jitter.
    pub interval: Duration,
    /// The maximal age of a sample for a request of fresh ones.
    pub max_age: Duration,
    /// Prefix of `/proc`, `/sys` and of all paths found in them; `/` except for recorded trees.
    pub root: PathBuf,
    /// Directory whose file system is the node's `fs` in the summary.
    pub data_dir: PathBuf,
    /// Docker's directories; published again whenever it comes back.
    pub engine_dirs: watch::Receiver<EngineDirs>,
    /// The directory with a directory for each pod, by its uid; `None` when there are no pods.
    pub pods_dir: Option<PathBuf>,
    /// The memory limit of all pods together.
    pub pods_memory_bytes: Option<u64>,
    /// Minimal time between two scans of a container's writable layer and logs.
    pub walk_interval: Duration,
    /// Processes listed as system containers besides `pods`.
    pub system_processes: Vec<SystemProcess>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            node_name: "localhost".to_owned(),
            interval: Duration::from_secs(10),
            max_age: Duration::from_secs(1),
            root: PathBuf::from("/"),
            data_dir: PathBuf::from("/var/lib/windlass"),
            engine_dirs: watch::channel(EngineDirs::default()).1,
            pods_dir: None,
            pods_memory_bytes: None,
            walk_interval: Duration::from_secs(60),
            system_processes: vec![
                SystemProcess { name: "kubelet".to_owned(), pid_file: None },
                SystemProcess { name: "runtime".to_owned(), pid_file: Some(PathBuf::from("/run/docker.pid")) },
            ],
        }
    }
}

/// The roles of Docker's directories. A role is `None` until Docker has reported it: nothing is guessed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EngineDirs {
    /// Docker's data root: logs, and what the older image store keeps.
    pub data_root: Option<PathBuf>,
    /// Images and writable layers: the data root, or containerd's with the containerd image store.
    pub image_root: Option<PathBuf>,
}

/// One daemon of the node whose own usage is reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SystemProcess {
    /// `kubelet` or `runtime`, the names that clients of the Summary API expect.
    pub name: String,
    /// File with the process id; `None` means this process.
    pub pid_file: Option<PathBuf>,
}

/// A volume of a pod whose usage is scanned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    /// The pod.
    pub pod_uid: String,
    /// Its name in the pod.
    pub name: String,
    /// Its path on the node.
    pub path: PathBuf,
    /// Namespace and name of its PersistentVolumeClaim.
    pub claim: Option<(String, String)>,
    /// Belongs to the pod alone, so that its files are counted; otherwise the usage of its file system is reported.
    pub of_pod: bool,
}

/// A running container to sample.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Target {
    /// 64 hexadecimal digits.
    pub container_id: String,
    /// Init process of the container, in this process's pid namespace.
    pub pid: i32,
    /// The engine's name of the container, without a leading slash.
    pub name: String,
    /// Image reference as given at its creation.
    pub image: String,
    /// Empty for containers outside pods.
    pub pod_name: String,
    /// Empty for containers outside pods.
    pub pod_namespace: String,
    /// Empty for containers outside pods.
    pub pod_uid: String,
    /// Name in the pod; `POD` is the sandbox, which carries the pod's network.
    pub container_name: String,
    /// When the init process started.
    pub started_at: jiff::Timestamp,
    /// The pod's `status.startTime`.
    pub pod_started_at: jiff::Timestamp,
    /// Labels, for containers outside pods.
    pub labels: BTreeMap<String, String>,
    /// Requested CPU shares; `None` when only the kernel knows.
    pub cpu_shares: Option<u64>,
    /// Its limits as the engine reports them, in any order: when the list changes, the limits are read again.
    pub limits: Vec<i64>,
    /// The result of its Docker health check.
    pub healthy: Option<bool>,
    /// Shares another container's network namespace, whose traffic is reported there.
    pub shares_network: bool,
}

impl Target {
    /// Whether this is the pause container with the pod's namespaces.
    #[must_use]
    pub fn is_sandbox(&self) -> bool {
        self.container_name == "POD"
    }
}
