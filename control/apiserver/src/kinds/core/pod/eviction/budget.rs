//! Whether a pod may be evicted, by the budgets of its namespace. Upstream's `EvictionREST` and `checkAndDecrement`. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::{
    api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};
use serde_json::{Value, json};
use windlass_apimachinery::selectors::LabelSelector;
use windlass_kit::objects::disruption_budget::{SYNC_FAILED, disruption_allowed, update_condition};

use crate::{apiserver::ApiError, kinds::shared::conditions};

/// The evictions that the controller has not noticed yet may not be more. Upstream's `MaxDisruptedPodSize`.
const MAX_DISRUPTED_POD_SIZE: usize = 2000;
/// When to try again while the controller has not seen a budget.
const RETRY_AFTER_SECONDS: u32 = 10;
/// The reason of the cause of a refusal. Upstream's `DisruptionBudgetCause`.
const DISRUPTION_BUDGET: &str = "DisruptionBudget";
const WOULD_VIOLATE: &str = "Cannot evict pod as it would violate the pod's disruption budget.";
const SEVERAL: &str =
    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";

/// On what ground a pod may be evicted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ground {
    /// It has ended or ends: it is no loss. Upstream's `canIgnorePDB`.
    Over,
    /// It has not begun, and may not until it is deleted.
    Pending,
    /// No budget selects it.
    Unprotected,
    /// It is not ready, and its budget lets such pods go; it may not become ready until it is deleted.
    Unready { budget: String },
    /// Its budget allows another disruption, which it is.
    Spends { budget: String },
}

/// Why a pod may not be evicted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Several budgets select it.
    Several,
    /// The controller has not seen the budget as it is, or the pod has changed.
    BeingProcessed { budget: String },
    /// The budget's status is not one that evictions can be counted in.
    Forbidden { budget: String, why: &'static str },
    /// The budget allows no further disruption.
    Exhausted { why: String },
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        let too_many =
            |why: &str| Self::new(429, "TooManyRequests", WOULD_VIOLATE).with_cause(DISRUPTION_BUDGET, why, "");
        match refusal {
            Refusal::Several => Self::unknown(SEVERAL),
            Refusal::BeingProcessed { budget } => {
                too_many(&format!("The disruption budget {budget} is still being processed by the server."))
                    .with_retry_after(RETRY_AFTER_SECONDS)
            }
            Refusal::Forbidden { budget, why } => {
                let message = format!("poddisruptionbudget.policy {budget:?} is forbidden: {why}");
                Self::new(403, "Forbidden", message).of_resource("policy", "poddisruptionbudget", &budget)
            }
            Refusal::Exhausted { why } => too_many(&why),
        }
    }
}

/// Whether a pod may go without a look at its budgets.
pub(super) fn without_budget(pod: &Value) -> Option<Ground> {
    let phase = pod["status"]["phase"].as_str().unwrap_or("");
    if matches!(phase, "Succeeded" | "Failed") || !pod["metadata"]["deletionTimestamp"].is_null() {
        return Some(Ground::Over);
    }
    (phase == "Pending").then_some(Ground::Pending)
}

/// Whether a pod may be evicted by the budgets of its namespace.
pub(super) fn ground(pod: &Value, budgets: &[PodDisruptionBudget], now: Timestamp) -> Result<Ground, Refusal> {
    if let Some(ground) = without_budget(pod) {
        return Ok(ground);
    }
    let budget = match budgets.iter().filter(|budget| selects(budget, pod)).collect::<Vec<_>>().as_slice() {
        [] => return Ok(Ground::Unprotected),
        [budget] => *budget,
        _ => return Err(Refusal::Several),
    };
    if !conditions::is_true(pod, "Ready") && lets_unready_go(budget) {
        return Ok(Ground::Unready { budget: name(budget) });
    }
    spend(budget, pod["metadata"]["name"].as_str().unwrap_or(""), now)?;
    Ok(Ground::Spends { budget: name(budget) })
}

fn name(budget: &PodDisruptionBudget) -> String {
    budget.metadata.name.clone().unwrap_or_default()
}

/// A budget without a selector selects no pod, one with an empty selector all of its namespace.
fn selects(budget: &PodDisruptionBudget, pod: &Value) -> bool {
    let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    let parsed = selector.map(|selector| LabelSelector::from_label_selector(&json!(selector)));
    parsed.is_some_and(|parsed| parsed.is_ok_and(|selector| selector.matches(pod)))
}

/// Whether pods that are not ready may go, which the budget does not count.
fn lets_unready_go(budget: &PodDisruptionBudget) -> bool {
    let policy = budget.spec.as_ref().and_then(|spec| spec.unhealthy_pod_eviction_policy.as_deref());
    let (desired, current) = budget.status.as_ref().map_or((0, 0), healthy);
    policy == Some("AlwaysAllow") || (current >= desired && desired > 0)
}

/// How many pods are to be healthy, and how many are.
fn healthy(status: &PodDisruptionBudgetStatus) -> (i32, i32) {
    (status.desired_healthy.unwrap_or(0), status.current_healthy.unwrap_or(0))
}

/// The status of a budget after the eviction of a pod that counts. Upstream's `checkAndDecrement`.
pub(super) fn spend(
    budget: &PodDisruptionBudget,
    pod: &str,
    now: Timestamp,
) -> Result<PodDisruptionBudgetStatus, Refusal> {
    let mut status = budget.status.clone().unwrap_or_default();
    if status.observed_generation.unwrap_or(0) < budget.metadata.generation.unwrap_or(0) {
        return Err(Refusal::BeingProcessed { budget: name(budget) });
    }
    let forbidden = |why| Err(Refusal::Forbidden { budget: name(budget), why });
    let allowed = status.disruptions_allowed.unwrap_or(0);
    if allowed < 0 {
        return forbidden("pdb disruptions allowed is negative");
    }
    if status.disrupted_pods.as_ref().map_or(0, BTreeMap::len) > MAX_DISRUPTED_POD_SIZE {
        return forbidden("DisruptedPods map too big - too many evictions not confirmed by PDB controller");
    }
    if allowed == 0 {
        return Err(Refusal::Exhausted { why: why_exhausted(&name(budget), &status) });
    }
    status.disruptions_allowed = Some(allowed - 1);
    if allowed == 1 {
        update_condition(&mut status, now);
    }
    let at = Time(Timestamp::from_second(now.as_second()).unwrap_or(now));
    status.disrupted_pods.get_or_insert_default().insert(pod.to_owned(), at);
    Ok(status)
}

fn why_exhausted(name: &str, status: &PodDisruptionBudgetStatus) -> String {
    let not_allowed = format!("The disruption budget {name} does not allow evicting pods currently");
    let condition = disruption_allowed(status);
    let (desired, current) = healthy(status);
    match condition {
        Some(failed) if failed.reason == SYNC_FAILED => {
            format!("{not_allowed} because it failed sync: {}", failed.message)
        }
        _ if current <= desired => {
            format!("The disruption budget {name} needs {desired} healthy pods and has {current} currently")
        }
        Some(c) if c.status == "False" && !c.message.is_empty() => {
            format!("{not_allowed} ({}): {}", c.reason, c.message)
        }
        _ => not_allowed,
    }
}
