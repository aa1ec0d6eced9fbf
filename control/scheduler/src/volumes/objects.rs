//! What is kept of claims, volumes and classes. Pure.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{
    api::{
        core::v1::{NodeSelector, PersistentVolume, PersistentVolumeClaim, TopologySelectorTerm},
        storage::v1::StorageClass,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use windlass_kit::{
    objects::{
        claims::{self, BIND_COMPLETED, SELECTED_NODE},
        resources::amount,
    },
    quantity::Quantity,
};

use super::VolumeIndex;
use crate::model::{Key, Selector};

/// Classes whose volumes have no provisioner (upstream's `NotSupportedProvisioner`).
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";
/// Labels of volumes that name zones and regions.
const ZONE_LABELS: [&str; 4] = [
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
];

#[derive(Debug, Clone)]
pub(super) struct ClaimState {
    pub(super) uid: String,
    /// The UID of its controller: of the pod, if it is of an ephemeral volume.
    pub(super) controller: Option<String>,
    pub(super) version: String,
    pub(super) class: String,
    /// The volume that it names.
    pub(super) volume: Option<String>,
    /// It is bound to that volume.
    pub(super) bound: bool,
    pub(super) lost: bool,
    pub(super) deleting: bool,
    pub(super) selected_node: Option<String>,
    pub(super) annotated: bool,
    pub(super) size: i64,
    pub(super) access_modes: Vec<String>,
    pub(super) block: bool,
    pub(super) attributes_class: Option<String>,
    pub(super) selector: Option<Selector>,
}

#[derive(Debug, Clone)]
pub(super) struct VolumeState {
    pub(super) version: String,
    pub(super) class: String,
    pub(super) capacity: i64,
    pub(super) access_modes: Vec<String>,
    pub(super) block: bool,
    pub(super) attributes_class: Option<String>,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) zones: Vec<(String, BTreeSet<String>)>,
    pub(super) affinity: Option<NodeSelector>,
    /// Namespace and name of its claim, and the claim's UID once it has that.
    pub(super) claim: Option<(Key, String)>,
    pub(super) available: bool,
    pub(super) deleting: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct ClassState {
    /// `volumeBindingMode: WaitForFirstConsumer`.
    pub(super) delayed: bool,
    /// Volumes of the class are made on demand.
    pub(super) provisioned: bool,
    pub(super) topologies: Vec<TopologySelectorTerm>,
}

impl ClaimState {
    fn of(claim: &PersistentVolumeClaim) -> Self {
        let spec = claim.spec.as_ref();
        let phase = claim.status.as_ref().and_then(|s| s.phase.as_deref());
        let annotation = |name: &str| claim.metadata.annotations.as_ref().and_then(|a| a.get(name));
        let requests = spec.and_then(|s| s.resources.as_ref()).and_then(|r| r.requests.as_ref());
        let volume = spec.and_then(|s| s.volume_name.clone()).filter(|v| !v.is_empty());
        let selector = spec.and_then(|s| s.selector.as_ref());
        let mut owners = claim.metadata.owner_references.iter().flatten();
        Self {
            uid: claim.metadata.uid.clone().unwrap_or_default(),
            controller: owners.find(|owner| owner.controller == Some(true)).map(|owner| owner.uid.clone()),
            version: claim.metadata.resource_version.clone().unwrap_or_default(),
            class: claims::class(&claim.metadata, spec.and_then(|s| s.storage_class_name.as_ref())).to_owned(),
            bound: volume.is_some() && (annotation(BIND_COMPLETED).is_some() || phase == Some("Bound")),
            volume,
            lost: phase == Some("Lost"),
            deleting: claim.metadata.deletion_timestamp.is_some(),
            selected_node: annotation(SELECTED_NODE).filter(|node| !node.is_empty()).cloned(),
            annotated: claim.metadata.annotations.as_ref().is_some_and(|a| !a.is_empty()),
            size: amount(requests, "storage").map_or(0, Quantity::units),
            access_modes: spec.and_then(|s| s.access_modes.clone()).unwrap_or_default(),
            block: spec.and_then(|s| s.volume_mode.as_deref()) == Some("Block"),
            attributes_class: spec.and_then(|s| s.volume_attributes_class_name.clone()).filter(|c| !c.is_empty()),
            selector: selector.map(|selector| Selector::of(Some(selector))),
        }
    }

    /// Whether a change of the claim has no effect on scheduling.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.uid == other.uid
            && self.controller == other.controller
            && self.class == other.class
            && self.volume == other.volume
            && self.bound == other.bound
            && self.lost == other.lost
            && self.deleting == other.deleting
            && self.selected_node == other.selected_node
            && self.size == other.size
    }
}

impl VolumeState {
    fn of(volume: &PersistentVolume) -> Self {
        let spec = volume.spec.as_ref();
        let labels = volume.metadata.labels.clone().unwrap_or_default();
        let zones = labels.iter().filter(|(label, _)| ZONE_LABELS.contains(&label.as_str()));
        let zones = zones.map(|(label, values)| (label.clone(), values.split("__").map(str::to_owned).collect()));
        let holder = spec.and_then(|s| s.claim_ref.as_ref());
        Self {
            version: volume.metadata.resource_version.clone().unwrap_or_default(),
            class: claims::class(&volume.metadata, spec.and_then(|s| s.storage_class_name.as_ref())).to_owned(),
            capacity: amount(spec.and_then(|s| s.capacity.as_ref()), "storage").map_or(0, Quantity::units),
            access_modes: spec.and_then(|s| s.access_modes.clone()).unwrap_or_default(),
            block: spec.and_then(|s| s.volume_mode.as_deref()) == Some("Block"),
            attributes_class: spec.and_then(|s| s.volume_attributes_class_name.clone()).filter(|c| !c.is_empty()),
            zones: zones.collect(),
            labels,
            affinity: spec.and_then(|s| s.node_affinity.as_ref()?.required.clone()),
            claim: holder.map(|claim| {
                let key = (claim.namespace.clone().unwrap_or_default(), claim.name.clone().unwrap_or_default());
                (key, claim.uid.clone().unwrap_or_default())
            }),
            available: volume.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Available"),
            deleting: volume.metadata.deletion_timestamp.is_some(),
        }
    }

    /// Whether a claim could get it: it is available, or reserved by name for a claim that is not bound yet.
    pub(super) fn may_be_given(&self) -> bool {
        !self.deleting && (self.available || self.claim.is_some())
    }

    /// Whether a change of the volume has no effect on scheduling.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.class == other.class
            && self.capacity == other.capacity
            && self.labels == other.labels
            && self.affinity == other.affinity
            && self.claim == other.claim
            && self.available == other.available
            && self.deleting == other.deleting
    }
}

/// What a change of an object concerns.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Concerned {
    /// The claims that pods use.
    pub(crate) claims: Vec<Key>,
    /// A class, whose unbound claims it may help.
    pub(crate) class: Option<String>,
}

/// A kind of object in the index. Keys of those without a namespace have an empty one.
pub(crate) trait Stored {
    /// Adds or updates an object; returns whether anything changed.
    fn applied(&self, storage: &mut VolumeIndex) -> bool;

    fn removed(storage: &mut VolumeIndex, key: &Key);

    fn concerns(storage: &VolumeIndex, key: &Key) -> Concerned;

    fn keys(storage: &VolumeIndex) -> Vec<Key>;
}

impl Stored for PersistentVolumeClaim {
    fn applied(&self, storage: &mut VolumeIndex) -> bool {
        storage.set_claim(key_of(&self.metadata), Some(ClaimState::of(self)))
    }

    fn removed(storage: &mut VolumeIndex, key: &Key) {
        storage.set_claim(key.clone(), None);
    }

    fn concerns(_: &VolumeIndex, key: &Key) -> Concerned {
        Concerned { claims: vec![key.clone()], class: None }
    }

    fn keys(storage: &VolumeIndex) -> Vec<Key> {
        storage.claims.keys().cloned().collect()
    }
}

impl Stored for PersistentVolume {
    fn applied(&self, storage: &mut VolumeIndex) -> bool {
        storage.set_volume(&key_of(&self.metadata).1, Some(VolumeState::of(self)))
    }

    fn removed(storage: &mut VolumeIndex, key: &Key) {
        storage.set_volume(&key.1, None);
    }

    fn concerns(storage: &VolumeIndex, key: &Key) -> Concerned {
        let claims: Vec<Key> = storage.by_volume.get(&key.1).into_iter().flatten().cloned().collect();
        let volume = storage.volumes.get(&key.1);
        let free = volume.filter(|volume| volume.may_be_given() && claims.is_empty());
        let class = free.map(|volume| volume.class.clone());
        let holder = volume.and_then(|volume| volume.claim.as_ref()).map(|(claim, _)| claim.clone());
        Concerned { claims: claims.into_iter().chain(holder).collect(), class }
    }

    fn keys(storage: &VolumeIndex) -> Vec<Key> {
        storage.volumes.keys().map(|name| (String::new(), name.clone())).collect()
    }
}

impl Stored for StorageClass {
    fn applied(&self, storage: &mut VolumeIndex) -> bool {
        let new = ClassState {
            delayed: self.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"),
            provisioned: !matches!(self.provisioner.as_str(), "" | NO_PROVISIONER),
            topologies: self.allowed_topologies.clone().unwrap_or_default(),
        };
        storage.classes.insert(key_of(&self.metadata).1, new.clone()) != Some(new)
    }

    fn removed(storage: &mut VolumeIndex, key: &Key) {
        storage.classes.remove(&key.1);
    }

    fn concerns(_: &VolumeIndex, key: &Key) -> Concerned {
        Concerned { claims: Vec::new(), class: Some(key.1.clone()) }
    }

    fn keys(storage: &VolumeIndex) -> Vec<Key> {
        storage.classes.keys().map(|name| (String::new(), name.clone())).collect()
    }
}

fn key_of(metadata: &ObjectMeta) -> Key {
    (metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
}
