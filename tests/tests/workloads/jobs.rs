//! Jobs and CronJobs.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use crate::{Case, case::has, cases};

cases![
    a_cron_job_runs_each_minute,
    a_job_that_fails_is_tried_again_later_and_later,
    jobs_complete,
    a_job_in_parallel,
    a_job_is_suspended_late_and_left_by_a_policy,
];

/// A Job of one shell line or command.
fn job(name: &str, command: &str, spec: &str, policy: &str) -> String {
    format!(
        "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: {name}}}\nspec:\n  {spec}\n  template:\n    spec:\n      restartPolicy: {policy}\n      \
         terminationGracePeriodSeconds: 1\n      containers: [{{name: test-job, image: busybox, imagePullPolicy: IfNotPresent, command: {command}}}]\n"
    )
}

fn jobs_complete(case: &mut Case<'_>) {
    case.applied(&job("job-demo", "[bin/sh, -c, 'for i in 9 8 7 6 5 4 3 2 1; do echo $i; done']", "", "Never"));
    case.until("is complete", "job/job-demo", |job| has(job, "Complete"));
    case.recording.show(&["jobs", "pods"]);
    case.recording.events(&["Job"]);
    case.typed("logs job/job-demo");
    // Each index has a pod of its own.
    case.applied(&job(
        "indexed",
        "[sh, -c, 'test $JOB_COMPLETION_INDEX != 1']",
        "completionMode: Indexed\n  completions: 3\n  parallelism: 3\n  backoffLimitPerIndex: 0",
        "Never",
    ));
    case.until("has failed", "job/indexed", |job| has(job, "Failed"));
    case.recording.show(&["jobs", "pods -l job-name=indexed"]);
    // Success is one index.
    case.applied(&job(
        "leader",
        "[sh, -c, 'test $JOB_COMPLETION_INDEX = 0 || sleep 100']",
        "completionMode: Indexed\n  completions: 3\n  parallelism: 3\n  successPolicy: {rules: [{succeededIndexes: '0'}]}",
        "Never",
    ));
    case.until("is complete", "job/leader", |job| has(job, "Complete"));
    case.recording.show(&["jobs leader -o wide", "pods -l job-name=leader"]);
    // It is removed when its TTL is over.
    case.applied(&job("short", "['true']", "ttlSecondsAfterFinished: 1", "Never"));
    case.gone("jobs --field-selector metadata.name=short");
    case.recording.events(&["Job"]);
    case.typed("delete jobs --all");
    case.gone("pods");
}

fn a_job_in_parallel(case: &mut Case<'_>) {
    case.applied(&job("job-para-test", "[echo, 'test parallel job!']", "parallelism: 2\n  completions: 8", "Never"));
    case.until("is complete", "job/job-para-test", |job| has(job, "Complete"));
    let pods = case.kubectl.pods("job-name=job-para-test").expect("pods are listed");
    assert_eq!(pods.iter().filter(|pod| pod["status"]["phase"] == "Succeeded").count(), 8);
    case.recording.show(&["jobs"]);
    case.recording.events(&["Job"]);
}

fn failed(job: &Value) -> bool {
    has(job, "Failed")
}

fn a_job_that_fails_is_tried_again_later_and_later(case: &mut Case<'_>) {
    // A program that does not exist; a container is restarted in its pod, or the pod is replaced.
    case.applied(&job("job-failed-demo", "[echo123, 'test failed job!']", "backoffLimit: 2", "Never"));
    case.applied(&job("job-restarts", "['false']", "backoffLimit: 1", "OnFailure"));
    case.until_within(Duration::from_secs(120), "has failed", "job/job-failed-demo", failed);
    case.until_within(Duration::from_secs(120), "has failed", "job/job-restarts", failed);
    case.recording.show(&["jobs", "pods"]);
    case.recording.events(&["Job"]);
    // The gaps: 10 s, 20 s.
    let pods = case.kubectl.pods("job-name=job-failed-demo").expect("pods are listed");
    let mut starts: Vec<i64> = pods.iter().map(|pod| seconds_of(&pod["metadata"]["creationTimestamp"])).collect();
    starts.sort_unstable();
    let gaps: Vec<i64> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.len() == 2 && gaps[0] >= 10 && gaps[1] >= 20, "gaps between pods: {gaps:?} s");
}

/// A time of the API.
fn seconds_of(time: &Value) -> i64 {
    let time: Timestamp = time.as_str().unwrap_or_default().parse().expect("a time of the API");
    time.as_second()
}

fn a_job_is_suspended_late_and_left_by_a_policy(case: &mut Case<'_>) {
    case.applied(&job("late", "[sleep, '100']", "activeDeadlineSeconds: 3", "Never"));
    case.applied(&job("waiting", "[sleep, '100']", "suspend: true", "Never"));
    case.until("is suspended", "job/waiting", |job| has(job, "Suspended"));
    case.recording.show(&["jobs waiting -o wide"]);
    let _ = case.kubectl.run(&["patch", "job/waiting", "-p", r#"{"spec":{"suspend":false}}"#]);
    case.until("runs", "job/waiting", |job| job["status"]["ready"] == 1);
    case.recording.show(&["jobs waiting -o wide"]);
    let _ = case.kubectl.run(&["patch", "job/waiting", "-p", r#"{"spec":{"suspend":true}}"#]);
    case.until("is suspended", "job/waiting", |job| has(job, "Suspended") && job["status"]["terminating"] == 0);
    case.until("has failed", "job/late", failed);
    let rule = "podFailurePolicy: {rules: [{action: FailJob, onExitCodes: {operator: In, values: [42]}}]}";
    case.applied(&job("policy", "[sh, -c, 'exit 42']", rule, "Never"));
    case.until("has failed", "job/policy", failed);
    case.gone("pods -l job-name=late");
    case.recording.show(&["jobs", "pods"]);
    case.recording.events(&["Job"]);
}

fn a_cron_job_runs_each_minute(case: &mut Case<'_>) {
    case.applied(
        "apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: cronjob-demo}\nspec:\n  schedule: \"*/1 * * * *\"\n  jobTemplate:\n    spec:\n      template:\n        \
         spec:\n          restartPolicy: OnFailure\n          containers: [{name: hello, image: busybox, imagePullPolicy: IfNotPresent, args: [bin/sh, -c, 'for i in 3 2 1; do echo $i; done']}]\n",
    );
    case.until_within(Duration::from_secs(100), "has run once", "cronjob/cronjob-demo", |cron| {
        !cron["status"]["lastSuccessfulTime"].is_null()
    });
    let _ = case.kubectl.run(&["patch", "cronjob/cronjob-demo", "-p", r#"{"spec":{"suspend":true}}"#]);
    case.recording.show(&["cronjobs", "jobs", "pods"]);
    case.recording.events(&["CronJob", "Job"]);
    case.typed("create job by-hand --from=cronjob/cronjob-demo");
    case.until("is complete", "job/by-hand", |job| has(job, "Complete"));
    case.recording.show(&["jobs by-hand -o wide"]);
    case.typed("delete cronjob cronjob-demo");
    case.gone("jobs,pods");
}
