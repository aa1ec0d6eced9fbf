//! Which volumes a pod could get on a node (upstream's `FindPodVolumes`). Pure.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{NodeSelector, TopologySelectorTerm};
use windlass_kit::objects::node_selector;

use super::{
    BindingPlan, PodClaims, VolumeIndex,
    objects::{ClaimState, VolumeState},
};
use crate::model::{Key, NodeInfo};

/// Upstream's `ErrReasonNodeConflict`.
const NODE_CONFLICT: &str = "node(s) didn't match PersistentVolume's node affinity";
/// Upstream's `ErrReasonBindConflict`.
const BIND_CONFLICT: &str = "node(s) didn't find available persistent volumes to bind";

impl VolumeIndex {
    /// What is to be bound if the pod gets this node.
    ///
    /// # Errors
    /// Upstream's reasons why it cannot have the node.
    pub(crate) fn find(&self, claims: &PodClaims, node: &NodeInfo) -> Result<BindingPlan, Vec<&'static str>> {
        let mut reasons = Vec::new();
        if !claims.affinities.iter().all(|affinity| reaches(Some(affinity), node)) {
            reasons.push(NODE_CONFLICT);
        }
        let plan = self.find_unbound(&claims.delayed, node);
        if plan.is_none() {
            reasons.push(BIND_CONFLICT);
        }
        match plan {
            Some(plan) if reasons.is_empty() => Ok(plan),
            _ => Err(reasons),
        }
    }

    fn find_unbound(&self, claims: &[Key], node: &NodeInfo) -> Option<BindingPlan> {
        let mut plan = BindingPlan::default();
        let mut provision: Vec<(&Key, &ClaimState)> = Vec::new();
        let mut matching: Vec<(&Key, &ClaimState)> = Vec::new();
        for key in claims {
            let claim = self.claims.get(key)?;
            match self.assumed_nodes.get(key).or(claim.selected_node.as_ref()) {
                // A volume is made for another node.
                Some(selected) if *selected != node.name => return None,
                Some(_) => provision.push((key, claim)),
                None => matching.push((key, claim)),
            }
        }
        matching.sort_by_key(|(_, claim)| claim.size);
        let mut chosen = BTreeSet::new();
        for (key, claim) in matching {
            match self.smallest_volume(key, claim, node, &chosen) {
                Some(volume) => {
                    chosen.insert(volume);
                    plan.bind(volume, key, &claim.uid);
                }
                None => provision.push((key, claim)),
            }
        }
        for (key, claim) in provision {
            if !self.can_be_provisioned(claim, node) {
                return None;
            }
            plan.provision(key, &claim.uid);
        }
        Some(plan)
    }

    /// The volume that is reserved for a claim, else the smallest that satisfies it (upstream's `FindMatchingVolume`).
    fn smallest_volume<'a>(
        &'a self,
        key: &Key,
        claim: &ClaimState,
        node: &NodeInfo,
        chosen: &BTreeSet<&str>,
    ) -> Option<&'a str> {
        let names = self.available.get(&claim.class).into_iter().flatten();
        let mut smallest: Option<(&str, i64)> = None;
        for name in names.filter(|name| !chosen.contains(name.as_str())) {
            let Some(volume) = self.volumes.get(name) else { continue };
            let assumed = self.assumed_volumes.get(name);
            let reserved = match &volume.claim {
                Some((of, uid)) => Some(of == key && (uid.is_empty() || *uid == claim.uid)),
                None => assumed.map(|of| of == key),
            };
            if reserved == Some(false) || !volume.can_hold(claim) {
                continue;
            }
            let reaches = reaches(volume.affinity.as_ref(), node);
            if reserved == Some(true) {
                return reaches.then_some(name.as_str());
            }
            let selected = claim.selector.as_ref().is_none_or(|selector| selector.matches(&volume.labels));
            let has_modes = claim.access_modes.iter().all(|mode| volume.access_modes.contains(mode));
            if volume.available
                && selected
                && reaches
                && has_modes
                && smallest.is_none_or(|(_, size)| volume.capacity < size)
            {
                smallest = Some((name, volume.capacity));
            }
        }
        smallest.map(|(name, _)| name)
    }

    /// Whether a volume can be made for a claim on a node (upstream's `checkVolumeProvisions`, without capacities).
    fn can_be_provisioned(&self, claim: &ClaimState, node: &NodeInfo) -> bool {
        let class = self.classes.get(&claim.class).filter(|class| class.provisioned);
        class.is_some_and(|class| is_allowed(&class.topologies, node))
    }
}

impl VolumeState {
    fn can_hold(&self, claim: &ClaimState) -> bool {
        self.capacity >= claim.size
            && self.block == claim.block
            && self.attributes_class == claim.attributes_class
            && !self.deleting
    }
}

/// Whether a node reaches a volume.
pub(super) fn reaches(affinity: Option<&NodeSelector>, node: &NodeInfo) -> bool {
    affinity.is_none_or(|affinity| node_selector::matches(affinity, &node.name, &node.labels))
}

/// Whether a node is of a topology that a class allows; no terms allow all (upstream's `MatchTopologySelectorTerms`).
fn is_allowed(terms: &[TopologySelectorTerm], node: &NodeInfo) -> bool {
    terms.is_empty()
        || terms.iter().any(|term| {
            let mut expressions = term.match_label_expressions.iter().flatten().peekable();
            expressions.peek().is_some()
                && expressions.all(|e| node.labels.get(&e.key).is_some_and(|value| e.values.contains(value)))
        })
}
