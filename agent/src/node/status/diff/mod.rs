//! Computes the strategic merge patch for `nodes/status` from the Node in the API to the desired one, never an empty
//! one. Pure.
//!
//! Both sides are compared as the API writes them: quantities by value, and empty as absent. Only the node's own fields
//! are compared; conditions, volumes and addresses of others stay.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Node, NodeCondition, NodeStatus},
    apimachinery::pkg::api::resource::Quantity as ApiQuantity,
};
use serde_json::{Map, Value, json};
use windlass_kit::quantity::Quantity;

/// The node's own conditions; others, such as NetworkUnavailable, are written by controllers.
const CONDITIONS: [&str; 4] = ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"];

/// Fields of the status that are compared whole. A patch replaces lists among them and merges objects.
const WHOLE_FIELDS: [&str; 6] =
    ["daemonEndpoints", "declaredFeatures", "features", "images", "nodeInfo", "runtimeHandlers"];

/// The last desired Node that was sent, and the API's answer.
#[derive(Debug, Clone)]
pub(in crate::node) struct LastReport {
    pub(in crate::node) desired: Node,
    pub(in crate::node) answer: Node,
}

/// The patch from `seen` to `desired`; `None` if nothing differs.
pub(in crate::node) fn diff(seen: &Node, desired: &Node) -> Option<Value> {
    let mut metadata = Map::new();
    let (known, own) = (&seen.metadata, &desired.metadata);
    for (field, known, own) in
        [("labels", &known.labels, &own.labels), ("annotations", &known.annotations, &own.annotations)]
    {
        let changed = string_map_patch(known.as_ref(), own.as_ref());
        if !changed.is_empty() {
            metadata.insert(field.to_owned(), Value::Object(changed));
        }
    }
    let nothing = NodeStatus::default();
    let status = status_patch(seen.status.as_ref().unwrap_or(&nothing), desired.status.as_ref().unwrap_or(&nothing));
    let mut patch = Map::new();
    for (field, part) in [("metadata", metadata), ("status", status)] {
        if !part.is_empty() {
            patch.insert(field.to_owned(), Value::Object(part));
        }
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

/// Whether the Node in the API differs from the desired one beyond heartbeat times.
fn differs(seen: &Node, desired: &Node) -> bool {
    let mut desired = desired.clone();
    let known: &[NodeCondition] = seen.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
    for condition in desired.status.iter_mut().filter_map(|s| s.conditions.as_mut()).flatten() {
        if let Some(known) = known.iter().find(|known| known.type_ == condition.type_) {
            condition.last_heartbeat_time.clone_from(&known.last_heartbeat_time);
        }
    }
    diff(seen, &desired).is_some()
}

/// Whether the status must be reported before its interval is over. A change that the API did not accept, such as a
/// field that an older API does not know, is not sent again until something else changes on either side.
pub(in crate::node) fn needs_report(seen: &Node, desired: &Node, sent: Option<&LastReport>) -> bool {
    let was_refused = |sent: &LastReport| !differs(&sent.desired, desired) && !differs(&sent.answer, seen);
    differs(seen, desired) && !sent.is_some_and(was_refused)
}

/// Whether this object is newer than `version`.
pub(in crate::node) fn is_newer(node: &Node, version: Option<&str>) -> bool {
    let number = |text: Option<&str>| text.and_then(|t| t.parse::<u64>().ok());
    let own = node.metadata.resource_version.as_deref();
    match (number(own), number(version)) {
        (Some(own), Some(version)) => own > version,
        _ => own != version,
    }
}

fn status_patch(seen: &NodeStatus, desired: &NodeStatus) -> Map<String, Value> {
    let mut patch = Map::new();
    for (field, seen, desired) in
        [("capacity", &seen.capacity, &desired.capacity), ("allocatable", &seen.allocatable, &desired.allocatable)]
    {
        let changed = quantity_map_patch(seen.as_ref(), desired.as_ref());
        if !changed.is_empty() {
            patch.insert(field.to_owned(), Value::Object(changed));
        }
    }
    let changed_conditions = changed_conditions(seen, desired);
    if !changed_conditions.is_empty() {
        patch.insert("conditions".to_owned(), Value::Array(changed_conditions));
    }
    let own = desired.addresses.as_deref().unwrap_or_default();
    if seen.addresses.as_deref().unwrap_or_default() != own {
        // A merge would be by type, of which a list may have several.
        let all = own.iter().map(|address| json!(address)).chain([json!({"$patch": "replace"})]);
        patch.insert("addresses".to_owned(), all.collect());
    }
    let (seen, desired) = (json!(seen), json!(desired));
    for field in WHOLE_FIELDS {
        if let Some(changed) = field_patch(&seen[field], &desired[field]) {
            patch.insert(field.to_owned(), changed);
        }
    }
    patch
}

/// The patch of a map: changed values, and null for removed keys.
fn string_map_patch(
    seen: Option<&BTreeMap<String, String>>,
    desired: Option<&BTreeMap<String, String>>,
) -> Map<String, Value> {
    map_patch(seen, desired, |a, b| a == b)
}

/// The same for quantities, which the API canonicalizes: `1000` becomes `1k`.
fn quantity_map_patch(
    seen: Option<&BTreeMap<String, ApiQuantity>>,
    desired: Option<&BTreeMap<String, ApiQuantity>>,
) -> Map<String, Value> {
    let read = |amount: &ApiQuantity| amount.0.parse::<Quantity>().ok();
    map_patch(seen, desired, |a, b| a == b || read(a).is_some_and(|a| read(b) == Some(a)))
}

fn map_patch<V: serde::Serialize>(
    seen: Option<&BTreeMap<String, V>>,
    desired: Option<&BTreeMap<String, V>>,
    same: impl Fn(&V, &V) -> bool,
) -> Map<String, Value> {
    let known = |key: &str| seen.and_then(|seen| seen.get(key));
    let changed =
        desired.into_iter().flatten().filter(|(key, value)| known(key).is_none_or(|known| !same(known, value)));
    let kept = |key: &str| desired.is_some_and(|desired| desired.contains_key(key));
    let removed = seen.into_iter().flat_map(BTreeMap::keys).filter(|key| !kept(key));
    changed
        .map(|(key, value)| (key.clone(), json!(value)))
        .chain(removed.map(|key| (key.clone(), Value::Null)))
        .collect()
}

/// The node's own conditions that are new or have changed, each whole.
fn changed_conditions(seen: &NodeStatus, desired: &NodeStatus) -> Vec<Value> {
    let own = desired.conditions.iter().flatten().filter(|c| CONDITIONS.contains(&c.type_.as_str()));
    let has = |condition: &NodeCondition| seen.conditions.iter().flatten().any(|known| known == condition);
    own.filter(|condition| !has(condition)).map(|condition| json!(condition)).collect()
}

/// The patch of one field; `None` if it is unchanged.
fn field_patch(seen: &Value, desired: &Value) -> Option<Value> {
    if is_empty(seen) && is_empty(desired) {
        return None;
    }
    if is_empty(desired) {
        return Some(Value::Null);
    }
    let (Value::Object(known), Value::Object(own)) = (seen, desired) else {
        return (seen != desired).then(|| desired.clone());
    };
    let changed = own
        .iter()
        .filter_map(|(key, value)| Some((key.clone(), field_patch(known.get(key).unwrap_or(&Value::Null), value)?)));
    let removed = known.iter().filter(|(key, value)| !own.contains_key(*key) && !is_empty(value));
    let patch: Map<String, Value> = changed.chain(removed.map(|(key, _)| (key.clone(), Value::Null))).collect();
    (!patch.is_empty()).then_some(Value::Object(patch))
}

/// Whether the API omits a value.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
