//! Which owners the claims of a set's pods have, so that they go with the set or with a pod that is scaled away, or stay.
//! Pure.

use k8s_openapi::{
    api::{apps::v1::StatefulSet, core::v1::PersistentVolumeClaim},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{Resource, ResourceExt};

use crate::{pod_control::owner_reference, pods, runtime::CachedPod};

const DELETE: &str = "Delete";

/// The set's policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Policy {
    /// Claims go with the set.
    pub(super) when_deleted: bool,
    /// Claims go with pods that are scaled away.
    pub(super) when_scaled: bool,
}

impl Policy {
    pub(super) fn of(set: &StatefulSet) -> Self {
        let policy = set.spec.as_ref().and_then(|spec| spec.persistent_volume_claim_retention_policy.as_ref());
        let deletes = |value: Option<&String>| value.is_some_and(|value| value == DELETE);
        Self {
            when_deleted: policy.is_some_and(|policy| deletes(policy.when_deleted.as_ref())),
            when_scaled: policy.is_some_and(|policy| deletes(policy.when_scaled.as_ref())),
        }
    }
}

/// What becomes of the owners of a claim.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Owners {
    /// They are what the policy says, or those of an earlier set.
    Keep,
    /// Another controller has the claim.
    Conflict,
    Set(Vec<OwnerReference>),
}

/// The owners that the claim of a pod should have. `condemned`: the pod is being scaled away.
pub(super) fn owners(
    policy: Policy,
    set: &StatefulSet,
    pod: &CachedPod,
    condemned: bool,
    claim: &PersistentVolumeClaim,
) -> Owners {
    let (set_uid, pod_uid) = (set.uid().unwrap_or_default(), pod.uid().unwrap_or_default());
    let ours = |owner: &OwnerReference| owner.uid == set_uid || owner.uid == pod_uid;
    // Of an earlier set or pod of the same name: the collector deletes the claim, and a new one follows.
    let (set_name, pod_name) = (set.name_any(), pod.name_any());
    if is_stale(claim, &pod_name, Some(&pod_uid)) || refers_to_another(claim, "StatefulSet", &set_name, Some(&set_uid))
    {
        return Owners::Keep;
    }
    let before = claim.owner_references();
    if pods::controller_of(&claim.metadata).is_some_and(|owner| !ours(owner)) {
        let others: Vec<OwnerReference> = before.iter().filter(|owner| !ours(owner)).cloned().collect();
        return if others.len() == before.len() { Owners::Conflict } else { Owners::Set(others) };
    }
    let of_pod = policy.when_scaled && condemned;
    let of_set = policy.when_deleted && !of_pod;
    // One that does not control the claim is corrected, whoever wrote it.
    let wanted = |owner: &OwnerReference| {
        owner.controller == Some(true) && ((owner.uid == set_uid && of_set) || (owner.uid == pod_uid && of_pod))
    };
    let mut after: Vec<OwnerReference> = before.iter().filter(|owner| !ours(owner) || wanted(owner)).cloned().collect();
    if of_set && !after.iter().any(|owner| owner.uid == set_uid) {
        after.push(owner_reference(set));
    }
    if of_pod && !after.iter().any(|owner| owner.uid == pod_uid) {
        after.push(OwnerReference {
            api_version: "v1".to_owned(),
            kind: CachedPod::kind(&()).into_owned(),
            name: pod_name,
            uid: pod_uid,
            controller: Some(true),
            block_owner_deletion: Some(true),
        });
    }
    if after == before { Owners::Keep } else { Owners::Set(after) }
}

/// Whether a claim goes with an earlier pod of this name; a new pod has to wait until it is gone. `uid`: of the pod that
/// there is.
pub(super) fn is_stale(claim: &PersistentVolumeClaim, pod: &str, uid: Option<&str>) -> bool {
    refers_to_another(claim, "Pod", pod, uid)
}

/// Whether a claim has an owner of this kind and name with another UID.
fn refers_to_another(claim: &PersistentVolumeClaim, kind: &str, name: &str, uid: Option<&str>) -> bool {
    claim.owner_references().iter().any(|o| o.kind == kind && o.name == name && Some(o.uid.as_str()) != uid)
}
