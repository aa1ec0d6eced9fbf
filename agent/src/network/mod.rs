//! The pod network: one routed veth pair per pod, no bridge. Every packet passes the host's netfilter.
//!
//! A pod holds a /32 of the node's range and routes everything to a link-local gateway on the host's end;
//! the host has a route per pod. `addresses` keeps who has which address on disk, `links` speaks netlink,
//! `rules` writes the few iptables chains that are the network's own. Imports nothing of `pods`.

mod addresses;
mod bandwidth;
mod links;
mod rules;

use std::{collections::BTreeSet, net::Ipv4Addr, path::PathBuf, sync::Arc};

use tokio::sync::Mutex;

use addresses::{Addresses, Holder};
pub use bandwidth::Bandwidth;
use links::Links;

/// Settings of the pod network.
#[derive(Debug, Clone)]
pub struct NetworkConfig {
    /// Who holds which address is kept here, one file each.
    pub dir: PathBuf,
    /// The node's range: first address and length.
    pub pod_cidr: (Ipv4Addr, u8),
    /// The range of all pods of the cluster.
    pub cluster_cidr: (Ipv4Addr, u8),
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
    pub host_ip: Option<Ipv4Addr>,
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
    /// A process in its network namespace.
    pub pid: i32,
    /// Its address, as [`Network::allocate`] gave it.
    pub address: Ipv4Addr,
    /// Ports of the host that lead to it.
    pub host_ports: Vec<HostPort>,
    /// How fast it may be.
    pub bandwidth: Bandwidth,
}

/// The pod network of this node; clones share it.
#[derive(Debug, Clone)]
pub struct Network {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    config: NetworkConfig,
    links: Links,
    addresses: Mutex<Addresses>,
}

impl Network {
    /// Prepares the host: forwarding, the gateway's address, the chains; reads who holds which address.
    /// What is there already is kept. Must be called inside a runtime.
    ///
    /// # Errors
    /// When the kernel or the folder refuses.
    pub async fn open(config: NetworkConfig) -> Result<Self, NetworkError> {
        let forward = "/proc/sys/net/ipv4/ip_forward";
        if std::fs::read_to_string(forward).is_ok_and(|v| v.trim() != "1") {
            std::fs::write(forward, "1")
                .map_err(|e| NetworkError::new(format!("forwarding could not be turned on in {forward}"), e))?;
        }
        let addresses = Addresses::open(&config.dir, config.pod_cidr)?;
        let links = Links::open()?;
        links.put_gateway(addresses.gateway()).await?;
        let text = rules::chains(config.pod_cidr, config.cluster_cidr, addresses.holders());
        rules::apply(text).await?;
        Ok(Self { inner: Arc::new(Inner { config, links, addresses: Mutex::new(addresses) }) })
    }

    /// The address of a pod, on disk before it is given. The same pod gets the same again.
    ///
    /// # Errors
    /// When the range is used up or the disk refuses.
    pub async fn allocate(&self, pod_uid: &str) -> Result<Ipv4Addr, NetworkError> {
        self.inner.addresses.lock().await.allocate(pod_uid)
    }

    /// Connects a pod; what is connected already is left as it is.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub async fn attach(&self, request: Attach) -> Result<(), NetworkError> {
        let gateway = {
            let mut addresses = self.inner.addresses.lock().await;
            let holder = Holder { pod_uid: request.pod_uid.clone(), host_ports: request.host_ports.clone() };
            if addresses.hold(request.address, holder)? {
                self.write_rules(&addresses).await?;
            }
            addresses.gateway()
        };
        self.inner.links.connect(&request.pod_uid, request.pid, request.address, gateway).await?;
        if request.bandwidth != Bandwidth::default() {
            let interface = links::interface_of(&request.pod_uid);
            bandwidth::hold(interface, links::POD_INTERFACE, request.pid, request.bandwidth).await?;
        }
        Ok(())
    }

    /// Disconnects a pod and frees its address. Gone already is success.
    ///
    /// # Errors
    /// When the kernel or the disk refuses.
    pub async fn detach(&self, pod_uid: &str) -> Result<(), NetworkError> {
        self.inner.links.disconnect(pod_uid).await?;
        let mut addresses = self.inner.addresses.lock().await;
        if addresses.release(pod_uid)? {
            self.write_rules(&addresses).await?;
        }
        Ok(())
    }

    /// Frees what pods other than these hold: after a restart.
    ///
    /// # Errors
    /// The first refusal; the rest is tried all the same.
    pub async fn retain(&self, live: &BTreeSet<String>) -> Result<(), NetworkError> {
        let stale: Vec<String> =
            self.inner.addresses.lock().await.pods().filter(|uid| !live.contains(*uid)).map(str::to_owned).collect();
        let mut first = Ok(());
        for uid in stale {
            let freed = self.detach(&uid).await;
            first = first.and(freed);
        }
        first
    }

    async fn write_rules(&self, addresses: &Addresses) -> Result<(), NetworkError> {
        let config = &self.inner.config;
        rules::apply(rules::chains(config.pod_cidr, config.cluster_cidr, addresses.holders())).await
    }

    /// Takes the network off the host: interfaces, chains, the gateway's address. Gives what stayed.
    pub async fn teardown(gateway_of: Option<(Ipv4Addr, u8)>) -> Vec<String> {
        let mut problems = Vec::new();
        match Links::open() {
            Ok(links) => problems.extend(links.remove_all(gateway_of.map(addresses::gateway_of)).await),
            Err(error) => problems.push(error.to_string()),
        }
        problems.extend(rules::remove().await);
        problems
    }
}
