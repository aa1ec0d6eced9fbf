//! Who is answered.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::runtime::watcher::Event;
use serde_json::json;
use tokio::time::Instant;

use crate::sources::Sources;

fn node(name: &str, address: &str, pods: &str) -> Node {
    serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {"podCIDR": pods, "podCIDRs": [pods]},
        "status": {"addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}]},
    }))
    .unwrap()
}

#[test]
fn pods_nodes_and_this_machine_alone() {
    let mut sources = Sources::new(vec!["10.244.0.0/16".parse().unwrap()]);
    let allowed = |sources: &Sources, address: &str| sources.allows(address.parse().unwrap());
    for address in ["10.244.3.4", "127.0.0.1", "::1", "::ffff:10.244.3.4"] {
        assert!(allowed(&sources, address), "{address}");
    }
    for address in ["192.0.2.7", "10.245.0.1", "172.17.0.2", "10.96.0.10", "2001:db8::7"] {
        assert!(!allowed(&sources, address), "{address}");
    }
    sources.set_machine(["192.0.2.7".parse().unwrap()].into());
    assert!(allowed(&sources, "192.0.2.7") && !allowed(&sources, "192.0.2.8"));
    sources.node(Event::Init);
    sources.node(Event::InitApply(node("one", "192.0.2.8", "10.9.1.0/24")));
    sources.node(Event::InitApply(node("two", "192.0.2.9", "0.0.0.0/0")));
    sources.node(Event::InitDone);
    assert!(allowed(&sources, "192.0.2.8") && allowed(&sources, "10.9.1.77") && allowed(&sources, "192.0.2.9"));
    assert!(!allowed(&sources, "198.51.100.1"), "no node has all addresses for its pods");
    sources.node(Event::Apply(node("one", "192.0.2.18", "10.9.1.0/24")));
    assert!(!allowed(&sources, "192.0.2.8") && allowed(&sources, "192.0.2.18"));
    sources.node(Event::Delete(node("two", "192.0.2.9", "0.0.0.0/0")));
    assert!(!allowed(&sources, "192.0.2.9"));
    // A deletion that the watch did not deliver.
    sources.node(Event::Init);
    sources.node(Event::InitDone);
    assert!(!allowed(&sources, "192.0.2.18") && !allowed(&sources, "10.9.1.77"));
}

#[test]
fn the_machine_is_read_once_a_second_at_most() {
    let (mut sources, now) = (Sources::new(Vec::new()), Instant::now());
    assert!(sources.wants_machine(now));
    assert!(!sources.wants_machine(now + Duration::from_millis(999)));
    assert!(sources.wants_machine(now + Duration::from_secs(1)));
}
