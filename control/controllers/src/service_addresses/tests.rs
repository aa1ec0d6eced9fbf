//! What is wrong with addresses and ranges, and what a running controller does about it.

use k8s_openapi::api::{
    core::v1::Service,
    networking::v1::{IPAddress, ServiceCIDR},
};
use serde_json::{Value, json};

use super::{
    cidrs::may_go,
    repair::{RepairAction, check_address, check_service},
};

fn service(name: &str, ip: &str) -> Service {
    let spec = json!({"type": "ClusterIP", "clusterIP": ip, "clusterIPs": [ip]});
    serde_json::from_value(json!({"metadata": {"namespace": "n", "name": name}, "spec": spec})).unwrap()
}

fn address(ip: &str, parent: Value) -> IPAddress {
    let labels = json!({"ipaddress.kubernetes.io/ip-family": "IPv4", "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"});
    serde_json::from_value(json!({"metadata": {"name": ip, "labels": labels}, "spec": {"parentRef": parent}})).unwrap()
}

fn of(name: &str) -> Value {
    json!({"resource": "services", "namespace": "n", "name": name})
}

fn cidr(name: &str, range: &str, deleting: bool) -> ServiceCIDR {
    let deleted = if deleting { json!("2026-01-01T00:00:00Z") } else { Value::Null };
    serde_json::from_value(
        json!({"metadata": {"name": name, "deletionTimestamp": deleted}, "spec": {"cidrs": [range]}}),
    )
    .unwrap()
}

#[test]
fn the_address_of_a_service_is_its_own() {
    const IP: &str = "10.96.0.9";
    let mut unlabelled = address(IP, of("a"));
    unlabelled.metadata.labels = None;
    let gateway = json!({"group": "gateway.networking.k8s.io", "resource": "gateways", "namespace": "n", "name": "a"});
    let (other, without) = (service("b", IP), service("b", "10.96.0.8"));
    for (found, refers_to, wanted) in [
        (Some(address(IP, of("a"))), None, None),
        (None, None, Some(("Cluster IP [IPv4]: 10.96.0.9 is not allocated; repairing", RepairAction::Create))),
        (
            Some(address(IP, gateway)),
            None,
            Some((
                "the ClusterIP [IPv4]: 10.96.0.9 for Service n/a has a wrong reference; cleaning up",
                RepairAction::Recreate,
            )),
        ),
        (
            Some(address(IP, of("b"))),
            None,
            Some((
                "the ClusterIP [IPv4]: 10.96.0.9 for Service n/a has a wrong reference; cleaning up",
                RepairAction::Recreate,
            )),
        ),
        (
            Some(address(IP, of("b"))),
            Some(&other),
            Some((
                "Cluster IP [IPv4]:10.96.0.9 was assigned to multiple services; please recreate service",
                RepairAction::None,
            )),
        ),
        (Some(address(IP, of("b"))), Some(&without), None),
        (Some(unlabelled), None, Some(("", RepairAction::Recreate))),
    ] {
        let finding = check_service(&service("a", IP), IP.parse().unwrap(), found.as_ref(), refers_to);
        assert_eq!(finding.as_ref().map(|f| (f.message.as_str(), f.repair)), wanted, "{found:?}");
    }
}

#[test]
fn an_address_belongs_to_a_service_that_has_it() {
    let own = address("10.96.0.9", of("a"));
    assert_eq!(check_address(&own, Some(&service("a", "10.96.0.9"))), None);
    for (address, service, message) in [
        (&own, None, "IPAddress: 10.96.0.9 for Service n/a appears to have leaked: cleaning up"),
        (
            &own,
            Some(service("a", "10.96.0.8")),
            "IPAddress: 10.96.0.9 for Service n/a has a wrong reference; cleaning up",
        ),
        (
            &address("10.96.0.9", json!({"resource": "gateways", "name": "a"})),
            None,
            "IPAddress 10.96.0.9 appears to have been modified, not referencing a Service: cleaning up",
        ),
    ] {
        assert_eq!(check_address(address, service.as_ref()).unwrap().message, message);
    }
}

#[test]
fn a_range_goes_when_others_cover_its_addresses() {
    let own = cidr("own", "10.97.0.0/24", true);
    let mut foreign = address("10.97.0.9", of("a"));
    foreign.metadata.labels = None;
    for (others, addresses, goes) in [
        (vec![], vec![], true),
        (vec![], vec![address("10.96.0.9", of("a"))], true),
        (vec![], vec![foreign], true),
        (vec![], vec![address("10.97.0.9", of("a"))], false),
        (vec![cidr("half", "10.97.0.0/25", false)], vec![address("10.97.0.9", of("a"))], true),
        (vec![cidr("half", "10.97.0.0/25", true)], vec![address("10.97.0.9", of("a"))], false),
        (vec![cidr("half", "10.97.0.128/25", false)], vec![address("10.97.0.9", of("a"))], false),
    ] {
        let all: Vec<ServiceCIDR> = others.into_iter().chain([own.clone()]).collect();
        assert_eq!(may_go(&own, all.iter(), addresses.iter()), goes, "{all:?} {addresses:?}");
    }
}
