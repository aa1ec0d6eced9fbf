//! Jobs and CronJobs through the API itself, which defaults and validates what their controllers write.

use std::time::Duration;

use k8s_openapi::api::{
    batch::v1::{CronJob, Job},
    core::v1::Pod,
};
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::cluster::Cluster;

/// What a node says of a pod.
async fn set_phase(cluster: &Cluster, pod: &Value, phase: &str) {
    let code = i32::from(phase == "Failed");
    let now = jiff::Timestamp::now().to_string();
    let ended = json!({"terminated": {"exitCode": code, "reason": "Completed", "startedAt": now, "finishedAt": now}});
    let status = json!({"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": ended});
    let patch = json!({"status": {"phase": phase, "containerStatuses": [status]}});
    let name = pod["metadata"]["name"].as_str().unwrap();
    let pods = cluster.api::<Pod>();
    pods.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
}

fn job(spec: &Value) -> Value {
    let mut all = json!({"template": {"spec": {"restartPolicy": "Never", "nodeName": "n",
        "containers": [{"name": "c", "image": "i"}]}}});
    json_patch::merge(&mut all, spec);
    json!({"metadata": {"name": "j"}, "spec": all})
}

fn is_true(object: &Value, kind: &str) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.is_some_and(|all| all.iter().any(|c| c["type"] == kind && c["status"] == "True"))
}

fn alive(pods: &[Value]) -> Vec<&Value> {
    let is_alive = |pod: &&Value| pod["status"]["phase"] == "Pending" && pod["metadata"]["deletionTimestamp"].is_null();
    pods.iter().filter(is_alive).collect()
}

#[tokio::test]
async fn an_indexed_job_is_suspended_resumed_and_completes() {
    let cluster = Cluster::new().await;
    let spec = json!({"completions": 3, "parallelism": 2, "completionMode": "Indexed", "backoffLimitPerIndex": 1,
        "suspend": true});
    cluster.create::<Job>(job(&spec)).await;
    cluster.until::<Job>("suspended", |j| is_true(&j[0], "Suspended")).await;
    let suspend = |suspend: bool| Patch::Merge(json!({"spec": {"suspend": suspend}}));
    let jobs = cluster.api::<Job>();
    for is in [false, true, false] {
        jobs.patch("j", &PatchParams::default(), &suspend(is)).await.unwrap();
        cluster.until::<Pod>("pods", |p| alive(p).len() == if is { 0 } else { 2 }).await;
        cluster.until::<Job>("start", |j| j[0]["status"]["startTime"].is_null() == is).await;
        if is {
            // There is no node to end them.
            for pod in cluster.until::<Pod>("pods", |_| true).await {
                let name = pod["metadata"]["name"].as_str().unwrap();
                let _ = cluster.api::<Pod>().delete(name, &DeleteParams::default().grace_period(0)).await;
            }
        }
    }
    for _ in 0..3 {
        let pods = cluster.until::<Pod>("a pod", |p| !alive(p).is_empty()).await;
        let pod = alive(&pods)[0].clone();
        let index = &pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"];
        let name = pod["metadata"]["name"].as_str().unwrap();
        assert!(name.starts_with(&format!("j-{}-", index.as_str().unwrap())), "{name}");
        set_phase(&cluster, &pod, "Succeeded").await;
        cluster
            .until::<Pod>("it is let go", |p| {
                p.iter().any(|p| p["metadata"]["name"] == *name && p["metadata"]["finalizers"].is_null())
            })
            .await;
    }
    let done = cluster.until::<Job>("complete", |j| is_true(&j[0], "Complete")).await.remove(0);
    let status = &done["status"];
    assert_eq!((&status["succeeded"], &status["completedIndexes"]), (&json!(3), &json!("0-2")));
    assert_eq!((&status["failedIndexes"], &status["uncountedTerminatedPods"]), (&json!(""), &json!({})));
    // At rest nothing is written.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let later = jobs.get("j").await.unwrap();
    assert_eq!(later.metadata.resource_version.as_deref(), done["metadata"]["resourceVersion"].as_str());
    cluster.end().await;
}

#[tokio::test]
async fn a_failed_job_goes_after_its_time() {
    let cluster = Cluster::new().await;
    cluster.create::<Job>(job(&json!({"backoffLimit": 0, "ttlSecondsAfterFinished": 3600}))).await;
    let pods = cluster.until::<Pod>("a pod", |p| alive(p).len() == 1).await;
    cluster.until::<Job>("active", |j| j[0]["status"]["active"] == 1).await;
    set_phase(&cluster, &pods[0], "Failed").await;
    let failed = cluster.until::<Job>("failed", |j| is_true(&j[0], "Failed")).await;
    assert!(is_true(&failed[0], "FailureTarget"));
    assert_eq!((&failed[0]["status"]["failed"], &failed[0]["status"]["active"]), (&json!(1), &json!(null)));
    // Its time is over when its end has been seen, however long that took.
    let over = Patch::Merge(json!({"spec": {"ttlSecondsAfterFinished": 1}}));
    cluster.api::<Job>().patch("j", &PatchParams::default(), &over).await.unwrap();
    cluster.until::<Job>("it goes", <[Value]>::is_empty).await;
    cluster.until::<Pod>("and its pod", <[Value]>::is_empty).await;
    cluster.end().await;
}

#[tokio::test]
async fn a_cron_job_starts_jobs() {
    let cluster = Cluster::new().await;
    let template = job(&json!({}))["spec"].clone();
    let spec = json!({"schedule": "@every 1s", "concurrencyPolicy": "Forbid", "successfulJobsHistoryLimit": 1,
        "jobTemplate": {"spec": template}});
    cluster.create::<CronJob>(json!({"metadata": {"name": "cj"}, "spec": spec})).await;
    let pods = cluster.until::<Pod>("a pod", |p| alive(p).len() == 1).await;
    let jobs = cluster.until::<Job>("a job", |j| j.len() == 1).await;
    cluster
        .until::<CronJob>("active", |c| {
            c[0]["status"]["active"][0]["uid"] == jobs[0]["metadata"]["uid"]
                && !c[0]["status"]["lastScheduleTime"].is_null()
        })
        .await;
    set_phase(&cluster, &pods[0], "Succeeded").await;
    cluster.until::<CronJob>("success", |c| !c[0]["status"]["lastSuccessfulTime"].is_null()).await;
    cluster.end().await;
}
