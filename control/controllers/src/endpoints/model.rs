//! Which endpoints a service has, from the service and its namespace's pods. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::{
    api::{
        core::v1::{ObjectReference, Service, ServicePort, ServiceSpec},
        discovery::v1::{Endpoint, EndpointConditions, EndpointHints, EndpointPort, ForNode, ForZone},
    },
    apimachinery::pkg::util::intstr::IntOrString,
};

use super::topology;
use crate::{
    pods,
    runtime::{CachedNode, CachedPod},
};

/// The address family of a slice; upstream's third, FQDN, is never made by this controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Family {
    IPv4,
    IPv6,
}

impl Family {
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::IPv4 => "IPv4",
            Self::IPv6 => "IPv6",
        }
    }

    fn of(address: &str) -> Self {
        if address.contains(':') { Self::IPv6 } else { Self::IPv4 }
    }
}

/// One port of a slice, comparable.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Port {
    pub(crate) name: String,
    pub(crate) protocol: String,
    pub(crate) port: i32,
    pub(crate) app_protocol: Option<String>,
}

impl Port {
    pub(crate) fn of(port: &EndpointPort) -> Self {
        Self {
            name: port.name.clone().unwrap_or_default(),
            protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
            port: port.port.unwrap_or(0),
            app_protocol: port.app_protocol.clone(),
        }
    }

    pub(crate) fn to_slice(&self) -> EndpointPort {
        EndpointPort {
            name: Some(self.name.clone()),
            protocol: Some(self.protocol.clone()),
            port: Some(self.port),
            app_protocol: self.app_protocol.clone(),
        }
    }
}

/// Endpoints that share an address family and resolved ports.
pub(crate) type Groups = BTreeMap<(Family, Vec<Port>), Vec<Endpoint>>;

/// Whether this controller makes endpoints for the service.
pub(crate) fn has_endpoints(spec: &ServiceSpec) -> bool {
    spec.selector.as_ref().is_some_and(|s| !s.is_empty()) && spec.type_.as_deref() != Some("ExternalName")
}

pub(crate) fn is_headless(spec: &ServiceSpec) -> bool {
    spec.cluster_ip.as_deref() == Some("None")
}

/// The families of the service, in its order.
pub(crate) fn families(spec: &ServiceSpec) -> Vec<Family> {
    let mut families: Vec<Family> = spec
        .ip_families
        .iter()
        .flatten()
        .map(|family| if family == "IPv6" { Family::IPv6 } else { Family::IPv4 })
        .collect();
    if families.is_empty() {
        families.push(spec.cluster_ip.as_deref().map_or(Family::IPv4, Family::of));
    }
    families
}

/// The endpoints of `service`, grouped as slices are; pods come ordered by name.
pub(crate) fn desired(service: &Service, pods: &[Arc<CachedPod>], zone_of: impl Fn(&str) -> Option<String>) -> Groups {
    let mut groups = Groups::new();
    let Some(spec) = service.spec.as_ref().filter(|spec| has_endpoints(spec)) else { return groups };
    let Some(selector) = &spec.selector else { return groups };
    let families = families(spec);
    for pod in pods.iter().filter(|pod| is_endpoint(pod)) {
        if !pods::selects(selector, pod.metadata.labels.as_ref()) {
            continue;
        }
        let ports = resolve_ports(spec, pod);
        for family in &families {
            let Some(address) = pods::addresses(pod).into_iter().find(|a| Family::of(a) == *family) else { continue };
            let endpoint = endpoint(service, spec, pod, address, &zone_of);
            groups.entry((*family, ports.clone())).or_default().push(endpoint);
        }
    }
    groups
}

/// Splits pods into those that slices may name, and those whose node the API does not know (yet), so that their zone is
/// unknown. Addresses that are published whatever their state are named all the same.
pub(crate) fn on_known_nodes(
    service: &Service,
    pods: &[Arc<CachedPod>],
    is_known: impl Fn(&str) -> bool,
) -> (Vec<Arc<CachedPod>>, Vec<Arc<CachedPod>>) {
    let publish = service.spec.as_ref().is_some_and(|spec| spec.publish_not_ready_addresses == Some(true));
    let is_named = |pod: &Arc<CachedPod>| publish || !is_endpoint(pod) || pods::node_name(pod).is_some_and(&is_known);
    pods.iter().cloned().partition(is_named)
}

/// Whether a pod is an endpoint: it has an address and is not terminal. A terminating pod still is one.
fn is_endpoint(pod: &CachedPod) -> bool {
    !pods::is_terminal(pod) && !pods::addresses(pod).is_empty()
}

fn endpoint(
    service: &Service,
    spec: &ServiceSpec,
    pod: &CachedPod,
    address: &str,
    zone_of: impl Fn(&str) -> Option<String>,
) -> Endpoint {
    let serving = pods::is_ready(pod);
    let terminating = pod.metadata.deletion_timestamp.is_some();
    let publish = spec.publish_not_ready_addresses == Some(true);
    let node = pods::node_name(pod);
    Endpoint {
        addresses: vec![address.to_owned()],
        conditions: Some(EndpointConditions {
            ready: Some(publish || (serving && !terminating)),
            serving: Some(serving),
            terminating: Some(terminating),
        }),
        hostname: hostname(service, pod),
        node_name: node.map(str::to_owned),
        zone: node.and_then(&zone_of),
        target_ref: Some(target(pod)),
        hints: if topology::is_wanted(service) { None } else { hints(spec, node, node.and_then(&zone_of)) },
        ..Endpoint::default()
    }
}

/// For whom an endpoint is, by the service's trafficDistribution. Upstream's `trafficdist.ReconcileHintsForSlices`.
fn hints(spec: &ServiceSpec, node: Option<&str>, zone: Option<String>) -> Option<EndpointHints> {
    let same_node = match spec.traffic_distribution.as_deref() {
        Some("PreferClose" | "PreferSameZone") => false,
        Some("PreferSameNode") => true,
        _ => return None,
    };
    let for_zones = zone.map(|name| vec![ForZone { name }]);
    let for_nodes = node.filter(|_| same_node).map(|name| vec![ForNode { name: name.to_owned() }]);
    (for_zones.is_some() || for_nodes.is_some()).then_some(EndpointHints { for_nodes, for_zones })
}

/// The pod's own name within the service's domain, where it asks for one.
pub(crate) fn hostname(service: &Service, pod: &CachedPod) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let hostname = spec.hostname.as_ref().filter(|h| !h.is_empty())?;
    (spec.subdomain.is_some() && spec.subdomain == service.metadata.name).then(|| hostname.clone())
}

pub(crate) fn target(pod: &CachedPod) -> ObjectReference {
    ObjectReference {
        kind: Some("Pod".to_owned()),
        namespace: pod.metadata.namespace.clone(),
        name: pod.metadata.name.clone(),
        uid: pod.metadata.uid.clone(),
        ..ObjectReference::default()
    }
}

/// The service's ports as this pod serves them; a named port that the pod lacks is left out.
pub(crate) fn resolve_ports(spec: &ServiceSpec, pod: &CachedPod) -> Vec<Port> {
    let mut ports: Vec<Port> = spec
        .ports
        .iter()
        .flatten()
        .filter_map(|port| {
            Some(Port {
                name: port.name.clone().unwrap_or_default(),
                protocol: protocol(port.protocol.as_ref()).to_owned(),
                port: target_port(port, pod)?,
                app_protocol: port.app_protocol.clone(),
            })
        })
        .collect();
    ports.sort();
    ports.dedup();
    ports
}

fn protocol(protocol: Option<&String>) -> &str {
    protocol.map_or("TCP", String::as_str)
}

fn target_port(port: &ServicePort, pod: &CachedPod) -> Option<i32> {
    match &port.target_port {
        None => Some(port.port),
        Some(IntOrString::Int(0)) => Some(port.port),
        Some(IntOrString::Int(number)) => Some(*number),
        Some(IntOrString::String(name)) => {
            let spec = pod.spec.as_ref()?;
            spec.containers
                .iter()
                .chain(spec.init_containers.iter().flatten())
                .flat_map(|c| c.ports.iter().flatten())
                .find(|p| {
                    p.name.as_ref() == Some(name) && protocol(p.protocol.as_ref()) == protocol(port.protocol.as_ref())
                })
                .map(|p| p.container_port)
        }
    }
}

/// The zone label of a node.
pub(crate) fn zone(node: &CachedNode) -> Option<String> {
    node.metadata.labels.as_ref()?.get("topology.kubernetes.io/zone").cloned()
}

/// Labels that slices and Endpoints take over from their service.
pub(crate) fn copied_labels(service: &Service) -> BTreeMap<String, String> {
    let mut labels = service.metadata.labels.clone().unwrap_or_default();
    labels.retain(|key, _| {
        !key.starts_with("endpointslice.kubernetes.io/") && !key.starts_with("endpoints.kubernetes.io/")
    });
    labels.remove("kubernetes.io/service-name");
    labels.remove("service.kubernetes.io/headless");
    labels
}

/// Whether a pod change can change any endpoint.
pub(crate) fn matters(old: Option<&CachedPod>, new: Option<&CachedPod>) -> bool {
    let view = |pod: &CachedPod| {
        let ports: BTreeSet<(Option<String>, i32)> = pod
            .spec
            .iter()
            .flat_map(|s| s.containers.iter().chain(s.init_containers.iter().flatten()))
            .flat_map(|c| c.ports.iter().flatten())
            .map(|p| (p.name.clone(), p.container_port))
            .collect();
        (
            is_endpoint(pod),
            pods::is_ready(pod),
            pod.metadata.deletion_timestamp.is_some(),
            pods::addresses(pod).into_iter().map(str::to_owned).collect::<Vec<_>>(),
            pods::node_name(pod).map(str::to_owned),
            pod.metadata.labels.clone(),
            ports,
        )
    };
    match (old, new) {
        (Some(old), Some(new)) => old.metadata.uid != new.metadata.uid || view(old) != view(new),
        (Some(pod), None) | (None, Some(pod)) => is_endpoint(pod),
        (None, None) => false,
    }
}
