//! Which waiting pods a change wakes, and at what cost.

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{next, node, on, pod, spec};
use crate::scheduler::{model::PodInfo, state::*};

/// After this time every pod that an event has woken was tried.
const LONGEST_BACKOFF: Duration = Duration::from_secs(10);

fn add(state: &mut State, pod: &Pod, now: Instant) {
    state.pod_applied(PodInfo::of(pod), true, now);
}

/// Takes all decisions; returns the names of pods that were bound, in order, and how many were not.
fn drain(state: &mut State, now: Instant) -> (Vec<String>, usize) {
    let (mut bound, mut refused) = (Vec::new(), 0);
    while let Some((name, decision)) = next(state, now) {
        match decision {
            Decision::Bind { .. } => bound.push(name),
            Decision::Unschedulable { .. } => refused += 1,
        }
    }
    (bound, refused)
}

fn with_claim(name: &str, cpu: &str, claim: &str) -> Pod {
    let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]);
    spec(pod(name, cpu), |s| s.volumes = serde_json::from_value(volumes).unwrap())
}

fn claim(name: &str, volume: Option<&str>) -> PersistentVolumeClaim {
    let phase = if volume.is_some() { "Bound" } else { "Pending" };
    serde_json::from_value(json!({"metadata": {"name": name, "namespace": "default"}, "spec": {"volumeName": volume},
        "status": {"phase": phase}}))
    .unwrap()
}

fn volume(name: &str, affinity: Value) -> PersistentVolume {
    serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"nodeAffinity": affinity}})).unwrap()
}

/// The number of groups and pods that a freed node, a changed node and a changed claim are tried on, and the pods that
/// are bound, beside `others` waiting pods of three kinds.
fn cost(others: usize) -> (Vec<usize>, Vec<String>) {
    let (mut state, now) = (State::default(), Instant::now());
    state.node_applied(&node("n1", "1", "110"), now);
    add(&mut state, &spec(pod("full", "1"), on("n1")), now);
    for i in 0..others {
        add(&mut state, &pod(&format!("large-{i}"), "64"), now);
        add(
            &mut state,
            &spec(pod(&format!("elsewhere-{i}"), "1"), |s| {
                s.node_selector = Some([("disk".to_owned(), "ssd".to_owned())].into());
            }),
            now,
        );
        add(&mut state, &with_claim(&format!("claim-{i}"), "64", &format!("c{i}")), now);
    }
    add(&mut state, &pod("small", "1"), now);
    drain(&mut state, now);
    let mut costs = Vec::new();
    let mut examined = |state: &mut State| costs.push(std::mem::take(&mut state.queue.examined));
    examined(&mut state);
    state.pod_deleted(&("default".into(), "full".into()), now);
    examined(&mut state);
    state.storage_applied(&claim("c0", Some("v")), now);
    examined(&mut state);
    state.storage_applied(&volume("v", Value::Null), now);
    examined(&mut state);
    let later = now + LONGEST_BACKOFF;
    state.advance(later);
    let (bound, _) = drain(&mut state, later);
    state.node_applied(&node("n1", "2", "110"), later);
    examined(&mut state);
    (costs, bound)
}

#[test]
fn the_work_for_a_change_is_independent_of_the_number_of_waiting_pods() {
    let few = cost(3);
    assert_eq!(few, cost(1000));
    assert_eq!(few.1, ["small"]);
    assert!(few.0.iter().all(|n| *n <= 4), "{few:?}");
}

#[test]
fn room_is_used_up_by_one_pod_after_the_other() {
    let (mut state, now) = (State::default(), Instant::now());
    for name in ["a", "b", "c", "d", "e"] {
        add(&mut state, &pod(name, "1"), now);
    }
    assert_eq!(drain(&mut state, now), (vec![], 5));
    state.node_applied(&node("n1", "3", "110"), now);
    let later = now + Duration::from_secs(1);
    state.advance(later);
    let (bound, refused) = drain(&mut state, later);
    assert_eq!((bound.len(), refused), (3, 1), "the fourth is told, the fifth has nothing new to hear");
}

#[test]
fn when_the_retried_pod_goes_another_is_tried() {
    let (mut state, now) = (State::default(), Instant::now());
    for name in ["a", "b"] {
        add(&mut state, &pod(name, "1"), now);
    }
    drain(&mut state, now);
    state.node_applied(&node("n1", "1", "110"), now);
    state.pod_deleted(&("default".into(), "a".into()), now);
    let later = now + Duration::from_secs(1);
    state.advance(later);
    assert_eq!(drain(&mut state, later).0, ["b"]);
}

#[test]
fn claims_and_volumes_wake_the_pods_that_use_them() {
    let (mut state, now) = (State::default(), Instant::now());
    state.node_applied(&node("n1", "4", "110"), now);
    for name in ["x", "y"] {
        add(&mut state, &with_claim(name, "1", name), now);
    }
    assert_eq!(drain(&mut state, now), (vec![], 2));
    let elsewhere = json!({"required": {"nodeSelectorTerms": [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}]}});
    state.storage_applied(&volume("vx", elsewhere), now);
    state.storage_applied(&claim("x", Some("vx")), now);
    let mut later = now + LONGEST_BACKOFF;
    state.advance(later);
    assert_eq!(drain(&mut state, later), (vec![], 1), "x alone was tried, and its volume is on another node");
    state.storage_applied(&volume("vx", Value::Null), later);
    state.storage_deleted(&claim("y", None));
    later += LONGEST_BACKOFF;
    state.advance(later);
    assert_eq!(drain(&mut state, later), (vec!["x".to_owned()], 0));
}

#[derive(Debug, Clone)]
enum Event {
    Add(u8, u8),
    Delete(u8),
    Node(u8, u8),
    NodeGone(u8),
    Decide(bool),
    Pass(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0u8..12, 1u8..4).prop_map(|(pod, cpu)| Event::Add(pod, cpu)),
        3 => (0u8..12).prop_map(Event::Delete),
        2 => (0u8..3, 0u8..6).prop_map(|(node, cpu)| Event::Node(node, cpu)),
        1 => (0u8..3).prop_map(Event::NodeGone),
        4 => any::<bool>().prop_map(Event::Decide),
        2 => (0u64..4000).prop_map(Event::Pass),
    ]
}

proptest! {
    /// Whatever happens, no pod that fits a node waits for longer than the back-offs, and nothing of a deleted pod is
    /// kept.
    #[test]
    fn no_pod_that_fits_is_left_waiting(events in prop::collection::vec(event(), 1..80)) {
        let (mut state, mut now) = (State::default(), Instant::now());
        let (mut pods, mut bound) = (BTreeSet::new(), BTreeSet::new());
        let mut serial = 0;
        for event in events {
            match event {
                Event::Add(name, cpu) => if pods.insert(name) {
                    serial += 1;
                    let mut pod = pod(&format!("p{name}"), &cpu.to_string());
                    pod.metadata.uid = Some(serial.to_string());
                    add(&mut state, &pod, now);
                },
                Event::Delete(name) => if pods.remove(&name) {
                    bound.remove(&format!("p{name}"));
                    state.pod_deleted(&("default".into(), format!("p{name}")), now);
                },
                Event::Node(name, cpu) => state.node_applied(&node(&format!("n{name}"), &cpu.to_string(), "110"), now),
                Event::NodeGone(name) => state.node_deleted(&format!("n{name}")),
                Event::Decide(works) => if let Some((pod, constraints, Decision::Bind { .. })) = state.next(now) {
                    if works { bound.insert(pod.name.clone()); } else { state.bind_failed(&pod, constraints, now); }
                },
                Event::Pass(milliseconds) => {
                    now += Duration::from_millis(milliseconds);
                    state.advance(now);
                }
            }
        }
        // Each bound pod may wake another one, after a back-off.
        for _ in 0..=pods.len() {
            now += LONGEST_BACKOFF;
            state.advance(now);
            bound.extend(drain(&mut state, now).0);
        }
        for name in pods.iter().map(|name| format!("p{name}")).filter(|name| !bound.contains(name)) {
            prop_assert!(!state.fits_somewhere(&("default".into(), name.clone())), "{name} waits and fits");
        }
        for name in pods {
            state.pod_deleted(&("default".into(), format!("p{name}")), now);
        }
        prop_assert!(state.queue.is_empty(), "{:?}", state.queue);
    }
}
