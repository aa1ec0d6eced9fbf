//! VolumeRestrictions: a claim with ReadWriteOncePod is of one pod at a time, and no two pods of a node write one disk.
//! Pure.

use super::Failure;
use crate::{
    cache::Cluster,
    cycle::{Cycle, NodeView},
    model::{Key, PodInfo, Usage},
};

const NAME: &str = "VolumeRestrictions";
/// Upstream's `ErrReasonReadWriteOncePodConflict`.
const REASON: &str = "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by \
    another pod";

/// Upstream's `ErrReasonDiskConflict`.
const DISK_CONFLICT: &str = "node(s) had no available disk";

#[derive(Debug, Default)]
pub(crate) struct PreFilter {
    /// The pod's claims with ReadWriteOncePod.
    claims: Vec<Key>,
    /// How often pods of any node use them (upstream's `conflictingPVCRefCount`).
    users: i64,
}

#[derive(Debug, Default, Clone)]
pub(crate) struct Delta {
    users: i64,
}

impl PreFilter {
    pub(crate) fn new(cluster: &Cluster, pod: &PodInfo) -> Self {
        let claims: Vec<Key> = pod.claim_keys().filter(|claim| cluster.storage.is_of_one_pod(claim)).collect();
        let users = claims.iter().map(|claim| cluster.users_of_claim(claim)).sum();
        Self { claims, users }
    }
}

impl Delta {
    pub(crate) fn change(&mut self, pre_filter: &PreFilter, pod: &PodInfo, by: i64) {
        if !pre_filter.claims.is_empty() {
            let shared = pod.claim_keys().filter(|claim| pre_filter.claims.contains(claim)).count();
            self.users += by * i64::try_from(shared).unwrap_or(0);
        }
    }
}

/// Whether a disk that the pod names is written on the node, or would be.
pub(super) fn disks(pod: &PodInfo, usage: &Usage) -> Result<(), Failure> {
    let mut there = usage.disks.values().flatten();
    let clash = !pod.disks.is_empty() && there.any(|disk| pod.disks.iter().any(|own| own.clashes(disk)));
    if clash { Err(Failure::unschedulable(NAME, DISK_CONFLICT)) } else { Ok(()) }
}

pub(super) fn filter(cycle: &Cycle, view: &NodeView<'_>) -> Result<(), Failure> {
    let is_used = cycle.restrictions.users + view.restrictions.users > 0;
    if is_used { Err(Failure::unschedulable(NAME, REASON)) } else { Ok(()) }
}
