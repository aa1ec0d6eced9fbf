//! Jobs and CronJobs.

use std::time::Duration;

use http::Method;
use k8s_openapi::api::{
    batch::v1::{CronJob, Job},
    core::v1::Pod,
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use windlass_kit::prometheus::Format;

use super::{Bed, events, put};
use crate::Config;

const TRACKING: &str = "batch.kubernetes.io/job-tracking";

fn pod_spec() -> Value {
    json!({"restartPolicy": "Never", "containers": [{"name": "c", "image": "v1"}], "nodeName": "n"})
}

async fn job(bed: &Bed, spec: Value) -> Job {
    let mut all = json!({"parallelism": 2, "completions": 3, "backoffLimit": 6, "template": {"spec": pod_spec()}});
    json_patch::merge(&mut all, &spec);
    put(&bed.api(), json!({"metadata": {"name": "j"}, "spec": all})).await
}

async fn set_phase(bed: &Bed, pod: &Value, phase: &str) {
    let patch = Patch::Merge(json!({"status": {"phase": phase}}));
    let pods: Api<Pod> = bed.api();
    pods.patch_status(pod["metadata"]["name"].as_str().unwrap(), &PatchParams::default(), &patch).await.unwrap();
}

fn running(pods: &[Value]) -> Vec<&Value> {
    let is_new = |p: &&Value| p["status"]["phase"] == "Pending" && p["metadata"]["deletionTimestamp"].is_null();
    pods.iter().filter(is_new).collect()
}

fn has_condition(object: &Value, kind: &str) -> bool {
    object["status"]["conditions"]
        .as_array()
        .is_some_and(|all| all.iter().any(|c| c["type"] == kind && c["status"] == "True"))
}

fn is_held(pod: &Value) -> bool {
    pod["metadata"]["finalizers"].as_array().is_some_and(|all| all.contains(&json!(TRACKING)))
}

#[tokio::test]
async fn a_job_runs_its_pods_and_completes() {
    let config = Config::default();
    let metrics = config.metrics.clone();
    let bed = Bed::new(config).await;
    job(&bed, json!({})).await;
    let first = bed.server.until("pods", "two pods", |p| running(p).len() == 2).await;
    assert!(first.iter().all(is_held));
    bed.server
        .until("jobs", "active", |j| j[0]["status"]["active"] == 2 && !j[0]["status"]["startTime"].is_null())
        .await;
    for pod in &first {
        set_phase(&bed, pod, "Succeeded").await;
    }
    let third = bed.server.until("pods", "a third", |p| p.len() == 3 && running(p).len() == 1).await;
    set_phase(&bed, running(&third)[0], "Succeeded").await;
    let done = bed.server.until("jobs", "complete", |j| has_condition(&j[0], "Complete")).await;
    let status = &done[0]["status"];
    assert_eq!((&status["succeeded"], &status["active"]), (&json!(3), &json!(null)));
    assert_eq!(status["uncountedTerminatedPods"], json!({}));
    assert!(!status["completionTime"].is_null());
    assert!(bed.server.all("pods").iter().all(|pod| !is_held(pod)));
    assert_eq!(bed.server.requests(Method::POST, "pods"), 3);
    bed.server.until("events", "completed", |e| e.iter().any(|e| e["reason"] == "Completed")).await;
    assert_eq!(events(&bed.server, "SuccessfulCreate").len(), 3);
    assert_eq!(events(&bed.server, "Completed")[0]["source"]["component"], "job-controller");
    // Pods are seen to be free of the finalizer a moment later.
    let freed = "job_controller_terminated_pods_tracking_finalizer_total{event=\"delete\"} 3";
    let mut page = String::new();
    for _ in 0..1000 {
        page = metrics.page(Format::Plain);
        if page.contains(freed) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for sample in [
        "job_controller_jobs_finished_total{completion_mode=\"NonIndexed\",result=\"succeeded\",reason=\"CompletionsReached\"} 1",
        "job_controller_job_pods_finished_total{completion_mode=\"NonIndexed\",result=\"succeeded\"} 3",
        "job_controller_terminated_pods_tracking_finalizer_total{event=\"add\"} 3",
        freed,
    ] {
        assert!(page.lines().any(|line| line == sample), "{sample} of\n{page}");
    }
    // At rest nothing is written.
    let writes = || bed.server.requests(Method::PATCH, "jobsstatus");
    let before = writes();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(writes(), before);
    bed.end().await;
}

#[tokio::test]
async fn a_job_that_fails_says_why() {
    let bed = Bed::new(Config::default()).await;
    job(&bed, json!({"backoffLimit": 0})).await;
    let pods = bed.server.until("pods", "two pods", |p| running(p).len() == 2).await;
    set_phase(&bed, &pods[0], "Failed").await;
    // The other one is deleted, and held no longer; it goes when its node says so.
    let other = pods[1]["metadata"]["name"].as_str().unwrap().to_owned();
    let is_going = |p: &[Value]| {
        p.iter()
            .any(|p| p["metadata"]["name"] == *other && !p["metadata"]["deletionTimestamp"].is_null() && !is_held(p))
    };
    bed.server.until("pods", "the other goes", is_going).await;
    assert!(has_condition(&bed.server.all("jobs")[0], "FailureTarget"));
    assert!(!has_condition(&bed.server.all("jobs")[0], "Failed"), "it still runs");
    bed.api::<Pod>().delete(&other, &DeleteParams::default().grace_period(0)).await.unwrap();
    let failed = bed.server.until("jobs", "failed", |j| has_condition(&j[0], "Failed")).await;
    assert_eq!(failed[0]["status"]["failed"], 2);
    let reason = "BackoffLimitExceeded";
    bed.server.until("events", "why", |e| e.iter().any(|e| e["reason"] == reason && e["type"] == "Warning")).await;
    bed.end().await;
}

#[tokio::test]
async fn suspended_jobs_and_those_of_others_have_no_pods() {
    let bed = Bed::new(Config::default()).await;
    let jobs: Api<Job> = bed.api();
    job(&bed, json!({"managedBy": "example.com/other"})).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(bed.server.all("pods").is_empty() && bed.server.all("jobs")[0]["status"]["startTime"].is_null());
    jobs.delete("j", &DeleteParams::background()).await.unwrap();

    job(&bed, json!({})).await;
    bed.server.until("pods", "two pods", |p| running(p).len() == 2).await;
    let suspend = |suspend: bool| Patch::Merge(json!({"spec": {"suspend": suspend}}));
    jobs.patch("j", &PatchParams::default(), &suspend(true)).await.unwrap();
    let suspended = bed.server.until("jobs", "suspended", |j| has_condition(&j[0], "Suspended")).await;
    assert_eq!((&suspended[0]["status"]["active"], &suspended[0]["status"]["startTime"]), (&json!(null), &json!(null)));
    bed.server.until("pods", "they go", |p| running(p).is_empty() && !p.iter().any(is_held)).await;
    jobs.patch("j", &PatchParams::default(), &suspend(false)).await.unwrap();
    bed.server.until("pods", "two others", |p| running(p).len() == 2).await;
    bed.server.until("events", "resumed", |e| e.iter().any(|e| e["reason"] == "Resumed")).await;
    bed.end().await;
}

#[tokio::test]
async fn pods_are_adopted_counted_and_let_go() {
    let bed = Bed::new(Config::default()).await;
    let (jobs, pods): (Api<Job>, Api<Pod>) = (bed.api(), bed.api());
    let labels = json!({"job-name": "j"});
    let orphan = json!({"metadata": {"name": "orphan", "labels": labels}, "spec": pod_spec(),
        "status": {"phase": "Succeeded"}});
    put(&pods, orphan).await;
    let made = job(
        &bed,
        json!({"parallelism": 1, "completions": 2, "manualSelector": true,
        "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}}}),
    )
    .await;
    bed.server.until("jobs", "the orphan counts", |j| j[0]["status"]["succeeded"] == 1).await;
    let all = bed.server.until("pods", "one more", |p| p.len() == 2).await;
    let orphan = all.iter().find(|p| p["metadata"]["name"] == "orphan").unwrap();
    assert_eq!(orphan["metadata"]["ownerReferences"][0]["uid"], json!(made.metadata.uid));
    // Its labels no longer match: it is released, and replaced.
    let other = running(&all)[0]["metadata"]["name"].as_str().unwrap().to_owned();
    let patch = Patch::Merge(json!({"metadata": {"labels": {"job-name": "debug"}}}));
    pods.patch(&other, &PatchParams::default(), &patch).await.unwrap();
    let is_free = |p: &[Value]| {
        p.len() == 3
            && p.iter()
                .any(|p| p["metadata"]["name"] == *other && p["metadata"]["ownerReferences"].is_null() && !is_held(p))
    };
    bed.server.until("pods", "a release", is_free).await;
    // The Job goes and leaves its pods: none of them is held.
    jobs.delete("j", &DeleteParams::orphan()).await.unwrap();
    bed.server.until("jobs", "it goes", <[Value]>::is_empty).await;
    let left = bed.server.until("pods", "nothing is held", |p| !p.iter().any(is_held)).await;
    assert_eq!(left.len(), 3);
    bed.end().await;
}

#[tokio::test]
async fn refused_pods_are_told_and_tried_again() {
    let bed = Bed::new(Config::default()).await;
    bed.server.refuse("pods", Some("exceeded quota"));
    job(&bed, json!({"parallelism": 9, "completions": 9})).await;
    bed.server
        .until("events", "the event", |e| e.iter().any(|e| e["message"] == "Error creating: exceeded quota"))
        .await;
    bed.server.refuse("pods", None);
    bed.server.until("pods", "all pods", |p| p.len() == 9).await;
    bed.server.until("jobs", "active", |j| j[0]["status"]["active"] == 9).await;
    bed.end().await;
}

#[tokio::test]
async fn a_cron_job_starts_what_is_due() {
    let bed = Bed::new(Config::default()).await;
    // Once a year, and last run years ago.
    let spec = json!({"schedule": "0 0 2 1 *", "timeZone": "Etc/UTC", "suspend": true,
        "successfulJobsHistoryLimit": 0, "jobTemplate": {"spec": {"template": {"spec": pod_spec()}}}});
    let last = json!({"lastScheduleTime": "2020-03-01T00:00:00Z"});
    let api: Api<CronJob> = bed.api();
    put(&api, json!({"metadata": {"name": "cj"}, "spec": spec, "status": last})).await;
    let resumed = Patch::Merge(json!({"spec": {"suspend": false}}));
    api.patch("cj", &PatchParams::default(), &resumed).await.unwrap();
    let jobs = bed.server.until("jobs", "a job", |j| j.len() == 1).await;
    let name = jobs[0]["metadata"]["name"].as_str().unwrap().to_owned();
    assert!(name.starts_with("cj-") && jobs[0]["metadata"]["ownerReferences"][0]["kind"] == "CronJob");
    bed.server.until("cronjobs", "it is active", |c| c[0]["status"]["active"][0]["name"] == *name).await;
    let pods = bed.server.until("pods", "its pod", |p| p.len() == 1).await;
    set_phase(&bed, &pods[0], "Succeeded").await;
    let done = |c: &[Value]| c[0]["status"]["active"].is_null() && !c[0]["status"]["lastSuccessfulTime"].is_null();
    bed.server.until("cronjobs", "it has ended", done).await;
    bed.server.until("jobs", "it is history", <[Value]>::is_empty).await;
    for reason in ["SuccessfulCreate", "SawCompletedJob", "SuccessfulDelete"] {
        bed.server.until("events", reason, |e| e.iter().any(|e| e["reason"] == *reason)).await;
    }
    assert_eq!(bed.server.requests(Method::POST, "jobs"), 1);
    bed.end().await;
}

#[tokio::test]
async fn ended_jobs_go_when_their_time_is_over() {
    let bed = Bed::new(Config::default()).await;
    for (name, ttl) in [("gone", json!(0)), ("kept", json!(null))] {
        let spec = json!({"ttlSecondsAfterFinished": ttl, "template": {"spec": pod_spec()}});
        put(&bed.api::<Job>(), json!({"metadata": {"name": name}, "spec": spec})).await;
    }
    for pod in bed.server.until("pods", "a pod of each", |p| p.len() == 2).await {
        set_phase(&bed, &pod, "Succeeded").await;
    }
    let left = bed.server.until("jobs", "one goes", |j| j.len() == 1).await;
    assert_eq!(left[0]["metadata"]["name"], "kept");
    bed.end().await;
}
