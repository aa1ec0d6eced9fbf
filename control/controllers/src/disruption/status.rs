//! The status of a budget. Upstream's `buildDisruptedPodMap`, `countHealthyPods`, `updatePdbStatus` and `failSafe`. Pure.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};
use serde_json::{Value, json};
use windlass_kit::objects::disruption_budget::{SYNC_FAILED, set_condition, update_condition};

use super::expected::Expected;
use crate::{pods, runtime::CachedPod};

/// How long a pod that was allowed to be evicted may take until it is being deleted. After that the eviction counts as
/// given up. Upstream's `DeletionTimeout`.
pub(super) const DELETION_TIMEOUT: SignedDuration = SignedDuration::from_secs(2 * 60);

/// What follows from a budget and its pods.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) status: PodDisruptionBudgetStatus,
    /// Pods whose eviction was allowed and did not come.
    pub(super) not_deleted: Vec<Arc<CachedPod>>,
    /// When another eviction counts as given up.
    pub(super) recheck: Option<Duration>,
}

pub(super) fn reconcile(
    budget: &PodDisruptionBudget,
    pods: &[Arc<CachedPod>],
    expected: Expected,
    now: Timestamp,
) -> Plan {
    let old = budget.status.clone().unwrap_or_default();
    let evictions = old.disrupted_pods;
    let mut plan = Plan::default();
    let mut disrupted: BTreeMap<String, Time> = BTreeMap::new();
    let mut healthy = 0_i32;
    for pod in pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let evicted_at = evictions.as_ref().and_then(|all| all.get(name));
        let left = evicted_at.map(|at| DELETION_TIMEOUT - now.duration_since(at.0));
        match (evicted_at, left) {
            (Some(at), Some(left)) if !left.is_negative() => {
                let left = Duration::try_from(left).unwrap_or_default();
                plan.recheck = pods::earliest(plan.recheck, Some(left));
                disrupted.insert(name.to_owned(), at.clone());
            }
            (Some(_), _) => plan.not_deleted.push(Arc::clone(pod)),
            (None, _) => {}
        }
        if left.is_none_or(|left| left <= SignedDuration::ZERO) && pods::is_ready(pod) {
            healthy = healthy.saturating_add(1);
        }
    }
    // Without expected pods none may be disrupted: a budget whose first pods appear is safe before it is looked at again.
    let allowed = if expected.pods <= 0 { 0 } else { healthy.saturating_sub(expected.healthy).max(0) };
    plan.status = PodDisruptionBudgetStatus {
        conditions: old.conditions,
        current_healthy: Some(healthy),
        desired_healthy: Some(expected.healthy),
        disrupted_pods: Some(disrupted).filter(|disrupted| !disrupted.is_empty()),
        disruptions_allowed: Some(allowed),
        expected_pods: Some(expected.pods),
        observed_generation: budget.metadata.generation,
    };
    update_condition(&mut plan.status, now);
    plan
}

/// The status of a budget whose pods cannot be counted: no disruptions are allowed.
pub(super) fn failed(budget: &PodDisruptionBudget, why: &str, now: Timestamp) -> PodDisruptionBudgetStatus {
    let mut status = budget.status.clone().unwrap_or_default();
    status.disruptions_allowed = Some(0);
    set_condition(&mut status, ("False", SYNC_FAILED, why), now);
    status
}

/// The merge patch that makes `new` of the status of this version of a budget; `None` when nothing changes.
pub(super) fn patch(budget: &PodDisruptionBudget, new: &PodDisruptionBudgetStatus) -> Option<Value> {
    let normal = |status: &PodDisruptionBudgetStatus| {
        let mut status = status.clone();
        for count in [
            &mut status.current_healthy,
            &mut status.desired_healthy,
            &mut status.disruptions_allowed,
            &mut status.expected_pods,
        ] {
            count.get_or_insert(0);
        }
        status.disrupted_pods = status.disrupted_pods.filter(|pods| !pods.is_empty());
        status.conditions = status.conditions.filter(|conditions| !conditions.is_empty());
        status.observed_generation = status.observed_generation.filter(|generation| *generation != 0);
        status
    };
    let old = normal(&budget.status.clone().unwrap_or_default());
    let new = normal(new);
    if budget.status.is_some() && old == new {
        return None;
    }
    let mut fields = json!(new);
    // A merge patch removes what it says to be null.
    let gone = old.disrupted_pods.iter().flatten().map(|(name, _)| name);
    for name in gone.filter(|name| new.disrupted_pods.as_ref().is_none_or(|pods| !pods.contains_key(*name))) {
        fields["disruptedPods"][name] = Value::Null;
    }
    let meta = &budget.metadata;
    Some(json!({"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version}, "status": fields}))
}
