//! What a service uses of a quota. Pure.

use serde_json::Value;
use windlass_kit::quantity::Quantity;

use super::ResourceList;

const SERVICES: &str = "services";
const NODE_PORTS: &str = "services.nodeports";
const LOAD_BALANCERS: &str = "services.loadbalancers";

/// Whether a resource of a quota is one of services.
pub(super) fn counts(name: &str) -> bool {
    matches!(name, SERVICES | NODE_PORTS | LOAD_BALANCERS)
}

/// What a service uses. Node ports are counted by what is asked for: they may not be allocated yet.
pub(super) fn usage(service: &Value) -> ResourceList {
    let spec = &service["spec"];
    let ports = spec["ports"].as_array().map(Vec::as_slice).unwrap_or_default();
    let given = || ports.iter().filter(|port| port["nodePort"].as_i64().is_some_and(|number| number != 0)).count();
    let (node_ports, load_balancers) = match spec["type"].as_str() {
        Some("NodePort") => (ports.len(), 0),
        Some("LoadBalancer") if spec["allocateLoadBalancerNodePorts"] == false => (given(), 1),
        Some("LoadBalancer") => (ports.len(), 1),
        _ => (0, 0),
    };
    let mut usage = ResourceList::default();
    usage.set(SERVICES, Quantity::from_units(1));
    usage.set(NODE_PORTS, Quantity::from_units(i64::try_from(node_ports).unwrap_or(i64::MAX)));
    usage.set(LOAD_BALANCERS, Quantity::from_units(load_balancers));
    usage
}
