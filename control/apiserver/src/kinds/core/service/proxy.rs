//! `proxy`: one of the service's ready endpoints, picked at random.

use std::net::{IpAddr, SocketAddr};

use serde::Deserialize;
use serde_json::Value;

use crate::{
    apiserver::{
        ApiError, ApiRequest, Target,
        generate::random_u32,
        handlers::proxy::{Backend, Locate, SchemeNamePort, is_proxyable},
    },
    store::Key,
};

/// The endpoints of the service.
#[derive(Debug)]
pub(super) struct Proxy;

impl Locate for Proxy {
    fn locate(&self, request: &ApiRequest, target: &Target) -> Result<Backend, ApiError> {
        let asked = SchemeNamePort::of(target, "service")?;
        let port = match asked.port.parse() {
            Ok(number) => {
                let service = asked.read(request, target)?;
                port_name(&service, asked.name, number)?
            }
            Err(_) => asked.port.to_owned(),
        };
        let namespace = target.namespace.as_deref().unwrap_or("");
        let store = request.store();
        let slices = store.list(store.resource("endpointslices.discovery.k8s.io"), Some(namespace)).0;
        let own = slices.iter().filter(|slice| is_of_service(&slice.bytes, asked.name));
        let slices: Vec<Value> = own.map(|slice| slice.value()).collect();
        if slices.is_empty() {
            return Err(ApiError::not_found(&target.version, asked.name));
        }
        let candidates: Vec<Candidate<'_>> = slices.iter().flat_map(|slice| candidates(slice, &port)).collect();
        let start = random_u32() as usize;
        let picked = (0..candidates.len()).map(|at| &candidates[(start.wrapping_add(at)) % candidates.len()]);
        let pods = store.resource("pods");
        let mut valid = picked.filter(|candidate| {
            let key = Key { namespace: namespace.to_owned(), name: candidate.pod.to_owned() };
            let is_own = candidate.namespace == namespace;
            is_own && store.get(pods, &key).is_some_and(|pod| has_address(&pod.value(), candidate.address.ip()))
        });
        let none = || {
            let id = target.name();
            ApiError::service_unavailable(format!("no endpoints available for service {id:?}"))
        };
        let address = valid.next().ok_or_else(none)?.address;
        Ok(Backend::Address { https: asked.https, address })
    }
}

/// An endpoint, and the pod that it says it is.
#[derive(Debug, PartialEq, Eq)]
struct Candidate<'a> {
    address: SocketAddr,
    namespace: &'a str,
    pod: &'a str,
}

/// The name of the port with a number.
fn port_name(service: &Value, name: &str, number: i64) -> Result<String, ApiError> {
    let mut ports = service["spec"]["ports"].as_array().into_iter().flatten();
    let port = ports.find(|port| port["port"] == number);
    let unknown = || ApiError::service_unavailable(format!("no service port {number} found for service {name:?}"));
    Ok(port.ok_or_else(unknown)?["name"].as_str().unwrap_or("").to_owned())
}

/// Whether a slice is of a service. Its label alone is read: a namespace has many slices, of many endpoints each.
fn is_of_service(slice: &[u8], service: &str) -> bool {
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
    labels.and_then(|labels| labels.service).is_some_and(|own| own == service)
}

/// The ready endpoints of a slice that have a port. Only those that name a pod: others could be any host that the author
/// of a slice wants to reach from here.
fn candidates<'a>(slice: &'a Value, port: &str) -> Vec<Candidate<'a>> {
    let mut ports = slice["ports"].as_array().into_iter().flatten();
    let number = ports.find(|own| own["name"].as_str().unwrap_or("") == port).and_then(|own| own["port"].as_u64());
    let Some(number) = number.and_then(|number| u16::try_from(number).ok()) else { return Vec::new() };
    let ready = slice["endpoints"].as_array().into_iter().flatten();
    let ready = ready.filter(|endpoint| endpoint["conditions"]["ready"] != false);
    ready
        .filter_map(|endpoint| {
            let address: IpAddr = endpoint["addresses"][0].as_str()?.parse().ok()?;
            let target = &endpoint["targetRef"];
            is_proxyable(address).then_some(Candidate {
                address: SocketAddr::new(address, number),
                namespace: target["namespace"].as_str()?,
                pod: target["name"].as_str()?,
            })
        })
        .collect()
}

fn has_address(pod: &Value, address: IpAddr) -> bool {
    let mut addresses = pod["status"]["podIPs"].as_array().into_iter().flatten();
    addresses.any(|own| own["ip"].as_str().and_then(|ip| ip.parse().ok()) == Some(address))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ports_are_found_by_their_numbers() {
        let service = json!({"spec": {"ports": [{"port": 80, "name": "web"}, {"port": 81}]}});
        for (number, name) in [(80, "web"), (81, "")] {
            assert_eq!(port_name(&service, "s", number).unwrap(), name, "{number}");
        }
        let unknown = port_name(&service, "s", 82).unwrap_err();
        assert_eq!((unknown.code, unknown.to_string().as_str()), (503, "no service port 82 found for service \"s\""));
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
    fn only_ready_pods_are_candidates() {
        let endpoint = |ip: &str, ready: Value, pod: Value| json!({"addresses": [ip], "conditions": {"ready": ready}, "targetRef": pod});
        let pod = json!({"kind": "Pod", "namespace": "n", "name": "p"});
        let slice = json!({
            "ports": [{"name": "web", "port": 8080}, {"name": "all"}],
            "endpoints": [
                endpoint("10.0.0.1", json!(true), pod.clone()),
                endpoint("10.0.0.2", json!(null), pod.clone()),
                endpoint("10.0.0.3", json!(false), pod.clone()),
                endpoint("10.0.0.4", json!(true), json!(null)),
                endpoint("169.254.169.254", json!(true), pod.clone()),
                endpoint("127.0.0.1", json!(true), pod.clone()),
                endpoint("example.com", json!(true), pod),
            ],
        });
        let found = |port: &str| candidates(&slice, port).iter().map(|c| c.address.to_string()).collect::<Vec<_>>();
        assert_eq!(found("web"), ["10.0.0.1:8080", "10.0.0.2:8080"]);
        assert!(found("").is_empty() && found("all").is_empty());
    }
}
