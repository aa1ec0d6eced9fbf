//! API objects, reduced to what NetworkPolicies depend on. The spec of a policy is kept as it is: one that cannot be
//! read must not end the watch of all others.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::Deserialize;
use serde_json::Value;
use windlass_kit::{net::parse_ip, pod_interface::host_interface};

use crate::model::{
    Protocol,
    objects::{metadata, resource},
};

/// `networking.k8s.io/v1/NetworkPolicy`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "the fields are the API's")]
pub struct NetworkPolicy {
    #[serde(deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    pub spec: Value,
}

/// `v1/Namespace`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "the fields are the API's")]
pub struct Namespace {
    #[serde(deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
}

/// `v1/Pod`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "the fields are the API's")]
pub struct Pod {
    #[serde(deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    spec: Option<PodSpec>,
    status: Option<PodStatus>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PodSpec {
    node_name: Option<Box<str>>,
    host_network: Option<bool>,
    containers: Option<Vec<Container>>,
    init_containers: Option<Vec<Container>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Container {
    ports: Option<Vec<ContainerPort>>,
    restart_policy: Option<Box<str>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ContainerPort {
    name: Option<Box<str>>,
    container_port: i64,
    protocol: Option<Box<str>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PodStatus {
    phase: Option<Box<str>>,
    #[serde(rename = "podIP")]
    pod_ip: Option<Box<str>>,
    #[serde(rename = "podIPs")]
    pod_ips: Option<Vec<PodIp>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct PodIp {
    ip: Box<str>,
}

resource!(NetworkPolicy, "NetworkPolicy", NamespaceResourceScope, "networking.k8s.io", "networkpolicies");
resource!(Namespace, "Namespace", ClusterResourceScope, "", "namespaces");
resource!(Pod, "Pod", NamespaceResourceScope, "", "pods");

/// A port of a pod that has a name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NamedPort {
    pub(super) name: Arc<str>,
    pub(super) protocol: Protocol,
    pub(super) number: u16,
}

/// What policies depend on of a pod that has a network of its own and has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PodFacts {
    pub(super) labels: BTreeMap<String, String>,
    pub(super) addresses: Vec<IpAddr>,
    pub(super) ports: Vec<NamedPort>,
    pub(super) node: Box<str>,
    pub(super) uid: String,
    /// The host's end of its link, if it is on this node.
    pub(super) interface: String,
}

impl Pod {
    /// `None` for a host-network pod, which neither is selected nor matches, and for one that has ended, whose address
    /// may be another pod's by now.
    pub(super) fn facts(&self) -> Option<PodFacts> {
        let spec = self.spec.as_ref()?;
        let status = self.status.as_ref();
        let ended =
            status.and_then(|s| s.phase.as_deref()).is_some_and(|phase| matches!(phase, "Succeeded" | "Failed"));
        if spec.host_network == Some(true) || ended {
            return None;
        }
        let listed = status.and_then(|s| s.pod_ips.as_deref()).unwrap_or_default().iter().map(|of| &*of.ip);
        let first = status.and_then(|s| s.pod_ip.as_deref());
        let mut addresses: Vec<IpAddr> = first.into_iter().chain(listed).filter_map(parse_ip).collect();
        addresses.sort_unstable();
        addresses.dedup();
        // A sidecar is an init container that stays.
        let sidecars = spec.init_containers.iter().flatten().filter(|c| c.restart_policy.as_deref() == Some("Always"));
        let ports = spec.containers.iter().flatten().chain(sidecars).flat_map(|c| c.ports.iter().flatten());
        let named = ports.filter_map(|port| {
            let name = port.name.as_deref().filter(|name| !name.is_empty())?;
            let (protocol, number) =
                (Protocol::parse(port.protocol.as_deref())?, u16::try_from(port.container_port).ok()?);
            Some(NamedPort { name: name.into(), protocol, number })
        });
        let meta = &self.metadata;
        let uid = meta.uid.clone().unwrap_or_else(|| {
            format!("{}/{}", meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
        });
        Some(PodFacts {
            labels: meta.labels.clone().unwrap_or_default(),
            addresses,
            ports: named.collect(),
            node: spec.node_name.clone().unwrap_or_default(),
            interface: host_interface(&uid),
            uid,
        })
    }
}
