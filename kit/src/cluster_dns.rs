//! The address of the cluster's DNS: the name of its Service, shared by the API, the DNS server and the agent.

use std::net::Ipv4Addr;

/// The Service of the cluster's DNS.
pub const SERVICE: &str = "kube-dns";
/// Its namespace.
pub const SERVICE_NAMESPACE: &str = "kube-system";
/// The port of its cluster IP.
pub const SERVICE_PORT: u16 = 53;

/// The cluster IP of the cluster's DNS: the tenth address of the range of Services, as kubeadm's.
#[must_use]
pub fn service_ip((network, _): (Ipv4Addr, u8)) -> Ipv4Addr {
    Ipv4Addr::from_bits(network.to_bits().saturating_add(10))
}
