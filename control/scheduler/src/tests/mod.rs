//! Tests of decisions by tables, most of them upstream's own cases, by properties over random changes, and of the loop
//! with an API in memory.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Container, Node, NodeSpec, NodeStatus, Pod, PodSpec, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity,
};
use serde_json::{Value, json};
use tokio::time::Instant;
use windlass_kit::metrics::Registry;

mod cases;
mod filters;
mod inter_pod_affinity;
mod plugins;
mod pod_topology_spread;
mod preemption;
mod properties;
mod queue;
mod recorded;
mod run;
mod scores;
mod state;
mod volumes;

use super::{model::*, state::*, volumes::Stored};

fn amounts(list: &[(&str, &str)]) -> BTreeMap<String, Quantity> {
    list.iter().map(|(k, v)| ((*k).to_owned(), Quantity((*v).to_owned()))).collect()
}

fn node(name: &str, cpu: &str, pods: &str) -> Node {
    let mut node = Node::default();
    node.metadata.name = Some(name.into());
    node.spec = Some(NodeSpec::default());
    let allocatable = amounts(&[("cpu", cpu), ("memory", "8Gi"), ("pods", pods)]);
    node.status = Some(NodeStatus { allocatable: Some(allocatable), ..NodeStatus::default() });
    node
}

fn container(cpu: &str) -> Container {
    let resources =
        ResourceRequirements { requests: Some(amounts(&[("cpu", cpu)])), ..ResourceRequirements::default() };
    Container { resources: Some(resources), ..Container::default() }
}

fn pod(name: &str, cpu: &str) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.name = Some(name.into());
    pod.metadata.namespace = Some("default".into());
    pod.metadata.uid = Some(format!("uid-{name}"));
    pod.spec = Some(PodSpec { containers: vec![container(cpu)], ..PodSpec::default() });
    pod
}

fn spec(mut pod: Pod, change: impl FnOnce(&mut PodSpec)) -> Pod {
    change(pod.spec.as_mut().unwrap());
    pod
}

fn next(state: &mut State, now: Instant) -> Option<(String, Decision)> {
    state.next(now).map(|(pod, _, decision)| (pod.name.clone(), decision))
}

fn place(nodes: &[Node], running: &[Pod], pod: &Pod) -> Decision {
    let (mut state, now) = (State::default(), Instant::now());
    nodes.iter().for_each(|n| state.node_applied(n, now));
    running.iter().for_each(|p| state.pod_applied(PodInfo::of(p), true, now));
    state.pod_applied(PodInfo::of(pod), true, now);
    next(&mut state, now).unwrap().1
}

fn refused(nodes: &[Node], running: &[Pod], pod: &Pod) -> String {
    match place(nodes, running, pod) {
        Decision::Unschedulable(refusal) => refusal.message,
        other => panic!("bound: {other:?}"),
    }
}

fn on(name: &str) -> impl FnOnce(&mut PodSpec) {
    let name = name.to_owned();
    |spec| spec.node_name = Some(name)
}

/// Changes an object as JSON.
fn with<T: serde::Serialize + serde::de::DeserializeOwned>(object: &T, pointer: &str, value: Value) -> T {
    let mut json = serde_json::to_value(object).unwrap();
    let mut at = &mut json;
    for part in pointer.split('/').skip(1).map(|part| part.replace("~1", "/")) {
        at = match at {
            Value::Array(items) => &mut items[part.parse::<usize>().unwrap()],
            other => {
                if other.is_null() {
                    *other = json!({});
                }
                &mut other[part.as_str()]
            }
        };
    }
    *at = value;
    serde_json::from_value(json).unwrap()
}

/// A pod with labels.
fn labelled(name: &str, labels: &[(&str, &str)]) -> Pod {
    let mut pod = pod(name, "10m");
    pod.metadata.labels = Some(labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect());
    pod
}

/// A node with labels.
fn node_with(name: &str, labels: &[(&str, &str)]) -> Node {
    let mut node = node(name, "64", "110");
    node.metadata.labels = Some(labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect());
    node
}

/// A state with nodes and pods.
fn state_of(nodes: &[Node], pods: &[Pod]) -> State {
    let (mut state, now) = (State::default(), Instant::now());
    nodes.iter().for_each(|n| state.node_applied(n, now));
    pods.iter().for_each(|p| state.pod_applied(PodInfo::of(p), true, now));
    state
}

/// The nodes that a pod fits, one after the other.
fn feasible(nodes: &[Node], running: &[Pod], pod: &Pod) -> Vec<String> {
    let names: Vec<String> = nodes.iter().map(|node| node.metadata.name.clone().unwrap()).collect();
    let mut state = state_of(nodes, running);
    state.pod_applied(PodInfo::of(pod), true, Instant::now());
    let key = PodInfo::of(pod).key();
    names.into_iter().filter(|name| state.why_not(&key, name).is_none()).collect()
}

/// A claim, volume or class was added or has changed.
fn storage<K: Stored + serde::Serialize>(state: &mut State, object: &K, now: Instant) {
    let metadata = &serde_json::to_value(object).unwrap()["metadata"];
    let text = |field: &str| metadata[field].as_str().unwrap_or("").to_owned();
    state.storage_applied(object, &(text("namespace"), text("name")), now);
}
