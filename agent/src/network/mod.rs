//! The network of pods, in one of two ways: `routed`, our own, or `cni`, by the plugins that a cluster has chosen.
//!
//! Ours: one routed veth pair per pod, no bridge. Every packet passes the host's netfilter. A pod holds one address
//! of each of the node's ranges and routes everything to a link-local gateway on the host's end; the host has a route
//! per address. `addresses` keeps who has which address on disk, `links` speaks netlink, `rules` writes the few
//! iptables chains that are the network's own, `bandwidth` slows pods down. Either way may have to wait, for a range of
//! addresses or for plugins: [`Readiness`] says so to the node's status and to pods. Imports nothing of `pods`.

mod addresses;
mod bandwidth;
mod cni;
mod dial;
mod links;
mod readiness;
mod routed;
mod rules;

use std::{collections::BTreeSet, net::IpAddr, path::PathBuf, sync::Arc};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use windlass_kit::net::Cidr;

pub use bandwidth::Bandwidth;
pub use cni::CniConfig;
pub use dial::Namespace;
pub use readiness::Readiness;

use cni::Cni;
use routed::Routed;

/// Settings of our own network.
#[derive(Debug, Clone)]
pub struct NetworkConfig {
    /// Who holds which address is kept here, one file each.
    pub dir: PathBuf,
    /// The ranges of all pods of the cluster.
    pub cluster_cidrs: Vec<Cidr>,
}

/// Why the network could not do something.
#[derive(Debug, thiserror::Error)]
#[error("{attempt}: {reason}")]
pub struct NetworkError {
    attempt: String,
    reason: String,
}

impl NetworkError {
    fn new(attempt: impl Into<String>, reason: impl std::fmt::Display) -> Self {
        Self { attempt: attempt.into(), reason: reason.to_string() }
    }
}

/// A port of the host that leads to a pod.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct HostPort {
    /// Only at this address of the host; `None` for all.
    pub host_ip: Option<IpAddr>,
    /// The host's port.
    pub host_port: u16,
    /// The pod's port.
    pub container_port: u16,
    /// Which protocol.
    pub protocol: Protocol,
}

/// Protocols of ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl Protocol {
    const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }
}

/// What connects a pod.
#[derive(Debug, Clone)]
pub struct Attach {
    /// The pod.
    pub pod_uid: String,
    /// Its name, which plugins are told.
    pub pod_name: String,
    /// Its namespace in the API, which plugins are told.
    pub pod_namespace: String,
    /// The container that holds its network namespace.
    pub sandbox: String,
    /// A process in its network namespace.
    pub pid: i32,
    /// Its addresses, as [`Network::allocate`] gave them.
    pub addresses: Vec<IpAddr>,
    /// Ports of the host that lead to it.
    pub host_ports: Vec<HostPort>,
    /// How fast it may be.
    pub bandwidth: Bandwidth,
}

/// The network of this node's pods; clones share it.
#[derive(Debug, Clone)]
pub struct Network {
    way: Arc<Way>,
    readiness: watch::Sender<Readiness>,
}

#[derive(Debug)]
enum Way {
    Routed(Routed),
    Cni(Cni),
}

impl Network {
    /// Our own network, without ranges yet.
    #[must_use]
    pub fn routed(config: NetworkConfig) -> Self {
        Self::new(Way::Routed(Routed::new(config)))
    }

    /// The network of the plugins that are configured on this node. They may come later than this call.
    ///
    /// # Errors
    /// When the folder that keeps their results refuses.
    pub fn cni(config: CniConfig) -> Result<Self, NetworkError> {
        Ok(Self::new(Way::Cni(Cni::open(config)?)))
    }

    fn new(way: Way) -> Self {
        Self {
            way: Arc::new(way),
            readiness: watch::Sender::new(Readiness::not_ready("it has not been looked at yet")),
        }
    }

    /// Whether pods can be connected.
    #[must_use]
    pub fn readiness(&self) -> watch::Receiver<Readiness> {
        self.readiness.subscribe()
    }

    /// Tells whether pods can be connected.
    pub(crate) fn tell(&self, readiness: Readiness) {
        self.readiness.send_if_modified(|known| std::mem::replace(known, readiness.clone()) != readiness);
    }

    /// Tells whether pods can be connected by plugins, as their folders have them, until `shutdown`. Nothing to do for our
    /// own network.
    pub async fn follow_plugins(&self, shutdown: CancellationToken) {
        match &*self.way {
            Way::Routed(_) => shutdown.cancelled().await,
            Way::Cni(cni) => cni.follow(|readiness| self.tell(readiness), shutdown).await,
        }
    }

    /// Gives pods addresses of these ranges from now on: one of a family at most, IPv4 first. Prepares the host:
    /// forwarding, the gateways' addresses, the chains; reads who holds which address. What is there already is kept;
    /// other ranges that were used before are taken off the host. Must be called inside a runtime.
    ///
    /// # Errors
    /// When the kernel or the folder refuses, or pods hold addresses of the other ranges.
    pub async fn use_ranges(&self, ranges: &[Cidr]) -> Result<(), NetworkError> {
        match &*self.way {
            Way::Routed(routed) => routed.use_ranges(ranges).await,
            Way::Cni(_) => Ok(()),
        }
    }

    /// Whether pods hold addresses of our own.
    #[must_use]
    pub fn holds(&self) -> watch::Receiver<bool> {
        match &*self.way {
            Way::Routed(routed) => routed.holds(),
            Way::Cni(_) => watch::Sender::new(false).subscribe(),
        }
    }

    /// The addresses of a pod, on disk before they are given; the same pod gets the same again. None when plugins
    /// choose them as they connect it.
    ///
    /// # Errors
    /// When a range is used up or the disk refuses.
    pub async fn allocate(&self, pod_uid: &str) -> Result<Vec<IpAddr>, NetworkError> {
        match &*self.way {
            Way::Routed(routed) => routed.allocate(pod_uid).await,
            Way::Cni(_) => Ok(Vec::new()),
        }
    }

    /// The addresses of a pod that is connected already; none for those of our own network, whose sandboxes carry them.
    #[must_use]
    pub fn addresses_of(&self, pod_uid: &str) -> Vec<IpAddr> {
        match &*self.way {
            Way::Routed(_) => Vec::new(),
            Way::Cni(cni) => cni.addresses_of(pod_uid),
        }
    }

    /// Connects a pod and gives its addresses; what is connected already is left as it is.
    ///
    /// # Errors
    /// When the kernel or a plugin refuses.
    pub async fn attach(&self, request: Attach) -> Result<Vec<IpAddr>, NetworkError> {
        match &*self.way {
            Way::Routed(routed) => routed.attach(request).await,
            Way::Cni(cni) => cni.attach(request).await,
        }
    }

    /// Disconnects a pod and frees its addresses. Gone already is success.
    ///
    /// # Errors
    /// When the kernel, a plugin or the disk refuses.
    pub async fn detach(&self, pod_uid: &str) -> Result<(), NetworkError> {
        match &*self.way {
            Way::Routed(routed) => routed.detach(pod_uid).await,
            Way::Cni(cni) => cni.detach(pod_uid).await,
        }
    }

    /// Frees what pods other than these hold: after a restart.
    ///
    /// # Errors
    /// The first refusal; the rest is tried all the same.
    pub async fn retain(&self, live: &BTreeSet<String>) -> Result<(), NetworkError> {
        let held = match &*self.way {
            Way::Routed(routed) => routed.others(live).await,
            Way::Cni(cni) => cni.pods().into_iter().filter(|uid| !live.contains(uid)).collect(),
        };
        let mut first = Ok(());
        for uid in held {
            let freed = self.detach(&uid).await;
            first = first.and(freed);
        }
        first
    }

    /// Takes the network off the host: interfaces, chains, the gateways' addresses of these ranges, and what plugins
    /// did, as `cni.state_dir` has it. Gives what stayed.
    pub async fn teardown(ranges: &[Cidr], cni: CniConfig) -> Vec<String> {
        let mut problems = routed::teardown(ranges).await;
        if cni.state_dir.is_dir() {
            match Self::cni(cni) {
                Ok(network) => problems.extend(network.retain(&BTreeSet::new()).await.err().map(|e| e.to_string())),
                Err(error) => problems.push(error.to_string()),
            }
        }
        problems
    }
}
