//! Filters, each with upstream's reasons.

use k8s_openapi::api::core::v1::{
    Affinity, ContainerPort, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Taint,
};

use super::*;
use crate::scheduler::messages::{self, Histogram};

#[test]
fn messages_are_upstreams() {
    let full = spec(pod("full", "900m"), on("n1"));
    assert_eq!(
        refused(&[node("n1", "1", "110")], &[full], &pod("p", "500m")),
        "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."
    );
    assert_eq!(refused(&[], &[], &pod("p", "1")), "no nodes available to schedule pods");
    assert!(
        refused(&[node("n1", "1", "110")], &[], &pod("p", "2"))
            .ends_with("0/1 nodes are available: 1 Preemption is not helpful for scheduling.")
    );
    let mut reasons = Histogram::default();
    for (reason, nodes) in [("Too many pods", 2), ("Insufficient memory", 1), ("node(s) were unschedulable", 1)] {
        reasons.add(reason, nodes);
    }
    let mut tried = Histogram::default();
    tried.add(messages::NO_VICTIMS, 2);
    let text = messages::fit_error(3, &reasons, Some(&messages::no_candidates(3, 2, tried)));
    assert_eq!(
        text,
        "0/3 nodes are available: 1 Insufficient memory, 1 node(s) were unschedulable, 2 Too many pods. no new claims to deallocate, preemption: 0/3 nodes are available: 1 Preemption is not helpful for scheduling, 2 No preemption victims found for incoming pod."
    );
}

#[test]
fn each_filter_speaks() {
    let plain = node("n1", "4", "110");
    let change = |f: fn(&mut NodeSpec)| {
        let mut node = plain.clone();
        f(node.spec.as_mut().unwrap());
        node
    };
    let host_port = |ip: &'static str| {
        move |spec: &mut PodSpec| {
            let port = ContainerPort { host_port: Some(80), host_ip: Some(ip.into()), ..ContainerPort::default() };
            spec.containers[0].ports = Some(vec![port]);
        }
    };
    let taint = || Taint { key: "a".into(), effect: "NoExecute".into(), ..Taint::default() };
    let required = |key: &str, operator: &str, values: &[&str]| {
        let requirement = NodeSelectorRequirement {
            key: key.into(),
            operator: operator.into(),
            values: Some(values.iter().map(|v| (*v).to_owned()).collect()),
        };
        let term = if key.starts_with("metadata") {
            NodeSelectorTerm { match_fields: Some(vec![requirement]), ..NodeSelectorTerm::default() }
        } else {
            NodeSelectorTerm { match_expressions: Some(vec![requirement]), ..NodeSelectorTerm::default() }
        };
        let affinity = NodeAffinity {
            required_during_scheduling_ignored_during_execution: Some(NodeSelector { node_selector_terms: vec![term] }),
            ..NodeAffinity::default()
        };
        spec(pod("p", "1"), |s| s.affinity = Some(Affinity { node_affinity: Some(affinity), ..Affinity::default() }))
    };
    let neighbour = spec(spec(pod("x", "1"), host_port("0.0.0.0")), on("n1"));
    for (node, running, pod, reason) in [
        (change(|s| s.unschedulable = Some(true)), vec![], pod("p", "1"), "1 node(s) were unschedulable."),
        (
            {
                let mut node = plain.clone();
                node.spec.as_mut().unwrap().taints = Some(vec![taint()]);
                node
            },
            vec![],
            pod("p", "1"),
            "1 node(s) had untolerated taint(s).",
        ),
        (
            plain.clone(),
            vec![],
            spec(pod("p", "1"), |s| s.node_selector = Some(BTreeMap::from([("disk".into(), "ssd".into())]))),
            "1 node(s) didn't match Pod's node affinity/selector.",
        ),
        (plain.clone(), vec![], required("zone", "In", &["a"]), "didn't match Pod's node affinity/selector."),
        (
            plain.clone(),
            vec![],
            required("metadata.name", "In", &["n2"]),
            "1 node(s) didn't satisfy plugin(s) [NodeAffinity].",
        ),
        (
            plain.clone(),
            vec![neighbour],
            spec(pod("p", "1"), host_port("127.0.0.1")),
            "1 node(s) didn't have free ports for the requested pod ports.",
        ),
        (super::node("n1", "4", "1"), vec![spec(super::pod("x", "1"), on("n1"))], pod("p", "1"), "1 Too many pods."),
    ] {
        let text = refused(&[node], &running, &pod);
        assert!(text.contains(reason), "{text} lacks {reason}");
    }
    for pod in [
        required("zone", "NotIn", &["a"]),
        required("zone", "DoesNotExist", &[]),
        required("metadata.name", "In", &["n1"]),
    ] {
        assert_eq!(place(std::slice::from_ref(&plain), &[], &pod), Decision::Bind { node: "n1".into() });
    }
}
