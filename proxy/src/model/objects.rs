//! API objects, reduced to the fields that rules depend on: all others are skipped during decoding, so that a list of
//! many slices is never in memory as whole objects. Null and absent are the same, as everywhere in the API.

use std::{collections::BTreeMap, net::IpAddr};

use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::{Deserialize, Deserializer};
use windlass_kit::{
    addresses::SOURCE_RANGES_ANNOTATION,
    net::{Family, parse_ip},
};

/// Annotation: when the endpoints of a slice last changed, set by the EndpointSlice controller.
pub(crate) const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// `v1/Service`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "the fields are the API's")]
pub struct Service {
    #[serde(deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    pub(super) spec: Option<ServiceSpec>,
    pub(super) status: Option<ServiceStatus>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ServiceSpec {
    pub(super) r#type: Option<Box<str>>,
    #[serde(rename = "clusterIP")]
    pub(super) cluster_ip: Option<Box<str>>,
    #[serde(rename = "clusterIPs")]
    pub(super) cluster_ips: Option<Vec<Box<str>>>,
    #[serde(rename = "externalIPs")]
    pub(super) external_ips: Option<Vec<Box<str>>>,
    pub(super) ports: Option<Vec<ServicePort>>,
    pub(super) load_balancer_source_ranges: Option<Vec<Box<str>>>,
    pub(super) session_affinity: Option<Box<str>>,
    pub(super) session_affinity_config: Option<SessionAffinityConfig>,
    pub(super) external_traffic_policy: Option<Box<str>>,
    pub(super) internal_traffic_policy: Option<Box<str>>,
    pub(super) health_check_node_port: Option<i32>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ServicePort {
    pub(super) name: Option<Box<str>>,
    pub(super) protocol: Option<Box<str>>,
    pub(super) port: i32,
    pub(super) node_port: Option<i32>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct SessionAffinityConfig {
    #[serde(rename = "clientIP")]
    pub(super) client_ip: Option<ClientIpConfig>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ClientIpConfig {
    pub(super) timeout_seconds: Option<i32>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ServiceStatus {
    pub(super) load_balancer: Option<LoadBalancerStatus>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct LoadBalancerStatus {
    pub(super) ingress: Option<Vec<LoadBalancerIngress>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct LoadBalancerIngress {
    pub(super) ip: Option<Box<str>>,
    pub(super) ip_mode: Option<Box<str>>,
}

/// `discovery.k8s.io/v1/EndpointSlice`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[allow(missing_docs, reason = "the fields are the API's")]
pub struct EndpointSlice {
    #[serde(deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    pub(super) address_type: Box<str>,
    pub(super) ports: Option<Vec<EndpointPort>>,
    pub(super) endpoints: Option<Vec<Endpoint>>,
}

impl EndpointSlice {
    /// The address family; `None` for `FQDN`.
    #[must_use]
    pub fn family(&self) -> Option<Family> {
        match &*self.address_type {
            "IPv4" => Some(Family::V4),
            "IPv6" => Some(Family::V6),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct EndpointPort {
    pub(super) name: Option<Box<str>>,
    pub(super) protocol: Option<Box<str>>,
    pub(super) port: Option<i32>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Endpoint {
    pub(super) addresses: Vec<Box<str>>,
    pub(super) conditions: Option<EndpointConditions>,
    pub(super) hints: Option<EndpointHints>,
    pub(super) node_name: Option<Box<str>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct EndpointConditions {
    pub(super) ready: Option<bool>,
    pub(super) serving: Option<bool>,
    pub(super) terminating: Option<bool>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct EndpointHints {
    pub(super) for_zones: Option<Vec<Named>>,
    pub(super) for_nodes: Option<Vec<Named>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Named {
    pub(super) name: Box<str>,
}

/// `v1/Node`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "the fields are the API's")]
pub struct Node {
    #[serde(deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    pub(super) spec: Option<NodeSpec>,
    pub(super) status: Option<NodeStatus>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct NodeSpec {
    #[serde(rename = "podCIDR")]
    pub(super) pod_cidr: Option<Box<str>>,
    #[serde(rename = "podCIDRs")]
    pub(super) pod_cidrs: Option<Vec<Box<str>>>,
    pub(super) taints: Option<Vec<Taint>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Taint {
    pub(super) key: Box<str>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct NodeStatus {
    pub(super) addresses: Option<Vec<NodeAddress>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct NodeAddress {
    pub(super) r#type: Box<str>,
    pub(super) address: Box<str>,
}

/// `networking.k8s.io/v1/ServiceCIDR`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "the fields are the API's")]
pub struct ServiceCidr {
    #[serde(deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    pub(super) spec: Option<ServiceCidrSpec>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct ServiceCidrSpec {
    pub(super) cidrs: Option<Vec<Box<str>>>,
}

impl Node {
    /// All its addresses, of any type.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        let listed = self.status.iter().flat_map(|s| s.addresses.iter().flatten());
        listed.filter_map(|a| parse_ip(&a.address))
    }
}

/// Decodes the metadata that watches and rules need.
pub(crate) fn metadata<'de, D: Deserializer<'de>>(from: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Slim {
        name: Option<String>,
        namespace: Option<String>,
        uid: Option<String>,
        resource_version: Option<String>,
        deletion_timestamp: Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>,
        labels: Option<BTreeMap<String, String>>,
        annotations: Option<Annotations>,
    }
    // Only the trigger time of a slice and the source ranges of a Service; other annotations can be long.
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Annotations {
        #[serde(rename = "endpoints.kubernetes.io/last-change-trigger-time")]
        trigger: Option<String>,
        #[serde(rename = "service.beta.kubernetes.io/load-balancer-source-ranges")]
        source_ranges: Option<String>,
    }
    let slim = Slim::deserialize(from)?;
    let Annotations { trigger, source_ranges } = slim.annotations.unwrap_or_default();
    let named = |key: &str, value: Option<String>| value.map(|value| (key.to_owned(), value));
    let annotations: BTreeMap<String, String> =
        named(TRIGGER_TIME, trigger).into_iter().chain(named(SOURCE_RANGES_ANNOTATION, source_ranges)).collect();
    Ok(ObjectMeta {
        name: slim.name,
        namespace: slim.namespace,
        uid: slim.uid,
        resource_version: slim.resource_version,
        deletion_timestamp: slim.deletion_timestamp,
        labels: slim.labels,
        annotations: (!annotations.is_empty()).then_some(annotations),
        ..ObjectMeta::default()
    })
}

/// Implements `kube::Resource` for a reduced type.
macro_rules! resource {
    ($type:ident, $kind:literal, $scope:ty, $group:literal, $plural:literal) => {
        impl kube::Resource for $type {
            type DynamicType = ();
            type Scope = $scope;

            fn kind((): &()) -> std::borrow::Cow<'_, str> {
                $kind.into()
            }

            fn group((): &()) -> std::borrow::Cow<'_, str> {
                $group.into()
            }

            fn version((): &()) -> std::borrow::Cow<'_, str> {
                "v1".into()
            }

            fn plural((): &()) -> std::borrow::Cow<'_, str> {
                $plural.into()
            }

            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

pub(crate) use resource;

resource!(Service, "Service", NamespaceResourceScope, "", "services");
resource!(EndpointSlice, "EndpointSlice", NamespaceResourceScope, "discovery.k8s.io", "endpointslices");
resource!(Node, "Node", ClusterResourceScope, "", "nodes");
resource!(ServiceCidr, "ServiceCIDR", ClusterResourceScope, "networking.k8s.io", "servicecidrs");
