//! Objects of tests, and that the records do not depend on the way in which objects came.

use k8s_openapi::api::{
    core::v1::{Namespace, Service as ServiceObject},
    discovery::v1::EndpointSlice,
};
use kube::runtime::watcher::Event;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

pub(crate) fn namespace(name: &str) -> Namespace {
    serde_json::from_value(json!({"metadata": {"name": name}})).unwrap()
}

pub(crate) fn service(namespace: &str, name: &str, spec: Value) -> ServiceObject {
    serde_json::from_value(json!({"metadata": {"namespace": namespace, "name": name}, "spec": spec})).unwrap()
}

/// A slice of a Service. `endpoints` are addresses with their host names, which may be empty.
pub(crate) fn slice(key: (&str, &str), name: &str, endpoints: &[(&str, &str)], ports: Value) -> EndpointSlice {
    let endpoint = |(address, hostname): &(&str, &str)| {
        let hostname = if hostname.is_empty() { Value::Null } else { json!(hostname) };
        json!({"addresses": [address], "hostname": hostname, "conditions": {"ready": true}})
    };
    let endpoints: Vec<Value> = endpoints.iter().map(endpoint).collect();
    serde_json::from_value(json!({
        "metadata": {"namespace": key.0, "name": name, "labels": {"kubernetes.io/service-name": key.1}},
        "addressType": "IPv4", "endpoints": endpoints, "ports": ports,
    }))
    .unwrap()
}

/// Records from lists of all objects.
pub(crate) fn records(namespaces: &[&str], services: Vec<ServiceObject>, slices: Vec<EndpointSlice>) -> Records {
    let mut records = Records::default();
    let listed = namespaces.iter().map(|name| Event::InitApply(namespace(name)));
    std::iter::once(Event::Init).chain(listed).chain([Event::InitDone]).for_each(|event| records.namespace(event));
    let listed = services.into_iter().map(Event::InitApply);
    std::iter::once(Event::Init).chain(listed).chain([Event::InitDone]).for_each(|event| records.service_event(event));
    let listed = slices.into_iter().map(Event::InitApply);
    for event in std::iter::once(Event::Init).chain(listed).chain([Event::InitDone]) {
        records.slice_event(event);
    }
    assert!(records.complete());
    records
}

fn http() -> Value {
    json!([{"name": "http", "port": 80, "protocol": "TCP"}])
}

#[test]
fn nothing_is_complete_before_all_lists_are() {
    let mut records = Records::default();
    records.namespace(Event::InitDone);
    records.service_event(Event::InitDone);
    assert!(!records.complete());
    records.slice_event(Event::InitDone);
    assert!(records.complete());
}

#[test]
fn only_ready_endpoints_are_kept_and_no_condition_is_ready() {
    let endpoints = json!([
        {"addresses": ["10.0.0.1"], "conditions": {"ready": true}},
        {"addresses": ["10.0.0.2"], "conditions": {"ready": false, "serving": true}},
        {"addresses": ["10.0.0.3"]},
        {"addresses": ["no address", "10.0.0.4"], "conditions": {}},
    ]);
    let mut object = slice(("a", "web"), "web-1", &[], Value::Null);
    object.endpoints = serde_json::from_value(endpoints).unwrap();
    let (key, name, read) = Slice::of(&object).unwrap();
    assert_eq!((key, &*name), (Key::new("a", "web"), "web-1"));
    let addresses: Vec<String> = read.endpoints.iter().map(|endpoint| endpoint.address.to_string()).collect();
    assert_eq!(addresses, ["10.0.0.1", "10.0.0.3", "10.0.0.4"]);
    assert_eq!(read.ports[0].number, None, "it has no ports");
    object.metadata.labels = None;
    assert_eq!(Slice::of(&object), None);
}

#[test]
fn the_time_of_a_change_counts_for_headless_services_with_a_selector() {
    let of = |spec: Value| records(&["a"], vec![service("a", "web", spec)], vec![]);
    let mut changed = slice(("a", "web"), "web-1", &[("10.0.0.1", "")], http());
    let at = ("endpoints.kubernetes.io/last-change-trigger-time".to_owned(), "2026-01-01T00:00:00Z".to_owned());
    changed.metadata.annotations = Some([at].into());
    let mut headless = of(json!({"clusterIP": "None", "clusterIPs": ["None"], "selector": {"app": "web"}}));
    assert!(headless.slice_event(Event::Apply(changed.clone())).is_some());
    assert!(headless.slice_event(Event::Apply(changed.clone())).is_none(), "nothing has changed");
    let mut with_ip = of(json!({"clusterIPs": ["10.96.0.1"], "selector": {"app": "web"}}));
    assert!(with_ip.slice_event(Event::Apply(changed)).is_none());
}

/// A change of one of a few objects.
#[derive(Debug, Clone)]
enum Op {
    Service(u8, Option<u8>),
    Slice(u8, u8, Option<u8>),
    Relist,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        (0..3u8, proptest::option::of(0..4u8)).prop_map(|(name, version)| Op::Service(name, version)),
        (0..3u8, 0..2u8, proptest::option::of(0..4u8)).prop_map(|(of, name, version)| Op::Slice(of, name, version)),
        Just(Op::Relist),
    ]
}

fn any_service(name: u8, version: u8) -> ServiceObject {
    let spec = match version {
        0 => json!({"clusterIPs": ["None"]}),
        // One address may be written at two Services for a moment.
        1 => json!({"clusterIPs": ["10.96.0.1", "fd00::1"]}),
        2 => json!({"clusterIPs": [format!("10.96.1.{name}")]}),
        _ => json!({"type": "ExternalName", "externalName": "example.com"}),
    };
    service("a", &format!("s{name}"), spec)
}

fn any_slice(of: u8, name: u8, version: u8) -> EndpointSlice {
    let endpoints: &[(&str, &str)] = match version {
        0 => &[],
        1 => &[("10.0.0.1", "h0"), ("10.0.0.1", "h1")],
        2 => &[("10.0.0.1", "h0"), ("10.0.0.2", "")],
        _ => &[("10.0.0.2", "h2")],
    };
    slice(("a", &format!("s{of}")), &format!("s{of}-{name}"), endpoints, http())
}

/// Everything that can be found.
fn seen(records: &Records) -> Vec<String> {
    let mut seen: Vec<String> = Vec::new();
    for key in (0..3).map(|name| Key::new("a", &format!("s{name}"))) {
        seen.push(format!("{:?} {:?}", records.service(&key), records.slices(&key).collect::<Vec<_>>()));
    }
    for address in ["10.96.0.1", "fd00::1", "10.96.1.0", "10.96.1.1", "10.96.1.2", "10.0.0.1", "10.0.0.2"] {
        let address = address.parse().unwrap();
        seen.push(format!("{:?} {:?}", records.service_at(address), records.hosts_at(address).collect::<Vec<_>>()));
    }
    let sizes = (records.entries.len(), records.cluster_ips.len(), records.hosts.len());
    seen.push(format!("{sizes:?}"));
    seen
}

proptest! {
    #[test]
    fn any_way_leads_to_the_same_records(ops in proptest::collection::vec(op(), 0..40)) {
        let mut followed = records(&["a"], vec![], vec![]);
        let mut services: BTreeMap<u8, u8> = BTreeMap::new();
        let mut slices: BTreeMap<(u8, u8), u8> = BTreeMap::new();
        for op in ops {
            match op {
                Op::Service(name, Some(version)) => {
                    services.insert(name, version);
                    followed.service_event(Event::Apply(any_service(name, version)));
                }
                Op::Service(name, None) => {
                    if let Some(version) = services.remove(&name) {
                        followed.service_event(Event::Delete(any_service(name, version)));
                    }
                }
                Op::Slice(of, name, Some(version)) => {
                    slices.insert((of, name), version);
                    followed.slice_event(Event::Apply(any_slice(of, name, version)));
                }
                Op::Slice(of, name, None) => {
                    if let Some(version) = slices.remove(&(of, name)) {
                        followed.slice_event(Event::Delete(any_slice(of, name, version)));
                    }
                }
                // A list after a watch that broke off, in which a deletion was missed.
                Op::Relist => {
                    services.pop_first();
                    slices.pop_last();
                    followed.service_event(Event::Init);
                    for (name, version) in &services {
                        followed.service_event(Event::InitApply(any_service(*name, *version)));
                    }
                    followed.service_event(Event::InitDone);
                    followed.slice_event(Event::Init);
                    for ((of, name), version) in &slices {
                        followed.slice_event(Event::InitApply(any_slice(*of, *name, *version)));
                    }
                    followed.slice_event(Event::InitDone);
                }
            }
        }
        let fresh = records(
            &["a"],
            services.iter().map(|(name, version)| any_service(*name, *version)).collect(),
            slices.iter().map(|((of, name), version)| any_slice(*of, *name, *version)).collect(),
        );
        prop_assert_eq!(seen(&followed), seen(&fresh));
    }
}
