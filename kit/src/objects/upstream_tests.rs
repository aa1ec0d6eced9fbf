//! Requests and classes of pods of upstream's own tests.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Node, NodeSelector, Pod, PodSpec, Taint, Toleration},
    apimachinery::pkg::{api::resource::Quantity as ApiQuantity, util::intstr::IntOrString},
};
use serde_json::Value;
use windlass_fixtures::facts::{rows, text_of, value_of};

use super::{
    int_or_percent::{Rounding, scaled},
    node_selector,
    requests::{Amounts, requests},
    resources::class,
    sums, tolerations,
};
use crate::quantity::Quantity;

static REQUESTS: &str = include_str!("../../../facts/pod_requests.tsv");
static TOLERATIONS: &str = include_str!("../../../facts/tolerations.tsv");
static AFFINITY: &str = include_str!("../../../facts/node_affinity.tsv");
static PERCENT: &str = include_str!("../../../facts/int_or_percent.tsv");
static CLASSES: &str = include_str!("../../../facts/qos.tsv");

fn amounts(list: &str) -> BTreeMap<String, Quantity> {
    let list: BTreeMap<String, String> = value_of(list);
    list.into_iter().map(|(name, text)| (name, text.parse().unwrap())).collect()
}

#[test]
fn pods_request_as_upstreams_tests_say() {
    let mut seen = 0;
    for row in rows(REQUESTS) {
        let spec: Value = value_of(row[2]);
        if let ["TestAggregateContainerRequestsAndLimits", name, _, requested, limits] = *row {
            assert_eq!(sums::of_containers(&spec, "requests"), amounts(requested), "{name}");
            assert_eq!(sums::of_containers(&spec, "limits"), amounts(limits), "{name}");
        } else {
            let pod = Pod { spec: serde_json::from_value(spec).unwrap(), ..Pod::default() };
            let expected: BTreeMap<String, ApiQuantity> = value_of(row[3]);
            assert_eq!(requests(&pod), Amounts::of(Some(&expected)), "{}", row[1]);
        }
        seen += 1;
    }
    assert!(seen > 25, "{seen}");
}

#[test]
fn pods_have_classes_as_upstreams_tests_say() {
    let mut seen = 0;
    for row in rows(CLASSES) {
        let spec: PodSpec = value_of(row[1]);
        // Resources of whole pods always count here.
        if spec.resources.is_none() || row[3] == "true" {
            assert_eq!(class(&spec).name(), row[2], "{}", row[1]);
            seen += 1;
        }
    }
    assert!(seen > 15, "{seen}");
}

#[test]
fn taints_are_tolerated_as_upstreams_tests_say() {
    let mut seen = 0;
    for row in rows(TOLERATIONS) {
        let toleration: Toleration = value_of(row[2]);
        let taint: Taint = value_of(row[3]);
        assert_eq!(tolerations::tolerates(&toleration, &taint), row[4] == "true", "{}", row[1]);
        seen += 1;
    }
    assert!(seen > 5, "{seen}");
}

#[test]
fn nodes_are_selected_as_upstreams_tests_say() {
    let mut seen = 0;
    for row in rows(AFFINITY) {
        let node: Node = value_of(row[3]);
        let name = node.metadata.name.unwrap_or_default();
        let labels = node.metadata.labels.unwrap_or_default();
        let found = if row[0] == "TestNodeSelectorMatch" {
            let selector: NodeSelector = value_of(row[2]);
            node_selector::matches(&selector, &name, &labels)
        } else {
            let mut spec: Value = value_of(row[2]);
            spec["containers"] = Value::Array(Vec::new());
            node_selector::pod_matches(&serde_json::from_value(spec).unwrap(), &name, &labels)
        };
        assert_eq!(found, row[4] == "true", "{}", row[1]);
        seen += 1;
    }
    assert!(seen > 25, "{seen}");
}

#[test]
fn percentages_are_of_the_whole_as_upstreams_tests_say() {
    let mut seen = 0;
    for row in rows(PERCENT) {
        let value: IntOrString = value_of(&text_of(row[1]));
        // A percentage of a hundred is its own number.
        let (total, up, expected) = match *row {
            [_, _, expected] => (100, false, expected),
            [_, _, total, up, expected] => (total.parse().unwrap(), up == "true", expected),
            _ => panic!("{row:?}"),
        };
        let found = scaled(&value, total, if up { Rounding::Up } else { Rounding::Down });
        assert_eq!(found, expected.parse().ok(), "{row:?}");
        seen += 1;
    }
    assert!(seen > 15, "{seen}");
}
