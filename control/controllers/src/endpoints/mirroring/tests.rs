use std::sync::Arc;

use k8s_openapi::api::{
    core::v1::{Endpoints, Service},
    discovery::v1::EndpointSlice,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::plan::{MAX_ADDRESSES, Mirror, has_no_selector, may_be_mirrored, reconcile};

fn endpoints(subsets: Value) -> Endpoints {
    let meta = json!({"name": "db", "namespace": "n", "uid": "e", "labels": {"team": "a"},
        "annotations": {"note": "x", "endpoints.kubernetes.io/last-change-trigger-time": "2026-01-01T00:00:00Z"}});
    serde_json::from_value(json!({"metadata": meta, "subsets": subsets})).unwrap()
}

fn ports(port: i32) -> Value {
    json!([{"port": port, "protocol": "TCP"}])
}

/// What the API has after the writes of a plan.
fn apply(existing: &[Arc<EndpointSlice>], mirror: Mirror) -> Vec<Arc<EndpointSlice>> {
    let gone = |slice: &&Arc<EndpointSlice>| !mirror.plan.delete.iter().any(|deleted| Arc::ptr_eq(deleted, slice));
    let mut slices: Vec<Arc<EndpointSlice>> = existing.iter().filter(gone).cloned().collect();
    for updated in mirror.plan.update {
        let at = slices.iter().position(|slice| slice.metadata.name == updated.metadata.name).unwrap();
        slices[at] = Arc::new(updated);
    }
    for mut created in mirror.plan.create {
        let serial = slices.len() + existing.len();
        created.metadata.name = Some(format!("{}{serial}", created.metadata.generate_name.as_deref().unwrap()));
        slices.push(Arc::new(created));
    }
    slices
}

fn is_empty(mirror: &Mirror) -> bool {
    mirror.plan.is_empty()
}

#[test]
fn a_slice_for_each_family_and_set_of_ports() {
    let object = endpoints(json!([
        {"addresses": [{"ip": "10.0.0.1", "hostname": "a", "nodeName": "n1"}, {"ip": "fd00::1"}],
         "notReadyAddresses": [{"ip": "10.0.0.2"}], "ports": ports(80)},
        {"addresses": [{"ip": "10.0.0.1"}], "ports": ports(81)},
    ]));
    let slices = apply(&[], reconcile(&object, &[]));
    let shown: Vec<Value> = slices
        .iter()
        .map(|slice| {
            let endpoints = slice.endpoints.iter().flatten();
            let endpoints: Vec<_> =
                endpoints.map(|e| json!([e.addresses[0], e.conditions.as_ref().unwrap().ready])).collect();
            json!([slice.address_type, slice.ports.as_ref().unwrap()[0].port, endpoints])
        })
        .collect();
    assert_eq!(
        shown,
        [
            json!(["IPv4", 80, [["10.0.0.1", true], ["10.0.0.2", false]]]),
            json!(["IPv4", 81, [["10.0.0.1", true]]]),
            json!(["IPv6", 80, [["fd00::1", true]]]),
        ]
    );
    let first = json!(&*slices[0]);
    assert_eq!(first["endpoints"][0]["hostname"], "a");
    assert_eq!(
        first["metadata"]["labels"],
        json!({"team": "a", "kubernetes.io/service-name": "db",
            "endpointslice.kubernetes.io/managed-by": "endpointslicemirroring-controller.k8s.io"})
    );
    assert_eq!(first["metadata"]["annotations"], json!({"note": "x"}));
    let owner = &first["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["kind"], &owner["uid"], &owner["controller"]), (&json!("Endpoints"), &json!("e"), &json!(true)));
    assert!(is_empty(&reconcile(&object, &slices)));
}

#[test]
fn changes_are_made_in_place() {
    let old = endpoints(json!([{"addresses": [{"ip": "10.0.0.1"}], "ports": ports(80)}]));
    let slices = apply(&[], reconcile(&old, &[]));
    for (changed, writes) in [
        (endpoints(json!([{"addresses": [{"ip": "10.0.0.9"}], "ports": ports(80)}])), (0, 1, 0)),
        // Another port needs another slice, which replaces the previous one.
        (endpoints(json!([{"addresses": [{"ip": "10.0.0.1"}], "ports": ports(81)}])), (0, 1, 0)),
        (endpoints(json!([{"addresses": [{"ip": "fd00::1"}], "ports": ports(80)}])), (1, 0, 1)),
        (endpoints(json!([{"notReadyAddresses": [{"ip": "10.0.0.1"}], "ports": ports(80)}])), (0, 1, 0)),
        (endpoints(json!([])), (0, 0, 1)),
        (endpoints(Value::Null), (0, 0, 1)),
    ] {
        let mirror = reconcile(&changed, &slices);
        let plan = &mirror.plan;
        assert_eq!((plan.create.len(), plan.update.len(), plan.delete.len()), writes, "{changed:?}");
        let after = apply(&slices, mirror);
        assert!(is_empty(&reconcile(&changed, &after)), "{changed:?}");
    }
    let mut relabelled = old.clone();
    relabelled.metadata.labels = None;
    assert_eq!(reconcile(&relabelled, &slices).plan.update.len(), 1);
}

#[test]
fn what_is_not_mirrored_is_counted() {
    let many: Vec<Value> = (0..1100).map(|i| json!({"ip": format!("10.0.{}.{}", i / 250, i % 250)})).collect();
    let mirror = reconcile(&endpoints(json!([{"addresses": many, "ports": ports(80)}])), &[]);
    assert_eq!((mirror.invalid, mirror.skipped), (0, 100));
    assert_eq!(mirror.plan.create[0].endpoints.as_ref().unwrap().len(), MAX_ADDRESSES);
    let odd = endpoints(json!([{"addresses": [{"ip": "name"}, {"ip": "::ffff:10.0.0.1"}], "ports": ports(80)}]));
    let mirror = reconcile(&odd, &[]);
    assert_eq!((mirror.invalid, mirror.skipped), (1, 1));
    assert_eq!(mirror.plan.create[0].endpoints.as_ref().unwrap()[0].addresses, ["10.0.0.1"]);
}

#[test]
fn who_is_mirrored() {
    let mut object = endpoints(Value::Null);
    assert!(may_be_mirrored(&object));
    let labels = object.metadata.labels.as_mut().unwrap();
    labels.insert("endpointslice.kubernetes.io/skip-mirror".to_owned(), "true".to_owned());
    assert!(!may_be_mirrored(&object));
    let mut leader = endpoints(Value::Null);
    let annotations = leader.metadata.annotations.as_mut().unwrap();
    annotations.insert("control-plane.alpha.kubernetes.io/leader".to_owned(), "{}".to_owned());
    assert!(!may_be_mirrored(&leader));
    for (selector, mirrored) in [(Value::Null, true), (json!({}), true), (json!({"app": "db"}), false)] {
        let service: Service = serde_json::from_value(json!({"spec": {"selector": selector}})).unwrap();
        assert_eq!(has_no_selector(&service), mirrored);
    }
}

fn subsets() -> impl Strategy<Value = Value> {
    let address = (0u8..6, any::<bool>()).prop_map(|(i, six)| {
        if six { json!({"ip": format!("fd00::{i}")}) } else { json!({"ip": format!("10.0.0.{i}")}) }
    });
    let addresses = || prop::collection::vec(address.clone(), 0..5);
    let subset = (addresses(), addresses(), 80i32..83).prop_map(
        |(ready, unready, port)| json!({"addresses": ready, "notReadyAddresses": unready, "ports": ports(port)}),
    );
    prop::collection::vec(subset, 0..4).prop_map(Value::Array)
}

proptest! {
    /// Whatever was mirrored before, one run leads to the slices of the Endpoints as they are, and a second writes nothing.
    #[test]
    fn one_run_converges(old in subsets(), new in subsets()) {
        let before = apply(&[], reconcile(&endpoints(old), &[]));
        let new = endpoints(new);
        let after = apply(&before, reconcile(&new, &before));
        prop_assert!(is_empty(&reconcile(&new, &after)));
        let fresh = apply(&[], reconcile(&new, &[]));
        let shown = |slices: &[Arc<EndpointSlice>]| {
            let shown = |slice: &EndpointSlice| {
                let mut all: Vec<String> = slice.endpoints.iter().flatten().map(|one| json!(one).to_string()).collect();
                all.sort();
                json!([slice.address_type, slice.ports, all]).to_string()
            };
            let mut all: Vec<String> = slices.iter().map(|slice| shown(slice)).collect();
            all.sort();
            all
        };
        prop_assert_eq!(shown(&after), shown(&fresh));
    }
}
