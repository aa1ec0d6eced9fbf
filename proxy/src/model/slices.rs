//! An EndpointSlice, reduced to what rules depend on.

use std::{
    io::Write as _,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use windlass_kit::addresses::{EndpointIp, is_slice_of_the_api};

use super::{Family, Port, Protocol, ServiceId, objects::EndpointSlice, parse_ip};

/// One port that every endpoint of a slice serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlicePort {
    /// The Service port's name.
    pub name: Arc<str>,
    /// Its protocol.
    pub protocol: Protocol,
    /// The port at the endpoints.
    pub number: u16,
}

/// Topology hints: the zones and nodes that should use an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hints {
    /// Zone names.
    pub zones: Vec<Box<str>>,
    /// Whether any node is named.
    pub has_nodes: bool,
    /// Whether our node is among them.
    pub our_node: bool,
}

/// One endpoint. Within a slice `port` is 0: the slice's ports apply to all its endpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)]
pub struct Endpoint {
    /// Its address.
    pub ip: IpAddr,
    /// Its port.
    pub port: u16,
    /// Accepts new connections.
    pub ready: bool,
    /// Serves connections, also while it is terminating.
    pub serving: bool,
    /// Its pod is being deleted.
    pub terminating: bool,
    /// Runs on our node.
    pub local: bool,
    /// Topology hints, when there are any.
    pub hints: Option<Box<Hints>>,
}

impl Endpoint {
    /// `IP:port`, an IPv6 address in brackets, as in hashes of chain names, comments and DNAT.
    #[must_use]
    pub fn address(&self) -> String {
        SocketAddr::new(self.ip, self.port).to_string()
    }
}

/// The text of an endpoint's address as a sort key, without an allocation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TextKey([u8; TextKey::LEN]);

impl TextKey {
    /// `[ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255]:65535`
    const LEN: usize = 53;
}

impl Endpoint {
    /// `IP:port`, padded with zeros, which sort before every character of an address.
    pub(super) fn text_key(&self) -> TextKey {
        let mut bytes = [0; TextKey::LEN];
        // An address fits, so that writing to the slice does not fail.
        let _ = write!(&mut bytes[..], "{}", SocketAddr::new(self.ip, self.port));
        TextKey(bytes)
    }
}

/// One slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slice {
    /// The family of its endpoints.
    pub family: Family,
    /// Its ports.
    pub ports: Box<[SlicePort]>,
    /// Its endpoints.
    pub endpoints: Box<[Endpoint]>,
}

/// `namespace/name` of a slice.
pub type SliceId = Arc<str>;

pub(super) fn id(object: &EndpointSlice) -> SliceId {
    let meta = &object.metadata;
    let text = |text: &Option<String>| text.as_deref().unwrap_or_default().to_owned();
    format!("{}/{}", text(&meta.namespace), text(&meta.name)).into()
}

/// The Service that a slice is of; `None` for slices that belong to none, or are not the proxy's.
pub(super) fn service_of(object: &EndpointSlice) -> Option<ServiceId> {
    let meta = &object.metadata;
    let labels = meta.labels.as_ref()?;
    if labels.contains_key("service.kubernetes.io/headless") {
        return None;
    }
    let service = labels.get("kubernetes.io/service-name").filter(|s| !s.is_empty())?;
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    Some(format!("{namespace}/{service}").into())
}

impl Slice {
    /// Whether any of its ports is UDP.
    pub(super) fn has_udp(&self) -> bool {
        self.ports.iter().any(|p| p.protocol == Protocol::Udp)
    }

    /// The port numbers at which the endpoints serve a Service's port.
    pub(super) fn serves<'a>(&'a self, port: &'a Port) -> impl Iterator<Item = u16> + 'a {
        self.ports.iter().filter(|p| p.name == port.name && p.protocol == port.protocol).map(|p| p.number)
    }

    /// Converts the API object; `None` for a slice of type FQDN. Endpoints at special addresses are left out, whatever an
    /// API server accepts: packets that are sent on to the loopback device reach what listens there for the node alone.
    #[must_use]
    pub fn of(object: &EndpointSlice, node: &str) -> Option<Self> {
        let family = object.family()?;
        let mut ports = Vec::new();
        for port in object.ports.as_deref().unwrap_or_default() {
            let number = port.port.and_then(|n| u16::try_from(n).ok()).filter(|n| *n != 0);
            let (Some(name), Some(number), Some(protocol)) =
                (port.name.as_deref(), number, Protocol::parse(port.protocol.as_deref()))
            else {
                continue;
            };
            ports.push(SlicePort { name: name.into(), protocol, number });
        }
        let meta = &object.metadata;
        let of_the_api = is_slice_of_the_api(
            meta.namespace.as_deref().unwrap_or_default(),
            meta.name.as_deref().unwrap_or_default(),
        );
        let endpoint_ip = if of_the_api { EndpointIp::of_the_api } else { EndpointIp::new };
        let mut endpoints = Vec::new();
        for endpoint in object.endpoints.as_deref().unwrap_or_default() {
            let address = endpoint.addresses.first().and_then(|a| parse_ip(a)).filter(|ip| Family::of(ip) == family);
            let Some(ip) = address.and_then(|ip| endpoint_ip(ip).ok()).map(EndpointIp::get) else { continue };
            let conditions = endpoint.conditions.as_ref();
            let local = !node.is_empty() && endpoint.node_name.as_deref() == Some(node);
            let hints = endpoint.hints.as_ref().and_then(|hints| {
                let zones: Vec<Box<str>> = hints.for_zones.iter().flatten().map(|z| z.name.clone()).collect();
                let mut nodes = hints.for_nodes.iter().flatten().peekable();
                let has_nodes = nodes.peek().is_some();
                let our_node = !node.is_empty() && nodes.any(|n| *n.name == *node);
                (has_nodes || !zones.is_empty()).then(|| Box::new(Hints { zones, has_nodes, our_node }))
            });
            endpoints.push(Endpoint {
                ip,
                port: 0,
                ready: conditions.and_then(|c| c.ready).unwrap_or(true),
                serving: conditions.and_then(|c| c.serving).unwrap_or(true),
                terminating: conditions.and_then(|c| c.terminating).unwrap_or(false),
                local,
                hints,
            });
        }
        Some(Self { family, ports: ports.into(), endpoints: endpoints.into() })
    }
}
