//! Texts of a StatefulSet's events, as in upstream's pkg/controller/statefulset/stateful_pod_control.go and
//! stateful_set_control.go. Pure.

pub(super) const CREATE: &str = "Create";
pub(super) const DELETE: &str = "Delete";
pub(super) const UPDATE: &str = "Update";

/// The reason of an event about a verb.
pub(super) fn reason(verb: &str, succeeded: bool) -> &'static str {
    match (verb, succeeded) {
        (CREATE, true) => "SuccessfulCreate",
        (CREATE, false) => "FailedCreate",
        (DELETE, true) => "SuccessfulDelete",
        (DELETE, false) => "FailedDelete",
        (_, true) => "SuccessfulUpdate",
        (_, false) => "FailedUpdate",
    }
}

pub(super) fn pod(verb: &str, pod: &str, set: &str, error: Option<&str>) -> String {
    match error {
        None => format!("{verb} Pod {pod} in StatefulSet {set} successful"),
        Some(error) => format!("{verb} Pod {pod} in StatefulSet {set} failed error: {error}"),
    }
}

pub(super) fn claim(verb: &str, claim: &str, pod: &str, set: &str, error: Option<&str>) -> String {
    match error {
        None => format!("{verb} Claim {claim} Pod {pod} in StatefulSet {set} success"),
        Some(error) => format!("{verb} Claim {claim} for Pod {pod} in StatefulSet {set} failed error: {error}"),
    }
}

pub(super) fn claim_is_deleted(claim: &str) -> String {
    format!("pvc {claim} is being deleted")
}

pub(super) const RECREATING_FAILED: &str = "RecreatingFailedPod";
pub(super) const RECREATING_TERMINATED: &str = "RecreatingTerminatedPod";

pub(super) fn recreating_failed(namespace: &str, set: &str, pod: &str) -> String {
    format!("StatefulSet {namespace}/{set} is recreating failed Pod {pod}")
}

pub(super) fn recreating_terminated(namespace: &str, set: &str, pod: &str) -> String {
    format!("StatefulSet {namespace}/{set} is recreating terminated Pod {pod}")
}

pub(super) const CONFLICTING_CONTROLLER: &str = "ConflictingController";

pub(super) fn conflicting_controller(claim: &str) -> String {
    format!(
        "PersistentVolumeClaim {claim} has a conflicting OwnerReference that acts as a managing controller, the \
         retention policy is ignored for this claim"
    )
}
