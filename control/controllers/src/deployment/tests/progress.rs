//! Status and conditions.

use k8s_openapi::api::apps::v1::DeploymentStatus;

use super::*;
use crate::deployment::progress::{calculate, canonical, find};

fn with_status(mut deployment: Deployment, status: Option<DeploymentStatus>) -> Deployment {
    deployment.status = status;
    deployment
}

/// `status reason message` of a condition.
fn told(status: &DeploymentStatus, kind: &str) -> String {
    let all = status.conditions.as_deref().unwrap_or_default();
    find(all, kind).map_or_else(String::new, |c| {
        format!("{} {} {}", c.status, c.reason.as_deref().unwrap(), c.message.as_deref().unwrap())
    })
}

/// A pass at a time, whose status is written.
fn next(sets: &[Arc<ReplicaSet>], now: i64, deployment: &mut Deployment) -> Option<DeploymentStatus> {
    let plan = reconcile(&Observed { deployment, sets, pods: &HashMap::new() }, at(now));
    if plan.status.is_some() {
        deployment.status = plan.status.clone();
    }
    plan.status
}

#[test]
fn a_rollout_progresses_and_is_done() {
    let mut web = deployment(json!({}));
    let name = set(&web, 1, 3, 0).name_any();
    let status = next(&[], 10, &mut web).unwrap();
    let created = format!(r#"True NewReplicaSetCreated Created new replica set "{name}""#);
    assert_eq!(told(&status, "Progressing"), created);
    let lacking = "False MinimumReplicasUnavailable Deployment does not have minimum availability.";
    assert_eq!(told(&status, "Available"), lacking);
    assert_eq!((status.replicas, status.unavailable_replicas, status.terminating_replicas), (None, Some(3), Some(0)));

    let status = next(&[set(&web, 1, 3, 1)], 20, &mut web).unwrap();
    let moving = format!(r#"True ReplicaSetUpdated ReplicaSet "{name}" is progressing."#);
    assert_eq!(told(&status, "Progressing"), moving);
    let progressing = find(status.conditions.as_ref().unwrap(), "Progressing").unwrap();
    let times =
        (progressing.last_transition_time.as_ref().unwrap().0, progressing.last_update_time.as_ref().unwrap().0);
    assert_eq!(times, (at(10), at(20)));
    assert_eq!(next(&[set(&web, 1, 3, 1)], 30, &mut web), None, "nothing changes");

    let status = next(&[set(&web, 1, 3, 3)], 40, &mut web).unwrap();
    let done = format!(r#"True NewReplicaSetAvailable ReplicaSet "{name}" has successfully progressed."#);
    assert_eq!(told(&status, "Progressing"), done);
    let enough = "True MinimumReplicasAvailable Deployment has minimum availability.";
    assert_eq!(told(&status, "Available"), enough);
    assert_eq!(status.unavailable_replicas, None);

    // Pods that fail later are no lack of progress.
    let status = next(&[set(&web, 1, 3, 0)], 9_000, &mut web).unwrap();
    assert_eq!((told(&status, "Progressing"), told(&status, "Available")), (done, lacking.to_owned()));
    let plan = reconcile(&Observed { deployment: &web, sets: &[set(&web, 1, 3, 0)], pods: &HashMap::new() }, at(9_999));
    assert_eq!((plan.status, plan.recheck), (None, None));
}

#[test]
fn the_deadline_counts_from_the_last_progress() {
    let mut web = deployment(json!({"progressDeadlineSeconds": 100}));
    next(&[], 10, &mut web);
    next(&[set(&web, 1, 3, 1)], 20, &mut web);
    let sets = [set(&web, 1, 3, 1)];
    let observed = Observed { deployment: &web, sets: &sets, pods: &HashMap::new() };
    let plan = reconcile(&observed, at(50));
    assert_eq!(plan.recheck.unwrap().as_secs(), 71);
    assert_eq!(reconcile(&observed, at(120)).status, None);
    let status = next(&sets, 121, &mut web).unwrap();
    let late =
        format!(r#"False ProgressDeadlineExceeded ReplicaSet "{}" has timed out progressing."#, sets[0].name_any());
    assert_eq!(told(&status, "Progressing"), late);
    let plan = reconcile(&Observed { deployment: &web, sets: &sets, pods: &HashMap::new() }, at(130));
    assert_eq!((plan.status, plan.recheck), (None, None));
    // A pause does not hide it; progress does.
    web.spec.as_mut().unwrap().paused = Some(true);
    assert_eq!(next(&sets, 140, &mut web), None);
    web.spec.as_mut().unwrap().paused = None;
    let status = next(&[set(&web, 1, 3, 2)], 150, &mut web).unwrap();
    assert!(told(&status, "Progressing").starts_with("True ReplicaSetUpdated"));
}

#[test]
fn a_pause_stops_the_clock() {
    let mut web = deployment(json!({"progressDeadlineSeconds": 100}));
    next(&[], 10, &mut web);
    web.spec.as_mut().unwrap().paused = Some(true);
    let sets = [set(&web, 1, 3, 0)];
    let status = next(&sets, 20, &mut web).unwrap();
    assert_eq!(told(&status, "Progressing"), "Unknown DeploymentPaused Deployment is paused");
    assert_eq!(next(&sets, 5_000, &mut web), None);
    web.spec.as_mut().unwrap().paused = Some(false);
    let status = next(&sets, 6_000, &mut web).unwrap();
    assert_eq!(told(&status, "Progressing"), "Unknown DeploymentResumed Deployment is resumed");
    assert_eq!(next(&sets, 6_050, &mut web), None);
    assert!(told(&next(&sets, 6_101, &mut web).unwrap(), "Progressing").starts_with("False ProgressDeadlineExceeded"));
}

#[test]
fn without_a_deadline_there_is_no_condition() {
    for deadline in [json!(null), json!(i32::MAX)] {
        let mut web = deployment(json!({"progressDeadlineSeconds": deadline}));
        let status = next(&[set(&web, 1, 3, 3)], 10, &mut web).unwrap();
        assert_eq!((told(&status, "Progressing"), status.conditions.unwrap().len()), (String::new(), 1));
    }
}

#[test]
fn a_replica_set_that_was_there_is_found() {
    let mut web = deployment(json!({}));
    let status = next(&[set(&web, 1, 3, 0)], 10, &mut web).unwrap();
    let moving = told(&status, "Progressing");
    assert!(moving.starts_with("True ReplicaSetUpdated"), "{moving}");
    let mut web = with_status(deployment(json!({})), web.status.map(|s| DeploymentStatus { conditions: None, ..s }));
    let status = next(&[set(&web, 1, 3, 0)], 10, &mut web).unwrap();
    assert!(told(&status, "Progressing").starts_with("True FoundNewReplicaSet Found new replica set \"web-"));
}

#[test]
fn a_failure_of_a_replica_set_is_taken_over_and_goes_away() {
    let mut web = deployment(json!({}));
    let mut failing = ReplicaSet::clone(&set(&web, 1, 3, 0));
    failing.status.as_mut().unwrap().conditions = serde_json::from_value(json!([{"type": "ReplicaFailure",
        "status": "True", "reason": "FailedCreate", "message": "exceeded quota"}]))
    .unwrap();
    let status = next(&[Arc::new(failing)], 10, &mut web).unwrap();
    assert_eq!(told(&status, "ReplicaFailure"), "True FailedCreate exceeded quota");
    let status = next(&[set(&web, 1, 3, 0)], 20, &mut web).unwrap();
    assert_eq!(told(&status, "ReplicaFailure"), "");
}

#[test]
fn a_status_as_the_api_shows_it_is_the_same() {
    let web = deployment(json!({"replicas": 0}));
    let new = Set::new(&set(&web, 1, 0, 0));
    let limits = Limits::of(web.spec.as_ref().unwrap());
    let status = calculate(&web, Vec::new(), Some(&new), &[], limits, at(5));
    let explicit = super::super::status_patch(&web, Some(&status), None);
    let read: DeploymentStatus = serde_json::from_value(explicit["status"].clone()).unwrap();
    assert_eq!(read.replicas, Some(0));
    assert_eq!(canonical(read), status);
}
