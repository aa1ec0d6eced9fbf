//! Names, addresses and times that differ between any two runs, as fixed words.

use std::{collections::BTreeMap, sync::LazyLock};

use regex::Regex;
use serde_json::{Map, Value};

use super::text_of;

/// The characters of generated names.
const RANDOM: &str = "[bcdfghjklmnpqrstvwxz2456789]{5}";

/// Replacements in any text, in this order.
static EVERYWHERE: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    [
        (r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "{uid}"),
        (r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z\b", "{time}"),
        (r"\b\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}\b", "{ip}"),
    ]
    .into_iter()
    .map(|(pattern, word)| (Regex::new(pattern).expect("a constant pattern"), word))
    .collect()
});

/// The names that a test has met.
#[derive(Debug)]
pub struct Names {
    namespace: String,
    /// Hashes of templates and revisions, by their first appearance.
    hashes: Vec<String>,
    /// CronJobs, each with the pattern of its Jobs' names.
    schedules: BTreeMap<String, Regex>,
    /// What generated names begin with, each with their pattern.
    prefixes: BTreeMap<String, Regex>,
    /// Names that are alike to each other, and the word for them.
    aliases: Vec<(String, &'static str)>,
}

impl Names {
    /// No names yet, in this namespace.
    #[must_use]
    pub fn new(namespace: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            hashes: Vec::new(),
            schedules: BTreeMap::new(),
            prefixes: BTreeMap::new(),
            aliases: Vec::new(),
        }
    }

    /// From now on these names are the same word: which of them is taken is left to chance.
    pub fn alias(&mut self, names: &[&str], word: &'static str) {
        self.aliases.extend(names.iter().map(|name| ((*name).to_owned(), word)));
    }

    /// Learns the names that belong to an object.
    pub fn learn(&mut self, object: &Value) {
        let labels = &object["metadata"]["labels"];
        for label in ["pod-template-hash", "controller-revision-hash", "controller.kubernetes.io/hash"] {
            let hash = text_of(&labels[label]).rsplit('-').next().unwrap_or_default();
            if !hash.is_empty() && !self.hashes.iter().any(|known| known == hash) {
                self.hashes.push(hash.to_owned());
            }
        }
        let name = text_of(&object["metadata"]["name"]);
        match text_of(&object["kind"]) {
            "ReplicationController" | "ReplicaSet" | "DaemonSet" | "Job" => self.learn_prefix(name.to_owned()),
            "CronJob" => {
                let jobs = || Regex::new(&format!(r"\b{}-\d{{8}}\b", regex::escape(name))).expect("an escaped name");
                self.schedules.entry(name.to_owned()).or_insert_with(jobs);
                self.learn_prefix(format!("{name}-{{minute}}"));
            }
            _ => {}
        }
    }

    fn learn_prefix(&mut self, prefix: String) {
        let pattern = format!(r"{}-((?:\d+-)?){RANDOM}\b", regex::escape(&prefix));
        self.prefixes.entry(prefix).or_insert_with(|| Regex::new(&pattern).expect("an escaped name"));
    }

    /// A text with words instead of names, addresses and times that are made up.
    #[must_use]
    pub fn normalize(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (name, jobs) in &self.schedules {
            text = jobs.replace_all(&text, format!("{name}-{{minute}}")).into_owned();
        }
        for (prefix, generated) in &self.prefixes {
            text = generated.replace_all(&text, format!("{prefix}-$1{{pod}}")).into_owned();
        }
        for (name, word) in &self.aliases {
            text = text.replace(name, word);
        }
        for (index, hash) in self.hashes.iter().enumerate() {
            text = text.replace(hash, &format!("{{hash{}}}", index + 1));
        }
        for (pattern, word) in EVERYWHERE.iter() {
            text = pattern.replace_all(&text, *word).into_owned();
        }
        text.replace(&self.namespace, "{namespace}")
    }
}

/// A value without fields that hold times, and with its keys in order.
#[must_use]
pub fn without_times(value: &Value) -> Value {
    const PASSING: &[&str] = &["uncountedTerminatedPods"];
    match value {
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(key, _)| !key.ends_with("Time") && !PASSING.contains(&key.as_str()));
            let sorted: BTreeMap<&String, Value> = kept.map(|(key, value)| (key, without_times(value))).collect();
            Value::Object(sorted.into_iter().map(|(key, value)| (key.clone(), value)).collect::<Map<_, _>>())
        }
        Value::Array(items) => Value::Array(items.iter().map(without_times).collect()),
        other => other.clone(),
    }
}

/// Labels, annotations, owners, finalizers and the status of an object, a line each. A pod's status is the node's and
/// is left out; all pods that share a generated name are shown alike.
pub(super) fn lines_of_object(object: &Value, names: &Names) -> String {
    let metadata = &object["metadata"];
    let name = format!("{}/{}", text_of(&object["kind"]), text_of(&metadata["name"]));
    let mut lines = Vec::new();
    for field in ["labels", "annotations", "finalizers", "ownerReferences"] {
        let mut value = metadata[field].clone();
        if let Some(annotations) = value.as_object_mut() {
            annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
        }
        if !value.is_null() && value != Value::Object(Map::new()) {
            lines.push(format!("  {field} {}", without_times(&value)));
        }
    }
    if text_of(&object["kind"]) != "Pod" && !object["status"].is_null() {
        for (key, value) in without_times(&object["status"]).as_object().into_iter().flatten() {
            if key != "conditions" {
                lines.push(format!("  status.{key} {value}"));
                continue;
            }
            for condition in value.as_array().into_iter().flatten() {
                let of = |field: &str| text_of(&condition[field]);
                lines.push(format!("  {}={} {}: {}", of("type"), of("status"), of("reason"), of("message")));
            }
        }
    }
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    format!("{}\n{}", names.normalize(&name), names.normalize(&text)).trim_end().to_owned()
}
