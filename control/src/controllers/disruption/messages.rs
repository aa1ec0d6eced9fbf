//! Texts of the events about PodDisruptionBudgets and their pods, as in upstream's pkg/controller/disruption/disruption.go.
//! Pure.

use std::fmt::Write as _;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

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
    let selector = selector.map_or_else(|| "nil".to_owned(), shown);
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

/// A selector as Go prints it.
fn shown(selector: &LabelSelector) -> String {
    let mut text = "&LabelSelector{MatchLabels:map[string]string{".to_owned();
    for (key, value) in selector.match_labels.iter().flatten() {
        let _ = write!(text, "{key}: {value},");
    }
    text.push_str("},MatchExpressions:[]LabelSelectorRequirement{");
    for expression in selector.match_expressions.iter().flatten() {
        let values = expression.values.as_deref().unwrap_or_default().join(" ");
        let (key, operator) = (&expression.key, &expression.operator);
        let _ = write!(text, "LabelSelectorRequirement{{Key:{key},Operator:{operator},Values:[{values}],}},");
    }
    text.push_str("},}");
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_selector_is_shown_as_go_prints_it() {
        let selector = json!({"matchLabels": {"b": "2", "a": "1"},
            "matchExpressions": [{"key": "k", "operator": "In", "values": ["x", "y"]}, {"key": "e", "operator": "Exists"}]});
        assert_eq!(
            shown(&serde_json::from_value(selector).unwrap()),
            "&LabelSelector{MatchLabels:map[string]string{a: 1,b: 2,},MatchExpressions:[]LabelSelectorRequirement{\
             LabelSelectorRequirement{Key:k,Operator:In,Values:[x y],},\
             LabelSelectorRequirement{Key:e,Operator:Exists,Values:[],},},}"
        );
        assert_eq!(
            shown(&LabelSelector::default()),
            "&LabelSelector{MatchLabels:map[string]string{},MatchExpressions:[]LabelSelectorRequirement{},}"
        );
    }
}
