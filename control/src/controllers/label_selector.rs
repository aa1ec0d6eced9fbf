//! Label selectors with expressions. Pure.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use windlass_apimachinery::selectors;

/// Whether a selector selects an object with these labels; one that cannot be read selects nothing.
pub(crate) fn selects(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let parsed = selectors::LabelSelector::from_label_selector(&serde_json::to_value(selector).unwrap_or_default());
    parsed.is_ok_and(|selector| selector.matches_labels(&serde_json::to_value(labels).unwrap_or_default()))
}
