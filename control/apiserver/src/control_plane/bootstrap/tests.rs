//! What a start creates, and which existing objects it changes.

use std::collections::BTreeMap;

use kube::api::{DeleteParams, DynamicObject};
use serde_json::{Value, json};
use windlass_test_api::TestApi;
use windlass_tests::api_faults::{Fault, RequestFault};

use super::{
    Wanted, api_of, ensure,
    flow_control::{self, revised},
    objects,
};

#[test]
fn the_table_holds_upstreams_objects() {
    let mut counts = BTreeMap::new();
    for (_, kind, name, object) in objects::table() {
        assert!(!name.is_empty() && object.as_object().is_some_and(|fields| !fields.is_empty()), "{kind} {name}");
        *counts.entry(kind).or_insert(0) += 1;
    }
    assert_eq!(counts, BTreeMap::from([("FlowSchema", 11), ("PriorityClass", 2), ("PriorityLevelConfiguration", 8)]));
    let levels: Vec<String> =
        objects::table().filter(|(_, kind, ..)| *kind == "PriorityLevelConfiguration").map(|o| o.2).collect();
    for (_, _, name, schema) in objects::table().filter(|(_, kind, ..)| *kind == "FlowSchema") {
        let level = schema["spec"]["priorityLevelConfiguration"]["name"].as_str().unwrap();
        assert!(levels.iter().any(|known| known == level), "{name} {level}");
    }
}

#[test]
fn flow_control_follows_the_server_unless_somebody_has_changed_it() {
    const AUTOUPDATE: &str = "apf.kubernetes.io/autoupdate-spec";
    let wanted = json!({"a": 1});
    let stored = |annotation: Value, generation: u64, spec: &Value| json!({"metadata": {"annotations": {AUTOUPDATE: annotation}, "generation": generation}, "spec": spec});
    let other = json!({"a": 2});
    // The annotation and spec that it ends with, or none if nothing is written.
    for (found, mandatory, becomes) in [
        (stored(json!("true"), 3, &wanted), false, None),
        (stored(json!("true"), 3, &other), false, Some(("true", &wanted))),
        (stored(json!("false"), 3, &other), false, None),
        (stored(json!("false"), 3, &other), true, Some(("true", &wanted))),
        (stored(json!("false"), 3, &wanted), true, Some(("true", &wanted))),
        (stored(json!("maybe"), 3, &other), false, Some(("false", &other))),
        (stored(json!("maybe"), 1, &other), false, Some(("true", &wanted))),
    ] {
        let object = revised(Some(&found), &wanted, mandatory);
        let found = object.as_ref().map(|o| (o["metadata"]["annotations"][AUTOUPDATE].as_str().unwrap(), &o["spec"]));
        assert_eq!(found, becomes);
    }
    let new = revised(None, &wanted, false).unwrap();
    assert_eq!(new, json!({"metadata": {"annotations": {AUTOUPDATE: "true"}}, "spec": wanted}));
}

#[test]
fn a_server_has_a_name_of_its_host() {
    // base32 of the first 16 bytes of sha256("vm").
    assert_eq!(objects::identity_of("vm"), "apiserver-lphjr5z7h3imqn7sokpnsue3ha");
}

/// By what extension API servers know this one; it follows the CAs, and keys of others stay.
#[test]
fn extension_api_servers_are_shown_how_to_verify() {
    const NAME: &str = "extension-apiserver-authentication";
    let wanted = all_wanted().into_iter().find(|wanted| wanted.name == NAME).unwrap();
    let new = (wanted.revise)(None).unwrap();
    let lists = [
        ("requestheader-allowed-names", "[\"front-proxy-client\"]"),
        ("requestheader-extra-headers-prefix", "[\"X-Remote-Extra-\"]"),
        ("requestheader-group-headers", "[\"X-Remote-Group\"]"),
        ("requestheader-uid-headers", "[\"X-Remote-Uid\"]"),
        ("requestheader-username-headers", "[\"X-Remote-User\"]"),
    ];
    for (key, value) in
        lists.into_iter().chain([("client-ca-file", "PEM"), ("requestheader-client-ca-file", "front-proxy")])
    {
        assert_eq!(new["data"][key], value, "{key}");
    }
    assert_eq!((wanted.revise)(Some(&new)), None);
    let old = json!({"data": {"client-ca-file": "old", "requestheader-client-ca-file": "old", "other": "x"}});
    let revised = (wanted.revise)(Some(&old)).unwrap();
    let mut both = new["data"].clone();
    both["other"] = json!("x");
    assert_eq!(revised["data"], both);
    assert_eq!((wanted.revise)(Some(&json!({}))).unwrap()["data"], new["data"]);
}

/// What a start creates one by one, except namespaces, which exist as soon as they are created.
fn all_wanted() -> Vec<Wanted> {
    let identity = objects::Identity {
        host: "vm".to_owned(),
        instance: "1".to_owned(),
        address: "192.0.2.1".parse().unwrap(),
        port: 6443,
        first_cluster_ip: "10.96.0.1".parse().unwrap(),
        client_ca: Some("PEM".to_owned()),
        front_proxy_ca: "front-proxy".to_owned(),
    };
    let all = [objects::service_cidr("10.96.0.0/24"), objects::endpoints(&identity)].into_iter();
    all.chain(objects::cluster(&identity)).chain(objects::priority_classes()).chain(flow_control::objects()).collect()
}

/// An object without what differs from one making to another.
fn lasting(object: &DynamicObject) -> Value {
    let mut value = serde_json::to_value(object).unwrap();
    let metadata = value["metadata"].as_object_mut().unwrap();
    metadata
        .retain(|field, _| !["uid", "resourceVersion", "creationTimestamp", "managedFields"].contains(&field.as_str()));
    for path in ["/spec/renewTime", "/status/conditions/0/lastTransitionTime"] {
        if let Some(time) = value.pointer_mut(path) {
            *time = json!("then");
        }
    }
    value
}

/// A start ends before or after any request for any of these objects: the next one makes the same of it.
#[tokio::test]
async fn each_request_for_an_object_may_be_the_last() {
    let mut ends = 0;
    for wanted in all_wanted() {
        let made = async |fault: Option<Fault>| {
            let api = TestApi::new().await;
            let objects = api_of(&api.user(), &wanted);
            // A test's API has the range of services.
            let _ = objects.delete(&wanted.name, &DeleteParams::default()).await;
            api.faults.arm(fault);
            let ended = ensure(&api.client(), &wanted).await;
            assert_eq!(ended.is_err(), fault.is_some(), "{} {}: {ended:?}", wanted.kind, wanted.name);
            let requests = api.faults.calls().made.len();
            ensure(&api.client(), &wanted).await.unwrap();
            (requests, lasting(&objects.get(&wanted.name).await.unwrap()))
        };
        let (requests, whole) = made(None).await;
        for at in 0..requests {
            for fault in [RequestFault::NotConnected, RequestFault::AnswerLost] {
                let (_, found) = made(Some(Fault::Request(at, fault))).await;
                assert_eq!(found, whole, "{} {}: {fault:?} at {at}", wanted.kind, wanted.name);
                ends += 1;
            }
        }
    }
    println!("{ends} ends between the requests of a start");
    assert!(ends > 100, "{ends}");
}
