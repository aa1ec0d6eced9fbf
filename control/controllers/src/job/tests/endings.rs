use std::collections::HashSet;

use serde_json::{Value, json};

use super::{annotated, at, conditions, deleted, ended, indexed, job, pod, run, with};
use crate::{
    job::plan,
    runtime::{CachedPod, PodAnnotation},
};

/// The reason and message of the end that is announced, if any, and whether it succeeds.
fn end(spec: &Value, pods: &[CachedPod], now: i64) -> Option<(bool, String, String)> {
    let plan = run(&job(spec), pods, now);
    plan.ending.map(|end| (end.succeeds, end.why.reason, end.why.message))
}

fn restarted(count: i32) -> CachedPod {
    let mut running = pod("a", "Running");
    let statuses = json!([{"name": "c", "restartCount": count}]);
    running.status.as_mut().unwrap().container_statuses = serde_json::from_value(statuses).unwrap();
    running
}

#[test]
fn jobs_fail_for_upstreams_reasons() {
    let on_failure = |limit: i32| json!({"backoffLimit": limit, "template": {"spec": {"restartPolicy": "OnFailure", "containers": []}}});
    let limit = Some((false, "BackoffLimitExceeded", "Job has reached the specified backoff limit"));
    let late = Some((false, "DeadlineExceeded", "Job was active longer than specified deadline"));
    let per_index = json!({"completionMode": "Indexed", "completions": 2, "parallelism": 2, "backoffLimit": 100,
        "backoffLimitPerIndex": 0});
    let max_failed = json!({"completionMode": "Indexed", "completions": 9, "parallelism": 2, "backoffLimit": 100,
        "backoffLimitPerIndex": 0, "maxFailedIndexes": 1});
    let failed_index =
        |name: &str, index| indexed(annotated(ended(name, 1, 1), PodAnnotation::IndexFailures.name(), "0"), index);
    for (spec, pods, now, wanted) in [
        (json!({"backoffLimit": 1}), vec![ended("a", 1, 1)], 2, None),
        (json!({"backoffLimit": 0}), vec![ended("a", 1, 1)], 2, limit),
        (json!({"backoffLimit": 1}), vec![ended("a", 1, 1), ended("b", 1, 1)], 2, limit),
        (json!({"backoffLimit": 0}), vec![deleted(pod("a", "Running"))], 2, limit),
        (json!({"backoffLimit": 0, "podReplacementPolicy": "Failed"}), vec![deleted(pod("a", "Running"))], 2, None),
        (on_failure(3), vec![restarted(2)], 2, None),
        (on_failure(3), vec![restarted(3)], 2, limit),
        (on_failure(0), vec![restarted(0)], 2, None),
        (on_failure(0), vec![restarted(1)], 2, limit),
        (json!({"activeDeadlineSeconds": 100}), vec![pod("a", "Running")], 99, None),
        (json!({"activeDeadlineSeconds": 100}), vec![pod("a", "Running")], 100, late),
        (
            per_index.clone(),
            vec![failed_index("a", 0), indexed(ended("b", 0, 1), 1)],
            2,
            Some((false, "FailedIndexes", "Job has failed indexes")),
        ),
        (per_index, vec![failed_index("a", 0), indexed(pod("b", "Running"), 1)], 2, None),
        (max_failed.clone(), vec![failed_index("a", 0)], 2, None),
        (
            max_failed,
            vec![failed_index("a", 0), failed_index("b", 1)],
            2,
            Some((
                false,
                "MaxFailedIndexesExceeded",
                "Job has exceeded the specified maximal number of failed indexes",
            )),
        ),
    ] {
        let wanted = wanted.map(|(succeeds, reason, text)| (succeeds, reason.to_owned(), text.to_owned()));
        assert_eq!(end(&spec, &pods, now), wanted, "{spec}");
    }
}

#[test]
fn the_first_rule_that_fits_decides() {
    let rules = json!({"parallelism": 3, "completions": 3, "backoffLimit": 0, "podFailurePolicy": {"rules": [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "Count", "onExitCodes": {"containerName": "other", "operator": "In", "values": [42]}},
        {"action": "FailJob", "onExitCodes": {"containerName": "c", "operator": "In", "values": [42, 43]}},
        {"action": "FailJob", "onPodConditions": [{"type": "ConfigIssue"}]},
        {"action": "Ignore", "onExitCodes": {"operator": "NotIn", "values": [1]}},
    ]}});
    let condition = |kind: &str| {
        let mut failed = ended("p", 1, 1);
        let conditions = json!([{"type": kind, "status": "True"}]);
        failed.status.as_mut().unwrap().conditions = serde_json::from_value(conditions).unwrap();
        failed
    };
    for (failed, reason, message) in [
        (
            ended("p", 42, 1),
            "PodFailurePolicy",
            "Container c for pod n/p failed with exit code 42 matching FailJob rule at index 2",
        ),
        (
            condition("ConfigIssue"),
            "PodFailurePolicy",
            "Pod n/p has condition ConfigIssue matching FailJob rule at index 3",
        ),
        (ended("p", 1, 1), "BackoffLimitExceeded", "Job has reached the specified backoff limit"),
    ] {
        let wanted = Some((false, reason.to_owned(), message.to_owned()));
        assert_eq!(end(&rules, &[failed], 2), wanted);
    }
    for ignored in [ended("p", 7, 1), condition("DisruptionTarget")] {
        let plan = run(&job(&rules), &[ignored], 2);
        assert!(plan.ending.is_none());
        assert_eq!((plan.release.len(), plan.status.failed), (1, None), "it goes, and counts as nothing");
    }
    let index = json!({"completionMode": "Indexed", "completions": 2, "parallelism": 2, "backoffLimit": 100,
        "backoffLimitPerIndex": 5, "podFailurePolicy": {"rules": [
            {"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [9]}}]}});
    let plan = run(&job(&index), &[indexed(ended("a", 9, 1), 0), indexed(pod("b", "Running"), 1)], 2);
    assert_eq!(plan.status.failed_indexes.as_deref(), Some("0"));
}

#[test]
fn success_policies_end_a_job_early() {
    let of = |rules: Value| json!({"completionMode": "Indexed", "completions": 6, "parallelism": 6, "successPolicy": {"rules": rules}});
    let pods = [indexed(ended("a", 0, 1), 0), indexed(ended("b", 0, 1), 3), indexed(pod("c", "Running"), 1)];
    for (rules, met) in [
        (json!([{"succeededIndexes": "0,3"}]), Some(0)),
        (json!([{"succeededIndexes": "0-3"}]), None),
        (json!([{"succeededIndexes": "0-3", "succeededCount": 2}]), Some(0)),
        (json!([{"succeededCount": 3}, {"succeededCount": 2}]), Some(1)),
        (json!([{"succeededIndexes": "5"}]), None),
    ] {
        let wanted = met.map(|rule| (true, "SuccessPolicy".to_owned(), format!("Matched rules at index {rule}")));
        assert_eq!(end(&of(rules.clone()), &pods, 2), wanted, "{rules}");
    }
    let plan = run(&job(&of(json!([{"succeededCount": 2}]))), &pods, 2);
    assert_eq!(plan.delete.len(), 1);
    assert_eq!(plan.release.len(), 3, "those that run are let go too");
    assert_eq!(plan.status.failed, None);
    assert_eq!(conditions(&plan.status), ["SuccessCriteriaMet=True SuccessPolicy"]);
}

/// An end is announced by an interim condition, pods are removed, and then it becomes final.
#[test]
fn a_job_has_ended_when_its_pods_have() {
    let spec = json!({"activeDeadlineSeconds": 100});
    let pods = [pod("a", "Running")];
    let first = job(&spec);
    let plan = run(&first, &pods, 100);
    assert_eq!((plan.delete.len(), plan.forget), (1, false));
    assert_eq!(conditions(&plan.status), ["FailureTarget=True DeadlineExceeded"]);
    let all = HashSet::from(["a".to_owned()]);
    let (status, events) = plan::settle(first.spec.as_ref(), &plan, &all, at(100));
    assert_eq!((status.failed, status.active, status.terminating), (Some(1), None, Some(1)));
    assert!(events.is_empty());
    assert_eq!(conditions(&status), ["FailureTarget=True DeadlineExceeded"]);

    let mut next = first;
    next.status = Some(status);
    let plan = run(&next, &[], 130);
    let (status, events) = plan::settle(next.spec.as_ref(), &plan, &HashSet::new(), at(130));
    assert_eq!(conditions(&status), ["FailureTarget=True DeadlineExceeded", "Failed=True DeadlineExceeded"]);
    assert_eq!((status.terminating, status.completion_time.clone()), (Some(0), None));
    assert_eq!(events[0].1.message, "Job was active longer than specified deadline");

    let done = job(&json!({}));
    let plan = run(&done, &[ended("a", 0, 1)], 2);
    let (status, events) = plan::settle(done.spec.as_ref(), &plan, &all, at(2));
    assert_eq!(conditions(&status), ["SuccessCriteriaMet=True CompletionsReached", "Complete=True CompletionsReached"]);
    assert_eq!((status.succeeded, status.completion_time.unwrap().0), (Some(1), at(2)));
    assert_eq!(events.iter().map(|event| event.1.message.as_str()).collect::<Vec<_>>(), ["Job completed"]);

    let many = with(job(&json!({})), &json!({"succeeded": 2}));
    let plan = run(&many, &[], 2);
    let (_, events) = plan::settle(many.spec.as_ref(), &plan, &HashSet::new(), at(2));
    assert_eq!(events[0].1.reason, "TooManySucceededPods");
}
