//! What kube-controller-manager 1.36.2 has done and said about the same autoscalers: `recorded.jsonl` has one case a line,
//! and says at its beginning how it was recorded and what its fields are.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::OnceLock,
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use kube::Client;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use windlass_kit::{metrics::Registry, percent::decoded};

use super::recorded_api::RecordedApi;
use crate::{horizontal_pod_autoscaler::HorizontalController, runtime::Controllers};

#[derive(Deserialize)]
struct Case {
    name: String,
    /// Whether the APIs of metrics are there at all.
    #[serde(default = "yes")]
    apis: bool,
    #[serde(default)]
    objects: Vec<Value>,
    deployment: Option<Value>,
    #[serde(default)]
    pods: BTreeMap<String, Value>,
    autoscalers: BTreeMap<String, Value>,
    #[serde(default)]
    answers: BTreeMap<String, Answer>,
    seen: Seen,
}

fn yes() -> bool {
    true
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Answer {
    Raw(u16, String, String),
    List { items: Vec<Value> },
}

/// Cases of which ours makes something else on purpose (`docs/decisions.md`).
const DIFFERENT: [&str; 4] = [
    // The value is divided by no pods: upstream shows the lowest number there is, ours the whole value.
    "object-average-present-none",
    "external-average-present-none",
    // Counts and values beyond the range of their types: upstream's wrap, and ours are the nearest.
    "object-huge-average",
    "external-big",
];

/// After so many visits all is at rest.
const VISITS: u64 = 10;

/// What has become of a case.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Seen {
    /// The statuses of each autoscaler one after the other; of several autoscalers, the last.
    statuses: BTreeMap<String, Vec<Value>>,
    /// The replicas of the targets in the end.
    sizes: BTreeMap<String, i64>,
    /// Autoscaler, type, reason and message.
    events: Vec<[String; 4]>,
    /// What metrics were asked for.
    asked: BTreeSet<String>,
}

/// One moment: a busy machine takes longer for the test than pods of these cases stay young.
fn now() -> Timestamp {
    static NOW: OnceLock<Timestamp> = OnceLock::new();
    *NOW.get_or_init(Timestamp::now)
}

/// Times are told in seconds from now.
fn at_their_times(value: &mut Value, now: Timestamp) {
    match value {
        Value::String(text) => {
            if let Some(seconds) = text.strip_prefix('@').and_then(|seconds| seconds.parse().ok()) {
                *text = (now + SignedDuration::from_secs(seconds)).to_string();
            }
        }
        Value::Array(all) => all.iter_mut().for_each(|one| at_their_times(one, now)),
        Value::Object(all) => all.values_mut().for_each(|one| at_their_times(one, now)),
        _ => {}
    }
}

fn changed(mut usual: Value, change: &Value) -> Value {
    json_patch::merge(&mut usual, change);
    usual
}

fn pod(name: &str, change: &Value) -> Value {
    let usual = json!({"kind": "Pod", "metadata": {"name": name, "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "100m", "memory": "100Mi"}}}]},
        "status": {"phase": "Running", "startTime": "@-3600",
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "@-3500"}]}});
    changed(usual, change)
}

fn deployment(change: &Value) -> Value {
    let usual = json!({"kind": "Deployment", "metadata": {"name": "web"},
        "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "web"}}}, "status": {"replicas": 3}});
    changed(usual, change)
}

fn autoscaler(name: &str, change: &Value) -> Value {
    let target = json!({"kind": "Deployment", "name": "web", "apiVersion": "apps/v1"});
    let usual = json!({"scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 10});
    json!({"kind": "HorizontalPodAutoscaler", "metadata": {"name": name}, "spec": changed(usual, change)})
}

/// The list of an API of metrics.
fn list(api: &str, namespace: &str, items: &[Value]) -> Value {
    let (kind, usual) = match api {
        "metrics.k8s.io/v1beta1" => ("PodMetricsList", json!({"timestamp": "@-5", "window": "30s"})),
        "custom.metrics.k8s.io/v1beta2" => ("MetricValueList", json!({"timestamp": "@-5", "windowSeconds": 60})),
        _ => ("ExternalMetricValueList", json!({"timestamp": "@-5"})),
    };
    let item = |change: &Value| {
        let mut item = changed(usual.clone(), change);
        let named = json!({"namespace": namespace, "name": item["name"].take()});
        match kind {
            "PodMetricsList" => item["metadata"] = named,
            _ => item["describedObject"] = named,
        }
        if !item["usage"].is_null() {
            item["containers"] = json!([{"name": "c", "usage": item["usage"].take()}]);
        }
        at_their_times(&mut item, now());
        item
    };
    json!({"kind": kind, "apiVersion": api, "metadata": {}, "items": items.iter().map(item).collect::<Vec<_>>()})
}

/// A case's path of what is told shortly.
fn long(short: &str, namespace: &str) -> String {
    match short.split_once(' ') {
        Some((api, rest)) => format!("/apis/{api}/namespaces/{namespace}/{rest}"),
        None => short.to_owned(),
    }
}

/// What is told in full: a status is what differs from the one before, and messages have their usual beginnings.
fn in_full(seen: &mut Seen, usual: &BTreeMap<String, String>, namespace: &str) {
    for statuses in seen.statuses.values_mut() {
        let mut before = json!({});
        for status in statuses {
            *status = changed(before, status);
            before = status.clone();
            for condition in status["conditions"].as_array_mut().unwrap() {
                let beginning = &usual[condition[2].as_str().unwrap()];
                let rest = condition.get(3).map_or("", |rest| rest.as_str().unwrap());
                *condition = json!([condition[0], condition[1], condition[2], format!("{beginning}{rest}")]);
            }
        }
    }
    seen.asked = seen.asked.iter().map(|short| long(short, namespace)).collect();
}

/// Where objects of a kind are.
fn path_of(kind: &str, namespace: &str) -> String {
    let api = match kind {
        "Pod" | "ReplicationController" | "Service" => "api/v1",
        "Widget" => "apis/example.com/v1",
        "HorizontalPodAutoscaler" => "apis/autoscaling/v2",
        _ => "apis/apps/v1",
    };
    format!("/{api}/namespaces/{namespace}/{}s", kind.to_lowercase())
}

async fn create(client: &Client, namespace: &str, mut object: Value) {
    at_their_times(&mut object, now());
    let path = match object["kind"].as_str().unwrap() {
        "Namespace" => "/api/v1/namespaces".to_owned(),
        kind => path_of(kind, namespace),
    };
    let request = http::Request::post(path).body(object.to_string().into_bytes()).unwrap();
    let _: Value = client.request(request).await.unwrap();
}

/// A status without its times.
fn told(status: &Value) -> Value {
    let text = |condition: &Value| ["type", "status", "reason", "message"].map(|key| condition[key].clone());
    let conditions = status["conditions"].as_array().into_iter().flatten().map(|one| json!(text(one)));
    json!({
        "current": status["currentReplicas"].as_i64().unwrap_or(0),
        "desired": status["desiredReplicas"].as_i64().unwrap_or(0),
        "scaled": !status["lastScaleTime"].is_null(),
        "metrics": status["currentMetrics"].as_array().cloned().unwrap_or_default(),
        "conditions": conditions.collect::<Vec<_>>(),
    })
}

/// What our controller has made of these cases.
async fn ours(cases: &[Case], apis: bool) -> BTreeMap<String, Seen> {
    let fake = RecordedApi::new();
    let with_json = |path: &str, answer: &Value| fake.answer(path, 200, "application/json", &answer.to_string());
    if apis {
        let version = json!({"groupVersion": "custom.metrics.k8s.io/v1beta2", "version": "v1beta2"});
        let group = json!({"kind": "APIGroup", "apiVersion": "v1", "name": "custom.metrics.k8s.io", "versions": [version],
            "preferredVersion": version});
        with_json("/apis/custom.metrics.k8s.io", &group);
    }
    let (client, stop) = (fake.client(), CancellationToken::new());
    let mut controllers = Controllers::new(client.clone(), None, &Registry::default(), stop.clone());
    controllers.add::<HorizontalController>(now);
    let running = tokio::spawn(controllers.run());
    for case in cases {
        create(&client, "", json!({"kind": "Namespace", "metadata": {"name": case.name}})).await;
        let pods = case.pods.iter().map(|(name, change)| pod(name, change));
        for object in case.objects.iter().cloned().chain(case.deployment.as_ref().map(deployment)).chain(pods) {
            create(&client, &case.name, object).await;
        }
        for (short, answer) in &case.answers {
            let path = long(short, &case.name);
            match answer {
                Answer::Raw(code, body, content_type) => fake.answer(&path, *code, content_type, body),
                Answer::List { items } => {
                    let api = short.split(' ').next().unwrap();
                    with_json(&path, &list(api, &case.name, items));
                }
            }
        }
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    for case in cases {
        for (name, change) in &case.autoscalers {
            create(&client, &case.name, autoscaler(name, change)).await;
        }
    }
    tokio::time::sleep(Duration::from_secs(VISITS * 15)).await;
    stop.cancel();
    running.await.unwrap();
    collected(&fake, cases)
}

fn collected(fake: &RecordedApi, cases: &[Case]) -> BTreeMap<String, Seen> {
    let mut all: BTreeMap<String, Seen> = cases.iter().map(|case| (case.name.clone(), Seen::default())).collect();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    for (_, event) in fake.history().iter().filter(|(plural, _)| plural == "horizontalpodautoscalers") {
        let (meta, status) = (&event["object"]["metadata"], told(&event["object"]["status"]));
        let statuses = all.get_mut(meta["namespace"].as_str().unwrap()).unwrap().statuses.entry(text(&meta["name"]));
        let statuses = statuses.or_default();
        if event["type"] == "MODIFIED" && statuses.last() != Some(&status) {
            statuses.push(status);
        }
    }
    let mut events = fake.all("events");
    let number = |event: &Value| event["metadata"]["uid"].as_str().unwrap().to_owned();
    events.sort_by_key(number);
    for event in events {
        let seen = all.get_mut(event["metadata"]["namespace"].as_str().unwrap()).unwrap();
        assert_eq!(event["source"]["component"], "horizontal-pod-autoscaler");
        let words = [&event["involvedObject"]["name"], &event["type"], &event["reason"], &event["message"]].map(text);
        seen.events.push(words);
    }
    for plural in ["deployments", "replicasets", "statefulsets", "replicationcontrollers", "widgets"] {
        for object in fake.all(plural) {
            let seen = all.get_mut(object["metadata"]["namespace"].as_str().unwrap()).unwrap();
            let name = format!("{}/{}", object["kind"].as_str().unwrap(), object["metadata"]["name"].as_str().unwrap());
            seen.sizes.insert(name, object["spec"]["replicas"].as_i64().unwrap());
        }
    }
    for uri in fake.asked().into_iter().filter(|uri| uri.contains("metrics.k8s.io/v")) {
        let seen = all.get_mut(uri.split('/').nth(5).unwrap()).unwrap();
        seen.asked.insert(decoded(&uri).unwrap());
    }
    all
}

/// Of several autoscalers of the same pods, what does not depend on which is visited first.
fn of_several(seen: &mut Seen) {
    let mut last = BTreeSet::new();
    for statuses in seen.statuses.values_mut() {
        statuses.drain(..statuses.len().saturating_sub(1));
        for status in statuses {
            let conditions = status["conditions"].as_array().unwrap();
            let kept: Vec<Value> = conditions.iter().filter(|one| one[0] != "ScalingLimited").cloned().collect();
            last.extend(kept.iter().map(|one| one[3].as_str().unwrap().to_owned()));
            *status = json!({"current": status["current"], "conditions": kept});
        }
    }
    seen.events.retain(|event| last.contains(&event[3]));
    seen.events.sort();
    seen.asked.clear();
}

/// What is seen of a case, in lines.
fn lines(seen: &Seen) -> Vec<String> {
    let statuses = seen.statuses.iter().flat_map(|(name, all)| all.iter().map(move |one| format!("{name} {one}")));
    let events = seen.events.iter().map(|event| format!("event {}", event.join(" ")));
    let rest = seen.asked.iter().map(|uri| format!("asked {uri}"));
    let sizes = seen.sizes.iter().map(|(name, size)| format!("{name} has {size}"));
    statuses.chain(events).chain(rest).chain(sizes).collect()
}

#[tokio::test(start_paused = true)]
async fn statuses_events_and_sizes_are_those_of_kube_controller_manager() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/horizontal_pod_autoscaler/tests/recorded.jsonl");
    let recorded = std::fs::read_to_string(path).unwrap();
    let mut lines_of_data = recorded.lines().filter(|line| !line.starts_with('#'));
    let usual: BTreeMap<String, String> = serde_json::from_str(lines_of_data.next().unwrap()).unwrap();
    let case = |line| {
        let mut case: Case = serde_json::from_str(line).unwrap();
        in_full(&mut case.seen, &usual, &case.name);
        case
    };
    let cases: Vec<Case> = lines_of_data.map(case).collect();
    let (with, without): (Vec<Case>, Vec<Case>) = cases.into_iter().partition(|case| case.apis);
    let mut differing = Vec::new();
    for (cases, apis) in [(with, true), (without, false)] {
        let mut ours = ours(&cases, apis).await;
        for mut case in cases {
            let (mut ours, theirs) = (ours.remove(&case.name).unwrap(), &mut case.seen);
            if case.autoscalers.len() > 1 {
                of_several(&mut ours);
                of_several(theirs);
            }
            if DIFFERENT.contains(&&*case.name) {
                assert!(ours != *theirs, "{} does not differ", case.name);
            } else if ours != *theirs {
                let (ours, theirs) = (lines(&ours), lines(theirs));
                let only = |of: &[String], not: &[String]| -> String {
                    of.iter().filter(|line| !not.contains(line)).map(|line| format!("\n    {line}")).collect()
                };
                let (mine, other) = (only(&ours, &theirs), only(&theirs, &ours));
                differing.push(format!("{}:\n  ours{mine}\n  theirs{other}", case.name));
            }
        }
    }
    assert!(differing.is_empty(), "{} differ:\n{}", differing.len(), differing.join("\n"));
}
