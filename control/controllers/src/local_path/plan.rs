//! What becomes of claims and volumes of the provisioner. Pure.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use k8s_openapi::{
    api::{
        core::v1::{
            LocalVolumeSource, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PersistentVolume,
            PersistentVolumeClaim, PersistentVolumeSpec, VolumeNodeAffinity,
        },
        storage::v1::StorageClass,
    },
    apimachinery::pkg::api::resource::Quantity,
};
use kube::{Resource as _, api::ObjectMeta};
use windlass_kit::objects::node_selector;

use super::{FINALIZER, Place, messages};
use crate::{
    runtime::{CachedNode, Key},
    storage::{
        BETA_STORAGE_PROVISIONER, LOCAL_PATH_PROVISIONER, PROVISIONED_BY, SELECTED_NODE, STORAGE_PROVISIONER,
        annotation, capacity, claim_capacity, class_of_claim, delays_binding, holder_uid, is_bound, is_local_path,
        reclaim_policy, requested, volume_of, volume_phase,
    },
};

pub(super) const HOSTNAME: &str = "kubernetes.io/hostname";
/// The longest name of a directory.
const NAME_MAX: usize = 255;

/// What a claim needs.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ClaimStep {
    Nothing,
    /// A directory of this name, then this volume.
    Provision {
        directory: String,
        volume: Box<PersistentVolume>,
    },
    /// It cannot be done.
    Fail(String),
    /// It cannot be done on the node that was chosen: the scheduler chooses again (`ProvisioningReschedule`).
    Reschedule(String),
    /// Its volume has to hold as much as it asks for.
    GrowVolume(Quantity),
    /// Its volume holds more than its status says.
    ShowCapacity(Quantity),
}

/// Whether a claim asks this provisioner for a volume.
pub(super) fn is_asked(claim: &PersistentVolumeClaim) -> bool {
    let named = annotation(&claim.metadata, STORAGE_PROVISIONER);
    named.or(annotation(&claim.metadata, BETA_STORAGE_PROVISIONER)) == Some(LOCAL_PATH_PROVISIONER)
}

pub(super) fn volume_name(claim: &PersistentVolumeClaim) -> Option<String> {
    claim.metadata.uid.as_ref().map(|uid| format!("pvc-{uid}"))
}

/// `volume`: the one of the claim, or that has the name which its own would get. `node`: the one that was chosen.
pub(super) fn claim_step(
    place: &Place,
    claim: &PersistentVolumeClaim,
    class: Option<&StorageClass>,
    volume: Option<&PersistentVolume>,
    node: Option<&CachedNode>,
) -> ClaimStep {
    if claim.metadata.deletion_timestamp.is_some() {
        return ClaimStep::Nothing;
    }
    if is_bound(claim) {
        return volume.map_or(ClaimStep::Nothing, |volume| growth(claim, volume));
    }
    let (true, None, Some(class), Some(name)) = (
        is_asked(claim),
        volume_of(claim),
        class.filter(|c| c.provisioner == LOCAL_PATH_PROVISIONER),
        volume_name(claim),
    ) else {
        return ClaimStep::Nothing;
    };
    let fail = |why: &str| ClaimStep::Fail(messages::failed(class_of_claim(claim), why));
    let spec = claim.spec.as_ref();
    match volume {
        // Binding it is for the binder.
        Some(made) if is_local_path(made) && holder_uid(made) == claim.metadata.uid.as_deref() => {
            return ClaimStep::Nothing;
        }
        Some(_) => return fail(&messages::name_is_taken(&name)),
        None => {}
    }
    if spec.and_then(|s| s.volume_mode.as_deref()) == Some("Block") {
        return ClaimStep::Fail(messages::no_block_volumes(LOCAL_PATH_PROVISIONER));
    }
    if spec.is_some_and(|s| s.selector.is_some()) {
        return fail(messages::NO_SELECTOR);
    }
    let Some(selected) = annotation(&claim.metadata, SELECTED_NODE) else {
        return if delays_binding(class) { ClaimStep::Nothing } else { fail(messages::NO_NODE) };
    };
    let reschedule = |why: &str| ClaimStep::Reschedule(messages::failed(class_of_claim(claim), why));
    let Some(node) = node else { return reschedule(&messages::no_such_node(selected)) };
    if selected != place.node {
        return reschedule(&messages::other_node(selected, &place.node));
    }
    let directory = directory_name(&name, claim);
    let volume = Box::new(volume_for(place, claim, class, node, &name, &directory));
    ClaimStep::Provision { directory, volume }
}

/// `<volume>_<namespace>_<claim>`, as far as a directory may be so long.
fn directory_name(volume: &str, claim: &PersistentVolumeClaim) -> String {
    let Key { namespace, name } = Key::of(&claim.metadata);
    let mut directory = format!("{volume}_{namespace}_{name}");
    // Names of objects are ASCII.
    directory.truncate(NAME_MAX);
    directory
}

fn volume_for(
    place: &Place,
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    node: &CachedNode,
    name: &str,
    directory: &str,
) -> PersistentVolume {
    let policy = class.reclaim_policy.clone().unwrap_or_else(|| "Delete".to_owned());
    let label = node.metadata.labels.as_ref().and_then(|labels| labels.get(HOSTNAME));
    let on_node = NodeSelectorRequirement {
        key: HOSTNAME.to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![label.unwrap_or(&place.node).clone()]),
    };
    let term = NodeSelectorTerm { match_expressions: Some(vec![on_node]), match_fields: None };
    let size = claim.spec.as_ref().and_then(|s| s.resources.as_ref()?.requests.as_ref()?.get("storage").cloned());
    PersistentVolume {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            annotations: Some(BTreeMap::from([(PROVISIONED_BY.to_owned(), LOCAL_PATH_PROVISIONER.to_owned())])),
            finalizers: (policy == "Delete").then(|| vec![FINALIZER.to_owned()]),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeSpec {
            capacity: size.map(|size| BTreeMap::from([("storage".to_owned(), size)])),
            access_modes: claim.spec.as_ref().and_then(|s| s.access_modes.clone()),
            claim_ref: Some(claim.object_ref(&())),
            local: Some(LocalVolumeSource {
                path: place.dir.join(directory).to_string_lossy().into_owned(),
                fs_type: None,
            }),
            mount_options: class.mount_options.clone().filter(|options| !options.is_empty()),
            node_affinity: Some(VolumeNodeAffinity {
                required: Some(NodeSelector { node_selector_terms: vec![term] }),
            }),
            persistent_volume_reclaim_policy: Some(policy),
            storage_class_name: Some(class_of_claim(claim).to_owned()),
            volume_mode: Some("Filesystem".to_owned()),
            ..PersistentVolumeSpec::default()
        }),
        status: None,
    }
}

/// Nothing holds a directory to a size, so that its volume grows by saying so.
fn growth(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> ClaimStep {
    if !is_local_path(volume) || holder_uid(volume) != claim.metadata.uid.as_deref() {
        return ClaimStep::Nothing;
    }
    let stored = |list: Option<&BTreeMap<String, Quantity>>| list.and_then(|list| list.get("storage").cloned());
    let wanted = claim.spec.as_ref().and_then(|s| stored(s.resources.as_ref()?.requests.as_ref()));
    let held = volume.spec.as_ref().and_then(|s| stored(s.capacity.as_ref()));
    match (wanted, held, claim_capacity(claim)) {
        (Some(wanted), ..) if capacity(volume) < requested(claim) => ClaimStep::GrowVolume(wanted),
        (_, Some(held), Some(shown)) if shown < capacity(volume) => ClaimStep::ShowCapacity(held),
        _ => ClaimStep::Nothing,
    }
}

/// What a volume needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum VolumeStep {
    Nothing,
    /// It is held until its data is removed, or not any more.
    Finalizer(bool),
    /// From here on no claim gets it: it is deleted in the API, where the finalizer holds it.
    Delete,
    /// The directory of this name is removed, then the finalizer.
    Erase(String),
    /// It is to be removed and cannot be.
    Refuse(String),
}

/// `labels`: those of this node. `sharing`: other volumes at the same path or below.
pub(super) fn volume_step(
    place: &Place,
    volume: &PersistentVolume,
    labels: &BTreeMap<String, String>,
    sharing: &[&PersistentVolume],
) -> VolumeStep {
    let affinity = volume.spec.as_ref().and_then(|s| s.node_affinity.as_ref()?.required.as_ref());
    let is_here = affinity.is_some_and(|required| node_selector::matches(required, &place.node, labels));
    if !is_local_path(volume) || !is_here {
        return VolumeStep::Nothing;
    }
    let is_held = volume.metadata.finalizers.iter().flatten().any(|f| f == FINALIZER);
    let is_ending = volume.metadata.deletion_timestamp.is_some();
    if reclaim_policy(volume) != "Delete" {
        return if is_held { VolumeStep::Finalizer(false) } else { VolumeStep::Nothing };
    }
    match volume_phase(volume) {
        "Released" | "Failed" if !is_held && is_ending => VolumeStep::Nothing,
        "Released" | "Failed" if !is_held => VolumeStep::Finalizer(true),
        "Released" | "Failed" => match removable(place, volume, sharing) {
            Err(why) => VolumeStep::Refuse(why),
            Ok(_) if !is_ending => VolumeStep::Delete,
            Ok(directory) => VolumeStep::Erase(directory),
        },
        // Of an unclaimed volume that a user deletes, only the object is removed; its data stays.
        "Available" if is_held && is_ending && holder_uid(volume).is_none() => VolumeStep::Finalizer(false),
        _ if !is_held && !is_ending => VolumeStep::Finalizer(true),
        _ => VolumeStep::Nothing,
    }
}

/// The path of a volume that is a directory of some node.
pub(super) fn path_of(volume: &PersistentVolume) -> Option<&str> {
    let spec = volume.spec.as_ref()?;
    let local = spec.local.as_ref().map(|local| local.path.as_str());
    local.or(spec.host_path.as_ref().map(|host| host.path.as_str()))
}

/// The directory of a volume, if it is one that was made for it and no other volume has part of it.
fn removable(place: &Place, volume: &PersistentVolume, sharing: &[&PersistentVolume]) -> Result<String, String> {
    let path = path_of(volume).unwrap_or_default();
    let name = volume.metadata.name.as_deref().unwrap_or_default();
    let dir = place.dir.to_string_lossy();
    let below = path.strip_prefix(dir.trim_end_matches('/')).and_then(|rest| rest.strip_prefix('/'));
    // One name, that no path leads out of.
    let directory = below.filter(|directory| {
        !name.is_empty()
            && directory.strip_prefix(name).is_some_and(|rest| rest.starts_with('_'))
            && !directory.contains(['/', '\0'])
    });
    let Some(directory) = directory else {
        return Err(messages::foreign_path(path, &dir));
    };
    match sharing.iter().find(|other| other.metadata.name != volume.metadata.name) {
        Some(other) => Err(messages::shared_path(path, other.metadata.name.as_deref().unwrap_or_default())),
        None => Ok(directory.to_owned()),
    }
}

/// A path in the one form in which paths are compared.
pub(super) fn normal(path: &str) -> String {
    Path::new(path).components().collect::<PathBuf>().to_string_lossy().into_owned()
}

/// A path and those above it, under which a volume is found.
pub(super) fn path_and_parents(path: &str) -> Vec<String> {
    let path = normal(path);
    let is_more = |parent: &&Path| parent.parent().is_some();
    let all = Path::new(&path).ancestors().take_while(is_more).map(|parent| parent.to_string_lossy().into_owned());
    all.collect()
}

/// The directories of volumes, as their names say, that no volume has.
pub(super) fn orphans(directories: &[String], has_volume: impl Fn(&str) -> bool) -> Vec<&String> {
    let is_orphan = |directory: &&String| {
        directory.starts_with("pvc-") && directory.split_once('_').is_some_and(|(volume, _)| !has_volume(volume))
    };
    directories.iter().filter(is_orphan).collect()
}
