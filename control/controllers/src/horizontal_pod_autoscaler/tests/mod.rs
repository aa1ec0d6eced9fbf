//! Tests of the pure parts. The figures of `replicas` are those of upstream's `replica_calculator_test.go`.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use serde_json::{Value, json};

use super::replica_calculator::{PodMetric, PodMetrics};
use crate::runtime::{Cached as _, CachedPod};

mod cases;
mod groups;
mod normalizing;
mod passes;
mod proposing;
mod recorded;
mod recorded_api;
mod replicas;
mod selecting;

/// A time that all tests share.
fn now() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().unwrap()
}

fn before(seconds: i64) -> Timestamp {
    now() - jiff::SignedDuration::from_secs(seconds)
}

/// A pod that has been ready for an hour and requests one core and one byte; `change` is merged into it.
fn pod(name: &str, change: &Value) -> Arc<CachedPod> {
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "default", "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1", "memory": "1"}}}]},
        "status": {"phase": "Running", "startTime": before(3600).to_string(),
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": before(3600).to_string()}]},
    });
    json_patch::merge(&mut pod, change);
    let mut pod: CachedPod = serde_json::from_value(pod).unwrap();
    pod.trim();
    Arc::new(pod)
}

fn condition(ready: &str, since: i64, started: i64) -> Value {
    json!({"status": {"startTime": before(started).to_string(),
        "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": before(since).to_string()}]}})
}

fn sample(value: i64) -> PodMetric {
    PodMetric { at: now(), window: Duration::from_secs(30), value }
}

/// Samples of the pods `p0`, `p1` and so on.
fn samples(values: &[i64]) -> PodMetrics {
    values.iter().enumerate().map(|(i, value)| (format!("p{i}"), sample(*value))).collect()
}
