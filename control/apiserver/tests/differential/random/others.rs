//! Random requests about objects that no node runs: of kinds that differ in how they are updated and deleted.

use serde_json::{Value, json};

use super::Rng;
use crate::{
    api_server::{JSON, Step},
    scenario::{APPLY, MERGE, NAMESPACE, PATCH, STRATEGIC, step},
};

/// A kind with changes of it.
struct Kind {
    /// In names of steps.
    name: &'static str,
    api_version: &'static str,
    kind: &'static str,
    plural: &'static str,
    /// What a new object has besides its metadata.
    template: fn() -> Value,
    /// Merge patches, also for strategic ones and for objects that are applied.
    changes: fn() -> Vec<Value>,
    /// The same for the status, if it has one.
    statuses: fn() -> Vec<Value>,
}

const KINDS: [Kind; 3] = [
    Kind {
        name: "config map",
        api_version: "v1",
        kind: "ConfigMap",
        plural: "configmaps",
        template: || json!({"data": {"a": "1"}}),
        changes: || {
            vec![
                json!({"data": {"a": "2"}}),
                json!({"data": {"b": "1", "c": ""}}),
                json!({"data": {"a": null}}),
                json!({"data": null}),
                json!({"binaryData": {"x": "eA=="}}),
                json!({"immutable": true}),
            ]
        },
        statuses: Vec::new,
    },
    Kind {
        name: "lease",
        api_version: "coordination.k8s.io/v1",
        kind: "Lease",
        plural: "leases",
        template: || json!({"spec": {"holderIdentity": "x"}}),
        changes: || {
            vec![
                json!({"spec": {"holderIdentity": "y"}}),
                json!({"spec": {"leaseDurationSeconds": 10, "leaseTransitions": 1}}),
                json!({"spec": {"leaseDurationSeconds": 0}}),
                json!({"spec": {"renewTime": "2026-01-01T00:00:00.000001Z"}}),
                json!({"spec": {"holderIdentity": null}}),
                json!({"spec": null}),
            ]
        },
        statuses: Vec::new,
    },
    Kind {
        name: "controller",
        api_version: "v1",
        kind: "ReplicationController",
        plural: "replicationcontrollers",
        template: || {
            json!({"spec": {"selector": {"a": "b"}, "template": {
                "metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "main", "image": "i:1"}]},
            }}})
        },
        changes: || {
            vec![
                json!({"spec": {"replicas": 2}}),
                json!({"spec": {"replicas": 0, "minReadySeconds": 5}}),
                json!({"spec": {"replicas": null}}),
                json!({"spec": {"replicas": -1}}),
                json!({"spec": {"template": {"metadata": {"labels": {"c": "d"}}}}}),
                json!({"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "i:2"}]}}}}),
                json!({"spec": {"selector": {"a": "c"}}}),
            ]
        },
        statuses: || {
            vec![
                json!({"status": {"replicas": 1}}),
                json!({"status": {"replicas": 2, "readyReplicas": 1, "observedGeneration": 1}}),
                json!({"status": {"replicas": 1, "readyReplicas": 2}}),
                json!({"status": {"conditions": [{"type": "ReplicaFailure", "status": "True", "reason": "r"}]}}),
                json!({"status": {"replicas": 1}, "spec": {"replicas": 7}, "metadata": {"labels": {"s": "t"}}}),
            ]
        },
    },
];

/// The paths of all kinds, with their names in steps; they are watched.
pub(crate) fn paths() -> Vec<(&'static str, String)> {
    KINDS.iter().map(|kind| (kind.plural, collection(kind))).collect()
}

/// An object of this name of the `number`th kind.
pub(crate) fn object(number: usize, name: &str) -> Value {
    named(&KINDS[number], name, json!({}))
}

fn collection(kind: &Kind) -> String {
    let group = if kind.api_version.contains('/') { "apis" } else { "api" };
    format!("/{group}/{}/namespaces/{NAMESPACE}/{}", kind.api_version, kind.plural)
}

fn named(kind: &Kind, name: &str, metadata: Value) -> Value {
    let mut object = (kind.template)();
    object["apiVersion"] = json!(kind.api_version);
    object["kind"] = json!(kind.kind);
    object["metadata"] = metadata;
    object["metadata"]["name"] = json!(name);
    object
}

/// Labels, annotations, finalizers and owners of a change.
fn metadata(rng: &mut Rng) -> Value {
    let owner =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "0f0e6a3c-8d9a-4b43-9f5e-0123456789ab"});
    rng.of(&[
        json!({"labels": {"l": "1"}}),
        json!({"labels": {"l": "2", "m": ""}}),
        json!({"annotations": {"n": "1"}}),
        json!({"labels": null}),
        json!({"finalizers": ["a.io/b"]}),
        json!({"finalizers": ["a.io/b", "c.io/d"]}),
        json!({"finalizers": null}),
        json!({"ownerReferences": [owner]}),
        json!({"ownerReferences": null}),
        json!({"annotations": {"n": null, "o": "2"}}),
    ])
    .clone()
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

/// A step about an object of one of these kinds.
pub(super) fn next(rng: &mut Rng, number: usize) -> Step {
    let kind = rng.of(&KINDS);
    let name = *rng.of(&["o0", "o1"]);
    let (all, path) = (collection(kind), format!("{}/{name}", collection(kind)));
    let change = if rng.below(2) == 0 { rng.of(&(kind.changes)()).clone() } else { json!({"metadata": metadata(rng)}) };
    let dry = *rng.of(&["", "", "", "", "?dryRun=All"]);
    let (what, method, path, content_type, body) = match rng.below(14) {
        0..3 => {
            let metadata = if rng.below(2) == 0 { metadata(rng) } else { json!({}) };
            ("create", "POST", format!("{all}{dry}"), JSON, without_nulls(named(kind, name, metadata)))
        }
        3..5 => ("update", "PUT", format!("{path}{dry}"), JSON, update(rng, kind, name, change)),
        8 | 9 => {
            let (manager, force) = (*rng.of(&["m0", "m1"]), *rng.of(&["", "", "&force=true"]));
            let path = format!("{path}?fieldManager={manager}{force}");
            ("apply", "PATCH", path, APPLY, configuration(kind, name, change))
        }
        5 => ("merge", "PATCH", format!("{path}{dry}"), MERGE, change),
        6 => ("strategic", "PATCH", format!("{path}{dry}"), STRATEGIC, change),
        7 => ("JSON patch", "PATCH", path, PATCH, operations(rng, name)),
        10 => {
            let statuses = (kind.statuses)();
            let status = if statuses.is_empty() { json!({"status": {"a": "b"}}) } else { rng.of(&statuses).clone() };
            ("status", "PATCH", format!("{path}/status"), *rng.of(&[MERGE, STRATEGIC]), status)
        }
        11 | 12 => ("delete", "DELETE", path, JSON, delete_options(rng)),
        _ => {
            let selector = *rng.of(&["l%3D1", "l", "!l%2Cm"]);
            ("list", "GET", format!("{all}?labelSelector={selector}"), JSON, Value::Null)
        }
    };
    step(&format!("random: {what} {} #{number}", kind.name), "admin", method, &path, content_type, body)
}

/// A new object in place of the stored one, at its revision, at another or at any.
fn update(rng: &mut Rng, kind: &Kind, name: &str, change: Value) -> Value {
    let mut object = named(kind, name, json!({}));
    merge(&mut object, change);
    let stored = json!(format!("${{{}/{name} /metadata/resourceVersion}}", collection(kind)));
    object["metadata"]["resourceVersion"] = rng.of(&[stored.clone(), stored, json!(null), json!("1")]).clone();
    without_nulls(object)
}

/// A change as a configuration that is applied.
fn configuration(kind: &Kind, name: &str, mut change: Value) -> Value {
    merge(&mut change, json!({"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}}));
    if let Some(metadata) = change["metadata"].as_object_mut() {
        metadata.retain(|field, _| !matches!(field.as_str(), "uid" | "resourceVersion" | "generation"));
    }
    without_nulls(change)
}

fn operations(rng: &mut Rng, name: &str) -> Value {
    rng.of(&[
        json!([{"op": "add", "path": "/metadata/labels", "value": {"p": "q"}}]),
        json!([{"op": "add", "path": "/metadata/finalizers", "value": ["e.io/f"]}]),
        json!([{"op": "test", "path": "/metadata/name", "value": name}, {"op": "add", "path": "/metadata/annotations", "value": {"t": "u"}}]),
        json!([{"op": "remove", "path": "/metadata/finalizers"}]),
    ])
    .clone()
}

fn delete_options(rng: &mut Rng) -> Value {
    let mut options = json!({"kind": "DeleteOptions", "apiVersion": "v1"});
    if rng.below(2) == 0 {
        options["propagationPolicy"] = json!(*rng.of(&["Orphan", "Background", "Foreground"]));
    }
    if rng.below(6) == 0 {
        options["preconditions"] = json!({"uid": "11111111-2222-3333-4444-555555555555"});
    }
    options
}

/// An object as clients send it: without what they leave out.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .into_iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (key, without_nulls(value)))
            .collect(),
        Value::Array(items) => items.into_iter().map(without_nulls).collect(),
        other => other,
    }
}
