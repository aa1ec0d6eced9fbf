//! What becomes of a claim; upstream's `syncUnboundClaim` and `syncBoundClaim`. Pure.

use std::sync::Arc;

use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::StorageClass,
};
use serde_json::{Map, Value, json};

use super::{
    matching::{best_match, mismatch},
    messages::{self, Note},
};
use crate::storage::{
    SELECTED_NODE, claim_phase, class_of_claim, delays_binding, has_annotation, holder_of, holder_uid, is_bound,
    is_held_by, names_class, volume_of,
};

/// What is known besides a claim.
#[derive(Debug, Default)]
pub(super) struct Surroundings {
    /// The volumes that it may get: the one that it names, those that are reserved for it, and the free ones of its class.
    pub(super) candidates: Vec<Arc<PersistentVolume>>,
    /// Its class, if that exists.
    pub(super) class: Option<Arc<StorageClass>>,
    pub(super) default_class: Option<String>,
    /// The pods that use it and are on no node yet.
    pub(super) waiting_pods: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ClaimStep {
    /// Bind it to this volume, or complete that.
    Bind(String),
    /// Give it the default class.
    AssignClass(String),
    /// It stays unbound; the event about it.
    Wait(Option<Note>),
    /// Ask this provisioner for a volume.
    Provision(String),
    /// It has lost its volume for good.
    Lose(Note),
}

pub(super) fn decide(claim: &PersistentVolumeClaim, around: &Surroundings) -> ClaimStep {
    let named = |name: &str| around.candidates.iter().find(|v| v.metadata.name.as_deref() == Some(name));
    match (is_bound(claim), volume_of(claim)) {
        (true, None) => ClaimStep::Lose(messages::lost_reference()),
        (true, Some(name)) => match named(name) {
            None => ClaimStep::Lose(messages::lost_volume()),
            Some(volume) => match holder_uid(volume) {
                uid if uid.is_some() && uid == claim.metadata.uid.as_deref() => ClaimStep::Bind(name.to_owned()),
                _ if holder_of(volume).is_none() => ClaimStep::Bind(name.to_owned()),
                _ => ClaimStep::Lose(messages::misbound()),
            },
        },
        (false, Some(name)) => match named(name) {
            None => ClaimStep::Wait(None),
            Some(volume) if holder_of(volume).is_none() => match mismatch(claim, volume) {
                Some(why) => ClaimStep::Wait(Some(messages::does_not_fit(name, &why))),
                None => ClaimStep::Bind(name.to_owned()),
            },
            Some(volume) if is_held_by(volume, claim) => ClaimStep::Bind(name.to_owned()),
            Some(_) => ClaimStep::Wait(Some(messages::of_another_claim(name))),
        },
        (false, None) => any_volume(claim, around),
    }
}

/// A claim that names no volume.
fn any_volume(claim: &PersistentVolumeClaim, around: &Surroundings) -> ClaimStep {
    let delayed = around.class.as_deref().is_some_and(delays_binding);
    if let Some(volume) = best_match(claim, &around.candidates, delayed) {
        return ClaimStep::Bind(volume.metadata.name.clone().unwrap_or_default());
    }
    // `assignDefaultStorageClass`
    if let Some(default) = around.default_class.as_ref().filter(|_| !names_class(claim)) {
        return ClaimStep::AssignClass(default.clone());
    }
    if delayed && !has_annotation(&claim.metadata, SELECTED_NODE) {
        return ClaimStep::Wait(Some(messages::wait_for_consumer(&around.waiting_pods)));
    }
    match (class_of_claim(claim), around.class.as_deref()) {
        ("", _) => ClaimStep::Wait(Some(messages::no_volume())),
        (name, None) => ClaimStep::Wait(Some(messages::no_class(name))),
        // None of the plugins of that kind is built in.
        (_, Some(class)) if class.provisioner.starts_with("kubernetes.io/") => {
            ClaimStep::Wait(Some(messages::no_provisioner(&class.provisioner)))
        }
        (_, Some(class)) => ClaimStep::Provision(class.provisioner.clone()),
    }
}

/// The changes of a claim's status with a phase and the volume that it is bound to; `None` if it is as it must be
/// (`updateClaimStatus`).
pub(super) fn status_changes(
    claim: &PersistentVolumeClaim,
    phase: &str,
    volume: Option<&PersistentVolume>,
) -> Option<Value> {
    let status = claim.status.clone().unwrap_or_default();
    let spec = volume.and_then(|v| v.spec.as_ref());
    let becomes = claim_phase(claim) != phase;
    let mut changes = Map::new();
    if becomes {
        changes.insert("phase".to_owned(), json!(phase));
    }
    let modes = spec.and_then(|s| s.access_modes.clone());
    if status.access_modes != modes {
        changes.insert("accessModes".to_owned(), json!(modes));
    }
    // What a bound claim holds may differ from its volume, while that grows.
    let capacity = spec.and_then(|s| s.capacity.clone());
    if status.capacity != capacity && (becomes || volume.is_none()) {
        changes.insert("capacity".to_owned(), json!(capacity));
    }
    let attributes = spec.and_then(|s| s.volume_attributes_class_name.clone());
    if status.current_volume_attributes_class_name != attributes && (becomes || volume.is_none()) {
        changes.insert("currentVolumeAttributesClassName".to_owned(), json!(attributes));
    }
    (!changes.is_empty()).then_some(Value::Object(changes))
}
