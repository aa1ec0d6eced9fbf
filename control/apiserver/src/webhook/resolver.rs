//! Which address a Service of the cluster has: that of one of its ready endpoints, since this process is not in the pod
//! network and has no rules of the proxy to count on.
//!
//! Upstream: `ResolveEndpoint` of `k8s.io/apiserver/pkg/util/proxy`.

use std::net::{IpAddr, SocketAddr};

use serde::Deserialize;
use serde_json::Value;

use crate::{
    apiserver::generate::random_u32,
    store::{Key, Store},
};

/// A ready endpoint of a port of a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    /// The node that it is on; empty if the slice does not say.
    pub(crate) node: String,
    /// The pod that it is, if it is one.
    pub(crate) pod: Option<Key>,
}

/// Why a Service has no address, in upstream's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ResolveError {
    #[error("service {0:?} not found")]
    NotFound(String),
    #[error("unsupported service type {0:?}")]
    UnsupportedType(String),
    #[error("no service port {port} found for service {service:?}")]
    NoPort { port: u16, service: String },
    #[error("no endpoints available for service {0:?}")]
    NoEndpoints(String),
}

/// The ready endpoints of a port of a Service, those of its first IP family first, otherwise in a random order.
///
/// # Errors
/// When there are none.
pub(crate) fn resolve(store: &Store, service: &Key, port: u16) -> Result<Vec<Endpoint>, ResolveError> {
    let name = || service.name.clone();
    let found = store.get(store.resource("services"), service).ok_or_else(|| ResolveError::NotFound(name()))?;
    let found = found.value();
    let kind = found["spec"]["type"].as_str().unwrap_or("ClusterIP");
    if !matches!(kind, "ClusterIP" | "NodePort" | "LoadBalancer") {
        return Err(ResolveError::UnsupportedType(kind.to_owned()));
    }
    let no_port = || ResolveError::NoPort { port, service: name() };
    let port_name = port_name(&found, port.into()).ok_or_else(no_port)?;
    let prefers_v6 = found["spec"]["ipFamilies"][0] == "IPv6";
    let mut all: Vec<Endpoint> =
        slices_of(store, service).iter().flat_map(|slice| ready_endpoints(slice, &port_name)).collect();
    if all.is_empty() {
        return Err(ResolveError::NoEndpoints(name()));
    }
    let start = random_u32() as usize % all.len();
    all.rotate_left(start);
    all.sort_by_key(|endpoint| endpoint.address.is_ipv6() != prefers_v6);
    Ok(all)
}

/// The EndpointSlices of a Service.
pub(crate) fn slices_of(store: &Store, service: &Key) -> Vec<Value> {
    let slices = store.list(store.resource("endpointslices.discovery.k8s.io"), Some(&service.namespace)).0;
    let own = slices.iter().filter(|slice| is_of_service(&slice.bytes, &service.name));
    own.map(|slice| slice.value()).collect()
}

/// The name of the port of a Service with a number. Pure.
pub(crate) fn port_name(service: &Value, number: i64) -> Option<String> {
    let mut ports = service["spec"]["ports"].as_array().into_iter().flatten();
    let port = ports.find(|port| port["port"] == number)?;
    Some(port["name"].as_str().unwrap_or("").to_owned())
}

/// The number of the port of a slice with a name. Pure.
pub(crate) fn port_of(slice: &Value, name: &str) -> Option<u16> {
    let mut ports = slice["ports"].as_array().into_iter().flatten();
    let port = ports.find(|own| own["name"].as_str().unwrap_or("") == name)?;
    u16::try_from(port["port"].as_u64()?).ok()
}

/// The endpoints of a slice that are not said to be unready, with their first addresses. Pure.
pub(crate) fn ready(slice: &Value) -> impl Iterator<Item = (IpAddr, &Value)> {
    let endpoints = slice["endpoints"].as_array().into_iter().flatten();
    let ready = endpoints.filter(|endpoint| endpoint["conditions"]["ready"] != false);
    ready.filter_map(|endpoint| Some((endpoint["addresses"][0].as_str()?.parse().ok()?, endpoint)))
}

fn ready_endpoints(slice: &Value, port_name: &str) -> Vec<Endpoint> {
    let Some(port) = port_of(slice, port_name) else { return Vec::new() };
    let endpoint = |(address, endpoint): (IpAddr, &Value)| {
        let target = &endpoint["targetRef"];
        let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
        let pod = Key { namespace: text(&target["namespace"]), name: text(&target["name"]) };
        Endpoint {
            address: SocketAddr::new(address, port),
            node: text(&endpoint["nodeName"]),
            pod: (target["kind"] == "Pod").then_some(pod),
        }
    };
    ready(slice).map(endpoint).collect()
}

fn is_of_service(slice: &[u8], service: &str) -> bool {
    service_of(slice).is_some_and(|own| own == service)
}

/// The name of the service that a slice is of. Its label alone is read: a namespace has many slices, of many endpoints each.
pub(crate) fn service_of(slice: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Slice {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    struct Metadata {
        labels: Option<Labels>,
    }
    #[derive(Deserialize)]
    struct Labels {
        #[serde(rename = "kubernetes.io/service-name")]
        service: Option<String>,
    }
    let labels = serde_json::from_slice::<Slice>(slice).ok().and_then(|slice| slice.metadata.labels);
    labels.and_then(|labels| labels.service)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ports_are_found_by_their_numbers() {
        let service = json!({"spec": {"ports": [{"port": 80, "name": "web"}, {"port": 81}]}});
        for (number, name) in [(80, Some("web")), (81, Some("")), (82, None)] {
            assert_eq!(port_name(&service, number).as_deref(), name, "{number}");
        }
    }

    #[test]
    fn slices_are_found_by_their_label() {
        let label = "kubernetes.io/service-name";
        for (slice, is_of) in [
            (json!({"metadata": {"labels": {label: "s", "other": "t"}}, "endpoints": []}), true),
            (json!({"metadata": {"labels": {label: "t"}}}), false),
            (json!({"metadata": {"labels": {"other": "s"}}}), false),
            (json!({"metadata": {"name": "s"}}), false),
        ] {
            assert_eq!(is_of_service(slice.to_string().as_bytes(), "s"), is_of, "{slice}");
        }
    }

    #[test]
    fn endpoints_that_are_not_unready_are_found() {
        let endpoint = |ip: &str, ready: Value| {
            json!({"addresses": [ip], "conditions": {"ready": ready}, "nodeName": "n1",
            "targetRef": {"kind": "Pod", "namespace": "n", "name": "p"}})
        };
        let slice = json!({
            "ports": [{"name": "web", "port": 8443}, {"name": "all"}],
            "endpoints": [endpoint("10.0.0.1", json!(true)), endpoint("10.0.0.2", json!(null)), endpoint("10.0.0.3", json!(false)), {"addresses": ["fd00::1"]}],
        });
        let found =
            |port: &str| ready_endpoints(&slice, port).iter().map(|e| e.address.to_string()).collect::<Vec<_>>();
        assert_eq!(found("web"), ["10.0.0.1:8443", "10.0.0.2:8443", "[fd00::1]:8443"]);
        assert!(found("").is_empty() && found("all").is_empty());
        let first = &ready_endpoints(&slice, "web")[0];
        assert_eq!((first.node.as_str(), first.pod.as_ref().map(|pod| pod.name.as_str())), ("n1", Some("p")));
    }
}
