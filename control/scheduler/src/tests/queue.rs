//! Which waiting pods a change wakes, and at what cost.

use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{next, node, on, pod, spec, storage};
use crate::{model::PodInfo, queue::Retries, state::*};

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
            Decision::Unschedulable(_) => refused += 1,
            _ => bound.push(name),
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
/// are bound, with `others` waiting pods of three kinds.
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
    storage(&mut state, &claim("c0", Some("v")), now);
    examined(&mut state);
    storage(&mut state, &volume("v", Value::Null), now);
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
    storage(&mut state, &volume("vx", elsewhere), now);
    storage(&mut state, &claim("x", Some("vx")), now);
    let mut later = now + LONGEST_BACKOFF;
    state.advance(later);
    assert_eq!(drain(&mut state, later), (vec![], 1), "x alone was tried, and its volume is on another node");
    storage(&mut state, &volume("vx", Value::Null), later);
    state.storage_removed::<PersistentVolumeClaim>(&("default".to_owned(), "y".to_owned()), later);
    later += LONGEST_BACKOFF;
    state.advance(later);
    assert_eq!(drain(&mut state, later), (vec!["x".to_owned()], 0));
}

/// What waits fits since a change that nothing was concluded of: it is tried after a while all the same, and no sooner.
#[test]
fn who_waits_is_tried_after_a_while_whatever_happens() {
    const FLUSH: Duration = Duration::from_secs(300);
    let (mut state, now) = (State::new(Retries { flush: FLUSH, on_changes: false }), Instant::now());
    add(&mut state, &pod("waits", "1"), now);
    add(&mut state, &with_claim("claims", "1", "c"), now);
    drain(&mut state, now);
    state.node_applied(&node("n1", "4", "110"), now);
    storage(&mut state, &volume("v", Value::Null), now);
    storage(&mut state, &claim("c", Some("v")), now);
    let almost = now + FLUSH - Duration::from_secs(1);
    assert_eq!(state.advance(almost), Some(now + FLUSH));
    assert_eq!(drain(&mut state, almost), (vec![], 0));
    state.advance(now + FLUSH);
    let (mut bound, refused) = drain(&mut state, now + FLUSH);
    bound.sort();
    assert_eq!((bound, refused), (vec!["claims".to_owned(), "waits".to_owned()], 0));
}
