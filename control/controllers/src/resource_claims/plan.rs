//! Which claims of devices a pod has, and how they look. Pure.

use k8s_openapi::{
    api::{
        core::v1::PodResourceClaim,
        resource::v1::{ResourceClaim, ResourceClaimConsumerReference, ResourceClaimTemplate},
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::Resource as _;

use crate::{
    pods::{controller_of, is_terminal, node_name},
    runtime::CachedPod,
};

/// Holds claims whose devices are allocated.
pub(super) const FINALIZER: &str = "resource.kubernetes.io/delete-protection";
/// Of a claim that was made for a pod: the name that the pod has for it.
pub(super) const POD_CLAIM_NAME: &str = "resource.kubernetes.io/pod-claim-name";
/// Longest beginning of a generated name: a hyphen and five characters make it a label (63).
const MAX_BASE: usize = 57;

/// The claims that a pod names.
pub(super) fn claims_of(pod: &CachedPod) -> impl Iterator<Item = &PodResourceClaim> {
    pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten())
}

/// Where the claim of a pod is (upstream: `resourceclaim.Name`).
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Named<'a> {
    ByUser(&'a str),
    /// Made for the pod, as its status says.
    Generated(&'a str),
    /// To be made.
    NotMade,
    /// Somebody has found that the pod needs none.
    NotNeeded,
    /// A later version of the API says it otherwise.
    Unsupported,
}

/// Upstream's `resourceclaim.Name`.
pub(super) fn name_of<'a>(pod: &'a CachedPod, claim: &'a PodResourceClaim) -> Named<'a> {
    if let Some(name) = &claim.resource_claim_name {
        return Named::ByUser(name);
    }
    if claim.resource_claim_template_name.is_none() {
        return Named::Unsupported;
    }
    let statuses = pod.status.iter().flat_map(|status| status.resource_claim_statuses.iter().flatten());
    match statuses.into_iter().find(|status| status.name == claim.name) {
        Some(status) => status.resource_claim_name.as_deref().map_or(Named::NotNeeded, Named::Generated),
        None => Named::NotMade,
    }
}

/// The names of all claims of a pod that have one: its own, those that were made for it, and the one that a scheduler has
/// made for extended resources.
pub(super) fn claim_names(pod: &CachedPod) -> impl Iterator<Item = &str> {
    let named = claims_of(pod).filter_map(|claim| match name_of(pod, claim) {
        Named::ByUser(name) | Named::Generated(name) => Some(name),
        _ => None,
    });
    let extended = pod.status.as_ref().and_then(|status| status.extended_resource_claim_status.as_ref());
    named.chain(extended.map(|status| status.resource_claim_name.as_str()))
}

/// Whether a pod does not use devices any more, or never will (upstream: `isPodDone`).
pub(super) fn is_done(pod: &CachedPod) -> bool {
    is_terminal(pod) || (pod.metadata.deletion_timestamp.is_some() && node_name(pod).is_none())
}

pub(super) fn is_allocated(claim: &ResourceClaim) -> bool {
    claim.status.as_ref().is_some_and(|status| status.allocation.is_some())
}

/// Whether it is not reserved.
pub(super) fn is_free(claim: &ResourceClaim) -> bool {
    claim.status.as_ref().is_none_or(|status| status.reserved_for.as_ref().is_none_or(Vec::is_empty))
}

pub(super) fn is_reserved(claim: &ResourceClaim, uid: &str) -> bool {
    let reserved = claim.status.as_ref().and_then(|status| status.reserved_for.as_ref());
    reserved.into_iter().flatten().any(|user| user.uid == uid)
}

/// Whether a reservation is that of a pod; of others it is not known how long they last.
/// Upstream's `resourceclaim.IsForPod`.
pub(super) fn for_pod(user: &ResourceClaimConsumerReference) -> bool {
    user.api_group.as_deref().unwrap_or_default().is_empty() && user.resource == "pods"
}

/// The pod that a claim was made for.
pub(super) fn owning_pod(claim: &ResourceClaim) -> Option<&OwnerReference> {
    controller_of(&claim.metadata).filter(|owner| owner.api_version == "v1" && owner.kind == "Pod")
}

/// Whether a claim was made for what a pod calls `name`.
pub(super) fn made_for(claim: &ResourceClaim, name: &str) -> bool {
    let annotations = claim.metadata.annotations.as_ref();
    annotations.and_then(|all| all.get(POD_CLAIM_NAME)).is_some_and(|known| known == name)
}

/// The claim of a pod from a template. Upstream's `handleClaim`.
pub(super) fn new_claim(pod: &CachedPod, name: &str, template: &ResourceClaimTemplate) -> ResourceClaim {
    let from = template.spec.metadata.clone().unwrap_or_default();
    let mut annotations = from.annotations.unwrap_or_default();
    annotations.insert(POD_CLAIM_NAME.to_owned(), name.to_owned());
    let owner = OwnerReference { controller: Some(true), ..pod.owner_ref(&()).unwrap_or_default() };
    ResourceClaim {
        metadata: ObjectMeta {
            generate_name: Some(generate_name(pod.metadata.name.as_deref().unwrap_or_default(), name)),
            owner_references: Some(vec![owner]),
            annotations: Some(annotations),
            labels: from.labels,
            ..ObjectMeta::default()
        },
        spec: template.spec.spec.clone(),
        status: None,
    }
}

/// Both names; where they are too long, as much of each as it has of the whole.
fn generate_name(pod: &str, claim: &str) -> String {
    let whole = format!("{pod}-{claim}-");
    if whole.len() <= MAX_BASE {
        return whole;
    }
    let part = |of: &str| of.chars().take(of.len() * MAX_BASE / whole.len()).collect::<String>();
    format!("{}-{}", part(pod), part(claim))
}

/// Whether a claim asks for the administrator's access to devices (upstream's label of metrics).
pub(super) fn has_admin_access(claim: &ResourceClaim) -> bool {
    let requests = claim.spec.devices.iter().flat_map(|devices| devices.requests.iter().flatten());
    requests
        .into_iter()
        .any(|request| request.exactly.as_ref().is_some_and(|exactly| exactly.admin_access == Some(true)))
}
