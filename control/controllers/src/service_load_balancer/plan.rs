//! Which addresses a load balancer has, and which holder its ports have. Pure.

use std::{collections::BTreeSet, fmt, net::IpAddr};

use k8s_openapi::api::{
    core::v1::{LoadBalancerIngress, Service, ServiceSpec},
    discovery::v1::EndpointSlice,
};
use windlass_kit::net::Family;

use super::messages;
use crate::{
    nodes::health,
    runtime::{CachedNode, CachedPod, Key},
};

/// The class of load balancers that have the addresses of nodes.
pub(super) const CLASS: &str = "windlass.io/node-addresses";
/// Holds a service whose load balancer is elsewhere (`LoadBalancerCleanupFinalizer`).
pub(super) const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";
/// Nodes with this label have no load balancers (`LabelNodeExcludeBalancers`).
const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
/// Nodes with this taint are about to go (`ToBeDeletedTaint`).
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// A port of a node's addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PortKey {
    pub(super) number: i32,
    protocol: Protocol,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

impl PortKey {
    pub(super) fn new(number: i32, protocol: Option<&str>) -> Self {
        let protocol = match protocol {
            Some("UDP") => Protocol::Udp,
            Some("SCTP") => Protocol::Sctp,
            _ => Protocol::Tcp,
        };
        Self { number, protocol }
    }
}

impl fmt::Display for PortKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = match self.protocol {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
            Protocol::Sctp => "SCTP",
        };
        write!(f, "{}/{protocol}", self.number)
    }
}

fn spec(service: &Service) -> Option<&ServiceSpec> {
    service.spec.as_ref()
}

/// Whether a service has, or wants, a load balancer of this controller.
pub(super) fn is_balanced(service: &Service) -> bool {
    let class = spec(service).and_then(|s| s.load_balancer_class.as_deref());
    spec(service).is_some_and(|s| s.type_.as_deref() == Some("LoadBalancer"))
        && class.is_none_or(|class| class == CLASS)
        && service.metadata.deletion_timestamp.is_none()
}

pub(super) fn is_local(service: &Service) -> bool {
    spec(service).is_some_and(|s| s.external_traffic_policy.as_deref() == Some("Local"))
}

pub(super) fn ports(service: &Service) -> BTreeSet<PortKey> {
    let ports = spec(service).into_iter().flat_map(|s| s.ports.iter().flatten());
    ports.map(|port| PortKey::new(port.port, port.protocol.as_deref())).collect()
}

pub(super) fn ingress(service: &Service) -> &[LoadBalancerIngress] {
    let balancer = service.status.as_ref().and_then(|s| s.load_balancer.as_ref());
    balancer.and_then(|b| b.ingress.as_deref()).unwrap_or_default()
}

/// The ports of its node's addresses that a pod has, unless it has ended or has them on the loopback device only.
pub(super) fn host_ports(pod: &CachedPod) -> BTreeSet<PortKey> {
    let is_placed = crate::pods::node_name(pod).is_some() && !crate::pods::is_terminal(pod);
    let spec = pod.spec.as_ref().filter(|_| is_placed);
    let containers = spec.into_iter().flat_map(|s| s.containers.iter().chain(s.init_containers.iter().flatten()));
    let reachable = |ip: Option<&str>| !ip.and_then(|ip| ip.parse::<IpAddr>().ok()).is_some_and(|ip| ip.is_loopback());
    let ports = containers.flat_map(|c| c.ports.iter().flatten()).filter(|port| reachable(port.host_ip.as_deref()));
    ports.filter_map(|p| p.host_port.map(|number| PortKey::new(number, p.protocol.as_deref()))).collect()
}

/// What of a node decides about load balancers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NodeFacts {
    name: String,
    usable: bool,
    /// One of each family: the external one, else the internal one.
    addresses: Vec<IpAddr>,
}

impl NodeFacts {
    pub(super) fn of(node: &CachedNode) -> Self {
        let (meta, status) = (&node.metadata, node.status.as_ref());
        let mut taints = node.spec.iter().flat_map(|s| s.taints.iter().flatten());
        let usable = health::ready(node) == "True"
            && meta.deletion_timestamp.is_none()
            && !meta.labels.as_ref().is_some_and(|labels| labels.contains_key(EXCLUDED))
            && !taints.any(|taint| taint.key == TO_BE_DELETED);
        let of_kind = |kind: &str, family: Family| {
            let all = status.into_iter().flat_map(|s| s.addresses.iter().flatten());
            let mut found = all.filter(|a| a.type_ == kind).filter_map(|a| a.address.parse::<IpAddr>().ok());
            found.find(|ip| Family::of(ip) == family)
        };
        let address = |family| of_kind("ExternalIP", family).or_else(|| of_kind("InternalIP", family));
        let addresses = [Family::V4, Family::V6].into_iter().filter_map(address).collect();
        Self { name: meta.name.clone().unwrap_or_default(), usable, addresses }
    }
}

/// The nodes with a ready endpoint.
pub(super) fn nodes_with_endpoints<'a>(slices: impl IntoIterator<Item = &'a EndpointSlice>) -> BTreeSet<String> {
    let endpoints = slices.into_iter().flat_map(|slice| slice.endpoints.iter().flatten());
    let ready = endpoints.filter(|e| e.conditions.as_ref().and_then(|c| c.ready) != Some(false));
    ready.filter_map(|e| e.node_name.clone()).collect()
}

/// What is known besides a service.
#[derive(Debug, Default)]
pub(super) struct Surroundings<'a> {
    pub(super) nodes: Vec<NodeFacts>,
    /// Those with a ready endpoint.
    pub(super) local: BTreeSet<String>,
    /// Other services with a port of the same number.
    pub(super) services: Vec<&'a Service>,
    /// Pods with a host port of the same number.
    pub(super) pods: Vec<&'a CachedPod>,
    /// Ports of the node's own servers, which have them whatever the protocol.
    pub(super) reserved: &'a [u16],
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    /// It has these addresses.
    Publish(Vec<LoadBalancerIngress>),
    /// It waits: reason and message.
    Pend(&'static str, String),
    /// It is not this controller's.
    Leave,
    /// It has a load balancer and wants none.
    Clear,
}

pub(super) fn decide(service: &Service, around: &Surroundings<'_>) -> Step {
    if !is_balanced(service) {
        let is_of_type = spec(service).is_some_and(|s| s.type_.as_deref() == Some("LoadBalancer"));
        let is_going = service.metadata.deletion_timestamp.is_some();
        return if is_of_type || is_going || ingress(service).is_empty() { Step::Leave } else { Step::Clear };
    }
    if let Some(why) = collision(service, around) {
        return Step::Pend(messages::SYNC_FAILED, why);
    }
    let families: Vec<&str> = families(service).collect();
    let usable = around.nodes.iter().filter(|node| node.usable);
    let usable: Vec<&NodeFacts> =
        usable.filter(|node| !is_local(service) || around.local.contains(&node.name)).collect();
    let of = |family: &str| {
        let addresses = usable.iter().flat_map(|node| &node.addresses);
        addresses.filter(|ip| Family::of(ip).name() == family).collect::<BTreeSet<_>>()
    };
    let found: Vec<LoadBalancerIngress> =
        families.iter().flat_map(|family| of(family)).map(|ip| ingress_of(*ip)).collect();
    if found.is_empty() {
        return Step::Pend(messages::UNAVAILABLE, messages::NO_NODES.to_owned());
    }
    Step::Publish(found)
}

fn ingress_of(ip: IpAddr) -> LoadBalancerIngress {
    LoadBalancerIngress { ip: Some(ip.to_string()), ip_mode: Some("VIP".to_owned()), ..LoadBalancerIngress::default() }
}

/// The families of a service in its order; without any, that of IPv4.
fn families(service: &Service) -> impl Iterator<Item = &str> {
    let named = spec(service).and_then(|s| s.ip_families.as_deref()).unwrap_or_default();
    let unnamed = named.is_empty().then_some("IPv4");
    named.iter().map(String::as_str).chain(unnamed)
}

/// The holder of a service's port: the node, an older service, or a pod, unless the service had it first.
fn collision(service: &Service, around: &Surroundings<'_>) -> Option<String> {
    let wanted = ports(service);
    let on_node = |port: &&PortKey| around.reserved.iter().any(|own| i32::from(*own) == port.number);
    if let Some(port) = wanted.iter().find(on_node) {
        return Some(messages::taken_by_node(*port));
    }
    let shares_family = |other: &Service| families(other).any(|family| families(service).any(|own| own == family));
    for other in &around.services {
        let is_first = is_balanced(other) && age(other) < age(service) && shares_family(other);
        if let Some(port) = wanted.intersection(&ports(other)).next().filter(|_| is_first) {
            return Some(messages::taken_by_service(*port, &Key::of(&other.metadata).to_string()));
        }
    }
    // A pod that comes later finds the port taken.
    let has_it = !ingress(service).is_empty();
    around.pods.iter().filter(|_| !has_it).find_map(|pod| {
        let port = *wanted.intersection(&host_ports(pod)).next()?;
        Some(messages::taken_by_pod(port, &Key::of(&pod.metadata).to_string()))
    })
}

/// The order in which services get a port.
fn age(service: &Service) -> (Option<jiff::Timestamp>, Key) {
    let meta = &service.metadata;
    (meta.creation_timestamp.as_ref().map(|time| time.0), Key::of(meta))
}
