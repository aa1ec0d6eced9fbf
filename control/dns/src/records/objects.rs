//! What the cluster's DNS keeps of Services, EndpointSlices and Nodes. Pure.

use std::net::IpAddr;

use hickory_proto::rr::Name;
use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{Node as NodeObject, Service as ServiceObject},
    discovery::v1::EndpointSlice as SliceObject,
};
use windlass_kit::net::Cidr;

/// The label of a slice that names its Service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// The annotation with the time of an endpoints' change, as the EndpointSlice controller sets it.
const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// Namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) namespace: Box<str>,
    pub(crate) name: Box<str>,
}

impl Key {
    pub(crate) fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    fn of(metadata: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta) -> Self {
        Self::new(metadata.namespace.as_deref().unwrap_or_default(), metadata.name.as_deref().unwrap_or_default())
    }
}

/// A port of a Service or a slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Port {
    /// Empty where it has none.
    pub(crate) name: Box<str>,
    /// In lower case.
    pub(crate) protocol: Box<str>,
    /// `None` where objects have no port at all: they have addresses, but no SRV records.
    pub(crate) number: Option<u16>,
}

impl Port {
    fn new(name: Option<&str>, protocol: Option<&str>, number: Option<i32>) -> Self {
        Self {
            name: name.unwrap_or_default().to_ascii_lowercase().into(),
            protocol: protocol.unwrap_or("TCP").to_ascii_lowercase().into(),
            number: number.and_then(|number| u16::try_from(number).ok()),
        }
    }

    /// As upstream, what has no ports has one that nothing names.
    fn or_none(mut ports: Vec<Self>) -> Vec<Self> {
        if ports.is_empty() {
            ports.push(Self { name: Box::default(), protocol: Box::default(), number: None });
        }
        ports
    }
}

/// Where a Service leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Leads {
    /// To its cluster IPs.
    ClusterIps(Vec<IpAddr>),
    /// To its endpoints.
    Headless,
    /// To a name outside; `None` if that is no name.
    External(Option<Name>),
}

/// A Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Service {
    pub(crate) leads: Leads,
    pub(crate) ports: Vec<Port>,
    /// Its endpoints come from the EndpointSlice controller.
    pub(crate) has_selector: bool,
}

impl Service {
    pub(super) fn of(object: &ServiceObject) -> (Key, Self) {
        let empty = Default::default();
        let spec = object.spec.as_ref().unwrap_or(&empty);
        let ips = spec
            .cluster_ips
            .iter()
            .flatten()
            .chain(spec.cluster_ips.is_none().then_some(()).and(spec.cluster_ip.as_ref()));
        let ips: Vec<&String> = ips.collect();
        let leads = if spec.type_.as_deref() == Some("ExternalName") {
            Leads::External(spec.external_name.as_deref().and_then(external_name))
        } else if ips.first().is_some_and(|ip| *ip == "None") {
            Leads::Headless
        } else {
            Leads::ClusterIps(ips.iter().filter_map(|ip| ip.parse().ok()).collect())
        };
        let ports = spec.ports.iter().flatten();
        let ports = ports.map(|port| Port::new(port.name.as_deref(), port.protocol.as_deref(), Some(port.port)));
        let has_selector = spec.selector.as_ref().is_some_and(|selector| !selector.is_empty());
        (Key::of(&object.metadata), Self { leads, ports: Port::or_none(ports.collect()), has_selector })
    }

    pub(super) fn cluster_ips(&self) -> &[IpAddr] {
        if let Leads::ClusterIps(ips) = &self.leads { ips } else { &[] }
    }
}

/// The name of an alias; an address is none.
fn external_name(text: &str) -> Option<Name> {
    let text = text.strip_suffix('.').unwrap_or(text);
    if text.is_empty() || text.parse::<IpAddr>().is_ok() {
        return None;
    }
    let mut name = Name::from_labels(text.split('.').map(str::as_bytes)).ok()?;
    name.set_fqdn(true);
    Some(name)
}

/// A ready address of a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) address: IpAddr,
    /// Its own, in lower case.
    pub(crate) hostname: Option<Box<str>>,
}

impl Endpoint {
    /// Its label below the Service: its host name or, as upstream, its address with dashes.
    pub(crate) fn label(&self) -> Box<str> {
        if let Some(hostname) = &self.hostname {
            return hostname.clone();
        }
        let text = self.address.to_string();
        match self.address {
            IpAddr::V4(_) => text.replace('.', "-").into(),
            IpAddr::V6(_) => {
                let dashed = text.replace(':', "-");
                if dashed.ends_with('-') { format!("{dashed}0").into() } else { dashed.into() }
            }
        }
    }

    /// Whether `label` is its label.
    pub(crate) fn is(&self, label: &str) -> bool {
        match &self.hostname {
            Some(hostname) => **hostname == *label,
            None => *self.label() == *label,
        }
    }
}

/// An EndpointSlice: the endpoints that are ready. Those of `publishNotReadyAddresses` are ready in slices.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Slice {
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) ports: Vec<Port>,
}

impl Slice {
    /// The Service, the name of the slice and its endpoints; `None` if it belongs to no Service.
    pub(super) fn of(object: &SliceObject) -> Option<(Key, Box<str>, Self)> {
        let (service, name) = Self::names(object)?;
        let mut endpoints = Vec::new();
        for endpoint in object.endpoints.iter().flatten() {
            let ready = endpoint.conditions.as_ref().and_then(|conditions| conditions.ready);
            if ready == Some(false) {
                continue;
            }
            let hostname = endpoint.hostname.as_deref().filter(|name| !name.is_empty());
            let hostname = hostname.map(|name| name.to_ascii_lowercase().into_boxed_str());
            let addresses = endpoint.addresses.iter().filter_map(|address| address.parse().ok());
            endpoints.extend(addresses.map(|address| Endpoint { address, hostname: hostname.clone() }));
        }
        let ports = object.ports.iter().flatten();
        let ports = ports.map(|port| Port::new(port.name.as_deref(), port.protocol.as_deref(), port.port));
        Some((service, name, Self { endpoints, ports: Port::or_none(ports.collect()) }))
    }

    /// The Service and the name of a slice.
    pub(super) fn names(object: &SliceObject) -> Option<(Key, Box<str>)> {
        let service = object.metadata.labels.as_ref()?.get(SERVICE_NAME).filter(|name| !name.is_empty())?;
        let Key { namespace, name } = Key::of(&object.metadata);
        Some((Key { namespace, name: service.as_str().into() }, name))
    }

    /// When its endpoints changed.
    pub(super) fn changed_at(object: &SliceObject) -> Option<Timestamp> {
        object.metadata.annotations.as_ref()?.get(TRIGGER_TIME)?.parse().ok()
    }
}

/// The addresses of a Node and of its pods.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Node {
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) pod_cidrs: Vec<Cidr>,
}

impl Node {
    pub(crate) fn of(object: &NodeObject) -> Self {
        let spec = object.spec.as_ref();
        let cidrs = spec.into_iter().flat_map(|spec| spec.pod_cidrs.iter().flatten().chain(&spec.pod_cidr));
        let addresses = object.status.iter().flat_map(|status| status.addresses.iter().flatten());
        Self {
            addresses: addresses.filter_map(|address| address.address.parse().ok()).collect(),
            pod_cidrs: cidrs.filter_map(|cidr| Cidr::parse(cidr)).filter(|cidr| !cidr.is_all()).collect(),
        }
    }
}
