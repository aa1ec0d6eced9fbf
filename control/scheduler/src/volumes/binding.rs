//! How volumes are bound before a pod is (upstream's `AssumePodVolumes`, `BindPodVolumes` and `checkBindings`): what is
//! written, and whether others have done their part. Pure.

use super::{VolumeIndex, find::reaches};
use crate::model::{Key, NodeInfo};

/// What is to be bound for a pod on a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct BindingPlan {
    /// Existing volumes, with their claims and these claims' UIDs.
    bind: Vec<(String, Key, String)>,
    /// Claims that get a new volume, with their UIDs.
    provision: Vec<(Key, String)>,
}

/// A volume gets a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VolumeWrite {
    pub(crate) volume: String,
    pub(crate) version: String,
    /// Its claim, with UID and version.
    pub(crate) claim: Key,
    pub(crate) claim_uid: String,
    pub(crate) claim_version: String,
    /// The volume was not reserved for it (upstream's `AnnBoundByController`).
    pub(crate) by_controller: bool,
}

/// A claim is annotated with the node that its volume is to be created for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClaimWrite {
    pub(crate) claim: Key,
    pub(crate) uid: String,
    pub(crate) version: String,
    pub(crate) node: String,
}

/// How far the binding of a pod's volumes is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Progress {
    Waiting,
    Done,
    /// It will not come to its end; the reason.
    Failed(String),
}

impl BindingPlan {
    pub(super) fn bind(&mut self, volume: &str, claim: &Key, uid: &str) {
        self.bind.push((volume.to_owned(), claim.clone(), uid.to_owned()));
    }

    pub(super) fn provision(&mut self, claim: &Key, uid: &str) {
        self.provision.push((claim.clone(), uid.to_owned()));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bind.is_empty() && self.provision.is_empty()
    }

    /// The claims that are bound.
    pub(crate) fn claims(&self) -> impl Iterator<Item = &Key> {
        self.bind.iter().map(|(_, claim, _)| claim).chain(self.provision.iter().map(|(claim, _)| claim))
    }
}

impl VolumeIndex {
    /// The plan's volumes and claims are taken from now on; returns what is to be written.
    pub(crate) fn assume(&mut self, plan: &BindingPlan, node: &str) -> (Vec<VolumeWrite>, Vec<ClaimWrite>) {
        let (mut volumes, mut claims) = (Vec::new(), Vec::new());
        for (volume, claim, uid) in &plan.bind {
            let Some(state) = self.volumes.get(volume) else { continue };
            self.assumed_volumes.insert(volume.clone(), claim.clone());
            // One that is reserved with the claim's UID needs no write.
            if state.claim.as_ref().is_some_and(|(_, of)| of == uid) {
                continue;
            }
            volumes.push(VolumeWrite {
                volume: volume.clone(),
                version: state.version.clone(),
                claim: claim.clone(),
                claim_uid: uid.clone(),
                claim_version: self.claims.get(claim).map(|claim| claim.version.clone()).unwrap_or_default(),
                by_controller: state.claim.is_none(),
            });
        }
        for (claim, uid) in &plan.provision {
            let Some(state) = self.claims.get(claim) else { continue };
            if state.selected_node.as_deref() == Some(node) {
                continue;
            }
            self.assumed_nodes.insert(claim.clone(), node.to_owned());
            let (claim, uid, version) = (claim.clone(), uid.clone(), state.version.clone());
            claims.push(ClaimWrite { claim, uid, version, node: node.to_owned() });
        }
        (volumes, claims)
    }

    /// The plan is fulfilled or given up: what the API says counts.
    pub(crate) fn revert(&mut self, plan: &BindingPlan) {
        for (volume, claim, _) in &plan.bind {
            if self.assumed_volumes.get(volume) == Some(claim) {
                self.assumed_volumes.remove(volume);
            }
        }
        plan.provision.iter().for_each(|(claim, _)| drop(self.assumed_nodes.remove(claim)));
    }

    /// Whether the plan, whose writes were answered, is fulfilled (upstream's `checkBindings`).
    pub(crate) fn progress(&self, plan: &BindingPlan, node: &NodeInfo) -> Progress {
        let mut waiting = false;
        for (volume, claim, uid) in &plan.bind {
            let Some(state) = self.volumes.get(volume) else {
                return Progress::Failed(format!("failed to check binding: pv {volume:?} not found"));
            };
            if !reaches(state.affinity.as_ref(), node) {
                return Progress::Failed(out_of_reach(volume, node));
            }
            if state.claim.as_ref().is_none_or(|(_, of)| of != uid) {
                if !self.assumed_volumes.contains_key(volume) {
                    return Progress::Failed(format!("ClaimRef got reset for pv {volume:?}"));
                }
                // The cache has not shown our write yet.
                waiting = true;
                continue;
            }
            waiting |= !self.claims.get(claim).is_some_and(|claim| claim.bound);
        }
        for (key, uid) in &plan.provision {
            let name = &key.1;
            let Some(claim) = self.claims.get(key).filter(|claim| claim.uid == *uid) else {
                return Progress::Failed(format!("failed to check provisioning pvc: pvc {name:?} not found"));
            };
            if self.assumed_nodes.contains_key(key) {
                waiting = true;
                continue;
            }
            if claim.selected_node.as_deref() != Some(node.name.as_str()) {
                // The provisioner has removed the annotation: it wants another node.
                return Progress::Failed(match claim.annotated {
                    true => format!("provisioning failed for PVC {name:?}"),
                    false => format!("selectedNode annotation reset for PVC {name:?}"),
                });
            }
            // A volume that is not in the cache yet may come.
            if let Some(volume) = claim.volume.as_ref().and_then(|volume| self.volumes.get(volume))
                && !reaches(volume.affinity.as_ref(), node)
            {
                return Progress::Failed(out_of_reach(claim.volume.as_deref().unwrap_or_default(), node));
            }
            waiting |= !claim.bound;
        }
        if waiting { Progress::Waiting } else { Progress::Done }
    }
}

fn out_of_reach(volume: &str, node: &NodeInfo) -> String {
    let node = &node.name;
    format!("pv {volume:?} node affinity doesn't match node {node:?}: no matching NodeSelectorTerms")
}
