use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodCondition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use proptest::prelude::*;

use super::{plan::*, ranking};
use crate::runtime::cached_pod::{CachedContainerStatus, CachedPod, CachedPodSpec, CachedPodStatus};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn labels(app: &str) -> BTreeMap<String, String> {
    BTreeMap::from([("app".to_owned(), app.to_owned())])
}

fn owned(uid: &str) -> Vec<OwnerReference> {
    vec![OwnerReference { uid: uid.into(), controller: Some(true), ..OwnerReference::default() }]
}

fn pod(name: &str, phase: &str, ready: Option<i64>) -> CachedPod {
    let mut pod = CachedPod::default();
    pod.metadata.name = Some(name.into());
    pod.metadata.labels = Some(labels("web"));
    pod.metadata.owner_references = Some(owned("rc"));
    pod.metadata.creation_timestamp = Some(Time(at(0)));
    pod.spec = Some(CachedPodSpec { node_name: Some("n1".into()), ..CachedPodSpec::default() });
    let condition = PodCondition {
        type_: "Ready".into(),
        status: if ready.is_some() { "True" } else { "False" }.into(),
        last_transition_time: ready.map(|s| Time(at(s))),
        ..PodCondition::default()
    };
    pod.status = Some(CachedPodStatus {
        phase: Some(phase.into()),
        conditions: Some(vec![condition]),
        ..CachedPodStatus::default()
    });
    pod
}

fn with<F: FnOnce(&mut CachedPod)>(mut pod: CachedPod, change: F) -> Arc<CachedPod> {
    change(&mut pod);
    Arc::new(pod)
}

fn names(pods: &[Arc<CachedPod>]) -> Vec<&str> {
    pods.iter().map(|p| p.metadata.name.as_deref().unwrap()).collect()
}

fn desired<'a>(selector: &'a BTreeMap<String, String>, replicas: usize) -> Desired<'a> {
    Desired {
        uid: "rc",
        deleting: false,
        replicas,
        min_ready: Duration::ZERO,
        selector: selector.into(),
        template_labels: selector,
    }
}

#[test]
fn deletion_order_follows_the_preferences() {
    let now = at(10_000);
    let restarts = |n: i32| {
        move |p: &mut CachedPod| {
            p.status.as_mut().unwrap().container_statuses =
                Some(vec![CachedContainerStatus { restart_count: n, ..CachedContainerStatus::default() }]);
        }
    };
    let sidecar = |n: i32| move |p: &mut CachedPod| p.status.as_mut().unwrap().sidecar_restarts = n;
    let cost = |n: &'static str| {
        move |p: &mut CachedPod| {
            p.metadata.annotations =
                Some(BTreeMap::from([("controller.kubernetes.io/pod-deletion-cost".to_owned(), n.to_owned())]));
        }
    };
    let alone = |p: &mut CachedPod| p.spec.as_mut().unwrap().node_name = Some("n2".into());
    let pods = [
        with(pod("h-oldest", "Running", Some(100)), |_| {}),
        with(pod("i-alone", "Running", Some(100)), alone),
        with(pod("g-young", "Running", Some(100)), |p| p.metadata.creation_timestamp = Some(Time(at(9_000)))),
        with(pod("f-restarted", "Running", Some(100)), restarts(3)),
        with(pod("fs-sidecar", "Running", Some(100)), sidecar(9)),
        with(pod("e-ready-short", "Running", Some(9_990)), |_| {}),
        with(pod("d-cheap", "Running", Some(100)), cost("-5")),
        with(pod("j-dear", "Running", Some(9_999)), cost("10")),
        with(pod("c-unready", "Running", None), |_| {}),
        with(pod("b-pending", "Pending", None), |_| {}),
        with(pod("a-unassigned", "Pending", None), |p| p.spec.as_mut().unwrap().node_name = None),
    ];
    assert_eq!(
        names(&ranking::to_delete(&pods, &pods, 99, now)),
        [
            "a-unassigned",
            "b-pending",
            "c-unready",
            "d-cheap",
            "e-ready-short",
            "f-restarted",
            "fs-sidecar",
            "g-young",
            "h-oldest",
            "i-alone",
            "j-dear"
        ]
    );
}

#[test]
fn pods_are_spread_among_those_of_a_whole_deployment() {
    let on = |name: &str, node: &'static str| {
        with(pod(name, "Running", Some(100)), move |p| p.spec.as_mut().unwrap().node_name = Some(node.into()))
    };
    let ours = [on("a", "n1"), on("b", "n2")];
    // Of the set before, one that runs and one that does not any more.
    let ended = with(pod("ended", "Failed", None), |_| {});
    let related = [&ours[..], &[on("old", "n2"), ended]].concat();
    assert_eq!(names(&ranking::to_delete(&ours, &related, 1, at(200))), ["b"]);
}

#[test]
fn scales_by_active_pods_only() {
    let selector = labels("web");
    let going = with(pod("going", "Running", Some(1)), |p| p.metadata.deletion_timestamp = Some(Time(at(1))));
    let done = with(pod("done", "Succeeded", None), |_| {});
    let up = with(pod("up", "Running", Some(1)), |_| {});
    let pods = [going, done, up];
    for (replicas, create, delete) in [(0, 0, 1), (1, 0, 0), (2, 1, 0), (2_000, BURST, 0)] {
        let plan = reconcile(&desired(&selector, replicas), &pods, Vec::new, true, at(5));
        assert_eq!((plan.create, plan.delete.len()), (create, delete), "{replicas} replicas");
    }
    let plan = reconcile(&desired(&selector, 9), &pods, Vec::new, false, at(5));
    assert_eq!(plan.create, 0, "own writes are still on their way");
    let plan = reconcile(&Desired { deleting: true, ..desired(&selector, 9) }, &pods, Vec::new, true, at(5));
    assert_eq!((plan.create, plan.delete.len()), (0, 0));
    assert_eq!(plan.counts, Counts { replicas: 1, fully_labeled: 1, ready: 1, available: 1, terminating: 1 });
}

#[test]
fn available_pods_are_counted_when_their_time_has_come() {
    let selector = labels("web");
    let pods = [with(pod("a", "Running", Some(90)), |_| {}), with(pod("b", "Running", Some(97)), |_| {})];
    let desired = Desired { min_ready: Duration::from_secs(10), ..desired(&selector, 2) };
    let plan = reconcile(&desired, &pods, Vec::new, true, at(100));
    assert_eq!((plan.counts.ready, plan.counts.available), (2, 1));
    assert_eq!(plan.recheck, Some(Duration::from_secs(7)));
}

proptest! {
    /// From any start, applying plans reaches exactly N active pods and then rests.
    #[test]
    fn converges(start in 0usize..40, dead in 0usize..10, replicas in 0usize..700) {
        let selector = labels("web");
        let mut pods: Vec<Arc<CachedPod>> =
            (0..start).map(|i| with(pod(&format!("p{i}"), "Running", Some(1)), |_| {})).collect();
        pods.extend((0..dead).map(|i| with(pod(&format!("d{i}"), "Failed", None), |_| {})));
        let (mut serial, mut rounds) = (0, 0);
        loop {
            let plan = reconcile(&desired(&selector, replicas), &pods, Vec::new, true, at(50));
            prop_assert!(plan.create == 0 || plan.delete.is_empty());
            if plan.create == 0 && plan.delete.is_empty() {
                prop_assert_eq!(usize::try_from(plan.counts.replicas).unwrap(), replicas);
                break;
            }
            for _ in 0..plan.create {
                serial += 1;
                pods.push(with(pod(&format!("n{serial}"), "Pending", None), |_| {}));
            }
            pods.retain(|p| !plan.delete.iter().any(|d| Arc::ptr_eq(d, p)));
            rounds += 1;
            prop_assert!(rounds < 4);
        }
    }
}
