//! NodeRestriction: what a node may change in the objects that the Node authorizer lets it write, and which marks of
//! nodes others may not write.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use serde_json::Value;
use windlass_identity::pki::{CertificateRequest, KUBELET_CLIENT_SIGNER, KUBELET_SERVING_SIGNER};
use windlass_kit::objects::node_labels;

use super::changes::only_changes;
use crate::{
    apiserver::{
        AdmissionAttributes, AdmissionPlugin, ApiError, Attributes, Authorizers, Operation,
        pipeline::validation::{Cause, FieldError},
    },
    kinds::{
        core::{pod::is_mirror, service_account::uid_mismatch},
        shared::pod_template::MIRROR,
    },
    plugin::authorizer::node::{
        Kind, LEASES,
        references::{self, audiences},
        rights::{self, Admission},
    },
    store::{Key, Store},
};

/// Refuses the write.
#[derive(Debug)]
pub(super) struct NodeRestriction {
    pub(super) store: Store,
    /// Asked for the rights of nodes to tokens of other audiences.
    pub(super) authorizers: Authorizers,
}

#[async_trait]
impl AdmissionPlugin for NodeRestriction {
    fn name(&self) -> &'static str {
        "NodeRestriction"
    }

    fn handles(&self, operation: Operation) -> bool {
        operation != Operation::Connect
    }

    async fn admit(&self, attributes: &AdmissionAttributes<'_>, object: &mut Value) -> Result<(), ApiError> {
        self.check(attributes, object)
    }
}

impl NodeRestriction {
    fn check(&self, attributes: &AdmissionAttributes<'_>, new: &Value) -> Result<(), ApiError> {
        let target = attributes.target;
        let (subresource, operation) = (target.subresource(), attributes.operation);
        // An object that does not exist is reported as such.
        if operation == Operation::Delete && attributes.old.is_none() {
            return Ok(());
        }
        let old = attributes.old.unwrap_or(&Value::Null);
        if attributes.user.as_node() == Some("") {
            let why = format!("could not determine node from user {:?}", attributes.user.name);
            return Err(attributes.forbidden(new, &why));
        }
        let Some(node) = attributes.user.as_node() else {
            if !attributes.is_core("pods") || !matches!(subresource, "" | "status") {
                return Ok(());
            }
            return admit_mirror_annotation(operation, old, new).map_err(|why| match operation {
                Operation::Update => {
                    let field = "metadata.annotations[kubernetes.io/config.mirror]".to_owned();
                    let error = FieldError { field, cause: Cause::Forbidden, detail: format!("Forbidden: {why}") };
                    ApiError::invalid(&target.version, target.name(), &[error])
                }
                _ => attributes.forbidden(new, why),
            });
        };
        let (group, resource): (&str, &str) = (&target.version.group, &target.version.plural);
        let Some(admission) = rights::admission(group, resource, subresource, operation) else {
            // Somebody else has given this right to nodes, if they have it.
            if !rights::is_written_by_nodes(group, resource) {
                return Ok(());
            }
            return Err(attributes.forbidden(new, &unexpected(node, operation, resource, subresource)));
        };
        if admission == Admission::Token {
            return self.check_token(attributes, node, new);
        }
        let own = (attributes.is_core("pods") && operation == Operation::Create)
            .then(|| self.get("nodes", "", node))
            .flatten();
        let attempt = NodeWrite {
            node,
            operation,
            name: attributes.name(new),
            namespace: target.namespace.as_deref().unwrap_or(""),
            old,
            new,
            node_uid: own.as_ref().and_then(|node| node["metadata"]["uid"].as_str()),
        };
        admit(admission, &attempt).map_err(|denial| match denial {
            Denial::Forbidden(why) => attributes.forbidden(new, &why),
            Denial::NodeNotFound => ApiError::not_found_in("", "nodes", node),
        })
    }

    /// A node may only request tokens bound to pods that it runs.
    fn check_token(&self, attributes: &AdmissionAttributes<'_>, node: &str, request: &Value) -> Result<(), ApiError> {
        let target = attributes.target;
        let forbidden = |why: &str| ApiError::forbidden(&target.version, target.name(), why);
        let reference = &request["spec"]["boundObjectRef"];
        if !is_pod_reference(reference) {
            return Err(forbidden("node requested token not bound to a pod"));
        }
        let name = reference["name"].as_str().unwrap_or("");
        let pod = self.get("pods", target.namespace.as_deref().unwrap_or(""), name);
        let pod = pod.ok_or_else(|| ApiError::not_found_in("", "pods", name))?;
        let audience = admit_token(node, &request["spec"], &pod).map_err(|why| forbidden(&why))?;
        let is_known = audiences(&pod).any(|of| of == audience) || self.is_of_driver(&pod, audience);
        if is_known || self.may_request(attributes, audience) {
            return Ok(());
        }
        let (why, user) = ("not found in pod spec volume", &attributes.user.name);
        let why = format!("audience {audience:?} {why}, {user} is not authorized to request tokens for this audience");
        Err(forbidden(&why))
    }

    /// Whether somebody has given the node the right to tokens of an audience.
    fn may_request(&self, attributes: &AdmissionAttributes<'_>, audience: &str) -> bool {
        let target = attributes.target;
        let asked = Attributes {
            verb: "request-serviceaccounts-token-audience",
            is_resource: true,
            version: "v1",
            resource: audience,
            namespace: target.namespace.as_deref().unwrap_or(""),
            name: target.name(),
            ..Attributes::default()
        };
        self.authorizers.authorize(attributes.user, &asked).is_ok()
    }

    /// Whether the driver of one of the pod's volumes asks for tokens of an audience.
    fn is_of_driver(&self, pod: &Value, audience: &str) -> bool {
        let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
        items(&pod["spec"]["volumes"]).iter().any(|volume| {
            let claim = if volume["ephemeral"]["volumeClaimTemplate"].is_object() {
                format!("{}-{}", text(&pod["metadata"]["name"]), text(&volume["name"]))
            } else {
                text(&volume["persistentVolumeClaim"]["claimName"])
            };
            let claim = self.get("persistentvolumeclaims", &text(&pod["metadata"]["namespace"]), &claim);
            let bound = claim.and_then(|claim| self.get("persistentvolumes", "", &text(&claim["spec"]["volumeName"])));
            let driver =
                bound.map_or_else(|| text(&volume["csi"]["driver"]), |bound| text(&bound["spec"]["csi"]["driver"]));
            let driver = self.get("csidrivers.storage.k8s.io", "", &driver);
            let wanted = |driver: &Value| {
                items(&driver["spec"]["tokenRequests"])
                    .iter()
                    .any(|one| one["audience"].as_str().unwrap_or("") == audience)
            };
            driver.is_some_and(|driver| wanted(&driver))
        })
    }

    fn get(&self, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        let key = Key { namespace: namespace.to_owned(), name: name.to_owned() };
        Some(self.store.get(self.store.resource(plural), &key)?.value())
    }
}

/// The attributes of a node's write.
struct NodeWrite<'a> {
    /// The writing node.
    node: &'a str,
    operation: Operation,
    /// The object's name.
    name: &'a str,
    /// Its namespace, or empty.
    namespace: &'a str,
    /// The stored object; for a subresource its parent.
    old: &'a Value,
    /// The object to store; null for a deletion.
    new: &'a Value,
    /// The uid of the node's own Node object, if it exists.
    node_uid: Option<&'a str>,
}

/// Why a write is refused.
#[derive(Debug, PartialEq, Eq)]
enum Denial {
    Forbidden(String),
    /// The Node object does not exist.
    NodeNotFound,
}

fn forbid<T>(why: impl Into<String>) -> Result<T, Denial> {
    Err(Denial::Forbidden(why.into()))
}

/// The error for a write beyond the rights of nodes, whatever RBAC grants: in upstream's words, where it has some.
fn unexpected(node: &str, operation: Operation, resource: &str, subresource: &str) -> String {
    match (resource, subresource) {
        ("pods", "") => {
            format!("unexpected operation \"UPDATE\", node {node:?} can only create and delete mirror pods")
        }
        ("pods", _) => format!("unexpected pod subresource {subresource:?}, only 'status' and 'eviction' are allowed"),
        ("persistentvolumeclaims", _) => "may only update PVC status".to_owned(),
        _ => format!(
            "unexpected operation {operation:?} of node {node:?} on {resource} with subresource {subresource:?}"
        ),
    }
}

/// Admits or denies a node's write.
///
/// # Errors
/// Why it may not.
fn admit(admission: Admission, attributes: &NodeWrite<'_>) -> Result<(), Denial> {
    let NodeWrite { node, name, .. } = attributes;
    match admission {
        Admission::Pod => admit_pod(attributes),
        Admission::PodStatus => admit_pod_status(attributes),
        Admission::Eviction => {
            let own = attributes.old["spec"]["nodeName"] == *node;
            let why = format!("node {node} can only evict pods with spec.nodeName set to itself");
            if own { Ok(()) } else { forbid(why) }
        }
        Admission::OwnNode => admit_node(attributes),
        Admission::ClaimStatus => admit_claim_status(attributes),
        Admission::Lease if attributes.namespace != LEASES => {
            forbid(format!("can only access leases in the {LEASES:?} system namespace"))
        }
        Admission::Lease if name != node => {
            forbid("can only access node lease with the same name as the requesting node")
        }
        Admission::CsiNode if name != node => {
            forbid("can only access CSINode with the same name as the requesting node")
        }
        Admission::Slice => admit_slice(attributes),
        Admission::CertificateRequest => admit_certificate_request(attributes),
        Admission::Lease | Admission::CsiNode | Admission::Token | Admission::Anything => Ok(()),
    }
}

/// What a slice offers is on its node.
fn admit_slice(attributes: &NodeWrite<'_>) -> Result<(), Denial> {
    let (slice, verb) = match attributes.operation {
        Operation::Create => (attributes.new, "create"),
        Operation::Delete => (attributes.old, "delete"),
        // An existing one is known to the authorizer, and its node never changes.
        Operation::Update | Operation::Connect => return Ok(()),
    };
    if slice["spec"]["nodeName"] == attributes.node {
        return Ok(());
    }
    forbid(format!("can only {verb} ResourceSlice with the same NodeName as the requesting node"))
}

/// A certificate of a node is for that node.
fn admit_certificate_request(attributes: &NodeWrite<'_>) -> Result<(), Denial> {
    let spec = &attributes.new["spec"];
    if ![KUBELET_CLIENT_SIGNER, KUBELET_SERVING_SIGNER].iter().any(|signer| spec["signerName"] == *signer) {
        return Ok(());
    }
    let request = CertificateRequest::from_base64(spec["request"].as_str().unwrap_or(""));
    let request = request.map_err(|why| Denial::Forbidden(format!("unable to parse csr: {why}")))?;
    let wanted = format!("system:node:{}", attributes.node);
    if request.subject.common_name() == wanted {
        return Ok(());
    }
    forbid(format!("can only create a node CSR with CN={wanted}"))
}

fn admit_pod(attributes: &NodeWrite<'_>) -> Result<(), Denial> {
    let node = attributes.node;
    match attributes.operation {
        Operation::Create => admit_mirror_pod(attributes),
        Operation::Delete if attributes.old["spec"]["nodeName"] == node => Ok(()),
        Operation::Delete => forbid(format!("node {node:?} can only delete pods with spec.nodeName set to itself")),
        Operation::Update | Operation::Connect => {
            forbid(format!("unexpected operation \"UPDATE\", node {node:?} can only create and delete mirror pods"))
        }
    }
}

/// The mirror pod of a static pod.
fn admit_mirror_pod(attributes: &NodeWrite<'_>) -> Result<(), Denial> {
    let NodeWrite { node, new: pod, .. } = attributes;
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

fn admit_pod_status(attributes: &NodeWrite<'_>) -> Result<(), Denial> {
    let NodeWrite { node, old, new, .. } = attributes;
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

fn admit_node(attributes: &NodeWrite<'_>) -> Result<(), Denial> {
    let NodeWrite { node, name, operation, old, new, .. } = attributes;
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
        Operation::Delete | Operation::Connect => {}
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

fn admit_claim_status(attributes: &NodeWrite<'_>) -> Result<(), Denial> {
    // The fields of a claim that a node sets when it expands a volume.
    const OWN: [&str; 4] =
        ["/status/capacity", "/status/conditions", "/status/allocatedResources", "/status/allocatedResourceStatuses"];
    if only_changes(attributes.old, attributes.new, &OWN) {
        return Ok(());
    }
    let node = attributes.node;
    forbid(format!("node {node:?} is not allowed to update fields other than status.quantity and status.conditions"))
}

/// Admits a node's token request for a pod; the audience, which is looked at then.
///
/// # Errors
/// Upstream's messages.
fn admit_token<'a>(node: &str, spec: &'a Value, pod: &Value) -> Result<&'a str, String> {
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
    match items(&spec["audiences"]) {
        [] => Ok(""),
        [one] => Ok(one.as_str().unwrap_or("")),
        _ => Err("node may only request 0 or 1 audiences".to_owned()),
    }
}

/// Whether a token request is bound to a pod.
fn is_pod_reference(reference: &Value) -> bool {
    let name = reference["name"].as_str().unwrap_or("");
    reference["apiVersion"] == "v1" && reference["kind"] == "Pod" && !name.is_empty()
}

/// A mirror pod has no service account and no secrets: its manifest is the node's, not the API's.
///
/// # Errors
/// Upstream's messages.
pub(super) fn validate_mirror_pod(pod: &Value) -> Result<(), &'static str> {
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
fn admit_mirror_annotation(operation: Operation, old: &Value, new: &Value) -> Result<(), &'static str> {
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
