//! Whether a node is one of those that a selector means: read alike by the scheduler and by the node itself. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodSpec};
use windlass_apimachinery::names;

/// Terms are alternatives; none at all matches nothing.
#[must_use]
pub fn matches(selector: &NodeSelector, name: &str, labels: &BTreeMap<String, String>) -> bool {
    selector.node_selector_terms.iter().any(|term| term_matches(term, name, labels))
}

/// All of a term's requirements hold; a term without any matches nothing, nor does one that asks for what no label can be.
#[must_use]
pub fn term_matches(term: &NodeSelectorTerm, name: &str, labels: &BTreeMap<String, String>) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    !(expressions.is_empty() && fields.is_empty())
        && expressions.iter().all(|r| can_be_of_a_label(r) && holds(r, labels.get(&r.key).map(String::as_str)))
        && fields.iter().all(|r| holds(r, (r.key == "metadata.name").then_some(name)))
}

/// Whether a node has the labels that a pod selects, and fits its required affinity; upstream's
/// `GetRequiredNodeAffinity`.
#[must_use]
pub fn pod_matches(pod: &PodSpec, name: &str, labels: &BTreeMap<String, String>) -> bool {
    let affinity = pod.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    pod.node_selector.iter().flatten().all(|(key, value)| labels.get(key) == Some(value))
        && required.is_none_or(|selector| matches(selector, name, labels))
}

fn can_be_of_a_label(requirement: &NodeSelectorRequirement) -> bool {
    let mut values = requirement.values.iter().flatten();
    names::qualified(&requirement.key).is_none() && values.all(|value| names::label_value(value).is_none())
}

fn holds(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let among = |value: &str| values.iter().any(|v| v == value);
    let compare = |f: fn(i64, i64) -> bool| {
        let (Some(Ok(have)), Some(Ok(limit))) = (value.map(str::parse), values.first().map(|v| v.parse())) else {
            return false;
        };
        f(have, limit)
    };
    match requirement.operator.as_str() {
        "In" => value.is_some_and(among),
        "NotIn" => !value.is_some_and(among),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compare(|have, limit| have > limit),
        "Lt" => compare(|have, limit| have < limit),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requirements() {
        let labels = BTreeMap::from([("zone".to_owned(), "a".to_owned()), ("disks".to_owned(), "4".to_owned())]);
        let requirement = |key: &str, operator: &str, values: &[&str]| NodeSelectorRequirement {
            key: key.to_owned(),
            operator: operator.to_owned(),
            values: Some(values.iter().map(|v| (*v).to_owned()).collect()),
        };
        for (key, operator, values, wanted) in [
            ("zone", "In", &["a", "b"][..], true),
            ("zone", "In", &["b"], false),
            ("none", "NotIn", &["b"], true),
            ("zone", "NotIn", &["a"], false),
            ("zone", "Exists", &[], true),
            ("zone", "DoesNotExist", &[], false),
            ("disks", "Gt", &["3"], true),
            ("disks", "Lt", &["3"], false),
            ("zone", "Gt", &["3"], false),
            ("zone", "Near", &["a"], false),
        ] {
            let term = NodeSelectorTerm {
                match_expressions: Some(vec![requirement(key, operator, values)]),
                ..NodeSelectorTerm::default()
            };
            let selector = NodeSelector { node_selector_terms: vec![NodeSelectorTerm::default(), term] };
            assert_eq!(matches(&selector, "n", &labels), wanted, "{key} {operator} {values:?}");
        }
        let by_name = NodeSelectorTerm {
            match_fields: Some(vec![requirement("metadata.name", "In", &["n"])]),
            ..NodeSelectorTerm::default()
        };
        assert!(term_matches(&by_name, "n", &labels) && !term_matches(&by_name, "m", &labels));
        assert!(!matches(&NodeSelector { node_selector_terms: Vec::new() }, "n", &labels));
    }
}
