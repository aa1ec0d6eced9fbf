use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::{
    api::apps::v1::{Deployment, ReplicaSet},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::ResourceExt as _;
use serde_json::{Value, json};

use super::{
    annotations,
    plan::{Observed, Plan, collided, create_failed, is_ours, reconcile},
    replica_sets::Set,
    rollback as rolling_back, scaling,
    steps::Step,
    strategy::Limits,
    template,
};

mod progress;
mod rollback;
mod rollout;

pub(super) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// A Deployment `web`, with a merge patch on its spec.
pub(super) fn deployment(spec: Value) -> Deployment {
    let mut all = json!({
        "metadata": {"name": "web", "namespace": "n", "uid": "d", "generation": 1, "resourceVersion": "1"},
        "spec": {
            "replicas": 3,
            "progressDeadlineSeconds": 600,
            "revisionHistoryLimit": 10,
            "selector": {"matchLabels": {"app": "web"}},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "v1"}]}},
        },
    });
    json_patch::merge(&mut all["spec"], &spec);
    serde_json::from_value(all).unwrap()
}

pub(super) fn image(deployment: &Deployment, image: &str) -> Deployment {
    let mut changed = deployment.clone();
    changed.spec.as_mut().unwrap().template.spec.as_mut().unwrap().containers[0].image = Some(image.into());
    changed
}

/// A ReplicaSet of the Deployment's template, all of whose pods are available.
pub(super) fn set(deployment: &Deployment, revision: i64, replicas: i32, available: i32) -> Arc<ReplicaSet> {
    let spec = deployment.spec.as_ref().unwrap();
    let mut set = template::new_set(deployment, spec);
    set.metadata.uid = Some(format!("set-{revision}"));
    set.metadata.generation = Some(1);
    set.metadata.resource_version = Some("1".into());
    set.metadata.creation_timestamp = Some(Time(at(revision)));
    let mut annotations = annotations::for_newest(deployment, &set, revision);
    annotations.extend(annotations::for_size(&set, Limits::of(spec)));
    set.metadata.annotations = Some(annotations);
    set.spec.as_mut().unwrap().replicas = Some(replicas);
    set.status = serde_json::from_value(json!({"replicas": replicas, "readyReplicas": available,
        "availableReplicas": available, "observedGeneration": 1, "terminatingReplicas": 0}))
    .unwrap();
    Arc::new(set)
}

pub(super) fn plan(deployment: &Deployment, sets: &[Arc<ReplicaSet>]) -> Plan {
    reconcile(&Observed { deployment, sets, pods: &HashMap::new() }, at(1000))
}

/// The scalings of a plan, as `image from to`; `create` for the new ReplicaSet.
pub(super) fn scalings(plan: &Plan) -> Vec<(String, i32, i32)> {
    let image = |set: &ReplicaSet| {
        let template = set.spec.as_ref().unwrap().template.as_ref().unwrap();
        template.spec.as_ref().unwrap().containers[0].image.clone().unwrap()
    };
    let of_step = |step: &Step| match step {
        Step::Create(set) => Some((image(set), 0, set.spec.as_ref().unwrap().replicas.unwrap())),
        Step::Update(update) => update.scaled.map(|(from, to)| (image(&update.set), from, to)),
        Step::Delete(_) => None,
    };
    plan.steps.iter().filter_map(of_step).collect()
}

fn size(image: &str, from: i32, to: i32) -> (String, i32, i32) {
    (image.to_owned(), from, to)
}

#[test]
fn limits_follow_the_rounding_of_percentages() {
    for (replicas, surge, unavailable, expected) in [
        (4, json!("25%"), json!("25%"), (1, 1)),
        (10, json!("25%"), json!("25%"), (3, 2)),
        (1, json!("25%"), json!("25%"), (1, 0)),
        (3, json!(1), json!(1), (1, 1)),
        (3, json!(0), json!(0), (0, 1)),
        (1, json!("0%"), json!("10%"), (0, 1)),
        (3, json!(0), json!(9), (0, 3)),
        (0, json!("25%"), json!("25%"), (0, 0)),
        (3, json!("wrong"), json!("wrong"), (0, 1)),
    ] {
        let rolling = json!({"maxSurge": surge, "maxUnavailable": unavailable});
        let spec = deployment(json!({"replicas": replicas, "strategy": {"rollingUpdate": rolling}})).spec.unwrap();
        let limits = Limits::of(&spec);
        assert_eq!((limits.surge, limits.unavailable), expected, "{replicas} {surge} {unavailable}");
    }
    let recreate = deployment(json!({"strategy": {"type": "Recreate"}})).spec.unwrap();
    assert_eq!(Limits::of(&recreate), Limits { replicas: 3, surge: 0, unavailable: 0 });
}

/// A rollback to a ReplicaSet that was scaled down and up since its last status: the old numbers are not reliable.
#[test]
fn a_status_that_is_older_than_the_size_makes_nothing_available() {
    let limits = json!({"maxSurge": 0, "maxUnavailable": 1});
    let first = deployment(json!({"replicas": 2, "strategy": {"rollingUpdate": limits}}));
    let second = set(&image(&first, "v2"), 2, 1, 1);
    let mut new = ReplicaSet::clone(&set(&first, 3, 1, 1));
    for (generation, expected) in [(1, vec![size("v2", 1, 0)]), (3, vec![])] {
        new.metadata.generation = Some(generation);
        let sets = [second.clone(), Arc::new(new.clone())];
        assert_eq!(scalings(&plan(&first, &sets)), expected, "generation {generation}");
    }
}

/// Nor do they end the other ReplicaSets of a paused Deployment, whose pods are those that serve.
#[test]
fn by_a_status_that_is_older_than_the_size_no_other_replica_set_is_ended() {
    let paused =
        deployment(json!({"paused": true, "replicas": 1, "strategy": {"rollingUpdate": {"maxUnavailable": 0}}}));
    let serving = set(&image(&paused, "v2"), 2, 1, 1);
    let mut new = ReplicaSet::clone(&set(&paused, 3, 1, 1));
    for (generation, expected) in [(3, vec![]), (1, vec![size("v2", 1, 0)])] {
        new.metadata.generation = Some(generation);
        let sets = [serving.clone(), Arc::new(new.clone())];
        assert_eq!(scalings(&plan(&paused, &sets)), expected, "generation {generation}");
    }
}

#[test]
fn names_are_stable_and_short_enough() {
    let spec = deployment(json!({})).spec.unwrap();
    let hash = template::hash(&spec.template, None);
    assert_eq!(hash, "548df6b887", "another name would follow old ReplicaSets of the same template");
    let other = template::hash(&spec.template, Some(1));
    assert_ne!(hash, other);
    assert!(other.bytes().all(|byte| b"bcdfghjklmnpqrstvwxz2456789".contains(&byte)));
    assert_eq!(template::name_of_set("web", "x7"), "web-x7");
    let long = template::name_of_set(&"a".repeat(250), "5555555555");
    assert_eq!((long.len(), &long[242..]), (253, "-5555555555"));
}

#[test]
fn the_first_replica_set_has_all_pods() {
    let mut web = deployment(json!({"minReadySeconds": 7}));
    let annotation = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    web.metadata.annotations = Some(BTreeMap::from([
        annotation("kubernetes.io/change-cause", "first"),
        annotation("deployment.kubernetes.io/revision", "9"),
    ]));
    let plan = plan(&web, &[]);
    let [Step::Create(set)] = plan.steps.as_slice() else { panic!("{:?}", plan.steps) };
    let spec = set.spec.as_ref().unwrap();
    let hash = set.labels()["pod-template-hash"].clone();
    assert_eq!(set.name_any(), format!("web-{hash}"));
    assert_eq!((spec.replicas, spec.min_ready_seconds), (Some(3), Some(7)));
    assert_eq!(spec.selector.match_labels.as_ref().unwrap()["pod-template-hash"], hash);
    assert_eq!(spec.template.as_ref().unwrap().metadata.as_ref().unwrap().labels.as_ref().unwrap().len(), 2);
    let expected = BTreeMap::from([
        annotation("deployment.kubernetes.io/revision", "1"),
        annotation("deployment.kubernetes.io/desired-replicas", "3"),
        annotation("deployment.kubernetes.io/max-replicas", "4"),
        annotation("kubernetes.io/change-cause", "first"),
    ]);
    assert_eq!(set.annotations(), &expected);
    assert_eq!((set.owner_references()[0].kind.as_str(), plan.revision.as_deref()), ("Deployment", Some("1")));
    assert!(is_ours(&web, set) && !is_ours(&image(&web, "v2"), set));
}

/// 3 replicas, one more and one fewer: each step waits for the pods of the one before.
#[test]
fn a_rolling_update_goes_step_by_step() {
    let old = deployment(json!({}));
    let new = image(&old, "v2");
    let step = |v1: (i32, i32), v2: Option<(i32, i32)>| {
        let mut sets = vec![set(&old, 1, v1.0, v1.1)];
        sets.extend(v2.map(|v2| set(&new, 2, v2.0, v2.1)));
        scalings(&plan(&new, &sets))
    };
    assert_eq!(step((3, 3), None), [size("v2", 0, 1), size("v1", 3, 2)]);
    assert_eq!(step((2, 2), Some((1, 0))), [size("v2", 1, 2)]);
    assert_eq!(step((2, 2), Some((2, 0))), []);
    assert_eq!(step((2, 2), Some((2, 1))), [size("v1", 2, 1)]);
    assert_eq!(step((1, 1), Some((2, 1))), [size("v2", 2, 3)]);
    assert_eq!(step((1, 1), Some((3, 2))), [size("v1", 1, 0)]);
    assert_eq!(step((0, 0), Some((3, 3))), []);
    // Pods of the old template that are not available go first, and cost nothing.
    assert_eq!(step((3, 1), Some((1, 0))), [size("v1", 3, 2)]);
    // A status from before the scaling counts no pod that is to go.
    assert_eq!(step((1, 3), Some((2, 1))), [size("v2", 2, 3)]);
}

#[test]
fn recreate_waits_for_the_end_of_all_old_pods() {
    let old = deployment(json!({"strategy": {"type": "Recreate", "rollingUpdate": null}}));
    let new = image(&old, "v2");
    assert_eq!(scalings(&plan(&new, &[set(&old, 1, 3, 3)])), [size("v1", 3, 0)]);
    let mut going = ReplicaSet::clone(&set(&old, 1, 0, 0));
    going.status.as_mut().unwrap().replicas = 2;
    assert_eq!(scalings(&plan(&new, &[Arc::new(going)])), []);
    let gone = [set(&old, 1, 0, 0)];
    let terminating = HashMap::from([("set-1".to_owned(), 1)]);
    let plan_with_pods = reconcile(&Observed { deployment: &new, sets: &gone, pods: &terminating }, at(1000));
    assert_eq!(scalings(&plan_with_pods), [], "pods in their grace period still run");
    assert_eq!(scalings(&plan(&new, &gone)), [size("v2", 0, 3)]);
}

#[test]
fn a_paused_deployment_scales_but_rolls_nothing_out() {
    let old = deployment(json!({}));
    let paused = image(&deployment(json!({"paused": true, "replicas": 5})), "v2");
    let plan = plan(&paused, &[set(&old, 1, 3, 3)]);
    assert_eq!(scalings(&plan), [size("v1", 3, 5)]);
    assert_eq!(plan.recheck, None);
}

#[test]
fn another_size_is_shared_in_proportion_in_the_middle_of_a_rollout() {
    let rolling = json!({"maxSurge": 3, "maxUnavailable": 2});
    let old = deployment(json!({"replicas": 10, "strategy": {"rollingUpdate": rolling}}));
    let sets = [set(&old, 1, 8, 8), set(&image(&old, "v2"), 2, 5, 0)];
    for (replicas, expected) in [
        // The documentation's example: of 5 more, 3 for the larger one and 2 for the smaller one.
        (15, vec![size("v1", 8, 11), size("v2", 5, 7)]),
        (10, vec![]),
        (5, vec![size("v1", 8, 5), size("v2", 5, 3)]),
        (0, vec![size("v1", 8, 0), size("v2", 5, 0)]),
    ] {
        let mut new = image(&old, "v2");
        new.spec.as_mut().unwrap().replicas = Some(replicas);
        let plan = plan(&new, &sets);
        assert_eq!(scalings(&plan), expected, "{replicas}");
        for step in &plan.steps {
            let Step::Update(update) = step else { panic!("{step:?}") };
            let desired = &update.annotations["deployment.kubernetes.io/desired-replicas"];
            assert_eq!(*desired, replicas.to_string());
        }
    }
}

#[test]
fn a_replica_set_that_has_the_size_already_gets_the_annotations() {
    let old = deployment(json!({}));
    let mut new = old.clone();
    new.spec.as_mut().unwrap().replicas = Some(5);
    let mut steps = Vec::new();
    let mut only = Set::new(&set(&old, 1, 5, 5));
    let limits = Limits::of(new.spec.as_ref().unwrap());
    assert!(scaling::is_scaling_event(Some(&only), &[], limits));
    scaling::scale(Some(&mut only), &mut [], limits, 5, true, &mut steps);
    let [Step::Update(update)] = steps.as_slice() else { panic!("{steps:?}") };
    assert_eq!((update.scaled, update.annotations.len()), (None, 2));
}

#[test]
fn going_back_gives_the_old_replica_set_the_newest_revision() {
    let (one, two) = (deployment(json!({})), image(&deployment(json!({})), "v2"));
    let plan = plan(&one, &[set(&one, 1, 0, 0), set(&two, 2, 3, 3)]);
    let Step::Update(update) = &plan.steps[0] else { panic!("{:?}", plan.steps) };
    let annotations: Vec<(&str, &str)> = update.annotations.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let history = "deployment.kubernetes.io/revision-history";
    assert_eq!(annotations, [("deployment.kubernetes.io/revision", "3"), (history, "1")]);
    assert_eq!(plan.revision.as_deref(), Some("3"));
    assert_eq!(scalings(&plan), [size("v1", 0, 1), size("v2", 3, 2)][..1]);
}

#[test]
fn the_history_of_revisions_stays_short() {
    let web = deployment(json!({}));
    let mut newest = ReplicaSet::clone(&set(&web, 1, 3, 3));
    for revision in 2..1000 {
        let changed = annotations::for_newest(&web, &newest, revision);
        newest.metadata.annotations.as_mut().unwrap().extend(changed);
    }
    let history = annotations::get(&newest, "deployment.kubernetes.io/revision-history").unwrap();
    assert!(history.len() <= 2000 && history.ends_with(",997,998"), "{history}");
    assert!(annotations::for_newest(&web, &newest, 5).is_empty(), "a higher revision stays");
}

#[test]
fn spent_replica_sets_above_the_limit_go_oldest_first() {
    let mut web = image(&deployment(json!({"revisionHistoryLimit": 2})), "v9");
    let complete = json!({"replicas": 3, "updatedReplicas": 3, "availableReplicas": 3, "observedGeneration": 1});
    web.status = serde_json::from_value(complete).unwrap();
    let mut sets: Vec<Arc<ReplicaSet>> =
        (1..=5).map(|revision| set(&image(&web, &format!("v{revision}")), revision, 0, 0)).collect();
    Arc::make_mut(&mut sets[1]).status.as_mut().unwrap().replicas = 1;
    sets.push(set(&web, 9, 3, 3));
    let deleted = |web: &Deployment| -> Vec<String> {
        let of_step = |step: &Step| match step {
            Step::Delete(set) => set.uid(),
            _ => None,
        };
        plan(web, &sets).steps.iter().filter_map(of_step).collect()
    };
    assert_eq!(deleted(&web), ["set-1", "set-3"], "the second one still has a pod");
    web.status.as_mut().unwrap().available_replicas = Some(2);
    assert_eq!(deleted(&web), Vec::<String>::new(), "only after the rollout");
}

#[test]
fn a_deployment_that_is_deleted_or_selects_all_changes_no_replica_set() {
    let web = deployment(json!({}));
    let mut deleting = image(&web, "v2");
    deleting.metadata.deletion_timestamp = Some(Time(at(1)));
    let plan_of_deleting = plan(&deleting, &[set(&web, 1, 3, 3)]);
    assert!(plan_of_deleting.steps.is_empty() && plan_of_deleting.revision.is_none());
    assert_eq!(plan_of_deleting.status.unwrap().replicas, Some(3));
    let mut all = web.clone();
    all.spec.as_mut().unwrap().selector = Default::default();
    let plan_of_all = plan(&all, &[]);
    assert!(plan_of_all.selects_all && plan_of_all.steps.is_empty());
    assert_eq!(plan_of_all.status.unwrap().observed_generation, Some(1));
}

#[test]
fn a_replica_set_that_cannot_be_created_is_told_once() {
    let mut web = deployment(json!({}));
    let status = create_failed(&web, "web-x", "exceeded quota", at(5)).unwrap();
    let condition = &status.conditions.as_ref().unwrap()[0];
    assert_eq!(condition.reason.as_deref(), Some("ReplicaSetCreateError"));
    let text = r#"Failed to create new replica set "web-x": exceeded quota"#;
    assert_eq!(condition.message.as_deref(), Some(text));
    web.status = Some(status);
    assert_eq!(create_failed(&web, "web-x", "exceeded quota", at(9)), None);
    assert_eq!(collided(&web).collision_count, Some(1));
}
