use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus},
    apimachinery::pkg::apis::meta::v1::{APIResourceList, OwnerReference, Time},
};
use proptest::prelude::*;
use serde_json::{Value, json};
use windlass_kit::objects::disruption_budget::disruption_allowed;

use super::{
    counted,
    expected::{self, Expected, Scale},
    scale, stale, status,
};
use crate::runtime::CachedPod;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn spec(spec: Value) -> PodDisruptionBudgetSpec {
    serde_json::from_value(spec).unwrap()
}

fn pod(name: &str, ready: bool) -> CachedPod {
    let ready = if ready { "True" } else { "False" };
    serde_json::from_value(json!({"metadata": {"name": name, "namespace": "n"},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]}}))
    .unwrap()
}

fn owned(name: &str, owner: &str) -> CachedPod {
    let mut pod = pod(name, true);
    let reference =
        json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner, "uid": owner, "controller": true});
    pod.metadata.owner_references = Some(vec![serde_json::from_value(reference).unwrap()]);
    pod
}

fn deleted(mut pod: CachedPod) -> CachedPod {
    pod.metadata.deletion_timestamp = Some(Time(at(1)));
    pod
}

fn shared(pods: impl IntoIterator<Item = CachedPod>) -> Vec<Arc<CachedPod>> {
    pods.into_iter().map(Arc::new).collect()
}

fn budget(status: Value) -> PodDisruptionBudget {
    let meta = json!({"name": "b", "namespace": "n", "uid": "u", "resourceVersion": "7", "generation": 3});
    serde_json::from_value(json!({"metadata": meta, "status": status})).unwrap()
}

/// Allowed, healthy, wanted and expected pods.
fn counts(status: &PodDisruptionBudgetStatus) -> [i32; 4] {
    [status.disruptions_allowed, status.current_healthy, status.desired_healthy, status.expected_pods]
        .map(|count| count.unwrap_or(-1))
}

#[test]
fn what_a_budget_expects() {
    for (wanted, pods, scale, result) in [
        (json!({"minAvailable": 3}), 4, 0, Some((4, 3))),
        (json!({"minAvailable": 3}), 0, 9, Some((0, 3))),
        (json!({"minAvailable": "34%"}), 3, 3, Some((3, 2))),
        (json!({"minAvailable": "28%"}), 1, 11, Some((11, 4))),
        (json!({"minAvailable": "28%"}), 1, 22, Some((22, 7))),
        (json!({"minAvailable": "20%"}), 1, 10, Some((10, 2))),
        (json!({"minAvailable": "0%"}), 1, 10, Some((10, 0))),
        (json!({"minAvailable": "100%"}), 1, 7, Some((7, 7))),
        (json!({"minAvailable": "x"}), 1, 7, None),
        (json!({"maxUnavailable": 2}), 1, 7, Some((7, 5))),
        (json!({"maxUnavailable": 9}), 1, 7, Some((7, 0))),
        (json!({"maxUnavailable": "30%"}), 1, 7, Some((7, 4))),
        (json!({"maxUnavailable": "30%"}), 1, 3, Some((3, 2))),
        (json!({"maxUnavailable": "30%"}), 1, 0, Some((0, 0))),
        (json!({"maxUnavailable": "1.5%"}), 1, 7, None),
        (json!({}), 5, 5, Some((0, 0))),
    ] {
        let got = expected::expected(&spec(wanted.clone()), pods, scale);
        assert_eq!(got.ok().map(|got| (got.pods, got.healthy)), result, "{wanted} of {scale}, {pods} pods");
    }
    let part = |wanted: Value| expected::is_part_of_scale(&spec(wanted));
    assert!(part(json!({"maxUnavailable": 1})) && part(json!({"minAvailable": "1%"})));
    assert!(!part(json!({"minAvailable": 1})) && !part(json!({})));
    let why = expected::expected(&spec(json!({"minAvailable": "x"})), 1, 1).unwrap_err();
    assert_eq!((why.to_string().as_str(), why.may_pass()), ("invalid value for IntOrString: x", false));
}

#[test]
fn owners_count_once() {
    let pods = shared([owned("a", "one"), owned("b", "two"), owned("c", "one")]);
    let owners = expected::owners(&pods);
    let names: Vec<_> = owners.controllers.iter().map(|(owner, pod)| (owner.name.as_str(), *pod)).collect();
    assert_eq!((names, owners.unmanaged), (vec![("one", "a"), ("two", "b")], false));
    assert!(expected::owners(&shared([owned("a", "one"), pod("naked", true)])).unmanaged);
    // Two ReplicaSets of one Deployment.
    let scale = |uid: &str, replicas| Scale { uid: uid.to_owned(), replicas };
    assert_eq!(expected::total(&[scale("d", 4), scale("d", 4), scale("s", 3)]), 7);
    assert_eq!(expected::total(&[scale("d", i32::MAX), scale("s", 3)]), i32::MAX);
    assert_eq!(expected::total(&[]), 0);
}

#[test]
fn what_a_status_says() {
    let wanted = |pods, healthy| Expected { pods, healthy };
    for (pods, expected, result) in [
        (shared([]), wanted(0, 0), [0, 0, 0, 0]),
        // Without expected pods none may be disrupted, however many are healthy.
        (shared([pod("a", true)]), wanted(0, 0), [0, 1, 0, 0]),
        (shared([pod("a", true), pod("b", true)]), wanted(2, 1), [1, 2, 1, 2]),
        (shared([pod("a", true), pod("b", false)]), wanted(2, 1), [0, 1, 1, 2]),
        (shared([pod("a", true), deleted(pod("b", true))]), wanted(2, 1), [0, 1, 1, 2]),
        (shared([pod("a", false)]), wanted(3, 2), [0, 0, 2, 3]),
        (shared([pod("a", true), pod("b", true), pod("c", true)]), wanted(3, 0), [3, 3, 0, 3]),
    ] {
        let plan = status::reconcile(&budget(Value::Null), &pods, expected, at(100));
        assert_eq!(counts(&plan.status), result, "{expected:?}");
        assert_eq!((plan.status.observed_generation, plan.recheck), (Some(3), None));
        let condition = disruption_allowed(&plan.status).unwrap();
        let is = if result[0] > 0 { ("True", "SufficientPods") } else { ("False", "InsufficientPods") };
        assert_eq!((condition.status.as_str(), condition.reason.as_str()), is);
        assert_eq!((condition.message.as_str(), condition.observed_generation), ("", Some(3)));
    }
}

#[test]
fn evictions_that_do_not_come_are_given_up() {
    // Upstream's TestUpdateDisruptedPods: given up; expected; deleting; gone.
    let pods = shared([pod("p1", true), pod("p2", true), deleted(pod("p3", true))]);
    let time = |second| Time(at(second));
    let evicted = json!({"p1": time(800 - 300), "p2": time(800 - 30), "p3": time(800 - 30), "gone": time(800 - 30)});
    let old = budget(json!({"disruptedPods": evicted, "observedGeneration": 3}));
    let plan = status::reconcile(&old, &pods, Expected { pods: 3, healthy: 0 }, at(800));
    let disrupted = plan.status.disrupted_pods.clone().unwrap();
    assert_eq!(disrupted, BTreeMap::from([("p2".to_owned(), time(770))]));
    assert_eq!(plan.not_deleted.iter().map(|pod| pod.metadata.name.as_deref()).collect::<Vec<_>>(), [Some("p1")]);
    assert_eq!(plan.recheck, Some(Duration::from_secs(90)));
    // The one that is expected to go is not healthy any more, the one that stays is again.
    assert_eq!(counts(&plan.status), [1, 1, 0, 3]);

    let patch = status::patch(&old, &plan.status).unwrap();
    assert_eq!(patch["metadata"], json!({"uid": "u", "resourceVersion": "7"}));
    let shown = json!({"p1": null, "p2": time(770), "p3": null, "gone": null});
    assert_eq!(patch["status"]["disruptedPods"], shown);

    // At the end of its time it is healthy, and given up right after.
    for (now, healthy, given_up) in [(889, 1, 0), (890, 2, 0), (891, 2, 1)] {
        let mut of_now = old.clone();
        of_now.status.as_mut().unwrap().disrupted_pods = Some(BTreeMap::from([("p2".to_owned(), time(770))]));
        let plan = status::reconcile(&of_now, &pods, Expected { pods: 3, healthy: 0 }, at(now));
        assert_eq!((counts(&plan.status)[1], plan.not_deleted.len()), (healthy, given_up), "at {now}");
    }
}

#[test]
fn a_status_is_written_when_it_changes() {
    let pods = shared([pod("a", true), pod("b", true)]);
    let first = status::reconcile(&budget(Value::Null), &pods, Expected { pods: 2, healthy: 1 }, at(100)).status;
    assert!(status::patch(&budget(Value::Null), &first).is_some());
    let mut seen = budget(json!(first));
    let again = status::reconcile(&seen, &pods, Expected { pods: 2, healthy: 1 }, at(200)).status;
    assert_eq!(status::patch(&seen, &again), None);
    // The same counts of another generation are news.
    seen.metadata.generation = Some(4);
    let next = status::reconcile(&seen, &pods, Expected { pods: 2, healthy: 1 }, at(200)).status;
    let patch = status::patch(&seen, &next).unwrap();
    assert_eq!(patch["status"]["observedGeneration"], 4);
    assert_eq!(patch["status"]["conditions"][0]["lastTransitionTime"], json!(Time(at(100))));
}

#[test]
fn what_cannot_be_counted_allows_nothing() {
    let old = json!({"disruptionsAllowed": 2, "currentHealthy": 4, "desiredHealthy": 2, "expectedPods": 4,
        "observedGeneration": 2, "disruptedPods": {"a": Time(at(1))}});
    let failed = status::failed(&budget(old.clone()), "found no controllers for pod \"a\"", at(9));
    assert_eq!(counts(&failed), [0, 4, 2, 4]);
    let condition = disruption_allowed(&failed).unwrap();
    assert_eq!(
        (
            condition.status.as_str(),
            condition.reason.as_str(),
            condition.message.as_str(),
            condition.observed_generation
        ),
        ("False", "SyncFailed", "found no controllers for pod \"a\"", Some(2))
    );
    assert!(status::patch(&budget(old), &failed).is_some());
    let again = status::failed(&budget(json!(failed)), "found no controllers for pod \"a\"", at(99));
    assert_eq!(status::patch(&budget(json!(failed)), &again), None);
}

#[test]
fn the_resource_of_an_owner() {
    let resource = |name: &str, kind: &str| json!({"name": name, "kind": kind, "singularName": "", "namespaced": true, "verbs": []});
    let list = |resources: Vec<Value>| -> APIResourceList {
        serde_json::from_value(json!({"groupVersion": "example.com/v1", "resources": resources})).unwrap()
    };
    let owner = OwnerReference { api_version: "example.com/v1".into(), kind: "Widget".into(), ..Default::default() };
    let widgets = resource("widgets", "Widget");
    for (resources, result) in [
        (
            vec![resource("widgets/status", "Widget"), resource("widgets/scale", "Scale"), widgets.clone()],
            Ok("widgets"),
        ),
        (
            vec![widgets.clone(), resource("widgets/scale", "Widget")],
            Err("widgets.example.com does not implement the scale subresource"),
        ),
        (vec![widgets], Err("widgets.example.com does not implement the scale subresource")),
        (vec![], Err("no matches for kind \"Widget\" in version \"example.com/v1\"")),
    ] {
        let got = scale::kind_of(&list(resources), &owner)
            .map(|found| found.resource.plural.clone())
            .map_err(|why| why.to_string());
        assert_eq!(got.as_deref().map_err(String::as_str), result);
    }
}

#[test]
fn stale_conditions() {
    let with = |phase: &str, status: &str, reason: &str| -> CachedPod {
        serde_json::from_value(json!({"metadata": {"name": "p", "uid": "u", "resourceVersion": "5"},
            "status": {"phase": phase, "conditions": [{"type": "DisruptionTarget", "status": status, "reason": reason,
                "lastTransitionTime": Time(at(1000))}]}}))
        .unwrap()
    };
    let by_api = "EvictionByEvictionAPI";
    for (pod, now, wait) in [
        (with("Running", "True", by_api), 1030, Some(90)),
        (with("Pending", "True", by_api), 1120, Some(0)),
        (with("Running", "True", by_api), 9999, Some(0)),
        (with("Running", "False", by_api), 9999, None),
        (with("Running", "True", "TerminationByKubelet"), 9999, None),
        (with("Failed", "True", by_api), 9999, None),
        (with("Succeeded", "True", by_api), 9999, None),
        (deleted(with("Running", "True", by_api)), 9999, None),
        (pod("p", true), 9999, None),
    ] {
        assert_eq!(stale::stale_in(&pod, at(now)), wait.map(Duration::from_secs), "{pod:?} at {now}");
    }
    let patch = stale::patch(&with("Running", "True", by_api), at(2000));
    assert_eq!(patch["metadata"], json!({"uid": "u", "resourceVersion": "5"}));
    let condition = &patch["status"]["conditions"][0];
    assert_eq!((&condition["status"], &condition["reason"]), (&json!("False"), &Value::Null));
}

#[test]
fn what_of_a_pod_concerns_budgets() {
    let one = owned("a", "one");
    let mut other = one.clone();
    other.status.as_mut().unwrap().pod_ip = Some("10.0.0.1".to_owned());
    other.metadata.resource_version = Some("9".to_owned());
    assert_eq!(counted(&one), counted(&other));
    for changed in [owned("a", "two"), deleted(one.clone()), {
        let mut pod = one.clone();
        pod.metadata.labels = Some(BTreeMap::from([("a".to_owned(), "b".to_owned())]));
        pod
    }] {
        assert_ne!(counted(&one), counted(&changed));
    }
    assert_ne!(counted(&pod("a", true)), counted(&pod("a", false)));
}

fn pods() -> impl Strategy<Value = Vec<CachedPod>> {
    let one = (0u8..3, any::<bool>(), any::<bool>());
    prop::collection::vec(one, 0..8).prop_map(|all| {
        let with = |(at, (kind, ready, ends)): (usize, (u8, bool, bool))| {
            let mut pod =
                if kind == 0 { pod(&format!("p{at}"), ready) } else { owned(&format!("p{at}"), &kind.to_string()) };
            if let Some(conditions) = pod.status.as_mut().and_then(|status| status.conditions.as_mut()) {
                conditions[0].status = if ready { "True" } else { "False" }.to_owned();
            }
            if ends { deleted(pod) } else { pod }
        };
        all.into_iter().enumerate().map(with).collect()
    })
}

proptest! {
    /// Evicting as many as are allowed leaves as many healthy pods as are wanted, and a second look finds nothing to write.
    #[test]
    fn what_is_allowed_leaves_enough(
        pods in pods(),
        wanted in (0i32..10, 0i32..10),
        evicted in prop::collection::btree_map(0usize..10, 0i64..400, 0..6),
    ) {
        let pods = shared(pods);
        let evicted: BTreeMap<String, Time> = evicted.into_iter().map(|(i, s)| (format!("p{i}"), Time(at(1000 - s)))).collect();
        let expected = Expected { pods: wanted.0, healthy: wanted.1 };
        let mut seen = budget(json!({"disruptedPods": evicted}));
        let plan = status::reconcile(&seen, &pods, expected, at(1000));
        let [allowed, healthy, desired, _] = counts(&plan.status);
        prop_assert!(allowed >= 0 && (allowed == 0 || healthy - allowed >= desired));
        prop_assert!(healthy as usize <= pods.len());
        // Entries of the status are pods that are expected to go yet.
        for name in plan.status.disrupted_pods.iter().flatten().map(|(name, _)| name) {
            let pod = pods.iter().find(|pod| pod.metadata.name.as_ref() == Some(name));
            prop_assert!(pod.is_some_and(|pod| pod.metadata.deletion_timestamp.is_none()));
        }
        prop_assert_eq!(plan.recheck.is_some(), plan.status.disrupted_pods.is_some());
        let patched = status::patch(&seen, &plan.status);
        prop_assert!(patched.is_some());
        seen.status = Some(plan.status);
        let again = status::reconcile(&seen, &pods, expected, at(1000));
        prop_assert_eq!(status::patch(&seen, &again.status), None);
        // The patch makes the status of the old one.
        let mut merged = json!(budget(json!({"disruptedPods": evicted})).status);
        json_patch::merge(&mut merged, &patched.unwrap()["status"]);
        let merged: PodDisruptionBudgetStatus = serde_json::from_value(merged).unwrap();
        prop_assert_eq!(merged.disrupted_pods.filter(|all| !all.is_empty()), seen.status.unwrap().disrupted_pods);
    }
}
