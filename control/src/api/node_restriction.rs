//! NodeRestriction: what a node may write into the objects that the Node authorizer lets it write, and what others may
//! not write because it is a node's. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use windlass_kit::objects::node_labels;

use super::node_authorizer::Kind;
use super::node_authorizer::references::{self, MIRROR, audiences, is_mirror};

/// What is done to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Create,
    Update,
    Delete,
}

/// One write of a node.
pub(super) struct Review<'a> {
    /// The node that writes.
    pub(super) node: &'a str,
    pub(super) operation: Operation,
    /// Kind of the object, not of the subresource.
    pub(super) kind: &'a str,
    pub(super) sub: &'a str,
    /// Of the object that is written.
    pub(super) name: &'a str,
    /// As it was; for a subresource the object that it is one of.
    pub(super) old: &'a Value,
    /// As it is to be; null for a deletion.
    pub(super) new: &'a Value,
    /// The uid of the node's own Node, if there is one.
    pub(super) node_uid: Option<&'a str>,
}

/// Why a write is refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    Forbidden(String),
    /// There is no Node of the node's name.
    NoNode,
}

fn refuse<T>(why: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::Forbidden(why.into()))
}

/// Judges what a node writes.
///
/// # Errors
/// Why it may not.
pub(super) fn admit(review: &Review<'_>) -> Result<(), Refusal> {
    match (review.kind, review.sub) {
        ("Pod", "") => pod(review),
        ("Pod", "status") => pod_status(review),
        ("Pod", "eviction") => {
            let own = review.old["spec"]["nodeName"] == review.node;
            let why = format!("node {} can only evict pods with spec.nodeName set to itself", review.node);
            if own { Ok(()) } else { refuse(why) }
        }
        ("Pod", sub) => refuse(format!("unexpected pod subresource {sub:?}, only 'status' and 'eviction' are allowed")),
        ("Node", _) => node(review),
        ("PersistentVolumeClaim", "status") => claim_status(review),
        ("PersistentVolumeClaim", _) => refuse("may only update PVC status"),
        ("Lease", _) if review.name != review.node => {
            refuse("can only access node lease with the same name as the requesting node")
        }
        _ => Ok(()),
    }
}

fn pod(review: &Review<'_>) -> Result<(), Refusal> {
    let node = review.node;
    match review.operation {
        Operation::Create => mirror(review),
        Operation::Delete if review.old["spec"]["nodeName"] == node => Ok(()),
        Operation::Delete => refuse(format!("node {node:?} can only delete pods with spec.nodeName set to itself")),
        Operation::Update => {
            refuse(format!("unexpected operation \"UPDATE\", node {node:?} can only create and delete mirror pods"))
        }
    }
}

/// A pod that shows one of the node's own files.
fn mirror(review: &Review<'_>) -> Result<(), Refusal> {
    let Review { node, new: pod, .. } = review;
    if !is_mirror(pod) {
        return refuse(format!("pod does not have {MIRROR:?} annotation, node {node:?} can only create mirror pods"));
    }
    if pod["spec"]["nodeName"] != *node {
        return refuse(format!("node {node:?} can only create pods with spec.nodeName set to itself"));
    }
    let itself = "owner reference set to itself";
    let owner = match pod["metadata"]["ownerReferences"].as_array().map(Vec::as_slice) {
        None | Some([]) => return refuse(format!("node {node:?} can only create pods with an {itself}")),
        Some([one]) => one,
        Some(_) => return refuse(format!("node {node:?} can only create pods with a single {itself}")),
    };
    if owner["apiVersion"] != "v1" || owner["kind"] != "Node" || owner["name"] != *node {
        return refuse(format!("node {node:?} can only create pods with an {itself}"));
    }
    if owner["controller"] != true {
        return refuse(format!("node {node:?} can only create pods with a controller {itself}"));
    }
    if owner["blockOwnerDeletion"] == true {
        return refuse(format!("node {node:?} must not set blockOwnerDeletion on an owner reference"));
    }
    let Some(uid) = review.node_uid else { return Err(Refusal::NoNode) };
    let given = owner["uid"].as_str().unwrap_or("");
    if given != uid {
        return refuse(format!("node {node} UID mismatch: expected {given} got {uid}"));
    }
    let named = references::of_pod(pod);
    let names = |kind| named.iter().any(|(of, _)| *of == kind);
    let volumes = || pod["spec"]["volumes"].as_array().into_iter().flatten();
    let what = if names(Kind::Account) {
        "a service account"
    } else if names(Kind::Secret) {
        "secrets"
    } else if names(Kind::ConfigMap) {
        "configmaps"
    } else if volumes().any(|volume| !volume["persistentVolumeClaim"].is_null()) {
        "persistentvolumeclaims"
    } else if names(Kind::Claim) {
        "persistentvolumeclaims (via ephemeral volumes)"
    } else if pod["spec"]["resourceClaims"].as_array().is_some_and(|claims| !claims.is_empty()) {
        "resourceclaims"
    } else {
        return Ok(());
    };
    refuse(format!("node {node:?} can not create pods that reference {what}"))
}

fn pod_status(review: &Review<'_>) -> Result<(), Refusal> {
    let Review { node, old, new, .. } = review;
    if old["spec"]["nodeName"] != *node {
        return refuse(format!("node {node:?} can only update pod status for pods with spec.nodeName set to itself"));
    }
    if labels(old) != labels(new) {
        return refuse(format!("node {node:?} cannot update labels through pod status"));
    }
    for (field, what) in [
        ("resourceClaimStatuses", "resource claim statuses"),
        ("extendedResourceClaimStatus", "extended resource claim status"),
    ] {
        if old["status"][field] != new["status"][field] {
            return refuse(format!("node {node:?} cannot update {what}"));
        }
    }
    Ok(())
}

fn node(review: &Review<'_>) -> Result<(), Refusal> {
    let Review { node, name, operation, old, new, .. } = review;
    if name != node {
        return refuse(format!("node {node:?} is not allowed to modify node {name:?}"));
    }
    let source = &new["spec"]["configSource"];
    match operation {
        Operation::Create => {
            if !source.is_null() {
                return refuse(format!("node {node:?} is not allowed to create pods with a non-nil configSource"));
            }
            let forbidden = forbidden_labels(&Value::Null, new);
            if !forbidden.is_empty() {
                let labels = forbidden.join(", ");
                return refuse(format!("node {node:?} is not allowed to set the following labels: {labels}"));
            }
        }
        Operation::Update => {
            if !source.is_null() && *source != old["spec"]["configSource"] {
                return refuse(format!(
                    "node {node:?} is not allowed to update configSource to a new non-nil configSource"
                ));
            }
            if listed(&old["spec"]["taints"]) != listed(&new["spec"]["taints"]) {
                return refuse(format!("node {node:?} is not allowed to modify taints"));
            }
            let owners = |node: &Value| listed(&node["metadata"]["ownerReferences"]).to_vec();
            if owners(old) != owners(new) {
                return refuse(format!("node {node:?} is not allowed to modify ownerReferences"));
            }
            let forbidden = forbidden_labels(old, new);
            if !forbidden.is_empty() {
                return refuse(format!("is not allowed to modify labels: {}", forbidden.join(", ")));
            }
        }
        Operation::Delete => {}
    }
    Ok(())
}

fn listed(list: &Value) -> &[Value] {
    list.as_array().map_or(&[], Vec::as_slice)
}

fn labels(object: &Value) -> BTreeMap<&str, &str> {
    let all = object["metadata"]["labels"].as_object().into_iter().flatten();
    all.map(|(key, value)| (key.as_str(), value.as_str().unwrap_or(""))).collect()
}

/// Labels that differ and that a node may not set, change or remove on itself: by these it could draw pods to itself.
fn forbidden_labels(old: &Value, new: &Value) -> Vec<String> {
    let (old, new) = (labels(old), labels(new));
    let keys: BTreeSet<&str> = old.keys().chain(new.keys()).copied().collect();
    keys.into_iter()
        .filter(|key| old.get(key) != new.get(key) && !node_labels::may_set(key))
        .map(str::to_owned)
        .collect()
}

fn claim_status(review: &Review<'_>) -> Result<(), Refusal> {
    // What a node knows after it has made a volume larger.
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
    if rest(review.old) == rest(review.new) {
        return Ok(());
    }
    let node = review.node;
    refuse(format!("node {node:?} is not allowed to update fields other than status.quantity and status.conditions"))
}

/// Why a node may not have a token, apart from the pod that is not there.
///
/// # Errors
/// With the words of upstream.
pub(super) fn admit_token(node: &str, spec: &Value, pod: &Value) -> Result<(), String> {
    let reference = &spec["boundObjectRef"];
    let wanted = reference["uid"].as_str().unwrap_or("");
    if wanted.is_empty() {
        return Err("node requested token with a pod binding without a uid".to_owned());
    }
    if pod["metadata"]["uid"] != wanted {
        return Err(other_uid(wanted));
    }
    if pod["spec"]["nodeName"] != node {
        return Err("node requested token bound to a pod scheduled on a different node".to_owned());
    }
    let audience = match listed(&spec["audiences"]) {
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

/// Whether a token request names the pod that a node must name.
pub(super) fn names_a_pod(reference: &Value) -> bool {
    let name = reference["name"].as_str().unwrap_or("");
    reference["apiVersion"] == "v1" && reference["kind"] == "Pod" && !name.is_empty()
}

/// An object was deleted, and another one has its name.
pub(super) fn other_uid(wanted: &str) -> String {
    format!(
        "the UID in the bound object reference ({wanted}) does not match the UID in record. The object might have been deleted and then recreated"
    )
}

/// A mirror pod has no service account and none of what comes with one: its file is the node's, not the API's.
///
/// # Errors
/// With the words of upstream's admission of service accounts.
pub(super) fn mirror_has_no_account(pod: &Value) -> Result<(), &'static str> {
    let named = references::of_pod(pod);
    if named.iter().any(|(kind, _)| *kind == Kind::Account) {
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

/// What others than nodes may not do: a pod is a mirror pod from its creation or never.
///
/// # Errors
/// With upstream's words where it has any.
pub(super) fn mirror_mark(operation: Operation, old: &Value, new: &Value) -> Result<(), &'static str> {
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
