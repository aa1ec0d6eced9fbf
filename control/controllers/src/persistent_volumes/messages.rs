//! What users read of claims and volumes, in upstream's words: `pkg/controller/volume/persistentvolume/pv_controller.go`,
//! `pkg/controller/volume/events/event.go` and `pkg/volume/plugins.go` of Kubernetes. Pure.

use windlass_kit::events::Severity;

/// An event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Note {
    pub(super) severity: Severity,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

fn normal(reason: &'static str, message: impl Into<String>) -> Note {
    Note { severity: Severity::Normal, reason, message: message.into() }
}

fn warning(reason: &'static str, message: impl Into<String>) -> Note {
    Note { severity: Severity::Warning, reason, message: message.into() }
}

const FAILED_BINDING: &str = "FailedBinding";
const VOLUME_MISMATCH: &str = "VolumeMismatch";
const PROVISIONING_FAILED: &str = "ProvisioningFailed";
const CLAIM_LOST: &str = "ClaimLost";
const VOLUME_FAILED_DELETE: &str = "VolumeFailedDelete";

pub(super) fn no_volume() -> Note {
    normal(FAILED_BINDING, "no persistent volumes available for this claim and no storage class is set")
}

pub(super) fn of_another_claim(volume: &str) -> Note {
    warning(FAILED_BINDING, format!("volume {volume:?} already bound to a different claim."))
}

/// The claim of a pod's ephemeral volume could not be made.
pub(super) fn claim_not_made(volume: &str, claim: &str, why: &str) -> Note {
    warning(FAILED_BINDING, format!("ephemeral volume {volume}: create PVC {claim}: {why}"))
}

/// There is a claim of that name which is not the pod's (`VolumeIsForPod`).
pub(super) fn claim_of_another(volume: &str, claim: &str, pod: &str) -> Note {
    let why = format!("PVC {claim} was not created for pod {pod} (pod is not owner)");
    warning(FAILED_BINDING, format!("ephemeral volume {volume}: {why}"))
}

/// The claim names a volume that does not satisfy it.
pub(super) fn does_not_fit(volume: &str, why: &str) -> Note {
    warning(VOLUME_MISMATCH, format!("Cannot bind to requested volume {volume:?}: {why}"))
}

pub(super) fn volume_of_other_mode(claim: &str) -> Note {
    warning(
        VOLUME_MISMATCH,
        format!(
            "Cannot bind PersistentVolume to requested PersistentVolumeClaim {claim:?} due to incompatible volumeMode."
        ),
    )
}

pub(super) fn claim_of_other_mode(volume: &str) -> Note {
    warning(
        VOLUME_MISMATCH,
        format!(
            "Cannot bind PersistentVolume {volume:?} to requested PersistentVolumeClaim due to incompatible volumeMode."
        ),
    )
}

/// The claim waits for a pod, or for the scheduler to place those that there are.
pub(super) fn wait_for_consumer(pods: &[String]) -> Note {
    match pods {
        [] => normal("WaitForFirstConsumer", "waiting for first consumer to be created before binding"),
        [pod] => normal("WaitForPodScheduled", format!("waiting for pod {pod} to be scheduled")),
        pods => normal("WaitForPodScheduled", format!("waiting for pods {} to be scheduled", pods.join(","))),
    }
}

pub(super) fn external_provisioning(provisioner: &str) -> Note {
    normal(
        "ExternalProvisioning",
        format!(
            "Waiting for a volume to be created either by the external provisioner '{provisioner}' or manually by the \
             system administrator. If volume creation is delayed, please verify that the provisioner is running and \
             correctly registered."
        ),
    )
}

pub(super) fn no_class(class: &str) -> Note {
    warning(PROVISIONING_FAILED, format!("storageclass.storage.k8s.io {class:?} not found"))
}

pub(super) fn no_provisioner(provisioner: &str) -> Note {
    warning(PROVISIONING_FAILED, no_plugin(provisioner))
}

pub(super) fn lost_volume() -> Note {
    warning(CLAIM_LOST, "Bound claim has lost its PersistentVolume. Data on the volume is lost!")
}

pub(super) fn lost_reference() -> Note {
    warning(CLAIM_LOST, "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!")
}

pub(super) fn misbound() -> Note {
    warning("ClaimMisbound", "Two claims are bound to the same volume, this one is bound incorrectly")
}

/// There is no plugin of this name: none of Kubernetes' own exists here.
fn no_plugin(name: &str) -> String {
    format!("no volume plugin matched name: {name}")
}

/// The plugin that provisioned a volume does not exist, so that it cannot delete it.
pub(super) fn no_deleter_of(provisioner: &str) -> Note {
    warning(VOLUME_FAILED_DELETE, no_plugin(provisioner))
}

/// A volume that was not provisioned has no deleter.
pub(super) fn no_deleter(volume: &str) -> Note {
    warning(
        VOLUME_FAILED_DELETE,
        format!("error getting deleter volume plugin for volume {volume:?}: no deletable volume plugin matched"),
    )
}

pub(super) fn no_recycler() -> Note {
    warning("VolumeFailedRecycle", "No recycler plugin found for the volume!")
}

pub(super) fn unknown_policy() -> Note {
    warning("VolumeUnknownReclaimPolicy", "Volume has unrecognized PersistentVolumeReclaimPolicy")
}
