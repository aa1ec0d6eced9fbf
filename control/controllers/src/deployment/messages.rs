//! Texts of a Deployment's events and conditions, as in upstream's pkg/controller/deployment/{sync,progress,rollback}.go and
//! util/deployment_util.go. Pure.

/// Reasons of events.
pub(super) const SCALING_REPLICA_SET: &str = "ScalingReplicaSet";
pub(super) const SELECTING_ALL: &str = "SelectingAll";
pub(super) const ROLLBACK_REVISION_NOT_FOUND: &str = "RollbackRevisionNotFound";
pub(super) const ROLLBACK_TEMPLATE_UNCHANGED: &str = "RollbackTemplateUnchanged";
pub(super) const ROLLBACK_DONE: &str = "RollbackDone";

/// Types of conditions.
pub(super) const PROGRESSING: &str = "Progressing";
pub(super) const AVAILABLE: &str = "Available";
pub(super) const REPLICA_FAILURE: &str = "ReplicaFailure";

/// Reasons of `Progressing`.
pub(super) const REPLICA_SET_UPDATED: &str = "ReplicaSetUpdated";
pub(super) const REPLICA_SET_CREATE_ERROR: &str = "ReplicaSetCreateError";
pub(super) const NEW_REPLICA_SET_CREATED: &str = "NewReplicaSetCreated";
pub(super) const FOUND_NEW_REPLICA_SET: &str = "FoundNewReplicaSet";
pub(super) const NEW_REPLICA_SET_AVAILABLE: &str = "NewReplicaSetAvailable";
pub(super) const PROGRESS_DEADLINE_EXCEEDED: &str = "ProgressDeadlineExceeded";
pub(super) const DEPLOYMENT_PAUSED: &str = "DeploymentPaused";
pub(super) const DEPLOYMENT_RESUMED: &str = "DeploymentResumed";

/// Reasons of `Available`.
pub(super) const MINIMUM_REPLICAS_AVAILABLE: &str = "MinimumReplicasAvailable";
pub(super) const MINIMUM_REPLICAS_UNAVAILABLE: &str = "MinimumReplicasUnavailable";

pub(super) const IS_PAUSED: &str = "Deployment is paused";
pub(super) const IS_RESUMED: &str = "Deployment is resumed";
pub(super) const HAS_MINIMUM: &str = "Deployment has minimum availability.";
pub(super) const HAS_NO_MINIMUM: &str = "Deployment does not have minimum availability.";
pub(super) const SELECTS_ALL: &str = "This deployment is selecting all pods. A non-empty selector is required.";

pub(super) const NO_LAST_REVISION: &str = "Unable to find last revision.";
pub(super) const NO_SUCH_REVISION: &str = "Unable to find the revision to rollback to.";

pub(super) fn template_unchanged(deployment: &str) -> String {
    format!("The rollback revision contains the same template as current deployment {deployment:?}")
}

pub(super) fn rolled_back(deployment: &str, revision: i64) -> String {
    format!("Rolled back deployment {deployment:?} to revision {revision}")
}

pub(super) fn scaled(set: &str, from: i32, to: i32) -> String {
    let direction = if from < to { "up" } else { "down" };
    format!("Scaled {direction} replica set {set} from {from} to {to}")
}

pub(super) fn created(set: &str) -> String {
    format!("Created new replica set {set:?}")
}

pub(super) fn found(set: &str) -> String {
    format!("Found new replica set {set:?}")
}

pub(super) fn create_failed(set: &str, error: &str) -> String {
    format!("Failed to create new replica set {set:?}: {error}")
}

/// `new` is the new ReplicaSet, where there is one.
fn subject(new: Option<&str>, deployment: &str) -> String {
    new.map_or_else(|| format!("Deployment {deployment:?}"), |set| format!("ReplicaSet {set:?}"))
}

pub(super) fn has_progressed(new: Option<&str>, deployment: &str) -> String {
    format!("{} has successfully progressed.", subject(new, deployment))
}

pub(super) fn is_progressing(new: Option<&str>, deployment: &str) -> String {
    format!("{} is progressing.", subject(new, deployment))
}

pub(super) fn has_timed_out(new: Option<&str>, deployment: &str) -> String {
    format!("{} has timed out progressing.", subject(new, deployment))
}
