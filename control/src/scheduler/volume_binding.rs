//! VolumeBinding: which nodes a pod's claims allow. Pure.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{NodeSelector, PersistentVolume, PersistentVolumeClaim};
use windlass_kit::objects::claims::Claim;

type Key = (String, String);

/// Upstream's message for a node outside a volume's node affinity.
pub(crate) const NODE_AFFINITY_CONFLICT: &str = "node(s) didn't match PersistentVolume's node affinity";

#[derive(Debug, Clone, PartialEq, Eq)]
struct ClaimState {
    /// The volume that the claim is bound to.
    volume: Option<String>,
    deleting: bool,
}

/// All claims and volumes, reduced to what scheduling needs.
#[derive(Debug, Default)]
pub(crate) struct VolumeIndex {
    claims: BTreeMap<Key, ClaimState>,
    volumes: BTreeMap<String, Option<NodeSelector>>,
    /// Bound claims by volume.
    by_volume: BTreeMap<String, BTreeSet<Key>>,
}

/// A kind of object in the index.
pub(crate) trait Stored {
    /// Adds or updates an object; returns whether anything changed.
    fn applied(&self, storage: &mut VolumeIndex) -> bool;

    fn deleted(&self, storage: &mut VolumeIndex);

    /// The claims that a change of this object concerns.
    fn claims(&self, storage: &VolumeIndex) -> Vec<Key>;

    /// Clears the index for a new full list.
    fn clear(storage: &mut VolumeIndex);
}

impl Stored for PersistentVolumeClaim {
    fn applied(&self, storage: &mut VolumeIndex) -> bool {
        let bound = self.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Bound");
        let new = ClaimState {
            volume: self.spec.as_ref().and_then(|s| s.volume_name.clone()).filter(|v| bound && !v.is_empty()),
            deleting: self.metadata.deletion_timestamp.is_some(),
        };
        storage.set_claim(key_of(self), Some(new))
    }

    fn deleted(&self, storage: &mut VolumeIndex) {
        storage.set_claim(key_of(self), None);
    }

    fn claims(&self, _: &VolumeIndex) -> Vec<Key> {
        vec![key_of(self)]
    }

    fn clear(storage: &mut VolumeIndex) {
        storage.claims.clear();
        storage.by_volume.clear();
    }
}

impl Stored for PersistentVolume {
    fn applied(&self, storage: &mut VolumeIndex) -> bool {
        let name = self.metadata.name.clone().unwrap_or_default();
        let required = self.spec.as_ref().and_then(|s| s.node_affinity.as_ref()?.required.clone());
        storage.volumes.insert(name, required.clone()) != Some(required)
    }

    fn deleted(&self, storage: &mut VolumeIndex) {
        storage.volumes.remove(self.metadata.name.as_deref().unwrap_or(""));
    }

    fn claims(&self, storage: &VolumeIndex) -> Vec<Key> {
        let name = self.metadata.name.as_deref().unwrap_or("");
        storage.by_volume.get(name).into_iter().flatten().cloned().collect()
    }

    fn clear(storage: &mut VolumeIndex) {
        storage.volumes.clear();
    }
}

impl VolumeIndex {
    /// Returns whether that was a change.
    fn set_claim(&mut self, key: Key, claim: Option<ClaimState>) -> bool {
        let old = match &claim {
            Some(claim) => self.claims.insert(key.clone(), claim.clone()),
            None => self.claims.remove(&key),
        };
        if old == claim {
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

    /// The node affinities of the volumes of these claims.
    ///
    /// # Errors
    /// Why the pod cannot be scheduled yet, as upstream's message.
    pub(crate) fn required_node_affinity(&self, namespace: &str, used: &[Claim]) -> Result<Vec<&NodeSelector>, String> {
        let mut places = Vec::new();
        for Claim { name, ephemeral, .. } in used {
            let Some(claim) = self.claims.get(&(namespace.to_owned(), name.clone())) else {
                return Err(if *ephemeral {
                    format!("waiting for ephemeral volume controller to create the persistentvolumeclaim {name:?}")
                } else {
                    format!("persistentvolumeclaim {name:?} not found")
                });
            };
            if claim.deleting {
                return Err(format!("persistentvolumeclaim {name:?} is being deleted"));
            }
            let Some(volume) = &claim.volume else {
                return Err("pod has unbound immediate PersistentVolumeClaims".to_owned());
            };
            match self.volumes.get(volume) {
                Some(required) => places.extend(required.as_ref()),
                None => return Err(format!("persistentvolume {volume:?} not found")),
            }
        }
        Ok(places)
    }
}

fn key_of(claim: &PersistentVolumeClaim) -> Key {
    (claim.metadata.namespace.clone().unwrap_or_default(), claim.metadata.name.clone().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::{Value, json};
    use windlass_kit::objects::claims::claims_of;

    use super::*;

    fn claim(phase: &str) -> PersistentVolumeClaim {
        let made = json!({"metadata": {"name": "c", "namespace": "n"}, "spec": {"volumeName": "v"}, "status": {"phase": phase}});
        serde_json::from_value(made).unwrap()
    }

    fn volume(affinity: Value) -> PersistentVolume {
        serde_json::from_value(json!({"metadata": {"name": "v"}, "spec": {"nodeAffinity": affinity}})).unwrap()
    }

    #[test]
    fn a_pod_waits_until_its_claims_are_bound() {
        let pod: Pod =
            serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": {"containers": [], "volumes": [
            {"name": "a", "persistentVolumeClaim": {"claimName": "c"}}, {"name": "b", "emptyDir": {}}]}}))
            .unwrap();
        let used = claims_of(&pod).collect::<Vec<_>>();
        let mut storage = VolumeIndex::default();
        let why = |storage: &VolumeIndex| storage.required_node_affinity("n", &used).map(|p| p.len());
        assert_eq!(why(&storage), Err("persistentvolumeclaim \"c\" not found".to_owned()));
        assert!(claim("Pending").applied(&mut storage));
        assert!(!claim("Pending").applied(&mut storage), "nothing changed");
        assert_eq!(why(&storage), Err("pod has unbound immediate PersistentVolumeClaims".to_owned()));
        assert!(claim("Bound").applied(&mut storage));
        assert_eq!(why(&storage), Err("persistentvolume \"v\" not found".to_owned()));
        assert!(volume(Value::Null).applied(&mut storage));
        assert_eq!(why(&storage), Ok(0), "a volume of no node is one of all");
        let affinity = json!({"required": {"nodeSelectorTerms": [{"matchFields": []}]}});
        assert!(volume(affinity).applied(&mut storage));
        assert_eq!(why(&storage), Ok(1));
        claim("Bound").deleted(&mut storage);
        assert!(why(&storage).is_err());
    }

    #[test]
    fn a_claim_of_its_own_is_waited_for() {
        let pod: Pod =
            serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": {"containers": [], "volumes": [
            {"name": "v", "ephemeral": {}}]}}))
            .unwrap();
        let why = VolumeIndex::default().required_node_affinity("n", &claims_of(&pod).collect::<Vec<_>>()).unwrap_err();
        assert!(why.starts_with("waiting for ephemeral volume controller") && why.contains("\"p-v\""), "{why}");
    }
}
