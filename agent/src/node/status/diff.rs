//! What must be sent so that the API has the Node that is wanted: a strategic merge patch for `nodes/status`, never one
//! that would change nothing. Pure.
//!
//! Both sides are compared as the API writes them: amounts by their value, and what is empty as what is not there. Only
//! what is the node's own is looked at; conditions, volumes and addresses of others stay as they are.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Node, NodeCondition, NodeStatus},
    apimachinery::pkg::api::resource::Quantity as ApiQuantity,
};
use serde_json::{Map, Value, json};
use windlass_kit::quantity::Quantity;

/// The conditions that are the node's own; others, such as NetworkUnavailable, are written by controllers.
const CONDITIONS: [&str; 4] = ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"];

/// Parts of the status that are compared whole. Lists among them are replaced by a patch, objects are merged.
const WHOLE: [&str; 6] = ["daemonEndpoints", "declaredFeatures", "features", "images", "nodeInfo", "runtimeHandlers"];

/// The last Node that was sent, and what the API made of it.
#[derive(Debug, Clone)]
pub(in crate::node) struct Sent {
    pub(in crate::node) wanted: Node,
    pub(in crate::node) answer: Node,
}

/// The patch that makes what is `seen` what is `wanted`; `None` where nothing differs.
pub(in crate::node) fn diff(seen: &Node, wanted: &Node) -> Option<Value> {
    let mut metadata = Map::new();
    let (known, own) = (&seen.metadata, &wanted.metadata);
    for (field, known, own) in
        [("labels", &known.labels, &own.labels), ("annotations", &known.annotations, &own.annotations)]
    {
        let changed = texts(known.as_ref(), own.as_ref());
        if !changed.is_empty() {
            metadata.insert(field.to_owned(), Value::Object(changed));
        }
    }
    let nothing = NodeStatus::default();
    let status = of_status(seen.status.as_ref().unwrap_or(&nothing), wanted.status.as_ref().unwrap_or(&nothing));
    let mut patch = Map::new();
    for (field, part) in [("metadata", metadata), ("status", status)] {
        if !part.is_empty() {
            patch.insert(field.to_owned(), Value::Object(part));
        }
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

/// Whether the API has something else than what is wanted, beyond the times of heartbeats.
fn differs(seen: &Node, wanted: &Node) -> bool {
    let mut wanted = wanted.clone();
    let known: &[NodeCondition] = seen.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
    for condition in wanted.status.iter_mut().filter_map(|s| s.conditions.as_mut()).flatten() {
        if let Some(known) = known.iter().find(|known| known.type_ == condition.type_) {
            condition.last_heartbeat_time.clone_from(&known.last_heartbeat_time);
        }
    }
    diff(seen, &wanted).is_some()
}

/// Whether the status must be sent before it is too old. What the API has not taken, such as a field that an older one
/// does not know, is not sent again as long as nothing has changed on either side.
pub(in crate::node) fn is_news(seen: &Node, wanted: &Node, sent: Option<&Sent>) -> bool {
    let in_vain = |sent: &Sent| !differs(&sent.wanted, wanted) && !differs(&sent.answer, seen);
    differs(seen, wanted) && !sent.is_some_and(in_vain)
}

/// Whether this object is later than the one of `version`.
pub(in crate::node) fn is_newer(node: &Node, version: Option<&str>) -> bool {
    let number = |text: Option<&str>| text.and_then(|t| t.parse::<u64>().ok());
    let own = node.metadata.resource_version.as_deref();
    match (number(own), number(version)) {
        (Some(own), Some(version)) => own > version,
        _ => own != version,
    }
}

fn of_status(seen: &NodeStatus, wanted: &NodeStatus) -> Map<String, Value> {
    let mut patch = Map::new();
    for (field, seen, wanted) in
        [("capacity", &seen.capacity, &wanted.capacity), ("allocatable", &seen.allocatable, &wanted.allocatable)]
    {
        let changed = amounts(seen.as_ref(), wanted.as_ref());
        if !changed.is_empty() {
            patch.insert(field.to_owned(), Value::Object(changed));
        }
    }
    let conditions = conditions(seen, wanted);
    if !conditions.is_empty() {
        patch.insert("conditions".to_owned(), Value::Array(conditions));
    }
    let own = wanted.addresses.as_deref().unwrap_or_default();
    if seen.addresses.as_deref().unwrap_or_default() != own {
        // They would be merged by their types, of which a list may have one more than once.
        let all = own.iter().map(|address| json!(address)).chain([json!({"$patch": "replace"})]);
        patch.insert("addresses".to_owned(), all.collect());
    }
    let (seen, wanted) = (json!(seen), json!(wanted));
    for field in WHOLE {
        if let Some(changed) = whole(&seen[field], &wanted[field]) {
            patch.insert(field.to_owned(), changed);
        }
    }
    patch
}

/// What changes in a map: new values, and null for what is there no more.
fn texts(seen: Option<&BTreeMap<String, String>>, wanted: Option<&BTreeMap<String, String>>) -> Map<String, Value> {
    map(seen, wanted, |a, b| a == b)
}

/// The same of amounts, which the API writes in its own way: `1000` becomes `1k`.
fn amounts(
    seen: Option<&BTreeMap<String, ApiQuantity>>,
    wanted: Option<&BTreeMap<String, ApiQuantity>>,
) -> Map<String, Value> {
    let read = |amount: &ApiQuantity| amount.0.parse::<Quantity>().ok();
    map(seen, wanted, |a, b| a == b || read(a).is_some_and(|a| read(b) == Some(a)))
}

fn map<V: serde::Serialize>(
    seen: Option<&BTreeMap<String, V>>,
    wanted: Option<&BTreeMap<String, V>>,
    same: impl Fn(&V, &V) -> bool,
) -> Map<String, Value> {
    let known = |key: &str| seen.and_then(|seen| seen.get(key));
    let changed =
        wanted.into_iter().flatten().filter(|(key, value)| known(key).is_none_or(|known| !same(known, value)));
    let kept = |key: &str| wanted.is_some_and(|wanted| wanted.contains_key(key));
    let gone = seen.into_iter().flat_map(BTreeMap::keys).filter(|key| !kept(key));
    changed.map(|(key, value)| (key.clone(), json!(value))).chain(gone.map(|key| (key.clone(), Value::Null))).collect()
}

/// Those of the node's own that are new or have changed, each whole.
fn conditions(seen: &NodeStatus, wanted: &NodeStatus) -> Vec<Value> {
    let own = wanted.conditions.iter().flatten().filter(|c| CONDITIONS.contains(&c.type_.as_str()));
    let has = |condition: &NodeCondition| seen.conditions.iter().flatten().any(|known| known == condition);
    own.filter(|condition| !has(condition)).map(|condition| json!(condition)).collect()
}

/// What of one part of the status is sent; `None` where it stays.
fn whole(seen: &Value, wanted: &Value) -> Option<Value> {
    if is_empty(seen) && is_empty(wanted) {
        return None;
    }
    if is_empty(wanted) {
        return Some(Value::Null);
    }
    let (Value::Object(known), Value::Object(own)) = (seen, wanted) else {
        return (seen != wanted).then(|| wanted.clone());
    };
    let changed = own
        .iter()
        .filter_map(|(key, value)| Some((key.clone(), whole(known.get(key).unwrap_or(&Value::Null), value)?)));
    let gone = known.iter().filter(|(key, value)| !own.contains_key(*key) && !is_empty(value));
    let patch: Map<String, Value> = changed.chain(gone.map(|(key, _)| (key.clone(), Value::Null))).collect();
    (!patch.is_empty()).then_some(Value::Object(patch))
}

/// What the API leaves out.
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
