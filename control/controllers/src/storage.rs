//! What controllers read of claims, volumes and storage classes; upstream's `component-helpers/storage/volume`. Pure.

use k8s_openapi::{
    api::{
        core::v1::{PersistentVolume, PersistentVolumeClaim},
        storage::v1::StorageClass,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
pub(super) use windlass_kit::objects::claims::{BIND_COMPLETED, BOUND_BY_CONTROLLER, SELECTED_NODE};
use windlass_kit::{
    objects::{
        claims::{self, CLASS_ANNOTATION},
        resources::amount,
    },
    quantity::Quantity,
};

use super::runtime::{Index, Key};

/// The provisioner that has made a volume (`AnnDynamicallyProvisioned`).
pub(super) const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// The provisioner that is asked for a volume (`AnnStorageProvisioner`).
pub(super) const STORAGE_PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
/// The same by its older name (`AnnBetaStorageProvisioner`).
pub(super) const BETA_STORAGE_PROVISIONER: &str = "volume.beta.kubernetes.io/storage-provisioner";
/// The provisioner of directories of this machine.
pub(super) const LOCAL_PATH_PROVISIONER: &str = "windlass.io/local-path";
/// Marks the default class (`IsDefaultStorageClassAnnotation`).
pub(super) const DEFAULT_MARK: &str = "storageclass.kubernetes.io/is-default-class";
const DEFAULT_MARKS: [&str; 2] = [DEFAULT_MARK, "storageclass.beta.kubernetes.io/is-default-class"];

/// Classes that are marked as the default, all under one value.
pub(super) const DEFAULT_CLASSES: Index<StorageClass> =
    Index::new("default", |class| is_default(class).then(String::new).into_iter().collect());
/// Claims by the volume that they name.
pub(super) const CLAIMS_BY_VOLUME: Index<PersistentVolumeClaim> =
    Index::new("volume", |claim| volume_of(claim).map(str::to_owned).into_iter().collect());
/// Claims that are not bound, by storage class.
pub(super) const UNBOUND_CLAIMS_BY_CLASS: Index<PersistentVolumeClaim> =
    Index::new("unbound", |claim| (!is_bound(claim)).then(|| class_of_claim(claim).to_owned()).into_iter().collect());
/// Volumes that belong to no claim, by storage class.
pub(super) const FREE_VOLUMES_BY_CLASS: Index<PersistentVolume> = Index::new("free", |volume| {
    holder_of(volume).is_none().then(|| class_of_volume(volume).to_owned()).into_iter().collect()
});
/// Volumes that belong to a claim or are reserved for one, by that claim, as `namespace/claim`.
pub(super) const VOLUMES_BY_CLAIM: Index<PersistentVolume> =
    Index::new("claim", |volume| holder_of(volume).map(|key| key.to_string()).into_iter().collect());

/// An annotation that is not empty.
pub(super) fn annotation<'a>(meta: &'a ObjectMeta, name: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(name).map(String::as_str).filter(|value| !value.is_empty())
}

pub(super) fn has_annotation(meta: &ObjectMeta, name: &str) -> bool {
    meta.annotations.as_ref().is_some_and(|all| all.contains_key(name))
}

/// The class of a claim, empty for none (`GetPersistentVolumeClaimClass`).
pub(super) fn class_of_claim(claim: &PersistentVolumeClaim) -> &str {
    claims::class(&claim.metadata, claim.spec.as_ref().and_then(|s| s.storage_class_name.as_ref()))
}

/// Whether a claim says anything of its class, be it that it wants none (`PersistentVolumeClaimHasClass`).
pub(super) fn names_class(claim: &PersistentVolumeClaim) -> bool {
    has_annotation(&claim.metadata, CLASS_ANNOTATION)
        || claim.spec.as_ref().is_some_and(|s| s.storage_class_name.is_some())
}

/// The class of a volume, empty for none (`GetPersistentVolumeClass`).
pub(super) fn class_of_volume(volume: &PersistentVolume) -> &str {
    claims::class(&volume.metadata, volume.spec.as_ref().and_then(|s| s.storage_class_name.as_ref()))
}

/// Whether the provisioner of directories has made a volume.
pub(super) fn is_local_path(volume: &PersistentVolume) -> bool {
    annotation(&volume.metadata, PROVISIONED_BY) == Some(LOCAL_PATH_PROVISIONER)
}

pub(super) fn is_default(class: &StorageClass) -> bool {
    let annotations = class.metadata.annotations.as_ref();
    DEFAULT_MARKS.iter().any(|mark| annotations.and_then(|all| all.get(*mark)).is_some_and(|value| value == "true"))
}

/// Of several default classes the newest, and of those that are as old the first by name (`GetDefaultClass`).
pub(super) fn default_class<'a>(classes: impl Iterator<Item = &'a StorageClass>) -> Option<&'a StorageClass> {
    let created = |class: &StorageClass| class.metadata.creation_timestamp.as_ref().map(|time| time.0);
    classes.filter(|class| is_default(class)).max_by(|one, other| {
        let by_age = created(one).cmp(&created(other));
        by_age.then_with(|| other.metadata.name.cmp(&one.metadata.name))
    })
}

/// Whether the claims of a class wait for a pod (`IsDelayBindingMode`).
pub(super) fn delays_binding(class: &StorageClass) -> bool {
    class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer")
}

/// The claim that a volume belongs to or is reserved for.
pub(super) fn holder_of(volume: &PersistentVolume) -> Option<Key> {
    let holder = volume.spec.as_ref()?.claim_ref.as_ref()?;
    Some(Key::new(holder.namespace.clone().unwrap_or_default(), holder.name.clone().unwrap_or_default()))
}

/// The UID of the claim that a volume belongs to; `None` also where it is only reserved.
pub(super) fn holder_uid(volume: &PersistentVolume) -> Option<&str> {
    volume.spec.as_ref()?.claim_ref.as_ref()?.uid.as_deref().filter(|uid| !uid.is_empty())
}

/// Whether a volume belongs to a claim or is reserved for it (`IsVolumeBoundToClaim`).
pub(super) fn is_held_by(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    holder_of(volume).is_some_and(|key| key == Key::of(&claim.metadata))
        && holder_uid(volume).is_none_or(|uid| Some(uid) == claim.metadata.uid.as_deref())
}

/// The volume that a claim names.
pub(super) fn volume_of(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.spec.as_ref().and_then(|s| s.volume_name.as_deref()).filter(|n| !n.is_empty())
}

/// Whether the claim has been bound, whatever became of its volume.
pub(super) fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    has_annotation(&claim.metadata, BIND_COMPLETED)
}

/// How much a claim asks for.
pub(super) fn requested(claim: &PersistentVolumeClaim) -> Quantity {
    let resources = claim.spec.as_ref().and_then(|s| s.resources.as_ref());
    amount(resources.and_then(|r| r.requests.as_ref()), "storage").unwrap_or(Quantity::from_bytes(0))
}

/// How much a bound claim has.
pub(super) fn claim_capacity(claim: &PersistentVolumeClaim) -> Option<Quantity> {
    amount(claim.status.as_ref().and_then(|s| s.capacity.as_ref()), "storage")
}

/// How much a volume holds.
pub(super) fn capacity(volume: &PersistentVolume) -> Quantity {
    amount(volume.spec.as_ref().and_then(|s| s.capacity.as_ref()), "storage").unwrap_or(Quantity::from_bytes(0))
}

/// Whether one wants files and the other gives a block device, or the other way (`CheckVolumeModeMismatches`).
pub(super) fn modes_differ(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    let of = |mode: Option<&str>| mode == Some("Block");
    of(claim.spec.as_ref().and_then(|s| s.volume_mode.as_deref()))
        != of(volume.spec.as_ref().and_then(|s| s.volume_mode.as_deref()))
}

/// The phase of a volume's status.
pub(super) fn volume_phase(volume: &PersistentVolume) -> &str {
    volume.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("Pending")
}

/// The phase of a claim's status.
pub(super) fn claim_phase(claim: &PersistentVolumeClaim) -> &str {
    claim.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default()
}

/// What becomes of a volume without its claim.
pub(super) fn reclaim_policy(volume: &PersistentVolume) -> &str {
    volume.spec.as_ref().and_then(|s| s.persistent_volume_reclaim_policy.as_deref()).unwrap_or("Retain")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_newest_default_class_counts() {
        let class = |name: &str, created: &str, mark: &str| -> StorageClass {
            serde_json::from_value(json!({"metadata": {"name": name, "creationTimestamp": created,
                "annotations": {mark: "true"}}, "provisioner": "p"}))
            .unwrap()
        };
        let [mark, beta] = DEFAULT_MARKS;
        let (old, new) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
        let all = [class("a", old, mark), class("c", new, beta), class("b", new, mark), class("z", new, "other")];
        let name = |all: &[StorageClass]| default_class(all.iter()).and_then(|class| class.metadata.name.clone());
        assert_eq!(name(&all).as_deref(), Some("b"));
        assert_eq!(name(&all[..1]).as_deref(), Some("a"));
        assert_eq!(name(&all[3..]), None);
    }

    #[test]
    fn a_class_may_stand_in_an_annotation() {
        let claim = |value| serde_json::from_value::<PersistentVolumeClaim>(value).unwrap();
        let by_annotation = claim(json!({"metadata": {"annotations": {CLASS_ANNOTATION: "old"}},
            "spec": {"storageClassName": "new"}}));
        assert_eq!((class_of_claim(&by_annotation), names_class(&by_annotation)), ("old", true));
        let none = claim(json!({"spec": {"storageClassName": ""}}));
        assert_eq!((class_of_claim(&none), names_class(&none)), ("", true), "an empty one is one that was chosen");
        let unset = claim(json!({"spec": {}}));
        assert_eq!((class_of_claim(&unset), names_class(&unset)), ("", false));
    }
}
