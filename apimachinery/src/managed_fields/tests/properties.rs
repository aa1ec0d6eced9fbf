//! What holds for any objects and sets.

use proptest::{collection, prelude::*};
use serde_json::{Map, Value, json};

use super::{
    request,
    types::{thing, thing_with},
};
use crate::{
    managed_fields::{
        ApplyError, Duplicates, FieldSet, Managers, PathElement, Request, Type, apply, keep_times, update,
    },
    testing,
};

/// Any text that could be a FieldsV1 document, well-formed or not.
fn document() -> impl Strategy<Value = Value> {
    let key = prop_oneof![
        "[a-c]{1,2}".prop_map(|name| format!("f:{name}")),
        (0..3i64, "[a-b]").prop_map(|(port, name)| format!("k:{{\"{name}\":{port}}}")),
        prop_oneof![Just("v:1"), Just("v:\"a\""), Just("v:true"), Just("i:0"), Just(".")].prop_map(str::to_owned),
        ".{0,6}",
    ];
    let leaf = prop_oneof![4 => Just(json!({})), 1 => Just(json!(null)), 1 => Just(json!("x"))];
    leaf.prop_recursive(5, 40, 4, move |inner| {
        collection::vec((key.clone(), inner), 0..4)
            .prop_map(|entries| Value::Object(entries.into_iter().collect::<Map<_, _>>()))
    })
}

fn fields() -> impl Strategy<Value = FieldSet> {
    document().prop_filter_map("a set", |document| FieldSet::from_fields_v1(&document).ok())
}

/// The spec of a custom resource, from few names, so that two of them overlap. Without empty lists and maps, as
/// upstream's: what is added to an empty one belongs to its applier, and the list or map is removed with its last item.
fn spec() -> impl Strategy<Value = Value> {
    let port = (1..4u8, prop_oneof![Just(None), Just(Some("TCP")), Just(Some("UDP"))], 0..4u8);
    let ports = collection::vec(port, 1..4).prop_map(|ports| {
        let mut seen = Vec::new();
        let mut out = Vec::new();
        for (port, protocol, name) in ports {
            let key = (port, protocol.unwrap_or("TCP"));
            if seen.contains(&key) {
                continue;
            }
            seen.push(key);
            let mut item = json!({"port": port});
            if let Some(protocol) = protocol {
                item["protocol"] = json!(protocol);
            }
            if name > 0 {
                item["name"] = json!(format!("n{name}"));
                item["opts"] = json!({format!("o{name}"): name});
            }
            out.push(item);
        }
        json!(out)
    });
    let labels = collection::btree_map("[a-c]", "[x-y]", 1..4).prop_map(|labels| json!(labels));
    let names = collection::btree_set("[a-d]", 1..4).prop_map(|set| json!(set));
    // A scalar in place of a map would replace what is in it without a conflict, as upstream's.
    let any = prop_oneof![Just(json!({"a": {"b": 1}})), Just(json!({"a": {"c": [1]}})), Just(json!({"d": [{}]}))];
    (
        proptest::option::of(0..3i64),
        proptest::option::of(labels.clone()),
        proptest::option::of(names.clone()),
        proptest::option::of(names),
        proptest::option::of(ports),
        proptest::option::of(any),
        proptest::option::of(labels),
    )
        .prop_map(|(replicas, labels, set, plain, ports, any, atomic)| {
            let mut spec = Map::new();
            let mut field = |name: &str, value: Option<Value>| spec.extend(value.map(|value| (name.to_owned(), value)));
            field("replicas", replicas.map(Value::from));
            field("labels", labels);
            field("set", set);
            field("plain", plain);
            field("ports", ports);
            field("any", any);
            field("nest", replicas.map(|number| json!({"deep": {"x": number.to_string()}})));
            field("atomicMap", atomic.filter(|map| map.as_object().is_some_and(|map| !map.contains_key("c"))));
            if spec.is_empty() {
                spec.insert("name".to_owned(), json!("n"));
            }
            Value::Object(spec)
        })
}

/// Applies a spec by a manager.
fn apply_spec(live: &Value, manager: &str, spec: &Value, force: bool) -> Result<Value, ApplyError> {
    let (schema, object_meta, reset) = (thing(), testing::schema("meta/v1.ObjectMeta"), FieldSet::default());
    let mut request = request(&schema, &object_meta, manager, &reset);
    request.api_version = "ex.io/v1";
    let mut object = apply(&request, live, &thing_with(spec.clone()), force)?;
    object["metadata"]["uid"] = json!("u");
    Ok(without_null(&object))
}

fn update_spec(live: &Value, manager: &str, spec: &Value) -> Value {
    let (schema, object_meta, reset) = (thing(), testing::schema("meta/v1.ObjectMeta"), FieldSet::default());
    let mut request = request(&schema, &object_meta, manager, &reset);
    request.api_version = "ex.io/v1";
    let mut new = live.clone();
    new["spec"] = spec.clone();
    update(&request, live, &mut new);
    new
}

/// As stored: without null.
fn without_null(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.iter().filter(|(_, value)| !value.is_null());
            Value::Object(fields.map(|(name, value)| (name.clone(), without_null(value))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(without_null).collect()),
        other => other.clone(),
    }
}

fn new_object() -> Value {
    json!({"apiVersion": "ex.io/v1", "kind": "Thing", "metadata": {}})
}

/// What a manager owns of the spec.
fn owned(object: &Value, manager: &str) -> FieldSet {
    let mut entries = object["metadata"]["managedFields"].as_array().into_iter().flatten();
    let entry = entries.find(|entry| entry["manager"] == manager);
    entry.and_then(|entry| FieldSet::from_fields_v1(&entry["fieldsV1"]).ok()).unwrap_or_default()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn any_document_is_read_or_refused(document in document()) {
        if let Ok(set) = FieldSet::from_fields_v1(&document) {
            let text = set.to_fields_v1_json();
            let again: Value = serde_json::from_str(&text).expect("JSON");
            prop_assert_eq!(FieldSet::from_fields_v1(&again).expect("what was written"), set.clone());
            prop_assert_eq!(FieldSet::from_fields_v1(&set.to_fields_v1()).expect("what was written"), set);
        }
    }

    #[test]
    fn sets_are_combined_as_sets_of_paths(a in fields(), b in fields()) {
        let of = |set: &FieldSet| set.paths().into_iter().collect::<std::collections::BTreeSet<_>>();
        let (paths_a, paths_b) = (of(&a), of(&b));
        prop_assert_eq!(of(&a.union(&b)), &paths_a | &paths_b);
        prop_assert_eq!(of(&a.intersection(&b)), &paths_a & &paths_b);
        prop_assert_eq!(of(&a.difference(&b)), &paths_a - &paths_b);
        for path in &paths_a {
            prop_assert_eq!(a.has(&path.0), true);
            prop_assert_eq!(b.has(&path.0), paths_b.contains(path));
        }
        prop_assert_eq!(FieldSet::of(paths_a), a);
    }

    #[test]
    fn extracting_all_fields_gives_the_object(spec in spec()) {
        let (schema, object_meta) = (thing(), testing::schema("meta/v1.ObjectMeta"));
        let ty = Type::new(&schema, &object_meta);
        let object = json!({"spec": spec});
        prop_assert!(ty.check(&object, Duplicates::Refused).is_ok());
        let fields = ty.to_set(&object);
        let extracted = ty.extract(&object, &fields);
        // Empty lists and structs have no fields.
        prop_assert_eq!(ty.to_set(&extracted), fields.clone());
        prop_assert!(ty.compare(&extracted, &object).changed().intersection(&fields).is_empty());
        prop_assert!(ty.remove(&object, &ty.with_named_fields(&fields)).get("spec").is_none());
    }

    #[test]
    fn what_differs_and_what_is_the_same_are_all_fields(a in spec(), b in spec()) {
        let (schema, object_meta) = (thing(), testing::schema("meta/v1.ObjectMeta"));
        let ty = Type::new(&schema, &object_meta);
        let (a, b) = (json!({"spec": a}), json!({"spec": b}));
        let (there, back) = (ty.compare(&a, &b), ty.compare(&b, &a));
        prop_assert_eq!(&there.added, &back.removed);
        prop_assert_eq!(&there.removed, &back.added);
        prop_assert_eq!(&there.modified, &back.modified);
        prop_assert!(there.added.intersection(&there.modified).is_empty());
        prop_assert!(there.added.intersection(&ty.to_set(&a).leaves()).is_empty());
        prop_assert_eq!(there.is_same(), ty.compare(&a, &a).is_same() && there == ty.compare(&a, &a));
        prop_assert!(ty.compare(&ty.merge(&a, &b), &b).changed().intersection(&ty.to_set(&b).leaves()).is_empty());
    }

    #[test]
    fn an_apply_is_idempotent(first in spec(), other in spec(), again in spec()) {
        let live = apply_spec(&new_object(), "a", &first, false).expect("a new object has no conflicts");
        let live = apply_spec(&live, "b", &other, true).expect("forced");
        let once = apply_spec(&live, "a", &again, true).expect("forced");
        let mut twice = apply_spec(&once, "a", &again, false).expect("nobody else owns what was forced");
        keep_times(&once, &mut twice);
        prop_assert_eq!(twice, once);
    }

    #[test]
    fn managers_of_disjoint_fields_never_conflict(spec in spec()) {
        let (mut one, mut other) = (Map::new(), Map::new());
        for (at, (name, value)) in spec.as_object().expect("an object").iter().enumerate() {
            let half = if at % 2 == 0 { &mut one } else { &mut other };
            half.insert(name.clone(), value.clone());
        }
        let (one, other) = (Value::Object(one), Value::Object(other));
        let live = apply_spec(&new_object(), "a", &one, false).expect("a new object has no conflicts");
        let both = apply_spec(&live, "b", &other, false);
        prop_assert!(both.is_ok(), "{:?}", both);
        let both = both.expect("no conflict");
        // What one leaves out is removed, while all of the other stays.
        let rest = apply_spec(&both, "b", &json!({}), false).expect("no conflict");
        prop_assert_eq!(owned(&rest, "a"), owned(&live, "a"));
        prop_assert_eq!(without_empty(&rest["spec"]), without_empty(&live["spec"]));
    }

    #[test]
    fn what_another_applier_owns_is_never_removed(first in spec(), second in spec(), third in spec()) {
        let live = apply_spec(&new_object(), "a", &first, false).expect("a new object has no conflicts");
        let live = apply_spec(&live, "b", &second, true).expect("forced");
        let (schema, object_meta) = (thing(), testing::schema("meta/v1.ObjectMeta"));
        let ty = Type::new(&schema, &object_meta);
        let of_b = owned(&live, "b");
        let after = apply_spec(&live, "a", &third, false);
        if let Ok(after) = after {
            prop_assert_eq!(owned(&after, "b"), of_b.clone());
            let comparison = ty.compare(&live, &after);
            prop_assert!(comparison.removed.intersection(&of_b).is_empty(), "{:?}", comparison.removed.paths());
            prop_assert!(comparison.modified.intersection(&of_b).is_empty());
        }
    }

    #[test]
    fn all_that_changes_has_one_owner(first in spec(), second in spec(), third in spec()) {
        let live = update_spec(&new_object(), "a", &first);
        let mut live = update_spec(&live, "b", &second);
        live["metadata"]["uid"] = json!("u");
        let new = update_spec(&live, "c", &third);
        let (schema, object_meta) = (thing(), testing::schema("meta/v1.ObjectMeta"));
        let comparison = Type::new(&schema, &object_meta).compare(&live, &new);
        let of_spec = |set: &FieldSet| set.intersection(&comparison.changed().union(&comparison.removed));
        prop_assert!(of_spec(&owned(&new, "a")).is_empty());
        prop_assert!(of_spec(&owned(&new, "b")).is_empty());
        let mut stripped = FieldSet::default();
        stripped.insert(&[PathElement::Field("metadata".to_owned())]);
        let changed = comparison.changed().recursive_difference(&stripped);
        prop_assert_eq!(owned(&new, "c").intersection(&changed), changed);
    }

    #[test]
    fn entries_that_stay_as_they_are_stored_are_those_that_would_be_written(
        specs in collection::vec(spec(), 4), at in 0..5usize, status in any::<bool>(), kept in any::<bool>(),
    ) {
        let mut live = update_spec(&new_object(), "a", &specs[0]);
        live["metadata"]["uid"] = json!("u");
        let live = update_spec(&live, "b", &specs[1]);
        let live = apply_spec(&live, "c", &specs[2], true).expect("it is forced");
        let (schema, object_meta) = (thing(), testing::schema("meta/v1.ObjectMeta"));
        let reset = FieldSet::of_names(status.then_some("status"));
        let manager = ["a", "b", "c", "d", ""][at];
        let request = Request { api_version: "ex.io/v1", ..request(&schema, &object_meta, manager, &reset) };
        let mut new = live.clone();
        new["spec"] = specs[3].clone();
        if kept {
            // A small change.
            new["spec"] = live["spec"].clone();
            new["spec"]["replicas"] = specs[3]["replicas"].clone();
        }
        new["status"] = json!({"phase": manager});
        new["metadata"]["labels"] = json!({"a": manager});
        let stored = super::super::take_managers(&mut new);
        let entries = stored.as_array().expect("managers");
        let mut managers = Managers::decode(&stored).expect("entries");
        prop_assert!(super::super::record_update(&request, &live, &new, &mut managers).is_ok());
        let quick = super::super::unchanged::update(&request, &live, &new, entries);
        prop_assert_eq!(quick, managers.encode());
    }

    #[test]
    fn hostile_managed_fields_never_stop_a_write(document in document(), entry in document(), spec in spec()) {
        for managed in [
            json!([{"manager": "m", "operation": "Apply", "apiVersion": "ex.io/v1", "fieldsType": "FieldsV1", "fieldsV1": document}]),
            json!([entry]), entry.clone(),
        ] {
            let mut live = thing_with(spec.clone());
            live["metadata"]["uid"] = json!("u");
            live["metadata"]["managedFields"] = managed;
            let _ = update_spec(&live, "u", &json!({"replicas": 7}));
            let _ = apply_spec(&live, "m", &json!({"replicas": 8}), true);
        }
    }
}

/// Without empty lists and maps: they have no fields that an applier could own.
fn without_empty(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| (name.clone(), without_empty(value)));
            Value::Object(fields.filter(|(_, value)| !is_empty(value)).collect())
        }
        other => other.clone(),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}
