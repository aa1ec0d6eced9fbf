//! What becomes of a volume; upstream's `syncVolume` and `reclaimVolume`. Pure.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};

use super::messages::{self, Note};
use crate::storage::{
    PROVISIONED_BY, annotation, has_annotation, holder_of, holder_uid, modes_differ, reclaim_policy, volume_of,
    volume_phase,
};

/// What a volume needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum VolumeStep {
    /// It stays as it is.
    Keep,
    /// Its status gets this phase.
    Phase(&'static str),
    /// It cannot be reclaimed; the phase becomes Failed with that message.
    Fail(Note),
    /// Its claim is bound elsewhere, so that it is free again.
    Unbind,
    /// Its claim, which is not bound yet, decides.
    LeaveToClaim,
    /// Its claim wants the other volume mode.
    Mismatch { on_volume: Note, on_claim: Note },
}

/// Whether the claim that a volume belongs to must be asked for at the API before the volume is released: a cache may be
/// behind. A released or failed volume needs no second look.
pub(super) fn needs_proof(volume: &PersistentVolume, claim: Option<&PersistentVolumeClaim>) -> bool {
    let uid = holder_uid(volume);
    uid.is_some() && claim.and_then(|c| c.metadata.uid.as_deref()) != uid && !is_given_up(volume)
}

/// The claim is that of the name in `claimRef`.
pub(super) fn decide(volume: &PersistentVolume, claim: Option<&PersistentVolumeClaim>) -> VolumeStep {
    let uid = holder_uid(volume);
    if holder_of(volume).is_none() || uid.is_none() {
        return phase(volume, "Available");
    }
    let name = volume.metadata.name.as_deref().unwrap_or_default();
    let Some(claim) = claim.filter(|claim| claim.metadata.uid.as_deref() == uid) else { return reclaim(volume) };
    match volume_of(claim) {
        None if modes_differ(claim, volume) => VolumeStep::Mismatch {
            on_volume: messages::volume_of_other_mode(claim.metadata.name.as_deref().unwrap_or_default()),
            on_claim: messages::claim_of_other_mode(name),
        },
        None => VolumeStep::LeaveToClaim,
        Some(bound) if bound == name => phase(volume, "Bound"),
        // Made for this claim, which has got another one.
        Some(_) if has_annotation(&volume.metadata, PROVISIONED_BY) && reclaim_policy(volume) == "Delete" => {
            reclaim(volume)
        }
        Some(_) => VolumeStep::Unbind,
    }
}

/// Whether volume and claim are bound to each other, so that the volume must stay (`isBeingUsed`).
pub(super) fn is_used(volume: &PersistentVolume, claim: Option<&PersistentVolumeClaim>) -> bool {
    let (uid, name) = (holder_uid(volume), volume.metadata.name.as_deref());
    uid.is_some() && claim.is_some_and(|claim| claim.metadata.uid.as_deref() == uid && volume_of(claim) == name)
}

fn phase(volume: &PersistentVolume, phase: &'static str) -> VolumeStep {
    if volume_phase(volume) == phase { VolumeStep::Keep } else { VolumeStep::Phase(phase) }
}

fn is_given_up(volume: &PersistentVolume) -> bool {
    matches!(volume_phase(volume), "Released" | "Failed")
}

/// A volume whose claim is gone: first the phase `Released` is written, then it is reclaimed, as far as possible here.
fn reclaim(volume: &PersistentVolume) -> VolumeStep {
    if !is_given_up(volume) {
        return VolumeStep::Phase("Released");
    }
    let name = volume.metadata.name.as_deref().unwrap_or_default();
    let failure = match reclaim_policy(volume) {
        "Retain" => None,
        "Delete" => match annotation(&volume.metadata, PROVISIONED_BY) {
            Some(plugin) if plugin.starts_with("kubernetes.io/") => Some(messages::no_deleter_of(plugin)),
            // Its provisioner deletes it.
            Some(_) => None,
            None => Some(messages::no_deleter(name)),
        },
        "Recycle" => Some(messages::no_recycler()),
        _ => Some(messages::unknown_policy()),
    };
    match failure {
        Some(note) if volume_phase(volume) != "Failed" => VolumeStep::Fail(note),
        _ => VolumeStep::Keep,
    }
}
