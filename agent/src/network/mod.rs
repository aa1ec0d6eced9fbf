//! The pod network, by one of two backends: `routed`, the built-in one, or `cni`, the cluster's CNI plugins.
//!
//! Built-in: one routed veth pair per pod, no bridge. Every packet passes the host's netfilter. A pod has one address
//! of each of the node's pod CIDRs and routes everything to a link-local gateway on the host's end; the host has a
//! route per address. `ipam` allocates addresses on disk, `veth` is the backend, `links` speaks netlink, `iptables`
//! writes the network's own chains, `kernel_rules` knows which were written and whether they are still there, `host_ports`
//! decides whose UDP connections are stale, `bandwidth` limits pods, `netns` opens their network namespaces, `pod_dialer`
//! connects into a pod. Either backend may have to wait, for pod CIDRs or for plugins: [`Readiness`] reports that to the
//! node's status and to pods. Imports nothing of `pods`.

mod bandwidth;
mod cni;
mod host_ports;
mod ipam;
mod iptables;
mod kernel_rules;
mod links;
mod netns;
mod pod_dialer;
mod readiness;
mod veth;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    path::PathBuf,
    sync::Arc,
};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use windlass_kit::{announced_pod::Announcer, net::Cidr};

pub use bandwidth::Bandwidth;
pub use cni::CniConfig;
#[cfg(any(test, feature = "fuzzing"))]
pub use cni::fuzzing as cni_fuzzing;
pub use netns::NetworkNamespace;
pub use pod_dialer::PodDialer;
pub use readiness::Readiness;

use crate::known::Known;
use cni::Cni;
use veth::VethNetwork;
pub(crate) use veth::foreign_ranges;

/// Configuration of the built-in network.
#[derive(Debug, Clone)]
pub struct NetworkConfig {
    /// The directory of address allocations, one file each.
    pub dir: PathBuf,
    /// The ranges of all pods of the cluster.
    pub cluster_cidrs: Vec<Cidr>,
}

/// A failed operation on the pod network.
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

/// A host port of a pod.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct HostPort {
    /// The host address it is bound to; `None` for all.
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

/// A request to connect a pod.
#[derive(Debug, Clone)]
pub struct Attach {
    /// The pod.
    pub pod_uid: String,
    /// Its name, for plugins.
    pub pod_name: String,
    /// Its namespace, for plugins.
    pub pod_namespace: String,
    /// The container that holds its network namespace.
    pub sandbox: String,
    /// The namespace itself.
    pub namespace: NetworkNamespace,
    /// Its addresses, as [`Network::allocate`] gave them.
    pub addresses: Vec<IpAddr>,
    /// Its host ports.
    pub host_ports: Vec<HostPort>,
    /// Its bandwidth limits.
    pub bandwidth: Bandwidth,
    /// Its labels, which NetworkPolicies select it by.
    pub labels: BTreeMap<String, String>,
    /// Its ports that have names: name, protocol as the API spells it, number.
    pub named_ports: Vec<(String, String, u16)>,
}

/// The network of this node's pods; clones share it.
#[derive(Debug, Clone)]
pub struct Network {
    backend: Arc<Backend>,
    readiness: watch::Sender<Readiness>,
}

#[derive(Debug)]
enum Backend {
    Routed(VethNetwork),
    Cni(Cni),
}

impl Network {
    /// The built-in network, without pod CIDRs yet. With an announcer no pod is connected before the rules of
    /// NetworkPolicies are in force for it.
    #[must_use]
    pub fn routed(config: NetworkConfig, announcer: Option<Announcer>) -> Self {
        Self::new(Backend::Routed(VethNetwork::new(config, announcer)))
    }

    /// The CNI plugins of this node. They may be configured later than this call.
    ///
    /// # Errors
    /// When the state directory cannot be read.
    pub fn cni(config: CniConfig) -> Result<Self, NetworkError> {
        Ok(Self::new(Backend::Cni(Cni::open(config)?)))
    }

    fn new(backend: Backend) -> Self {
        Self {
            backend: Arc::new(backend),
            readiness: watch::Sender::new(Readiness::not_ready("it has not been looked at yet")),
        }
    }

    /// Whether pods can be connected.
    #[must_use]
    pub fn readiness(&self) -> watch::Receiver<Readiness> {
        self.readiness.subscribe()
    }

    /// Publishes whether pods can be connected.
    pub(crate) fn set_readiness(&self, readiness: Readiness) {
        self.readiness.send_if_modified(|known| std::mem::replace(known, readiness.clone()) != readiness);
    }

    /// Until `shutdown`: watches the CNI configuration and publishes the readiness; of the built-in network, keeps the
    /// kernel's rules and connections as they should be.
    pub async fn keep(&self, shutdown: CancellationToken) {
        match &*self.backend {
            Backend::Routed(routed) => routed.keep(shutdown).await,
            Backend::Cni(cni) => cni.watch(|readiness| self.set_readiness(readiness), shutdown).await,
        }
    }

    /// Uses these pod CIDRs from now on: one of each family at most, IPv4 first. Prepares the host: forwarding, gateway
    /// addresses, iptables chains; reads the allocations. What exists is kept; former ranges are removed from the host.
    /// Must be called inside a runtime.
    ///
    /// # Errors
    /// When the kernel or the disk refuses, or pods hold addresses of former ranges.
    pub async fn use_ranges(&self, ranges: &[Cidr]) -> Result<(), NetworkError> {
        match &*self.backend {
            Backend::Routed(routed) => routed.use_ranges(ranges).await,
            Backend::Cni(_) => Ok(()),
        }
    }

    /// The ranges of the addresses that pods hold of the built-in network; an address whose range is not known is one of
    /// its own.
    #[must_use]
    pub(crate) fn ranges_in_use(&self) -> watch::Receiver<Known<BTreeSet<Cidr>>> {
        match &*self.backend {
            Backend::Routed(routed) => routed.ranges_in_use(),
            Backend::Cni(_) => watch::Sender::new(Known::Is(BTreeSet::new())).subscribe(),
        }
    }

    /// Reads which addresses pods hold, where that is not known.
    pub(crate) async fn read_addresses(&self) {
        if let Backend::Routed(routed) = &*self.backend {
            routed.read_addresses().await;
        }
    }

    /// Frees addresses outside of these ranges that no interface leads to any more.
    ///
    /// # Errors
    /// When the kernel or the disk refuses; what was not freed stays in use.
    pub(crate) async fn free_unused(&self, ranges: &[Cidr]) -> Result<(), NetworkError> {
        match &*self.backend {
            Backend::Routed(routed) => routed.free_unused(ranges).await,
            Backend::Cni(_) => Ok(()),
        }
    }

    /// Allocates the addresses of a pod, on disk before they are used; idempotent per pod. Empty for CNI, where plugins
    /// choose them.
    ///
    /// # Errors
    /// When a range is exhausted or the disk refuses.
    pub async fn allocate(&self, pod_uid: &str) -> Result<Vec<IpAddr>, NetworkError> {
        match &*self.backend {
            Backend::Routed(routed) => routed.allocate(pod_uid).await,
            Backend::Cni(_) => Ok(Vec::new()),
        }
    }

    /// The addresses of a connected pod; empty for the built-in network, where sandboxes carry them.
    #[must_use]
    pub fn addresses_of(&self, pod_uid: &str) -> Vec<IpAddr> {
        match &*self.backend {
            Backend::Routed(_) => Vec::new(),
            Backend::Cni(cni) => cni.addresses_of(pod_uid),
        }
    }

    /// Connects a pod and returns its addresses; idempotent.
    ///
    /// # Errors
    /// When the kernel or a plugin refuses.
    pub async fn attach(&self, request: Attach) -> Result<Vec<IpAddr>, NetworkError> {
        match &*self.backend {
            Backend::Routed(routed) => routed.attach(request).await,
            Backend::Cni(cni) => cni.attach(request).await,
        }
    }

    /// Disconnects a pod and releases its addresses. An unknown pod is success.
    ///
    /// # Errors
    /// When the kernel, a plugin or the disk refuses.
    pub async fn detach(&self, pod_uid: &str) -> Result<(), NetworkError> {
        match &*self.backend {
            Backend::Routed(routed) => routed.detach(pod_uid).await,
            Backend::Cni(cni) => cni.detach(pod_uid).await,
        }
    }

    /// Whether a pod's network must be disconnected before the container that holds its namespace is removed.
    #[must_use]
    pub(crate) fn precedes_removal(&self) -> bool {
        matches!(*self.backend, Backend::Cni(_))
    }

    /// Disconnects all pods but these, after a restart, and has plugins free what belongs to none.
    ///
    /// # Errors
    /// The first failure; the rest is tried anyway.
    pub async fn retain(&self, live: &BTreeSet<String>) -> Result<(), NetworkError> {
        let stale = match &*self.backend {
            Backend::Routed(routed) => routed.pods_except(live).await?,
            Backend::Cni(cni) => cni.pods().into_iter().filter(|uid| !live.contains(uid)).collect(),
        };
        let mut first = Ok(());
        for uid in stale {
            let freed = self.detach(&uid).await;
            first = first.and(freed);
        }
        match &*self.backend {
            Backend::Cni(cni) => first.and(cni.collect_garbage().await),
            Backend::Routed(_) => first,
        }
    }

    /// Removes the network from the host: interfaces, chains, the gateways of these ranges, and CNI attachments in
    /// `cni.state_dir`. Returns what could not be removed.
    pub async fn teardown(ranges: &[Cidr], cni: CniConfig) -> Vec<String> {
        let mut problems = veth::teardown(ranges).await;
        if cni.state_dir.is_dir() {
            match Self::cni(cni) {
                Ok(network) => problems.extend(network.retain(&BTreeSet::new()).await.err().map(|e| e.to_string())),
                Err(error) => problems.push(error.to_string()),
            }
        }
        problems
    }
}

#[cfg(test)]
mod tests;
