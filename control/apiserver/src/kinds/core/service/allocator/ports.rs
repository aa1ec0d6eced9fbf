//! Node ports: which numbers a service asks for, and which one comes next. Pure.

use std::{
    collections::{BTreeSet, HashMap},
    ops::RangeInclusive,
};

use serde_json::{Value, json};

use crate::store::AllocationError;

/// The numbers that a stored service has.
pub(super) fn allocated(service: &Value) -> BTreeSet<u16> {
    let ports = service["spec"]["ports"].as_array().filter(|_| has_node_ports(service));
    let ports = ports.into_iter().flatten().filter_map(|port| requested(&port["nodePort"])?.ok());
    let check = Some(&service["spec"]["healthCheckNodePort"]).filter(|_| needs_health_check(&service["spec"]));
    ports.chain(check.and_then(|check| requested(check)?.ok())).collect()
}

pub(super) fn has_node_ports(service: &Value) -> bool {
    matches!(service["spec"]["type"].as_str(), Some("NodePort" | "LoadBalancer"))
}

/// Whether load balancers ask nodes if they have endpoints of the service, at a port of its own.
pub(crate) fn needs_health_check(spec: &Value) -> bool {
    spec["type"] == "LoadBalancer" && spec["externalTrafficPolicy"] == "Local"
}

/// The requested number, if any; `Err` if it is not a port.
fn requested(number: &Value) -> Option<Result<u16, ()>> {
    let number = number.as_i64().filter(|number| *number != 0)?;
    Some(u16::try_from(number).map_err(|_| ()))
}

/// The size of the band for requested ports; automatic allocation starts above it.
fn static_band(size: u32) -> u32 {
    if size <= 16 { 0 } else { (size / 32).clamp(16, 128) }
}

/// How a port is chosen for a service that asks for none.
#[derive(Clone, Copy)]
pub(super) enum Draw<'a> {
    /// A free one, beginning at any number.
    Random(&'a dyn Fn() -> u32),
    /// As upstream: the one after the last that was chosen, be it free or not.
    DryRun,
}

/// The number before the first that a dry run chooses.
const BEFORE_DRY_RUN: u16 = 32768;

/// Fills in the numbers that a service lacks and returns all that it has. `before` are those that it has already, `is_taken`
/// those of others.
pub(super) fn plan(
    range: &RangeInclusive<u16>,
    before: &BTreeSet<u16>,
    is_taken: &dyn Fn(u16) -> bool,
    draw: Draw<'_>,
    service: &mut Value,
) -> Result<BTreeSet<u16>, AllocationError> {
    let plan = Plan { range, before, is_taken, draw };
    let mut own = BTreeSet::new();
    if !has_node_ports(service) {
        return Ok(own);
    }
    let allocates = service["spec"]["type"] == "NodePort" || service["spec"]["allocateLoadBalancerNodePorts"] != false;
    // Requested numbers first, so that none of them is given to a port without one.
    for (at, port) in service["spec"]["ports"].as_array().into_iter().flatten().enumerate() {
        let Some(number) = requested(&port["nodePort"]) else { continue };
        let invalid = |why: String| AllocationError {
            field: format!("spec.ports[{at}].nodePort"),
            detail: format!("Invalid value: {}: {why}", port["nodePort"]),
        };
        // One number may be of several protocols of a service.
        let number = number.unwrap_or(0);
        if !own.contains(&number) {
            own.insert(plan.request(number).map_err(invalid)?);
        }
    }
    let check = Some(service["spec"]["healthCheckNodePort"].clone()).filter(|_| needs_health_check(&service["spec"]));
    if let Some((asked, number)) = check.as_ref().and_then(|check| Some((check, requested(check)?))) {
        let number = number.unwrap_or(0);
        let refused = |why| AllocationError {
            field: String::new(),
            detail: format!("failed to allocate requested HealthCheck NodePort {asked}: {why}"),
        };
        if own.contains(&number) {
            return Err(refused(ALLOCATED.to_owned()));
        }
        own.insert(plan.request(number).map_err(refused)?);
    }
    let mut assigned: HashMap<i64, u16> = HashMap::new();
    for port in service["spec"]["ports"].as_array_mut().into_iter().flatten() {
        let number = match requested(&port["nodePort"]) {
            Some(Ok(number)) => number,
            _ if !allocates => continue,
            _ => {
                // The same port with two protocols has the same node port.
                let sibling = assigned.get(&port["port"].as_i64().unwrap_or(0)).copied();
                let full = || full("failed to allocate a nodePort");
                sibling.or_else(|| plan.next(&own)).ok_or_else(full)?
            }
        };
        assigned.insert(port["port"].as_i64().unwrap_or(0), number);
        own.insert(number);
        port["nodePort"] = json!(number);
    }
    if check.is_some_and(|check| requested(&check).is_none()) {
        let number = plan.next(&own).ok_or_else(|| full("failed to allocate a HealthCheck NodePort 0"))?;
        own.insert(number);
        service["spec"]["healthCheckNodePort"] = json!(number);
    }
    Ok(own)
}

const ALLOCATED: &str = "provided port is already allocated";

fn full(what: &str) -> AllocationError {
    AllocationError { field: String::new(), detail: format!("{what}: range is full") }
}

struct Plan<'a> {
    range: &'a RangeInclusive<u16>,
    before: &'a BTreeSet<u16>,
    is_taken: &'a dyn Fn(u16) -> bool,
    draw: Draw<'a>,
}

impl Plan<'_> {
    fn request(&self, number: u16) -> Result<u16, String> {
        // A service keeps its ports when the range is reconfigured.
        if self.before.contains(&number) {
            return Ok(number);
        }
        let (first, last) = (self.range.start(), self.range.end());
        if !self.range.contains(&number) {
            return Err(format!("provided port is not in the valid range. The range of valid ports is {first}-{last}"));
        }
        if (self.is_taken)(number) { Err(ALLOCATED.to_owned()) } else { Ok(number) }
    }

    /// A free number that is not in `own` either.
    fn next(&self, own: &BTreeSet<u16>) -> Option<u16> {
        let random = match self.draw {
            Draw::Random(random) => random(),
            Draw::DryRun => {
                let last = own.difference(self.before).max().copied();
                return last.unwrap_or(BEFORE_DRY_RUN).checked_add(1);
            }
        };
        let size = u32::from(self.range.end().saturating_sub(*self.range.start())) + 1;
        let band = static_band(size);
        let upper = size - band;
        let start = random % upper.max(1);
        let offsets = (0..upper).map(|at| band + (start + at) % upper).chain(0..band);
        offsets
            .filter_map(|offset| u16::try_from(offset).ok()?.checked_add(*self.range.start()))
            .find(|number| !(self.is_taken)(*number) && !own.contains(number) && !self.before.contains(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(mut service: Value, before: &[u16], taken: &[u16]) -> Result<(Vec<u16>, Value), String> {
        let before = before.iter().copied().collect();
        let own = plan(&(30000..=30031), &before, &|number| taken.contains(&number), Draw::Random(&|| 0), &mut service);
        own.map(|own| (own.into_iter().collect(), service))
            .map_err(|error| format!("{}: {}", error.field, error.detail))
    }

    fn balanced(ports: Value, check: Value) -> Value {
        json!({"spec": {"type": "LoadBalancer", "externalTrafficPolicy": "Local", "ports": ports,
            "healthCheckNodePort": check}})
    }

    #[test]
    fn the_static_band_is_upstreams() {
        for (size, band) in [(10, 0), (16, 0), (17, 16), (512, 16), (2768, 86), (10_000, 128)] {
            assert_eq!(static_band(size), band, "{size}");
        }
    }

    #[test]
    fn any_port_comes_from_above_the_static_band() {
        let (own, service) = planned(json!({"spec": {"type": "NodePort", "ports": [
            {"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}, {"port": 80}, {"port": 81, "nodePort": 30016},
        ]}}), &[], &[30018])
        .unwrap();
        assert_eq!(own, [30016, 30017, 30019]);
        let numbers: Vec<u64> =
            service["spec"]["ports"].as_array().unwrap().iter().map(|p| p["nodePort"].as_u64().unwrap()).collect();
        assert_eq!(numbers, [30017, 30017, 30019, 30016]);
    }

    #[test]
    fn a_dry_run_chooses_ports_in_turn() {
        let port = |port: u16, protocol: &str, node_port: Value| json!({"port": port, "protocol": protocol, "nodePort": node_port});
        let rows = [
            (
                json!([port(80, "TCP", Value::Null), port(81, "TCP", Value::Null), port(80, "UDP", Value::Null)]),
                json!([32769, 32770, 32769]),
            ),
            (json!([port(80, "TCP", json!(30003)), port(81, "TCP", Value::Null)]), json!([30003, 30004])),
        ];
        for (ports, wanted) in rows {
            let mut service = json!({"spec": {"type": "NodePort", "ports": ports}});
            plan(&(30000..=30031), &BTreeSet::new(), &|_| false, Draw::DryRun, &mut service).unwrap();
            let given: Vec<&Value> =
                service["spec"]["ports"].as_array().unwrap().iter().map(|port| &port["nodePort"]).collect();
            assert_eq!(json!(given), wanted);
        }
    }

    #[test]
    fn a_health_check_has_a_port_of_its_own() {
        let (own, service) = planned(balanced(json!([{"port": 80}]), Value::Null), &[], &[]).unwrap();
        assert_eq!((own.len(), &service["spec"]["healthCheckNodePort"]), (2, &json!(30017)));
        assert_eq!(allocated(&service), own.into_iter().collect());
        let (own, _) = planned(balanced(json!([{"port": 80}]), json!(30003)), &[], &[]).unwrap();
        assert_eq!(own, [30003, 30016]);
        let refused = |number: u16, why: &str| {
            let error = planned(balanced(json!([{"port": 80, "nodePort": 30005}]), json!(number)), &[], &[30004]);
            assert_eq!(
                error.unwrap_err(),
                format!(": failed to allocate requested HealthCheck NodePort {number}: {why}")
            );
        };
        refused(30004, ALLOCATED);
        refused(30005, ALLOCATED);
        refused(1, "provided port is not in the valid range. The range of valid ports is 30000-30031");
        let mut cluster = balanced(json!([]), Value::Null);
        cluster["spec"]["externalTrafficPolicy"] = json!("Cluster");
        assert_eq!(planned(cluster, &[], &[]).unwrap().0, Vec::<u16>::new());
    }

    #[test]
    fn a_service_keeps_its_ports_whatever_the_range_is() {
        let service = json!({"spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": 20000}]}});
        assert_eq!(planned(service.clone(), &[20000], &[20000]).unwrap().0, [20000]);
        let why = "provided port is not in the valid range. The range of valid ports is 30000-30031";
        assert_eq!(
            planned(service, &[], &[]).unwrap_err(),
            format!("spec.ports[0].nodePort: Invalid value: 20000: {why}")
        );
    }
}
