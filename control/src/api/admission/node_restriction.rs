//! NodeRestriction: what a node may change in the objects that the Node authorizer lets it write, and which marks of
//! nodes others may not write. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use windlass_kit::objects::node_labels;

use crate::api::node_authorizer::{
    Kind,
    references::{self, MIRROR, audiences, is_mirror},
};

/// The operation on an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::api) enum Operation {
    Create,
    Update,
    Delete,
}

/// The attributes of a node's write.
pub(in crate::api) struct AdmissionAttributes<'a> {
    /// The writing node.
    pub(in crate::api) node: &'a str,
    pub(in crate::api) operation: Operation,
    /// Kind of the object itself, also for a subresource.
    pub(in crate::api) kind: &'a str,
    pub(in crate::api) subresource: &'a str,
    /// The object's name.
    pub(in crate::api) name: &'a str,
    /// The stored object; for a subresource its parent.
    pub(in crate::api) old: &'a Value,
    /// The object to store; null for a deletion.
    pub(in crate::api) new: &'a Value,
    /// The uid of the node's own Node object, if it exists.
    pub(in crate::api) node_uid: Option<&'a str>,
}

/// Why a write is refused.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::api) enum Denial {
    Forbidden(String),
    /// The Node object does not exist.
    NodeNotFound,
}

fn forbid<T>(why: impl Into<String>) -> Result<T, Denial> {
    Err(Denial::Forbidden(why.into()))
}

/// Admits or denies a node's write.
///
/// # Errors
/// Why it may not.
pub(in crate::api) fn admit(attributes: &AdmissionAttributes<'_>) -> Result<(), Denial> {
    match (attributes.kind, attributes.subresource) {
        ("Pod", "") => admit_pod(attributes),
        ("Pod", "status") => admit_pod_status(attributes),
        ("Pod", "eviction") => {
            let own = attributes.old["spec"]["nodeName"] == attributes.node;
            let why = format!("node {} can only evict pods with spec.nodeName set to itself", attributes.node);
            if own { Ok(()) } else { forbid(why) }
        }
        ("Pod", subresource) => {
            forbid(format!("unexpected pod subresource {subresource:?}, only 'status' and 'eviction' are allowed"))
        }
        ("Node", _) => admit_node(attributes),
        ("PersistentVolumeClaim", "status") => admit_claim_status(attributes),
        ("PersistentVolumeClaim", _) => forbid("may only update PVC status"),
        ("Lease", _) if attributes.name != attributes.node => {
            forbid("can only access node lease with the same name as the requesting node")
        }
        _ => Ok(()),
    }
}

fn admit_pod(attributes: &AdmissionAttributes<'_>) -> Result<(), Denial> {
    let node = attributes.node;
    match attributes.operation {
        Operation::Create => admit_mirror_pod(attributes),
        Operation::Delete if attributes.old["spec"]["nodeName"] == node => Ok(()),
        Operation::Delete => forbid(format!("node {node:?} can only delete pods with spec.nodeName set to itself")),
        Operation::Update => {
            forbid(format!("unexpected operation \"UPDATE\", node {node:?} can only create and delete mirror pods"))
        }
    }
}

/// The mirror pod of a static pod.
fn admit_mirror_pod(attributes: &AdmissionAttributes<'_>) -> Result<(), Denial> {
    let AdmissionAttributes { node, new: pod, .. } = attributes;
    if !is_mirror(pod) {
        return forbid(format!("pod does not have {MIRROR:?} annotation, node {node:?} can only create mirror pods"));
    }
    if pod["spec"]["nodeName"] != *node {
        return forbid(format!("node {node:?} can only create pods with spec.nodeName set to itself"));
    }
    let itself = "owner reference set to itself";
    let owner = match pod["metadata"]["ownerReferences"].as_array().map(Vec::as_slice) {
        None | Some([]) => return forbid(format!("node {node:?} can only create pods with an {itself}")),
        Some([one]) => one,
        Some(_) => return forbid(format!("node {node:?} can only create pods with a single {itself}")),
    };
    if owner["apiVersion"] != "v1" || owner["kind"] != "Node" || owner["name"] != *node {
        return forbid(format!("node {node:?} can only create pods with an {itself}"));
    }
    if owner["controller"] != true {
        return forbid(format!("node {node:?} can only create pods with a controller {itself}"));
    }
    if owner["blockOwnerDeletion"] == true {
        return forbid(format!("node {node:?} must not set blockOwnerDeletion on an owner reference"));
    }
    let Some(uid) = attributes.node_uid else { return Err(Denial::NodeNotFound) };
    let given = owner["uid"].as_str().unwrap_or("");
    if given != uid {
        return forbid(format!("node {node} UID mismatch: expected {given} got {uid}"));
    }
    let named = references::of_pod(pod);
    let names = |kind| named.iter().any(|(of, _)| *of == kind);
    let volumes = || pod["spec"]["volumes"].as_array().into_iter().flatten();
    let what = if names(Kind::ServiceAccount) {
        "a service account"
    } else if names(Kind::Secret) {
        "secrets"
    } else if names(Kind::ConfigMap) {
        "configmaps"
    } else if volumes().any(|volume| !volume["persistentVolumeClaim"].is_null()) {
        "persistentvolumeclaims"
    } else if names(Kind::PersistentVolumeClaim) {
        "persistentvolumeclaims (via ephemeral volumes)"
    } else if pod["spec"]["resourceClaims"].as_array().is_some_and(|claims| !claims.is_empty()) {
        "resourceclaims"
    } else {
        return Ok(());
    };
    forbid(format!("node {node:?} can not create pods that reference {what}"))
}

fn admit_pod_status(attributes: &AdmissionAttributes<'_>) -> Result<(), Denial> {
    let AdmissionAttributes { node, old, new, .. } = attributes;
    if old["spec"]["nodeName"] != *node {
        return forbid(format!("node {node:?} can only update pod status for pods with spec.nodeName set to itself"));
    }
    if labels(old) != labels(new) {
        return forbid(format!("node {node:?} cannot update labels through pod status"));
    }
    for (field, what) in [
        ("resourceClaimStatuses", "resource claim statuses"),
        ("extendedResourceClaimStatus", "extended resource claim status"),
    ] {
        if old["status"][field] != new["status"][field] {
            return forbid(format!("node {node:?} cannot update {what}"));
        }
    }
    Ok(())
}

fn admit_node(attributes: &AdmissionAttributes<'_>) -> Result<(), Denial> {
    let AdmissionAttributes { node, name, operation, old, new, .. } = attributes;
    if name != node {
        return forbid(format!("node {node:?} is not allowed to modify node {name:?}"));
    }
    let source = &new["spec"]["configSource"];
    match operation {
        Operation::Create => {
            if !source.is_null() {
                return forbid(format!("node {node:?} is not allowed to create pods with a non-nil configSource"));
            }
            let forbidden = forbidden_labels(&Value::Null, new);
            if !forbidden.is_empty() {
                let labels = forbidden.join(", ");
                return forbid(format!("node {node:?} is not allowed to set the following labels: {labels}"));
            }
        }
        Operation::Update => {
            if !source.is_null() && *source != old["spec"]["configSource"] {
                return forbid(format!(
                    "node {node:?} is not allowed to update configSource to a new non-nil configSource"
                ));
            }
            if items(&old["spec"]["taints"]) != items(&new["spec"]["taints"]) {
                return forbid(format!("node {node:?} is not allowed to modify taints"));
            }
            let owners = |node: &Value| items(&node["metadata"]["ownerReferences"]).to_vec();
            if owners(old) != owners(new) {
                return forbid(format!("node {node:?} is not allowed to modify ownerReferences"));
            }
            let forbidden = forbidden_labels(old, new);
            if !forbidden.is_empty() {
                return forbid(format!("is not allowed to modify labels: {}", forbidden.join(", ")));
            }
        }
        Operation::Delete => {}
    }
    Ok(())
}

fn items(list: &Value) -> &[Value] {
    list.as_array().map_or(&[], Vec::as_slice)
}

fn labels(object: &Value) -> BTreeMap<&str, &str> {
    let all = object["metadata"]["labels"].as_object().into_iter().flatten();
    all.map(|(key, value)| (key.as_str(), value.as_str().unwrap_or(""))).collect()
}

/// Changed labels that a node may not set on itself: by these it could attract pods.
fn forbidden_labels(old: &Value, new: &Value) -> Vec<String> {
    let (old, new) = (labels(old), labels(new));
    let keys: BTreeSet<&str> = old.keys().chain(new.keys()).copied().collect();
    keys.into_iter()
        .filter(|key| old.get(key) != new.get(key) && !node_labels::may_set(key))
        .map(str::to_owned)
        .collect()
}

fn admit_claim_status(attributes: &AdmissionAttributes<'_>) -> Result<(), Denial> {
    // The fields of a claim that a node sets when it expands a volume.
    const OWN: [&str; 6] = [
        "capacity",
        "conditions",
        "allocatedResources",
        "allocatedResourceStatuses",
        "currentVolumeAttributesClassName",
        "modifyVolumeStatus",
    ];
    let rest = |claim: &Value| {
        let mut rest = claim.clone();
        if let Some(status) = rest["status"].as_object_mut() {
            status.retain(|field, _| !OWN.contains(&field.as_str()));
        }
        if let Some(metadata) = rest["metadata"].as_object_mut() {
            metadata.retain(|field, _| !matches!(field.as_str(), "managedFields" | "resourceVersion"));
        }
        rest
    };
    if rest(attributes.old) == rest(attributes.new) {
        return Ok(());
    }
    let node = attributes.node;
    forbid(format!("node {node:?} is not allowed to update fields other than status.quantity and status.conditions"))
}

/// Admits a node's token request for a pod.
///
/// # Errors
/// Upstream's messages.
pub(in crate::api) fn admit_token(node: &str, spec: &Value, pod: &Value) -> Result<(), String> {
    let reference = &spec["boundObjectRef"];
    let wanted = reference["uid"].as_str().unwrap_or("");
    if wanted.is_empty() {
        return Err("node requested token with a pod binding without a uid".to_owned());
    }
    if pod["metadata"]["uid"] != wanted {
        return Err(uid_mismatch(wanted));
    }
    if pod["spec"]["nodeName"] != node {
        return Err("node requested token bound to a pod scheduled on a different node".to_owned());
    }
    let audience = match items(&spec["audiences"]) {
        [] => "",
        [one] => one.as_str().unwrap_or(""),
        _ => return Err("node may only request 0 or 1 audiences".to_owned()),
    };
    if audiences(pod).any(|of| of == audience) {
        return Ok(());
    }
    let why = "not found in pod spec volume, system:node:";
    Err(format!("audience {audience:?} {why}{node} is not authorized to request tokens for this audience"))
}

/// Whether a token request is bound to a pod.
pub(in crate::api) fn is_pod_reference(reference: &Value) -> bool {
    let name = reference["name"].as_str().unwrap_or("");
    reference["apiVersion"] == "v1" && reference["kind"] == "Pod" && !name.is_empty()
}

/// The error of a bound object that was recreated.
pub(in crate::api) fn uid_mismatch(wanted: &str) -> String {
    format!(
        "the UID in the bound object reference ({wanted}) does not match the UID in record. The object might have been deleted and then recreated"
    )
}

/// A mirror pod has no service account and no secrets: its manifest is the node's, not the API's.
///
/// # Errors
/// Upstream's messages.
pub(in crate::api) fn validate_mirror_pod(pod: &Value) -> Result<(), &'static str> {
    let named = references::of_pod(pod);
    if named.iter().any(|(kind, _)| *kind == Kind::ServiceAccount) {
        return Err("a mirror pod may not reference service accounts");
    }
    if named.iter().any(|(kind, _)| *kind == Kind::Secret) {
        return Err("a mirror pod may not reference secrets");
    }
    if audiences(pod).next().is_some() {
        return Err("a mirror pod may not use ServiceAccountToken volume projections");
    }
    Ok(())
}

/// Only nodes create mirror pods, and the mirror annotation never changes.
///
/// # Errors
/// Upstream's messages, where it has them.
pub(in crate::api) fn admit_mirror_annotation(
    operation: Operation,
    old: &Value,
    new: &Value,
) -> Result<(), &'static str> {
    let mark = |pod: &Value| pod["metadata"]["annotations"].get(MIRROR).cloned();
    match (operation, mark(old), mark(new)) {
        (Operation::Create, _, Some(_)) => {
            Err("only a node may create pods with the annotation \"kubernetes.io/config.mirror\"")
        }
        (Operation::Update, None, Some(_)) => Err("may not add mirror pod annotation"),
        (Operation::Update, Some(old), new) if new.as_ref() != Some(&old) => {
            Err("may not remove or update mirror pod annotation")
        }
        _ => Ok(()),
    }
}
