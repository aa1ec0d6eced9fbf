//! `proxy`: one of the service's ready endpoints, picked at random.

use std::net::{IpAddr, SocketAddr};

use serde_json::Value;

use crate::{
    apiserver::{
        ApiError, ApiRequest, Target,
        generate::random_u32,
        handlers::proxy::{Backend, Locate, SchemeNamePort, is_proxyable},
    },
    store::Key,
    webhook::resolver,
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
                let why = || format!("no service port {number} found for service {:?}", asked.name);
                resolver::port_name(&service, number).ok_or_else(|| ApiError::service_unavailable(why()))?
            }
            Err(_) => asked.port.to_owned(),
        };
        let namespace = target.namespace.as_deref().unwrap_or("");
        let store = request.store();
        let service = Key { namespace: namespace.to_owned(), name: asked.name.to_owned() };
        let slices = resolver::slices_of(store, &service);
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

/// The ready endpoints of a slice that have a port. Only those that name a pod: others could be any host that the author
/// of a slice wants to reach from here.
fn candidates<'a>(slice: &'a Value, port: &str) -> Vec<Candidate<'a>> {
    let Some(number) = resolver::port_of(slice, port) else { return Vec::new() };
    let candidate = |(address, endpoint): (IpAddr, &'a Value)| {
        let target = &endpoint["targetRef"];
        is_proxyable(address).then_some(Candidate {
            address: SocketAddr::new(address, number),
            namespace: target["namespace"].as_str()?,
            pod: target["name"].as_str()?,
        })
    };
    resolver::ready(slice).filter_map(candidate).collect()
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
