//! What a pod's claims say of where it can run. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelector, PersistentVolume, PersistentVolumeClaim, Pod};

type Key = (String, String);

/// Upstream's text for a node that a volume does not belong to.
pub(crate) const ELSEWHERE: &str = "node(s) didn't match PersistentVolume's node affinity";

/// A claim that a pod uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Used {
    name: String,
    /// Made for this pod alone, by a controller.
    ephemeral: bool,
}

/// The claims of a pod.
pub(crate) fn used_by(pod: &Pod) -> Vec<Used> {
    let name = pod.metadata.name.as_deref().unwrap_or("");
    let volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
    volumes
        .filter_map(|v| match (&v.persistent_volume_claim, &v.ephemeral) {
            (Some(source), _) => Some(Used { name: source.claim_name.clone(), ephemeral: false }),
            (None, Some(_)) => Some(Used { name: format!("{name}-{}", v.name), ephemeral: true }),
            (None, None) => None,
        })
        .collect()
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Claim {
    /// The volume that it is bound to.
    volume: Option<String>,
    deleting: bool,
}

/// All claims and volumes, as far as they matter here.
#[derive(Debug, Default)]
pub(crate) struct Storage {
    claims: BTreeMap<Key, Claim>,
    volumes: BTreeMap<String, Option<NodeSelector>>,
}

impl Storage {
    /// Takes a claim in; gives whether anything changed.
    pub(crate) fn claim_applied(&mut self, claim: &PersistentVolumeClaim) -> bool {
        let bound = claim.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Bound");
        let new = Claim {
            volume: claim.spec.as_ref().and_then(|s| s.volume_name.clone()).filter(|v| bound && !v.is_empty()),
            deleting: claim.metadata.deletion_timestamp.is_some(),
        };
        self.claims.insert(key_of(claim), new.clone()) != Some(new)
    }

    pub(crate) fn claim_deleted(&mut self, claim: &PersistentVolumeClaim) {
        self.claims.remove(&key_of(claim));
    }

    /// Takes a volume in; gives whether anything changed.
    pub(crate) fn volume_applied(&mut self, volume: &PersistentVolume) -> bool {
        let name = volume.metadata.name.clone().unwrap_or_default();
        let required = volume.spec.as_ref().and_then(|s| s.node_affinity.as_ref()?.required.clone());
        self.volumes.insert(name, required.clone()) != Some(required)
    }

    pub(crate) fn volume_deleted(&mut self, volume: &PersistentVolume) {
        self.volumes.remove(volume.metadata.name.as_deref().unwrap_or(""));
    }

    /// Begins a new full list of claims: those that it does not name are gone.
    pub(crate) fn forget_claims(&mut self) {
        self.claims.clear();
    }

    /// The same for volumes.
    pub(crate) fn forget_volumes(&mut self) {
        self.volumes.clear();
    }

    /// The nodes that the volumes of these claims belong to.
    ///
    /// # Errors
    /// Why the pod can run nowhere yet, in upstream's words.
    pub(crate) fn look(&self, namespace: &str, used: &[Used]) -> Result<Vec<&NodeSelector>, String> {
        let mut places = Vec::new();
        for Used { name, ephemeral } in used {
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
    use serde_json::{Value, json};

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
        let used = used_by(&pod);
        let mut storage = Storage::default();
        let why = |storage: &Storage| storage.look("n", &used).map(|p| p.len());
        assert_eq!(why(&storage), Err("persistentvolumeclaim \"c\" not found".to_owned()));
        assert!(storage.claim_applied(&claim("Pending")));
        assert!(!storage.claim_applied(&claim("Pending")), "nothing changed");
        assert_eq!(why(&storage), Err("pod has unbound immediate PersistentVolumeClaims".to_owned()));
        assert!(storage.claim_applied(&claim("Bound")));
        assert_eq!(why(&storage), Err("persistentvolume \"v\" not found".to_owned()));
        assert!(storage.volume_applied(&volume(Value::Null)));
        assert_eq!(why(&storage), Ok(0), "a volume of no node is one of all");
        let affinity = json!({"required": {"nodeSelectorTerms": [{"matchFields": []}]}});
        assert!(storage.volume_applied(&volume(affinity)));
        assert_eq!(why(&storage), Ok(1));
        storage.claim_deleted(&claim("Bound"));
        assert!(why(&storage).is_err());
    }

    #[test]
    fn a_claim_of_its_own_is_waited_for() {
        let pod: Pod =
            serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": {"containers": [], "volumes": [
            {"name": "v", "ephemeral": {}}]}}))
            .unwrap();
        let why = Storage::default().look("n", &used_by(&pod)).unwrap_err();
        assert!(why.starts_with("waiting for ephemeral volume controller") && why.contains("\"p-v\""), "{why}");
    }
}
