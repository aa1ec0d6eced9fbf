mod evaluators;
mod quotas;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::*;

fn now() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().expect("a time")
}

fn evaluator(resource: &str) -> Evaluator {
    let (plural, group) = resource.split_once('.').unwrap_or((resource, ""));
    Evaluator::of(group, plural).expect("it is counted")
}

/// What an object uses, as text.
fn usage(resource: &str, object: &Value) -> String {
    evaluator(resource).usage(object, now()).to_string()
}

fn container(name: &str, requests: &Value, limits: &Value) -> Value {
    json!({"name": name, "resources": {"requests": requests, "limits": limits}})
}

fn pod(containers: Value) -> Value {
    json!({"metadata": {"name": "p"}, "spec": {"containers": containers}})
}
