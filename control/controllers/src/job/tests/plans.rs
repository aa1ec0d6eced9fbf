use std::{collections::HashSet, sync::Arc, time::Duration};

use serde_json::json;

use super::{annotated, at, conditions, deleted, ended, indexed, job, names, pod, run, with};
use crate::{
    job::{
        backoff::Backoff,
        manage::NewPod,
        plan::{self, Observed},
        pod::TRACKING,
        status,
        template::pod_for,
    },
    runtime::{CachedPod, PodAnnotation},
};

/// The names of running pods.
fn running(names: &[&str]) -> Vec<CachedPod> {
    names.iter().map(|name| pod(name, "Running")).collect()
}

#[test]
fn as_many_pods_as_there_is_work_for() {
    for (spec, status, pods, create, delete) in [
        (json!({}), json!({}), vec![], 1, 0),
        (json!({"parallelism": 2, "completions": 8}), json!({}), vec![], 2, 0),
        (json!({"parallelism": 2, "completions": 8}), json!({"succeeded": 7}), vec![], 1, 0),
        (json!({"parallelism": 2, "completions": 8}), json!({"succeeded": 7}), running(&["a", "b"]), 0, 1),
        (json!({"parallelism": 3, "completions": 8}), json!({}), running(&["a"]), 2, 0),
        (json!({"parallelism": 0, "completions": 8}), json!({}), running(&["a", "b"]), 0, 2),
        (json!({"parallelism": 700, "completions": 800}), json!({}), vec![], 500, 0),
        // A work queue: parallelism until one succeeds, then what runs.
        (json!({"parallelism": 3, "completions": null}), json!({}), running(&["a"]), 2, 0),
        (json!({"parallelism": 3, "completions": null}), json!({"succeeded": 1}), running(&["a"]), 0, 0),
        (json!({"parallelism": 3, "completions": null}), json!({}), vec![ended("a", 0, 1), pod("b", "Running")], 0, 0),
        // A pod that is being deleted has a successor at once, or only when it has ended.
        (json!({"completions": 2}), json!({}), vec![deleted(pod("a", "Running"))], 0, 0),
        (json!({"podReplacementPolicy": "Failed"}), json!({}), vec![deleted(pod("a", "Running"))], 0, 0),
        (json!({"suspend": true}), json!({}), running(&["a"]), 0, 1),
        (json!({"suspend": true}), json!({}), vec![], 0, 0),
    ] {
        let plan = run(&with(job(&spec), &status), &pods, 2);
        assert_eq!((plan.create.len(), plan.delete.len()), (create, delete), "{spec} {status}");
    }
    // Ten seconds after the deletion, which counts as a failure.
    let plan = run(&job(&json!({})), &[deleted(pod("a", "Running"))], 12);
    assert_eq!(plan.create.len(), 1);
}

#[test]
fn what_earlier_runs_did_is_awaited() {
    let (pods, released) = (vec![Arc::new(pod("a", "Running"))], HashSet::new());
    let observed =
        Observed { pods: &pods, settled: false, released: &released, backoff: Backoff::default(), now: at(5) };
    let plan = plan::reconcile(&job(&json!({"parallelism": 5, "completions": 5})), &observed);
    assert!(plan.create.is_empty() && plan.delete.is_empty());
    assert_eq!(plan.status.active, Some(1), "what is there is told");
}

#[test]
fn new_pods_wait_after_failures() {
    let job = job(&json!({"backoffLimit": 20}));
    let mut backoff = Backoff::default();
    for (failures, wait) in [(1, 10), (2, 20), (3, 40), (4, 80), (5, 160), (6, 320), (7, 600), (8, 600)] {
        let failed = ended(&format!("p{failures}"), 1, 1000);
        let (pods, released) = (vec![Arc::new(failed)], HashSet::new());
        let observed = |now| Observed { pods: &pods, settled: true, released: &released, backoff, now: at(now) };
        let plan = plan::reconcile(&job, &observed(1000));
        assert_eq!((plan.create.len(), plan.wait), (0, Some(Duration::from_secs(wait))), "{failures} failures");
        let later = plan::reconcile(&job, &observed(1000 + i64::try_from(wait).unwrap()));
        assert_eq!(later.create.len(), 1);
        backoff = plan.backoff;
    }
    // A success starts again.
    assert_eq!(backoff.with(&[&ended("s", 0, 2000)], &[]), Backoff::default());
    assert_eq!(backoff.with(&[&ended("s", 0, 2000)], &[&ended("f", 1, 2001)]).remaining(at(2001)).as_secs(), 10);
}

#[test]
fn a_pod_counts_once() {
    let counted = job(&json!({"parallelism": 2, "completions": 5}));
    let pods = [ended("a", 0, 1), ended("b", 1, 1), pod("c", "Running")];
    let plan = run(&counted, &pods, 2);
    let uncounted = plan.status.uncounted_terminated_pods.clone().unwrap();
    assert_eq!(uncounted.succeeded, Some(vec!["a".to_owned()]));
    assert_eq!(uncounted.failed, Some(vec!["b".to_owned()]));
    assert_eq!((plan.status.succeeded, plan.status.failed), (None, None), "not before the finalizers are gone");
    assert_eq!(names(&plan.release), ["a", "b"]);

    // One of the finalizers could not be removed.
    let (status, _) = plan::settle(counted.spec.as_ref(), &plan, &HashSet::from(["a".to_owned()]), at(2));
    assert_eq!((status.succeeded, status.failed), (Some(1), None));
    assert_eq!(status.uncounted_terminated_pods.clone().unwrap().failed, Some(vec!["b".to_owned()]));

    // The next run has the finalizer of `a` in its cache still.
    let mut counted = counted;
    counted.status = Some(status);
    let all: Vec<Arc<CachedPod>> = pods.iter().cloned().map(Arc::new).collect();
    let released = HashSet::from(["a".to_owned()]);
    let observed = Observed { pods: &all, settled: true, released: &released, backoff: plan.backoff, now: at(3) };
    let next = plan::reconcile(&counted, &observed);
    assert_eq!(names(&next.release), ["b"]);
    assert_eq!(next.status.succeeded, Some(1));
    assert_eq!(next.status.uncounted_terminated_pods.clone().unwrap().failed, Some(vec!["b".to_owned()]));
    assert_eq!(next.backoff, plan.backoff, "nor does it fail twice");
    let (status, _) = plan::settle(counted.spec.as_ref(), &next, &HashSet::from(["b".to_owned()]), at(3));
    assert_eq!((status.succeeded, status.failed), (Some(1), Some(1)));

    // A run that ended before it wrote that: the finalizers are gone, so the next one does.
    counted.status = Some(next.status);
    let plan = run(&counted, &[pod("c", "Running")], 4);
    assert_eq!((plan.status.succeeded, plan.status.failed), (Some(1), Some(1)));
}

#[test]
fn many_pods_are_counted_in_parts() {
    let pods: Vec<CachedPod> = (0..700).map(|i| ended(&format!("p{i}"), 0, 1)).collect();
    let job = job(&json!({"parallelism": 700, "completions": 700}));
    let plan = run(&job, &pods, 2);
    assert!(plan.more);
    assert_eq!(plan.release.len(), 500);
    let all = plan.release.iter().map(|pod| pod.metadata.uid.clone().unwrap()).collect();
    let (status, events) = plan::settle(job.spec.as_ref(), &plan, &all, at(2));
    assert_eq!(status.succeeded, Some(500));
    assert!(events.is_empty() && status.completion_time.is_none(), "it has not ended yet");
}

#[test]
fn indexes_get_one_pod_each() {
    let spec = json!({"parallelism": 3, "completions": 5, "completionMode": "Indexed"});
    let indexes = |plan: &plan::Plan| plan.create.iter().filter_map(|new| new.index).collect::<Vec<_>>();
    assert_eq!(indexes(&run(&job(&spec), &[], 1)), [0, 1, 2]);
    let done = with(job(&spec), &json!({"completedIndexes": "0,2", "succeeded": 2}));
    assert_eq!(indexes(&run(&done, &[indexed(pod("a", "Running"), 3)], 1)), [1, 4]);
    // A second pod of an index is removed, as is one without an index or with one that is too high.
    let pods = [
        indexed(pod("a", "Running"), 0),
        indexed(pod("b", "Pending"), 0),
        indexed(pod("c", "Running"), 5),
        pod("d", "Running"),
        indexed(pod("e", "Running"), 1),
    ];
    let plan = run(&job(&spec), &pods, 1);
    let mut gone = names(&plan.delete);
    gone.sort_unstable();
    assert_eq!(gone, ["b", "c", "d"]);
    assert!(plan.forget, "they count as nothing");

    let plan = run(&done, &[indexed(ended("a", 0, 1), 1), indexed(ended("again", 0, 1), 2)], 1);
    assert_eq!((plan.status.completed_indexes.as_deref(), plan.status.succeeded), (Some("0-2"), Some(3)));
    assert_eq!(names(&plan.release), ["a", "again"]);
}

#[test]
fn each_index_has_its_own_limit_and_wait() {
    let spec = json!({"parallelism": 2, "completions": 3, "completionMode": "Indexed", "backoffLimit": 100,
        "backoffLimitPerIndex": 1});
    let first = indexed(annotated(ended("a", 1, 100), PodAnnotation::IndexFailures.name(), "0"), 0);
    let plan = run(&job(&spec), &[first.clone(), indexed(pod("b", "Running"), 1)], 105);
    let created = |index, failures| NewPod { index: Some(index), failures: Some(failures) };
    assert_eq!(plan.create, [created(2, (0, 0))], "another index need not wait");
    assert_eq!(plan.wait, Some(Duration::from_secs(5)));
    assert!(plan.release.is_empty(), "it stays until its successor knows the number of failures");
    let plan = run(&job(&spec), &[first.clone(), indexed(pod("b", "Running"), 1)], 110);
    assert_eq!(plan.create, [created(0, (1, 0))]);

    let second = indexed(annotated(ended("c", 1, 200), PodAnnotation::IndexFailures.name(), "1"), 0);
    let plan = run(&job(&spec), &[first, second, indexed(pod("b", "Running"), 1)], 300);
    assert_eq!(plan.status.failed_indexes.as_deref(), Some("0"));
    assert_eq!(plan.create, [created(2, (0, 0))]);
    assert_eq!(names(&plan.release), ["a", "c"]);
}

#[test]
fn suspended_jobs_have_no_pods_and_no_start() {
    let suspended = job(&json!({"suspend": true, "activeDeadlineSeconds": 10}));
    let plan = run(&suspended, &running(&["a"]), 500);
    assert!(plan.forget && names(&plan.delete) == ["a"] && plan.ending.is_none());
    assert_eq!(conditions(&plan.status), ["Suspended=True JobSuspended"]);
    assert_eq!((plan.status.active, plan.status.terminating, plan.status.start_time.clone()), (None, Some(1), None));
    assert_eq!(plan.events.len(), 1);

    let mut resumed = job(&json!({"suspend": false, "activeDeadlineSeconds": 10}));
    resumed.status = Some(plan.status);
    let plan = run(&resumed, &[], 600);
    assert_eq!(conditions(&plan.status), ["Suspended=False JobResumed"]);
    assert_eq!(plan.status.start_time.clone().unwrap().0, at(600));
    assert_eq!((plan.create.len(), plan.wait), (1, Some(Duration::from_secs(10))));
    assert_eq!(plan.events[0].1.reason, "Resumed");
    // It is reported once.
    resumed.status = Some(plan.status);
    assert!(run(&resumed, &running(&["b"]), 601).events.is_empty());
}

#[test]
fn a_deleted_job_only_lets_go() {
    let mut job = job(&json!({"parallelism": 2, "completions": 2}));
    job.metadata.deletion_timestamp = pod_deletion();
    let plan = run(&job, &[pod("a", "Running"), ended("b", 0, 1)], 2);
    assert!(plan.create.is_empty() && plan.delete.is_empty());
    assert_eq!(names(&plan.release), ["a", "b"]);
}

fn pod_deletion() -> Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time> {
    deleted(pod("x", "Running")).metadata.deletion_timestamp
}

#[test]
fn statuses_are_written_when_they_change() {
    let begun = job(&json!({}));
    let plan = run(&begun, &running(&["a"]), 2);
    let patch = status::patch(Some("7"), begun.status.as_ref(), &plan.status).unwrap();
    assert_eq!(patch["metadata"]["resourceVersion"], "7");
    assert_eq!((&patch["status"]["active"], &patch["status"]["succeeded"]), (&json!(1), &json!(null)));
    let mut stored = serde_json::to_value(&begun.status).unwrap();
    json_patch::merge(&mut stored, &patch["status"]);
    let mut next = begun;
    next.status = serde_json::from_value(stored).unwrap();
    let plan = run(&next, &running(&["a"]), 90);
    assert_eq!(status::patch(Some("8"), next.status.as_ref(), &plan.status), None);
}

#[test]
fn pods_of_indexed_jobs_know_their_index() {
    let mut owner = job(&json!({"completionMode": "Indexed"}));
    let pod = pod_for(&owner, &NewPod { index: Some(3), failures: Some((2, 1)) }).unwrap();
    assert_eq!(pod.metadata.finalizers, Some(vec![TRACKING.to_owned()]));
    assert_eq!(pod.metadata.generate_name.as_deref(), Some("j-3-"));
    let value = serde_json::to_value(&pod).unwrap();
    assert_eq!(value["metadata"]["labels"], json!({"batch.kubernetes.io/job-completion-index": "3"}));
    assert_eq!(
        value["metadata"]["annotations"],
        json!({"batch.kubernetes.io/job-completion-index": "3", "batch.kubernetes.io/job-index-failure-count": "2",
            "batch.kubernetes.io/job-index-ignored-failure-count": "1"})
    );
    assert_eq!(value["spec"]["hostname"], "j-3");
    assert_eq!(
        value["spec"]["containers"][0]["env"],
        json!([{"name": "JOB_COMPLETION_INDEX", "valueFrom": {"fieldRef":
            {"fieldPath": "metadata.labels['batch.kubernetes.io/job-completion-index']"}}}])
    );
    owner.metadata.name = Some("n".repeat(63));
    let pod = pod_for(&owner, &NewPod { index: Some(12), failures: None }).unwrap();
    assert_eq!(pod.metadata.generate_name, Some(format!("{}-12-", "n".repeat(54))));
    let plain = pod_for(&owner, &NewPod { index: None, failures: None }).unwrap();
    assert!(plain.metadata.annotations.is_none() && plain.spec.unwrap().hostname.is_none());
}
