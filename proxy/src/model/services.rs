//! A Service, reduced to what rules depend on.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use windlass_kit::addresses::{EndpointIp, SOURCE_RANGES_ANNOTATION, SourceRanges};

use super::{Family, ServiceId, objects, parse_ip};

/// A transport protocol of a service port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

impl Protocol {
    /// Reads the API's spelling; absent means TCP.
    #[must_use]
    pub fn parse(text: Option<&str>) -> Option<Self> {
        match text {
            None | Some("" | "TCP") => Some(Self::Tcp),
            Some("UDP") => Some(Self::Udp),
            Some("SCTP") => Some(Self::Sctp),
            Some(_) => None,
        }
    }

    /// `tcp`, `udp` or `sctp`, as iptables and the chain names want it.
    #[must_use]
    pub const fn lower(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.lower())
    }
}

/// Session affinity: the timeout in seconds after a client's last connection; `None` without affinity.
pub type Affinity = Option<u32>;

/// One port of a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// The port's own name; empty when the Service has one unnamed port.
    pub name: Arc<str>,
    /// `namespace/name`, with `:port name` when there is one, as in comments and hashes of chain names (kube-proxy:
    /// `ServicePortName`).
    pub full_name: Arc<str>,
    /// Its protocol.
    pub protocol: Protocol,
    /// Port at the cluster IP, external IPs and load balancer addresses.
    pub port: u16,
    /// Port at every node; 0 for none.
    pub node_port: u16,
}

/// An address or node port at which a UDP port of a Service is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UdpFrontend {
    /// The cluster IP or a load balancer's address.
    Address(SocketAddr),
    /// An external IP, which may be disabled.
    ExternalIp(SocketAddr),
    /// A node port.
    NodePort(u16),
}

/// A Service that gets rules: neither headless nor ExternalName.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// `namespace/name`.
    pub id: ServiceId,
    /// At most one cluster IP for each family.
    pub cluster_ips: Vec<IpAddr>,
    /// `spec.externalIPs` of both families, without special addresses: API servers refuse them, and this is the second
    /// line.
    pub external_ips: Vec<IpAddr>,
    /// Load balancer addresses with ipMode VIP, whose packets reach nodes with this destination; no special ones.
    pub lb_ips: Vec<IpAddr>,
    /// `spec.loadBalancerSourceRanges`, or the annotation that was before it.
    pub source_ranges: SourceRanges,
    /// In the order of the object.
    pub ports: Vec<Port>,
    /// Session affinity by client address.
    pub affinity: Affinity,
    /// externalTrafficPolicy is Local.
    pub external_local: bool,
    /// internalTrafficPolicy is Local.
    pub internal_local: bool,
    /// healthCheckNodePort of a LoadBalancer with externalTrafficPolicy Local; 0 for none.
    pub health_check_node_port: u16,
}

pub(super) fn id(meta: &ObjectMeta) -> ServiceId {
    format!("{}/{}", meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default()).into()
}

/// Whether a name is safe in the input of `iptables-restore`, where a line break would begin another rule. API servers
/// accept no other names; manifests of `windlass rules --from` may have any.
fn is_safe_name(name: &str) -> bool {
    name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
}

fn port_number(number: i32) -> Option<u16> {
    u16::try_from(number).ok().filter(|n| *n != 0)
}

impl Service {
    /// Converts the API object; `None` for one that gets no rules: headless, ExternalName, without address, or assigned
    /// to another proxy by label.
    #[must_use]
    pub fn of(object: &objects::Service) -> Option<Self> {
        let spec = object.spec.as_ref()?;
        let has_other_proxy =
            object.metadata.labels.as_ref().is_some_and(|l| l.contains_key("service.kubernetes.io/service-proxy-name"));
        let kind = spec.r#type.as_deref().unwrap_or("ClusterIP");
        let first = spec.cluster_ip.as_deref().unwrap_or_default();
        if has_other_proxy || kind == "ExternalName" || first.is_empty() || first == "None" {
            return None;
        }
        let mut listed: Vec<&str> = vec![first];
        listed.extend(spec.cluster_ips.iter().flatten().map(|ip| &**ip));
        let mut cluster_ips: Vec<IpAddr> = Vec::new();
        for ip in listed.into_iter().filter_map(parse_ip) {
            if !cluster_ips.iter().any(|known| Family::of(known) == Family::of(&ip)) {
                cluster_ips.push(ip);
            }
        }
        if cluster_ips.is_empty() {
            return None;
        }
        let id = id(&object.metadata);
        if !id.split('/').all(is_safe_name) {
            return None;
        }
        let mut ports: Vec<Port> = Vec::new();
        for port in spec.ports.as_deref().unwrap_or_default() {
            let (Some(protocol), Some(number)) = (Protocol::parse(port.protocol.as_deref()), port_number(port.port))
            else {
                continue;
            };
            let name = port.name.as_deref().unwrap_or_default();
            if !is_safe_name(name) {
                continue;
            }
            let full_name = if name.is_empty() { id.clone() } else { format!("{id}:{name}").into() };
            // Chain names are hashes of name and protocol: a second port with the same pair replaces the first.
            ports.retain(|p| !(*p.name == *name && p.protocol == protocol));
            ports.push(Port {
                name: name.into(),
                full_name,
                protocol,
                port: number,
                node_port: port.node_port.and_then(port_number).unwrap_or(0),
            });
        }
        let external_local = spec.external_traffic_policy.as_deref() == Some("Local");
        let affinity = (spec.session_affinity.as_deref() == Some("ClientIP")).then(|| {
            let config = spec.session_affinity_config.as_ref().and_then(|c| c.client_ip.as_ref());
            config.and_then(|c| c.timeout_seconds).and_then(|s| u32::try_from(s).ok()).unwrap_or(10_800)
        });
        let ingress = object.status.as_ref().and_then(|s| s.load_balancer.as_ref()).and_then(|l| l.ingress.as_deref());
        let lb_ips = ingress
            .unwrap_or_default()
            .iter()
            .filter(|i| i.ip_mode.as_deref() != Some("Proxy"))
            .filter_map(|i| i.ip.as_deref().and_then(outside_ip));
        let ranges = spec.load_balancer_source_ranges.iter().flatten().map(|range| &**range);
        let annotation = object.metadata.annotations.as_ref().and_then(|all| all.get(SOURCE_RANGES_ANNOTATION));
        Some(Self {
            cluster_ips,
            external_ips: unique(spec.external_ips.iter().flatten().filter_map(|ip| outside_ip(ip))),
            lb_ips: unique(lb_ips),
            source_ranges: SourceRanges::of(ranges, annotation.map(String::as_str)),
            ports,
            affinity,
            external_local,
            internal_local: spec.internal_traffic_policy.as_deref() == Some("Local"),
            health_check_node_port: spec
                .health_check_node_port
                .filter(|_| kind == "LoadBalancer" && external_local)
                .and_then(port_number)
                .unwrap_or(0),
            id,
        })
    }

    /// The cluster IP of one family.
    #[must_use]
    pub fn cluster_ip(&self, family: Family) -> Option<IpAddr> {
        self.cluster_ips.iter().copied().find(|ip| Family::of(ip) == family)
    }

    /// Whether any port is UDP.
    #[must_use]
    pub fn has_udp(&self) -> bool {
        self.ports.iter().any(|p| p.protocol == Protocol::Udp)
    }

    /// The frontends of its UDP ports in one family.
    pub fn udp_frontends(&self, family: Family) -> impl Iterator<Item = (UdpFrontend, &Port)> {
        let served = self.cluster_ip(family).is_some();
        self.ports.iter().filter(move |p| served && p.protocol == Protocol::Udp).flat_map(move |port| {
            let of_family = |ips: &'_ [IpAddr]| -> Vec<SocketAddr> {
                let of = ips.iter().filter(|ip| Family::of(ip) == family);
                of.map(|ip| SocketAddr::new(*ip, port.port)).collect()
            };
            let own = of_family(&self.cluster_ips).into_iter().chain(of_family(&self.lb_ips));
            own.map(UdpFrontend::Address)
                .chain(of_family(&self.external_ips).into_iter().map(UdpFrontend::ExternalIp))
                .chain((port.node_port != 0).then_some(UdpFrontend::NodePort(port.node_port)))
                .map(move |frontend| (frontend, port))
        })
    }

    /// Whether `port` can be reached from outside the cluster in this family; external IPs count only if enabled.
    #[must_use]
    pub fn externally_accessible(&self, port: &Port, family: Family, external_ips: bool) -> bool {
        let of_family = |ips: &[IpAddr]| ips.iter().any(|ip| Family::of(ip) == family);
        port.node_port != 0 || of_family(&self.lb_ips) || (external_ips && of_family(&self.external_ips))
    }
}

/// An address at which others reach a Service.
fn outside_ip(text: &str) -> Option<IpAddr> {
    EndpointIp::new(parse_ip(text)?).ok().map(EndpointIp::get)
}

/// In the given order, each value once.
fn unique<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut out = Vec::new();
    for value in values {
        if !out.contains(&value) {
            out.push(value);
        }
    }
    out
}
