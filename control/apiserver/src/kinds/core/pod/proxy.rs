//! `proxy`: a port of the pod.

use std::net::{IpAddr, SocketAddr};

use serde_json::Value;

use crate::apiserver::{
    ApiError, ApiRequest, Target,
    handlers::proxy::{Backend, Locate, SchemeNamePort, is_proxyable},
};

/// Upstream's refusal of addresses that are no pod's.
pub(in crate::kinds::core) const ADDRESS_NOT_ALLOWED: &str = "address not allowed";

/// The pod's own address.
#[derive(Debug)]
pub(super) struct Proxy;

impl Locate for Proxy {
    fn locate(&self, request: &ApiRequest, target: &Target) -> Result<Backend, ApiError> {
        let asked = SchemeNamePort::of(target, "pod")?;
        let pod = asked.read(request, target)?;
        let address = address_of(&pod).filter(|address| is_proxyable(*address));
        let address = address.ok_or_else(|| ApiError::bad_request(ADDRESS_NOT_ALLOWED))?;
        Ok(backend(address, &asked, first_port(&pod)))
    }
}

/// A port of an address; without one in the request, `default`.
pub(in crate::kinds::core) fn backend(address: IpAddr, asked: &SchemeNamePort<'_>, default: Option<u16>) -> Backend {
    let port = match asked.port {
        "" => Some(default.unwrap_or(if asked.https { 443 } else { 80 })),
        port => port.parse().ok(),
    };
    match port {
        Some(port) => Backend::Address { https: asked.https, address: SocketAddr::new(address, port) },
        None => Backend::Unreachable(format!("dial tcp: lookup tcp/{}: unknown port", asked.port)),
    }
}

fn address_of(pod: &Value) -> Option<IpAddr> {
    pod["status"]["podIPs"][0]["ip"].as_str()?.parse().ok()
}

/// The first port of the first container that has ports.
fn first_port(pod: &Value) -> Option<u16> {
    let containers = pod["spec"]["containers"].as_array()?;
    let port = containers.iter().find_map(|container| container["ports"][0]["containerPort"].as_u64())?;
    u16::try_from(port).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ports_of_pods() {
        let pod = json!({
            "spec": {"containers": [{"name": "a"}, {"name": "b", "ports": [{"containerPort": 1080}]}]},
            "status": {"podIPs": [{"ip": "10.0.0.1"}]},
        });
        let address = address_of(&pod).unwrap();
        for (id, wanted) in [
            ("p", Some((false, 1080))),
            ("https:p:", Some((true, 1080))),
            ("p:81", Some((false, 81))),
            ("https:p:443", Some((true, 443))),
            ("p:web", None),
        ] {
            let found = match backend(address, &SchemeNamePort::parse(id).unwrap(), first_port(&pod)) {
                Backend::Address { https, address } => Some((https, address.port())),
                _ => None,
            };
            assert_eq!(found, wanted, "{id}");
        }
        assert_eq!(first_port(&json!({"spec": {"containers": [{"name": "a"}]}})), None);
        assert_eq!(address_of(&json!({"status": {}})), None);
    }
}
