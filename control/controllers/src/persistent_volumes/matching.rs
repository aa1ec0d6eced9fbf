//! Which volume satisfies a claim; upstream's `FindMatchingVolume` and `checkVolumeSatisfyClaim`. Pure.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use windlass_kit::objects::label_selector::selects;

use crate::storage::{
    capacity, class_of_claim, class_of_volume, holder_of, is_held_by, modes_differ, requested, volume_phase,
};

/// The volume for a claim that names none: one that is reserved for it or was provisioned for it, else the smallest of
/// those with the fewest access modes that satisfies it. A claim that waits for its pod (`delayed`) gets no other than the
/// first: the scheduler chooses.
pub(super) fn best_match<'a>(
    claim: &PersistentVolumeClaim,
    candidates: &'a [Arc<PersistentVolume>],
    delayed: bool,
) -> Option<&'a PersistentVolume> {
    let volumes = || candidates.iter().map(|volume| &**volume);
    let reserved = volumes().find(|volume| is_reserved(claim, volume));
    let fitting = volumes().filter(|volume| !delayed && fits(claim, volume) && volume_phase(volume) == "Available");
    reserved.or_else(|| fitting.min_by_key(|v| (modes(v).len(), capacity(v), v.metadata.name.clone())))
}

/// Whether a claim can have one of these volumes, now or when the volume's own turn has come.
pub(super) fn any_may_fit(claim: &PersistentVolumeClaim, volumes: &[PersistentVolume]) -> bool {
    let is_free = |volume: &PersistentVolume| matches!(volume_phase(volume), "Pending" | "Available");
    volumes.iter().any(|volume| is_reserved(claim, volume) || (fits(claim, volume) && is_free(volume)))
}

/// Whether a volume is for this claim, which it satisfies.
fn is_reserved(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    is_held_by(volume, claim) && mismatch_of_content(claim, volume).is_none()
}

/// Whether an unclaimed volume satisfies a claim.
fn fits(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    holder_of(volume).is_none()
        && class_of_volume(volume) == class_of_claim(claim)
        && mismatch_of_content(claim, volume).is_none()
        && is_selected(claim, volume)
}

/// Why a claim that names a volume cannot have it; upstream's words.
pub(super) fn mismatch(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Option<String> {
    let of_class = || {
        let differs = class_of_volume(volume) != class_of_claim(claim);
        differs.then(|| "storageClassName does not match".to_owned())
    };
    match mismatch_of_content(claim, volume) {
        Some(Mismatch::Deleted) => {
            Some(format!("the volume is marked for deletion {:?}", volume.metadata.name.as_deref().unwrap_or_default()))
        }
        Some(Mismatch::Size) => Some("requested PV is too small".to_owned()),
        other => of_class().or_else(|| match other? {
            Mismatch::Mode => Some("incompatible volumeMode".to_owned()),
            Mismatch::Access => Some("incompatible accessMode".to_owned()),
            Mismatch::Attributes => Some("volumeAttributesClassName does not match".to_owned()),
            Mismatch::Deleted | Mismatch::Size => None,
        }),
    }
}

enum Mismatch {
    Deleted,
    Size,
    Mode,
    Access,
    Attributes,
}

/// What keeps any claim, reserved or not, from a volume.
fn mismatch_of_content(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Option<Mismatch> {
    let attributes = |name: Option<&String>| name.cloned().unwrap_or_default();
    let (wanted, spec) = (claim.spec.as_ref(), volume.spec.as_ref());
    let mut requested_modes = wanted.and_then(|s| s.access_modes.as_deref()).unwrap_or_default().iter();
    if volume.metadata.deletion_timestamp.is_some() {
        Some(Mismatch::Deleted)
    } else if capacity(volume) < requested(claim) {
        Some(Mismatch::Size)
    } else if modes_differ(claim, volume) {
        Some(Mismatch::Mode)
    } else if !requested_modes.all(|mode| modes(volume).contains(mode)) {
        Some(Mismatch::Access)
    } else if attributes(wanted.and_then(|s| s.volume_attributes_class_name.as_ref()))
        != attributes(spec.and_then(|s| s.volume_attributes_class_name.as_ref()))
    {
        Some(Mismatch::Attributes)
    } else {
        None
    }
}

fn modes(volume: &PersistentVolume) -> &[String] {
    volume.spec.as_ref().and_then(|s| s.access_modes.as_deref()).unwrap_or_default()
}

fn is_selected(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    let selector = claim.spec.as_ref().and_then(|s| s.selector.as_ref());
    selector.is_none_or(|selector| selects(selector, volume.metadata.labels.as_ref().unwrap_or(&Default::default())))
}
