//! The ownership graph and its decisions. Pure.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::runtime::rest_mapper::{Kind, group_of};

pub(crate) const ORPHAN: &str = "orphan";
pub(crate) const FOREGROUND: &str = "foregroundDeletion";

/// A UID, compact.
pub(crate) type Uid = u128;

/// The 128 bits of a UUID; other texts are hashed.
pub(crate) fn uid(text: &str) -> Uid {
    let hex: String = text.chars().filter(|c| *c != '-').collect();
    if hex.len() == 32
        && let Ok(value) = u128::from_str_radix(&hex, 16)
    {
        return value;
    }
    // FNV-1a: UIDs of other shapes do not come from API servers.
    text.bytes().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |hash: u128, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    })
}

/// An object with owners, or one that waits for its dependents.
#[derive(Debug, Clone)]
pub(crate) struct Object {
    pub(crate) kind: Arc<Kind>,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid_text: String,
    pub(crate) owners: Vec<OwnerReference>,
    pub(crate) deleting: bool,
    pub(crate) foreground: bool,
    pub(crate) orphan: bool,
}

impl Object {
    pub(crate) fn of(kind: &Arc<Kind>, meta: &ObjectMeta) -> Self {
        let has = |finalizer: &str| meta.finalizers.iter().flatten().any(|f| f == finalizer);
        Self {
            kind: Arc::clone(kind),
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
            uid_text: meta.uid.clone().unwrap_or_default(),
            owners: meta.owner_references.clone().unwrap_or_default(),
            deleting: meta.deletion_timestamp.is_some(),
            foreground: has(FOREGROUND),
            orphan: has(ORPHAN),
        }
    }

    /// Whether it is in foreground deletion.
    pub(crate) fn is_deleting_dependents(&self) -> bool {
        self.deleting && self.foreground
    }

    fn blocks(&self, owner: Uid) -> bool {
        self.owners.iter().any(|o| uid(&o.uid) == owner && o.block_owner_deletion == Some(true))
    }
}

/// The ownership graph of all objects.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    objects: HashMap<Uid, Object>,
    dependents: HashMap<Uid, BTreeSet<Uid>>,
    /// Every object that exists, with a hash of its namespace (0 for none), and one of its group, kind and name.
    live: HashMap<Uid, (u32, u32)>,
}

/// A small hash of a namespace's name.
fn namespace_hash(namespace: &str) -> u32 {
    if namespace.is_empty() { 0 } else { fnv(namespace.bytes()) }
}

/// A small hash of where an object is, but for its namespace. A UID with another group, kind or name is no reference to it.
fn coordinates_hash(group: &str, kind: &str, name: &str) -> u32 {
    fnv([group, kind, name].into_iter().flat_map(|part| part.bytes().chain([0])))
}

fn fnv(bytes: impl Iterator<Item = u8>) -> u32 {
    bytes.fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

impl Graph {
    /// Adds or updates an object; returns the objects to enqueue.
    pub(crate) fn applied(&mut self, kind: &Arc<Kind>, meta: &ObjectMeta) -> Vec<Uid> {
        let id = uid(meta.uid.as_deref().unwrap_or_default());
        let namespace = namespace_hash(meta.namespace.as_deref().unwrap_or_default());
        let Kind { resource, .. } = &**kind;
        let name = meta.name.as_deref().unwrap_or_default();
        self.live.insert(id, (namespace, coordinates_hash(&resource.group, &resource.kind, name)));
        let was_waiting = self.objects.get(&id).is_some_and(Object::is_deleting_dependents);
        self.unlink(id);
        let object = Object::of(kind, meta);
        let mut enqueue = Vec::new();
        for owner in &object.owners {
            let owner_id = uid(&owner.uid);
            self.dependents.entry(owner_id).or_default().insert(id);
            match self.objects.get(&owner_id) {
                // The owner may wait for this change, or this object must be deleted with it.
                Some(owner) if owner.is_deleting_dependents() || (owner.deleting && owner.orphan) => {
                    enqueue.extend([owner_id, id])
                }
                _ if matches!(self.owner(&object.namespace, owner), Owner::Unknown | Owner::Invalid) => {
                    enqueue.push(id)
                }
                _ => {}
            }
        }
        if object.deleting && (object.foreground || object.orphan) {
            enqueue.push(id);
        }
        // Those that do not hold it up go, too.
        if object.is_deleting_dependents() && !was_waiting {
            enqueue.extend(self.dependents_of(id));
        }
        if !object.owners.is_empty() || (object.deleting && (object.foreground || object.orphan)) {
            self.objects.insert(id, object);
        }
        enqueue.sort_unstable();
        enqueue.dedup();
        enqueue
    }

    /// Removes an object; returns the objects to enqueue.
    pub(crate) fn deleted(&mut self, uid_text: &str) -> Vec<Uid> {
        let id = uid(uid_text);
        self.live.remove(&id);
        // Its dependents lost an owner; terminating owners may wait for it.
        let mut enqueue: Vec<Uid> = self.dependents_of(id);
        if let Some(object) = self.objects.get(&id) {
            let owners = object.owners.iter().map(|o| uid(&o.uid));
            enqueue.extend(owners.filter(|o| self.objects.get(o).is_some_and(|o| o.deleting)));
        }
        self.unlink(id);
        // An object may name itself as its owner.
        enqueue.retain(|other| *other != id);
        enqueue
    }

    fn unlink(&mut self, id: Uid) {
        let Some(object) = self.objects.remove(&id) else { return };
        for owner in &object.owners {
            let owner = uid(&owner.uid);
            if let Some(dependents) = self.dependents.get_mut(&owner) {
                dependents.remove(&id);
                if dependents.is_empty() {
                    self.dependents.remove(&owner);
                }
            }
        }
    }

    pub(crate) fn get(&self, id: Uid) -> Option<&Object> {
        self.objects.get(&id)
    }

    /// Whether an object with this UID exists.
    pub(crate) fn is_live(&self, id: Uid) -> bool {
        self.live.contains_key(&id)
    }

    pub(crate) fn dependents_of(&self, id: Uid) -> Vec<Uid> {
        self.dependents.get(&id).into_iter().flatten().copied().collect()
    }

    /// The objects with an owner that is not known to exist; called once after the first lists.
    pub(crate) fn with_unknown_owners(&self) -> Vec<Uid> {
        let mut with_unknown_owners: Vec<Uid> = self
            .objects
            .iter()
            .filter(|(_, o)| o.deleting || o.owners.iter().any(|r| self.owner(&o.namespace, r) == Owner::Unknown))
            .map(|(id, _)| *id)
            .collect();
        with_unknown_owners.sort_unstable();
        with_unknown_owners
    }

    /// The state of an owner, as far as the graph knows it.
    pub(crate) fn owner(&self, dependent_namespace: &str, owner: &OwnerReference) -> Owner {
        let id = uid(&owner.uid);
        match self.live.get(&id) {
            Some((at, _)) if *at != 0 && *at != namespace_hash(dependent_namespace) => Owner::Invalid,
            // Another object has the UID: a lookup by the reference does not find it.
            Some((_, is)) if *is != coordinates_hash(group_of(&owner.api_version), &owner.kind, &owner.name) => {
                Owner::Unknown
            }
            Some(_) if self.objects.get(&id).is_some_and(Object::is_deleting_dependents) => Owner::Waiting,
            Some(_) => Owner::Solid,
            None => Owner::Unknown,
        }
    }

    /// Plans a dependent from the states of its owners.
    pub(crate) fn plan_dependent(&self, object: &Object, states: &[Owner]) -> Step {
        if object.deleting || object.owners.is_empty() {
            return Step::Nothing;
        }
        let of = |wanted: &[Owner]| -> Vec<String> {
            let pairs = object.owners.iter().zip(states);
            pairs.filter(|(_, s)| wanted.contains(s)).map(|(o, _)| o.uid.clone()).collect()
        };
        if states.contains(&Owner::Unknown) {
            return Step::Nothing;
        }
        let (solid, absent) = (of(&[Owner::Solid, Owner::Invalid]), of(&[Owner::Absent, Owner::Waiting]));
        if !solid.is_empty() {
            return if absent.is_empty() { Step::Nothing } else { Step::RemoveOwnerReferences(absent) };
        }
        let id = uid(&object.uid_text);
        let waiting = !of(&[Owner::Waiting]).is_empty();
        let policy = if waiting && !self.dependents_of(id).is_empty() {
            // A cycle of owners that wait for each other would never end.
            let cycle =
                self.dependents_of(id).iter().any(|d| self.objects.get(d).is_some_and(Object::is_deleting_dependents));
            if cycle { Policy::ForegroundUnblocked } else { Policy::Foreground }
        } else if object.orphan {
            Policy::Orphan
        } else if object.foreground {
            Policy::Foreground
        } else {
            Policy::Background
        };
        Step::Delete(policy)
    }

    /// Plans an object that is being deleted.
    pub(crate) fn plan_deleting_owner(&self, object: &Object) -> Step {
        let id = uid(&object.uid_text);
        let dependents = self.dependents_of(id);
        if !object.deleting {
            Step::Nothing
        } else if object.orphan {
            Step::Orphan
        } else if object.foreground {
            let blocking: Vec<Uid> =
                dependents.into_iter().filter(|d| self.objects.get(d).is_some_and(|o| o.blocks(id))).collect();
            if blocking.is_empty() { Step::RemoveForegroundFinalizer } else { Step::AwaitDependents(blocking) }
        } else {
            Step::Nothing
        }
    }
}

/// The state of one owner of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// It exists.
    Solid,
    /// It exists and is being deleted after its dependents.
    Waiting,
    /// The API does not have it.
    Absent,
    /// In another namespace: never valid. For a namespaced object that is the same as absent; a cluster-scoped one is
    /// never collected.
    Invalid,
    /// Not in the graph: the API must be queried.
    Unknown,
}

/// The propagation policy for a dependent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Policy {
    Background,
    Foreground,
    /// Foreground, after its owner reference is made non-blocking.
    ForegroundUnblocked,
    Orphan,
}

/// An action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    Nothing,
    /// Remove these owners' references.
    RemoveOwnerReferences(Vec<String>),
    Delete(Policy),
    /// Remove the object from its dependents' owner references, then its finalizer.
    Orphan,
    /// Wait for these to be deleted.
    AwaitDependents(Vec<Uid>),
    /// No blocking dependents are left: remove the foreground finalizer.
    RemoveForegroundFinalizer,
}
