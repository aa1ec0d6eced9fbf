//! Claims, volumes and storage classes, reduced to what scheduling needs (upstream's `volumebinding` package): which
//! nodes reach a pod's volumes, which volumes it could get, and how these are bound. Pure; imports the model only.

mod binding;
mod find;
mod objects;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::NodeSelector;
use windlass_kit::objects::claims::Claim;

use super::model::{Key, PodInfo};

pub(crate) use binding::{BindingPlan, ClaimWrite, Progress, VolumeWrite};
pub(crate) use objects::Stored;
use objects::{ClaimState, ClassState, VolumeState};

/// All claims, volumes and classes.
#[derive(Debug, Default)]
pub(crate) struct VolumeIndex {
    claims: BTreeMap<Key, ClaimState>,
    volumes: BTreeMap<String, VolumeState>,
    classes: BTreeMap<String, ClassState>,
    /// Bound claims by volume.
    by_volume: BTreeMap<String, BTreeSet<Key>>,
    /// Volumes that no claim has, by class.
    available: BTreeMap<String, BTreeSet<String>>,
    /// Volumes that are given to claims by decisions whose writes the cache has not shown yet.
    assumed_volumes: BTreeMap<String, Key>,
    /// Nodes for which volumes are made, likewise.
    assumed_nodes: BTreeMap<Key, String>,
}

/// The claims of a pod (upstream's `PodVolumeClaims`).
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct PodClaims {
    /// How many are bound.
    bound: usize,
    /// Node affinities of their volumes.
    affinities: Vec<NodeSelector>,
    /// Zones and regions of bound volumes.
    zones: Vec<(String, BTreeSet<String>)>,
    /// Claims that are bound when the pod's node is known.
    delayed: Vec<Key>,
}

impl PodClaims {
    pub(crate) fn is_empty(&self) -> bool {
        self.bound == 0 && self.delayed.is_empty()
    }

    /// The node affinities that bound volumes have.
    pub(crate) fn node_affinities(&self) -> impl Iterator<Item = &NodeSelector> {
        self.affinities.iter()
    }

    /// Labels of bound volumes that name zones or regions.
    pub(crate) fn zones(&self) -> &[(String, BTreeSet<String>)] {
        &self.zones
    }
}

impl VolumeIndex {
    /// The claims of a pod (upstream's `podHasPVCs` and `GetPodVolumeClaims`).
    ///
    /// # Errors
    /// Why the pod cannot be scheduled yet, as upstream's message.
    pub(crate) fn claims_of(&self, pod: &PodInfo) -> Result<PodClaims, String> {
        let (namespace, used) = (pod.namespace.as_str(), &pod.claims);
        let mut found = PodClaims::default();
        for Claim { name, ephemeral, .. } in used {
            let Some(claim) = self.claims.get(&(namespace.to_owned(), name.clone())) else {
                return Err(if *ephemeral {
                    format!("waiting for ephemeral volume controller to create the persistentvolumeclaim {name:?}")
                } else {
                    format!("persistentvolumeclaim {name:?} not found")
                });
            };
            if claim.lost {
                let volume = claim.volume.as_deref().unwrap_or("");
                return Err(format!(
                    "persistentvolumeclaim {name:?} bound to non-existent persistentvolume {volume:?}"
                ));
            }
            if claim.deleting {
                return Err(format!("persistentvolumeclaim {name:?} is being deleted"));
            }
            // Upstream's `VolumeIsForPod`: a claim that somebody else made may hold somebody else's data.
            if *ephemeral && claim.controller.as_ref() != Some(&pod.uid) {
                let pod = &pod.name;
                return Err(format!(
                    "PVC {namespace}/{name} was not created for pod {namespace}/{pod} (pod is not owner)"
                ));
            }
        }
        let (mut bound, mut immediate) = (Vec::new(), false);
        for Claim { name, .. } in used {
            let key = (namespace.to_owned(), name.clone());
            let Some(claim) = self.claims.get(&key) else { continue };
            match claim.volume.as_ref().filter(|_| claim.bound) {
                Some(volume) => {
                    bound.push(volume);
                }
                // One that names its volume is bound by the volume controller, whatever its class.
                None if claim.volume.is_none() && self.is_delayed(&claim.class) => found.delayed.push(key),
                None => immediate = true,
            }
        }
        if immediate {
            return Err("pod has unbound immediate PersistentVolumeClaims".to_owned());
        }
        for name in bound {
            let volume = self.volumes.get(name).ok_or_else(|| format!("persistentvolume {name:?} not found"))?;
            found.bound += 1;
            found.affinities.extend(volume.affinity.clone());
            found.zones.extend(volume.zones.iter().cloned());
        }
        Ok(found)
    }

    /// Whether claims of a class are bound when their pod has a node (upstream's `IsDelayBindingMode`).
    fn is_delayed(&self, class: &str) -> bool {
        self.classes.get(class).is_some_and(|class| class.delayed)
    }

    /// Whether a claim may be used by one pod only.
    pub(crate) fn is_of_one_pod(&self, claim: &Key) -> bool {
        let modes = self.claims.get(claim).map(|claim| &claim.access_modes);
        modes.is_some_and(|modes| modes.iter().any(|mode| mode == "ReadWriteOncePod"))
    }

    /// The class of a claim.
    pub(crate) fn class_of(&self, claim: &Key) -> Option<&str> {
        self.claims.get(claim).map(|claim| claim.class.as_str())
    }

    /// Returns whether that was a change.
    fn set_claim(&mut self, key: Key, claim: Option<ClaimState>) -> bool {
        let old = match &claim {
            Some(claim) => self.claims.insert(key.clone(), claim.clone()),
            None => self.claims.remove(&key),
        };
        let is_newer = |old: &ClaimState| claim.as_ref().is_none_or(|claim| claim.version != old.version);
        if old.as_ref().is_none_or(is_newer) {
            // What the API says counts from now on.
            self.assumed_nodes.remove(&key);
        }
        let same = |old: &ClaimState| claim.as_ref().is_some_and(|claim| claim.is_same(old));
        if old.as_ref().map_or(claim.is_none(), same) {
            return false;
        }
        if let Some(volume) = old.and_then(|old| old.volume)
            && let Some(claims) = self.by_volume.get_mut(&volume)
        {
            claims.remove(&key);
            if claims.is_empty() {
                self.by_volume.remove(&volume);
            }
        }
        if let Some(volume) = claim.and_then(|claim| claim.volume) {
            self.by_volume.entry(volume).or_default().insert(key);
        }
        true
    }

    /// Returns whether that was a change.
    fn set_volume(&mut self, name: &str, volume: Option<VolumeState>) -> bool {
        let old = match &volume {
            Some(volume) => self.volumes.insert(name.to_owned(), volume.clone()),
            None => self.volumes.remove(name),
        };
        let is_newer = |old: &VolumeState| volume.as_ref().is_none_or(|volume| volume.version != old.version);
        if old.as_ref().is_none_or(is_newer) {
            self.assumed_volumes.remove(name);
        }
        let same = |old: &VolumeState| volume.as_ref().is_some_and(|volume| volume.is_same(old));
        if old.as_ref().map_or(volume.is_none(), same) {
            return false;
        }
        if let Some(old) = &old
            && let Some(names) = self.available.get_mut(&old.class)
        {
            names.remove(name);
            if names.is_empty() {
                self.available.remove(&old.class);
            }
        }
        if let Some(volume) = volume.filter(VolumeState::may_be_given) {
            self.available.entry(volume.class).or_default().insert(name.to_owned());
        }
        true
    }
}
