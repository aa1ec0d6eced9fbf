//! Texts of the events about PodDisruptionBudgets and their pods, as in upstream's pkg/controller/disruption/disruption.go.
//! Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use windlass_kit::objects::label_selector;

/// Reasons of events.
pub(super) const NO_PODS: &str = "NoPods";
pub(super) const CALCULATE_EXPECTED_POD_COUNT_FAILED: &str = "CalculateExpectedPodCountFailed";
pub(super) const UNMANAGED_PODS: &str = "UnmanagedPods";
pub(super) const NOT_DELETED: &str = "NotDeleted";
pub(super) const MULTIPLE_POD_DISRUPTION_BUDGETS: &str = "MultiplePodDisruptionBudgets";

pub(super) const NO_MATCHING_PODS: &str = "No matching pods found";

pub(super) fn cannot_count(why: &str) -> String {
    format!("Failed to calculate the number of expected pods: {why}")
}

pub(super) fn unmanaged_pods(selector: Option<&LabelSelector>) -> String {
    let selector = label_selector::go_selector(selector);
    format!(
        "Pods selected by this PodDisruptionBudget (selector: {selector}) were found to be unmanaged. As a result, the status of the PDB cannot be calculated correctly, which may result in undefined behavior. To account for these pods please set \".spec.minAvailable\" field of the PDB to an integer value."
    )
}

pub(super) fn not_deleted(namespace: &str, budget: &str) -> String {
    format!("Pod was expected by PDB {namespace}/{budget} to be deleted but it wasn't")
}

pub(super) fn multiple_budgets(namespace: &str, pod: &str, first: &str) -> String {
    format!("Pod {namespace:?}/{pod:?} matches multiple PodDisruptionBudgets.  Chose {first:?} arbitrarily.")
}
