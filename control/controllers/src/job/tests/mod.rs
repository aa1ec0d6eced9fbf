//! Jobs and pods for tests.

use std::{collections::HashSet, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use serde_json::{Value, json};

use super::{
    backoff::Backoff,
    plan::{self, Observed, Plan},
    pod::TRACKING,
};
use crate::runtime::CachedPod;

mod endings;
mod indexes;
mod plans;
mod properties;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// A Job that has begun at 0.
fn job(spec: &Value) -> Job {
    let mut job = json!({
        "metadata": {"name": "j", "namespace": "n", "uid": "j-uid"},
        "spec": {"parallelism": 1, "completions": 1, "backoffLimit": 6, "template": {"spec": {"containers": [{"name": "c"}]}}},
        "status": {"startTime": "1970-01-01T00:00:00Z"},
    });
    json_patch::merge(&mut job["spec"], spec);
    serde_json::from_value(job).unwrap()
}

fn with(mut job: Job, status: &Value) -> Job {
    let mut all = serde_json::to_value(&job.status).unwrap();
    json_patch::merge(&mut all, status);
    job.status = serde_json::from_value(all).unwrap();
    job
}

fn pod(name: &str, phase: &str) -> CachedPod {
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "n", "uid": name, "finalizers": [TRACKING],
            "creationTimestamp": "1970-01-01T00:00:00Z"},
        "status": {"phase": phase},
    }))
    .unwrap()
}

/// A pod whose container ended with a code.
fn ended(name: &str, code: i32, second: i64) -> CachedPod {
    let mut pod = pod(name, if code == 0 { "Succeeded" } else { "Failed" });
    let state = json!({"terminated": {"exitCode": code, "finishedAt": at(second).to_string()}});
    let statuses = json!([{"name": "c", "restartCount": 0, "state": state}]);
    pod.status.as_mut().unwrap().container_statuses = serde_json::from_value(statuses).unwrap();
    pod
}

fn indexed(mut pod: CachedPod, index: i32) -> CachedPod {
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert("batch.kubernetes.io/job-completion-index".to_owned(), index.to_string());
    pod
}

fn annotated(mut pod: CachedPod, name: &str, value: &str) -> CachedPod {
    pod.metadata.annotations.get_or_insert_default().insert(name.to_owned(), value.to_owned());
    pod
}

fn deleted(mut pod: CachedPod) -> CachedPod {
    pod.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(1)));
    pod
}

fn run(job: &Job, pods: &[CachedPod], now: i64) -> Plan {
    let pods: Vec<Arc<CachedPod>> = pods.iter().cloned().map(Arc::new).collect();
    let released = HashSet::new();
    let observed =
        Observed { pods: &pods, settled: true, released: &released, backoff: Backoff::default(), now: at(now) };
    plan::reconcile(job, &observed)
}

fn names(pods: &[Arc<CachedPod>]) -> Vec<&str> {
    pods.iter().filter_map(|pod| pod.metadata.name.as_deref()).collect()
}

/// Type, status and reason of the conditions.
fn conditions(status: &k8s_openapi::api::batch::v1::JobStatus) -> Vec<String> {
    let all = status.conditions.iter().flatten();
    all.map(|c| format!("{}={} {}", c.type_, c.status, c.reason.as_deref().unwrap_or_default())).collect()
}
