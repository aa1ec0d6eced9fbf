//! What the caller says: settings, and the containers to watch.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

/// How and where to read. All paths are as seen by this process.
#[derive(Debug, Clone)]
pub struct Config {
    /// Name of the node as the API knows it.
    pub node_name: String,
    /// Time between two rounds over everything; ticks are aligned to it, without jitter.
    pub interval: Duration,
    /// A request finds a sample at most this old when it asks for a fresh one first.
    pub max_age: Duration,
    /// Prefix of `/proc`, `/sys` and of all paths found in them; `/` except for recorded trees.
    pub root: PathBuf,
    /// Directory whose file system is the node's `fs` in the summary.
    pub data_dir: PathBuf,
    /// Docker's data root: images, writable layers and logs.
    pub docker_root: PathBuf,
    /// Shortest time between two walks over a container's writable layer and logs.
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
            docker_root: PathBuf::from("/var/lib/docker"),
            walk_interval: Duration::from_secs(60),
            system_processes: vec![
                SystemProcess { name: "kubelet".to_owned(), pid_file: None },
                SystemProcess { name: "runtime".to_owned(), pid_file: Some(PathBuf::from("/run/docker.pid")) },
            ],
        }
    }
}

/// One daemon of the node whose own usage is reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SystemProcess {
    /// `kubelet` or `runtime`, as clients of the summary expect.
    pub name: String,
    /// File that holds the process id; none means this process.
    pub pid_file: Option<PathBuf>,
}

/// A volume of a pod that a size is wanted of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    /// The pod.
    pub pod_uid: String,
    /// Its name in the pod.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
    /// Namespace and name of the claim that it comes from.
    pub claim: Option<(String, String)>,
    /// Belongs to the pod alone, so that its files are counted; else its file system is asked.
    pub of_pod: bool,
}

/// A running container that usage is wanted of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Subject {
    /// 64 hexadecimal digits.
    pub container_id: String,
    /// Init process of the container, in this process's pid namespace.
    pub pid: i32,
    /// The engine's name of the container, without a leading slash.
    pub name: String,
    /// Image reference as given when the container was made.
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
    /// Weight for CPU time as it was asked for; none when only the kernel knows.
    pub cpu_shares: Option<u64>,
    /// What the engine says that it is held to, in any order: with another list its limits are read anew.
    pub held_to: Vec<i64>,
    /// What the container's own check says.
    pub healthy: Option<bool>,
    /// Its network is another container's, where it is told.
    pub shares_network: bool,
}

impl Subject {
    /// Whether this is the pause container that holds the pod's namespaces.
    #[must_use]
    pub fn is_sandbox(&self) -> bool {
        self.container_name == "POD"
    }
}
