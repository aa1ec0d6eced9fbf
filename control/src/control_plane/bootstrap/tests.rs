//! What a start makes, and what it changes of what is there.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{flow_control::revised, objects};

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
