//! The recorded cases. The test target `recordings` of the API server's crate reads and writes them with this file, too.

#![allow(
    clippy::unwrap_used,
    dead_code,
    reason = "unit tests and the recorder each use a part of it, and a test may panic"
)]

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
pub(crate) struct Case {
    pub(crate) name: String,
    /// Whether the APIs of metrics are there at all.
    #[serde(default = "yes")]
    pub(crate) apis: bool,
    #[serde(default)]
    objects: Vec<Value>,
    deployment: Option<Value>,
    #[serde(default)]
    pods: BTreeMap<String, Value>,
    pub(crate) autoscalers: BTreeMap<String, Value>,
    #[serde(default)]
    answers: BTreeMap<String, Answer>,
    pub(crate) seen: Seen,
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

/// What has become of a case.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Seen {
    /// The statuses of each autoscaler one after the other; of several autoscalers, the last.
    pub(crate) statuses: BTreeMap<String, Vec<Value>>,
    /// The replicas of the targets in the end.
    pub(crate) sizes: BTreeMap<String, i64>,
    /// Autoscaler, type, reason and message.
    pub(crate) events: Vec<[String; 4]>,
    /// What metrics were asked for.
    pub(crate) asked: BTreeSet<String>,
}

impl Seen {
    /// What is seen of the cases of these names: the autoscalers after each change, events in their order, the targets, and what servers of
    /// metrics were asked for.
    pub(crate) fn of(
        names: impl IntoIterator<Item = String>,
        autoscalers: &[Value],
        events: &[Value],
        targets: &[Value],
        asked: impl IntoIterator<Item = String>,
    ) -> BTreeMap<String, Self> {
        let mut all: BTreeMap<String, Self> = names.into_iter().map(|name| (name, Self::default())).collect();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        for autoscaler in autoscalers {
            let (meta, status) = (&autoscaler["metadata"], timeless(&autoscaler["status"]));
            let statuses = all.get_mut(&text(&meta["namespace"])).unwrap().statuses.entry(text(&meta["name"]));
            let statuses = statuses.or_default();
            if statuses.last() != Some(&status) {
                statuses.push(status);
            }
        }
        for event in events {
            let seen = all.get_mut(&text(&event["metadata"]["namespace"])).unwrap();
            assert_eq!(event["source"]["component"], "horizontal-pod-autoscaler");
            let words =
                [&event["involvedObject"]["name"], &event["type"], &event["reason"], &event["message"]].map(text);
            seen.events.push(words);
        }
        for object in targets {
            let seen = all.get_mut(&text(&object["metadata"]["namespace"])).unwrap();
            let name = format!("{}/{}", text(&object["kind"]), text(&object["metadata"]["name"]));
            seen.sizes.insert(name, object["spec"]["replicas"].as_i64().unwrap());
        }
        for uri in asked {
            let seen = all.get_mut(uri.split('/').nth(5).unwrap()).unwrap();
            seen.asked.insert(uri);
        }
        all
    }

    /// As it is written: a status as what differs from the one before, and what is written shortly. Usual beginnings of messages
    /// are by their reasons.
    pub(crate) fn shortly(&self, usual: &BTreeMap<String, String>, case: &Case) -> String {
        let list = |items: Vec<String>| format!("[{}]", items.join(","));
        let several = case.autoscalers.len() > 1;
        let statuses = self.statuses.iter().map(|(name, statuses)| {
            let first = if several { statuses.len().saturating_sub(1) } else { 0 };
            let mut before = &json!({});
            let mut short = Vec::new();
            for status in &statuses[first..] {
                short.push(status_shortly(status, before, usual));
                before = status;
            }
            format!("{}:{}", json!(name), list(short))
        });
        let mut parts = vec![format!("\"statuses\":{{{}}}", statuses.collect::<Vec<_>>().join(","))];
        if !self.sizes.is_empty() {
            parts.push(format!("\"sizes\":{}", json!(self.sizes)));
        }
        if !self.events.is_empty() {
            parts.push(format!("\"events\":{}", json!(self.events)));
        }
        if !self.asked.is_empty() {
            let within = format!("/namespaces/{}/", case.name);
            let short = |uri: &String| uri.trim_start_matches("/apis/").replacen(&within, " ", 1);
            parts.push(format!("\"asked\":{}", json!(self.asked.iter().map(short).collect::<Vec<_>>())));
        }
        format!("{{{}}}", parts.join(","))
    }
}

/// What of a status is another than before, with its messages without their usual beginnings.
fn status_shortly(status: &Value, before: &Value, usual: &BTreeMap<String, String>) -> String {
    let fields = ["current", "desired", "scaled", "metrics", "conditions"];
    let differing = fields.into_iter().filter(|field| status[field] != before[field]);
    let shown = |field: &str| {
        if field != "conditions" {
            return status[field].clone();
        }
        let conditions = status[field].as_array().into_iter().flatten();
        Value::from_iter(conditions.map(|condition| {
            let mut words: Vec<&str> = condition.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            let beginning = usual.get(words[2]).map_or("", String::as_str);
            words[3] = words[3].strip_prefix(beginning).unwrap_or_else(|| panic!("another beginning: {words:?}"));
            words.truncate(if words[3].is_empty() { 3 } else { 4 });
            json!(words)
        }))
    };
    let fields: Vec<String> = differing.map(|field| format!("\"{field}\":{}", shown(field))).collect();
    format!("{{{}}}", fields.join(","))
}

/// What is recorded: the usual beginnings of messages by their reasons, and the cases, each with its line.
pub(crate) fn read(recorded: &str) -> (BTreeMap<String, String>, Vec<(&str, Case)>) {
    let mut lines = recorded.lines().filter(|line| !line.starts_with('#'));
    let usual: BTreeMap<String, String> = serde_json::from_str(lines.next().unwrap()).unwrap();
    let case = |line| {
        let mut case: Case = serde_json::from_str(line).unwrap();
        in_full(&mut case.seen, &usual, &case.name);
        (line, case)
    };
    let cases = lines.map(case).collect();
    (usual, cases)
}

impl Case {
    /// What is there before the autoscalers: targets and pods.
    pub(crate) fn given(&self) -> impl Iterator<Item = Value> {
        let pods = self.pods.iter().map(|(name, change)| pod(name, change));
        self.objects.iter().cloned().chain(self.deployment.as_ref().map(deployment)).chain(pods)
    }

    /// The answers of servers of metrics, and others, by path: code, content type and body.
    pub(crate) fn answers(&self) -> impl Iterator<Item = (String, (u16, String, String))> {
        self.answers.iter().map(|(short, answer)| {
            let answer = match answer {
                Answer::Raw(code, body, content_type) => (*code, content_type.clone(), body.clone()),
                Answer::List { items } => {
                    let api = short.split(' ').next().unwrap();
                    (200, "application/json".to_owned(), list(api, &self.name, items).to_string())
                }
            };
            (long(short, &self.name), answer)
        })
    }
}

/// The group of metrics that says which versions it has.
pub(crate) fn custom_metrics_group() -> (&'static str, Value) {
    let version = json!({"groupVersion": "custom.metrics.k8s.io/v1beta2", "version": "v1beta2"});
    let group = json!({"kind": "APIGroup", "apiVersion": "v1", "name": "custom.metrics.k8s.io", "versions": [version],
        "preferredVersion": version});
    ("/apis/custom.metrics.k8s.io", group)
}

static NOW: Mutex<Option<Timestamp>> = Mutex::new(None);

/// One moment: a busy machine takes longer for the test than pods of these cases stay young.
pub(crate) fn now() -> Timestamp {
    *NOW.lock().get_or_insert_with(Timestamp::now)
}

/// Makes this moment the one.
pub(crate) fn begin() {
    *NOW.lock() = Some(Timestamp::now());
}

/// Times are in seconds from now.
pub(crate) fn at_their_times(value: &mut Value, now: Timestamp) {
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

pub(crate) fn autoscaler(name: &str, change: &Value) -> Value {
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

/// A case's path of what is written shortly.
fn long(short: &str, namespace: &str) -> String {
    match short.split_once(' ') {
        Some((api, rest)) => format!("/apis/{api}/namespaces/{namespace}/{rest}"),
        None => short.to_owned(),
    }
}

/// What is written shortly, in full: a status is what differs from the one before, and messages have their usual beginnings.
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
pub(crate) fn path_of(kind: &str, namespace: &str) -> String {
    let api = match kind {
        "Pod" | "ReplicationController" | "Service" => "api/v1",
        "Widget" => "apis/example.com/v1",
        "HorizontalPodAutoscaler" => "apis/autoscaling/v2",
        _ => "apis/apps/v1",
    };
    format!("/{api}/namespaces/{namespace}/{}s", kind.to_lowercase())
}

/// A status without its times.
pub(crate) fn timeless(status: &Value) -> Value {
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

/// Of several autoscalers of the same pods, what does not depend on which is visited first.
pub(crate) fn of_several(seen: &mut Seen) {
    for status in seen.statuses.values_mut().flatten() {
        for condition in status["conditions"].as_array_mut().into_iter().flatten() {
            condition[3] = json!(in_order(condition[3].as_str().unwrap()));
        }
    }
    for event in &mut seen.events {
        event[3] = in_order(&event[3]);
    }
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
    seen.events.dedup();
    seen.asked.clear();
}

/// A message with its list of autoscalers in order: upstream names them as a map of Go has them.
fn in_order(message: &str) -> String {
    let list = message.split_once(": [").and_then(|(before, list)| Some((before, list.strip_suffix(']')?)));
    let Some((before, list)) = list else { return message.to_owned() };
    let mut names: Vec<&str> = list.split(' ').collect();
    names.sort_unstable();
    format!("{before}: [{}]", names.join(" "))
}

/// What is seen of a case, in lines.
pub(crate) fn lines(seen: &Seen) -> Vec<String> {
    let statuses = seen.statuses.iter().flat_map(|(name, all)| all.iter().map(move |one| format!("{name} {one}")));
    let events = seen.events.iter().map(|event| format!("event {}", event.join(" ")));
    let rest = seen.asked.iter().map(|uri| format!("asked {uri}"));
    let sizes = seen.sizes.iter().map(|(name, size)| format!("{name} has {size}"));
    statuses.chain(events).chain(rest).chain(sizes).collect()
}
