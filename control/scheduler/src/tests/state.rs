//! Decisions about pods, one after the other.

use std::time::Duration;

use super::*;

#[test]
fn requests_are_the_peak_of_a_pods_life() {
    let pod = spec(pod("p", "300m"), |s| {
        let sidecar = Container { restart_policy: Some("Always".into()), ..container("100m") };
        s.init_containers = Some(vec![container("50m"), sidecar, container("700m")]);
        s.overhead = Some(amounts(&[("cpu", "10m")]));
    });
    assert_eq!(PodInfo::of(&pod).requests.milli_cpu, 810);
}

#[test]
fn a_pod_that_is_resized_holds_the_more_of_both() {
    let pod = with(&pod("p", "300m"), "/spec/containers/0/name", json!("c"));
    for (allocated, in_force, reason, expected) in [
        (json!({"cpu": "100m"}), json!({"cpu": "100m"}), "", 300),
        (json!({"cpu": "300m"}), json!({"cpu": "500m"}), "", 500),
        (json!({"cpu": "100m"}), json!({"cpu": "100m"}), "Deferred", 300),
        (json!({"cpu": "100m"}), json!({"cpu": "100m"}), "Infeasible", 100),
        (Value::Null, Value::Null, "Infeasible", 300),
    ] {
        let status = json!({"containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": true,
            "restartCount": 0, "allocatedResources": allocated, "resources": {"requests": in_force}}],
            "conditions": [{"type": "PodResizePending", "status": "True", "reason": reason}]});
        let info = PodInfo::of(&with(&pod, "/status", status));
        assert_eq!((info.requests.milli_cpu, info.scored.0), (expected, expected), "{reason}");
    }
}

#[test]
fn the_emptier_node_wins_and_priority_goes_first() {
    let (mut state, now) = (State::default(), Instant::now());
    state.node_applied(&node("n1", "2", "110"), now);
    state.node_applied(&node("n2", "4", "110"), now);
    state.pod_applied(PodInfo::of(&pod("low", "1")), true, now);
    state.pod_applied(PodInfo::of(&spec(pod("high", "1"), |s| s.priority = Some(5))), true, now);
    state.pod_applied(PodInfo::of(&pod("foreign", "1")), false, now);
    state.pod_applied(
        PodInfo::of(&spec(pod("gated", "1"), |s| s.scheduling_gates = Some(vec![Default::default()]))),
        true,
        now,
    );
    assert_eq!(next(&mut state, now), Some(("high".into(), Decision::Bind { node: "n2".into() })));
    assert_eq!(next(&mut state, now).unwrap().0, "low");
    assert_eq!(next(&mut state, now), None);
}

#[test]
fn an_unschedulable_pod_is_retried_when_resources_are_freed() {
    let (mut state, now) = (State::default(), Instant::now());
    let full = spec(pod("full", "1"), on("n1"));
    state.node_applied(&node("n1", "1", "110"), now);
    state.pod_applied(PodInfo::of(&full), true, now);
    let waiting = pod("p", "1");
    state.pod_applied(PodInfo::of(&waiting), true, now);
    assert!(matches!(next(&mut state, now), Some((_, Decision::Unschedulable { .. }))));

    // The condition that we wrote comes back through the watch.
    state.pod_applied(PodInfo::of(&waiting), true, now);
    assert_eq!(next(&mut state, now), None);
    assert_eq!(state.advance(now), Some(now + Duration::from_secs(300)));

    // Room: nobody else is to be tried, so that it does not wait for the end of its back-off.
    assert_eq!(state.queue.pending(), [0, 0, 1, 0]);
    state.pod_deleted(&("default".into(), "full".into()), now);
    assert_eq!(state.queue.pending(), [0, 1, 0, 0]);
    assert_eq!(next(&mut state, now), Some(("p".into(), Decision::Bind { node: "n1".into() })));
    assert_eq!(state.queue.pending(), [0; 4]);
}

#[test]
fn who_is_to_be_tried_goes_before_who_backs_off() {
    let (mut state, now) = (State::default(), Instant::now());
    state.pod_applied(PodInfo::of(&spec(pod("tried", "1"), |s| s.priority = Some(9))), true, now);
    assert!(matches!(next(&mut state, now), Some((_, Decision::Unschedulable { .. }))));
    state.node_applied(&node("n1", "1", "110"), now);
    state.pod_applied(PodInfo::of(&pod("new", "1")), true, now);
    assert_eq!(state.queue.pending(), [1, 1, 0, 0]);
    assert_eq!(next(&mut state, now), Some(("new".into(), Decision::Bind { node: "n1".into() })));
    // Nor does a failed binding make room for itself at once.
    let (mut state, now) = (State::default(), Instant::now());
    state.node_applied(&node("n1", "1", "110"), now);
    state.pod_applied(PodInfo::of(&pod("a", "1")), true, now);
    let (bound, constraints, _) = state.next(now).unwrap();
    state.bind_failed(&bound, &constraints, "no", now);
    assert!(matches!(next(&mut state, now), Some((_, Decision::Unschedulable { .. }))));
    assert_eq!((next(&mut state, now), state.queue.pending()), (None, [0, 1, 0, 0]));
}

#[test]
fn a_pod_as_a_whole_that_is_resized_holds_the_more_of_both() {
    let pod = with(&pod("p", "300m"), "/spec/resources", json!({"requests": {"cpu": "400m"}}));
    for (allocated, in_force, reason, expected) in [
        (Value::Null, Value::Null, "", 400),
        (json!({"cpu": "100m"}), json!({"cpu": "100m"}), "", 400),
        (json!({"cpu": "400m"}), json!({"cpu": "900m"}), "", 900),
        (json!({"cpu": "800m"}), json!({"cpu": "100m"}), "Deferred", 800),
        (json!({"cpu": "100m"}), json!({"cpu": "200m"}), "Infeasible", 200),
    ] {
        let mut status = json!({"conditions": [{"type": "PodResizePending", "status": "True", "reason": reason}]});
        if !allocated.is_null() {
            status["allocatedResources"] = allocated.clone();
            status["resources"] = json!({"requests": in_force});
        }
        let info = PodInfo::of(&with(&pod, "/status", status));
        assert_eq!((info.requests.milli_cpu, info.scored.0), (expected, expected), "{reason} {allocated}");
    }
    // An init container is not resized, whatever its status tells.
    let inits = json!([{"name": "i", "resources": {"requests": {"cpu": "1"}}}]);
    let pod = with(&super::pod("p", "300m"), "/spec/initContainers", inits);
    let status = json!({"initContainerStatuses": [{"name": "i", "image": "", "imageID": "", "ready": true,
        "restartCount": 0, "resources": {"requests": {"cpu": "5"}}}]});
    assert_eq!(PodInfo::of(&with(&pod, "/status", status)).requests.milli_cpu, 1000);
}

#[test]
fn a_failed_binding_gives_the_room_back() {
    let (mut state, now) = (State::default(), Instant::now());
    state.node_applied(&node("n1", "1", "110"), now);
    state.pod_applied(PodInfo::of(&pod("a", "1")), true, now);
    let (bound, constraints, _) = state.next(now).unwrap();
    // A change of the pod that does not show the binding yet keeps the room taken.
    state.pod_applied(PodInfo::of(&pod("a", "1")), true, now);
    state.pod_applied(PodInfo::of(&pod("b", "1")), true, now);
    assert!(matches!(next(&mut state, now), Some((_, Decision::Unschedulable { .. }))));
    state.bind_failed(&bound, &constraints, "no", now);
    let Some((name, Decision::Unschedulable(refusal))) = next(&mut state, now) else { panic!("not told") };
    assert_eq!((name.as_str(), refusal.reason), ("a", Reason::SchedulerError));
    assert_eq!(refusal.message, "running Bind plugin \"DefaultBinder\": no");
    let later = now + Duration::from_secs(1);
    state.advance(later);
    let first = next(&mut state, later).unwrap();
    assert!(matches!(first.1, Decision::Bind { .. }));
    assert!(matches!(next(&mut state, later), Some((_, Decision::Unschedulable { .. }))));
}

#[test]
fn two_hundred_pods_are_placed_at_once() {
    let (mut state, now) = (State::default(), Instant::now());
    state.node_applied(&node("n1", "64", "250"), now);
    for i in 0..200 {
        state.pod_applied(PodInfo::of(&pod(&format!("p{i}"), "10m")), true, now);
    }
    let bound =
        std::iter::from_fn(|| next(&mut state, now)).filter(|(_, d)| matches!(d, Decision::Bind { .. })).count();
    assert_eq!(bound, 200);
}
