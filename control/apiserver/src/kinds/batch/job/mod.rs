//! Job. Pure; the time is a value.

mod status;
mod validation;

use std::borrow::Cow;

use jiff::Timestamp;
use serde_json::{Map, Value, json};
use windlass_apimachinery::selectors::SelectableField;
use windlass_kit::objects::pod_defaults::{child, items, set, set_pointer};

use crate::{
    apiserver::{
        FieldError, Strategy, Tolerance,
        pipeline::validation::errors::Errors,
        types::{Definition, GcPolicy, Generation, NAME, Resource, Subresource, Table, VersionSpec, age, duration},
    },
    kinds::{
        shared::{
            cells::text,
            conditions,
            field::Field,
            selector,
            tables::{AGE, column, wide},
            tolerance,
            workload::{self, containers, number},
        },
        types,
    },
};
pub(crate) use validation::validate_spec;

/// The labels of a Job's pods with its uid and its name; the first of each is that of old versions.
const UID_LABELS: [&str; 2] = ["controller-uid", "batch.kubernetes.io/controller-uid"];
const NAME_LABELS: [&str; 2] = ["job-name", "batch.kubernetes.io/job-name"];

/// The resource.
pub(crate) fn definition() -> Definition {
    let mut resource = Resource::new("batch", "jobs", "Job", Job);
    resource.categories = vec!["all".into()];
    resource.gc = GcPolicy::Orphan;
    resource.generation = Generation::Counted;
    let mut v1 = VersionSpec::new("v1", types::built_in("batch/v1", "Job"));
    v1.selectable = vec![SelectableField {
        label: Cow::Borrowed("status.successful"),
        paths: Cow::Borrowed(&[Cow::Borrowed("status.succeeded")]),
        absent: Cow::Borrowed("0"),
    }];
    v1.subresources = vec![Subresource::status()];
    let columns = vec![
        NAME,
        column("Status", "Whether it has ended."),
        column("Completions", "Pods that have succeeded, of those that must."),
        column("Duration", "How long it took, or takes."),
        AGE,
        wide("Containers", "Names of the template's containers."),
        wide("Images", "Images of the template's containers."),
        wide("Selector", "Labels of its pods."),
    ];
    v1.table = Table { columns, row: Box::new(row) };
    Definition::single(resource, v1)
}

fn row(object: &Value, now: Timestamp) -> Vec<Value> {
    let (spec, status) = (&object["spec"], &object["status"]);
    let [names, images] = containers(&spec["template"]);
    let succeeded = number(&status["succeeded"]);
    let completions = match (spec["completions"].as_i64(), spec["parallelism"].as_i64().unwrap_or(0)) {
        (Some(wanted), _) => format!("{succeeded}/{wanted}"),
        (None, pods @ 2..) => format!("{succeeded}/1 of {pods}"),
        (None, _) => format!("{succeeded}/1"),
    };
    let time = |field: &str| text(&status[field]).parse::<Timestamp>().ok();
    let took = time("startTime").map_or_else(String::new, |start| {
        let end = time("completionTime").unwrap_or(now);
        duration(end.as_second() - start.as_second())
    });
    vec![
        object["metadata"]["name"].clone(),
        json!(state(object)),
        json!(completions),
        json!(took),
        json!(age(text(&object["metadata"]["creationTimestamp"]), now)),
        names,
        images,
        json!(selector::shown(&spec["selector"])),
    ]
}

fn state(object: &Value) -> &'static str {
    let is = |kind: &str| conditions::is_true(object, kind);
    match () {
        () if is("Complete") => "Complete",
        () if is("Failed") => "Failed",
        () if !object["metadata"]["deletionTimestamp"].is_null() => "Terminating",
        () if is("Suspended") => "Suspended",
        () if is("FailureTarget") => "FailureTarget",
        () if is("SuccessCriteriaMet") => "SuccessCriteriaMet",
        () => "Running",
    }
}

#[derive(Debug)]
struct Job;

impl Strategy for Job {
    fn tolerates(&self, _object: &Value, error: &FieldError) -> Option<Tolerance> {
        tolerance::label_values(error, &["spec.selector"])
    }

    fn deletion_warning(&self) -> Option<&'static str> {
        Some(
            "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning",
        )
    }

    fn default(&self, object: &mut Map<String, Value>) {
        let spec = child(object, "spec");
        let missing = |spec: &Map<String, Value>, field: &str| spec.get(field).is_none_or(Value::is_null);
        if missing(spec, "completions") && missing(spec, "parallelism") {
            spec.insert("completions".to_owned(), json!(1));
        }
        set(spec, "parallelism", json!(1));
        let limit = if missing(spec, "backoffLimitPerIndex") { 6 } else { i32::MAX };
        set(spec, "backoffLimit", json!(limit));
        set_pointer(spec, "completionMode", json!("NonIndexed"));
        set(spec, "suspend", json!(false));
        let replacement = if missing(spec, "podFailurePolicy") { "TerminatingOrFailed" } else { "Failed" };
        set_pointer(spec, "podReplacementPolicy", json!(replacement));
        set(spec, "manualSelector", json!(false));
        default_template(spec);
        default_labels(object);
    }

    /// Labels that a Job has from its template are one map with the template's in upstream, so that it gets those of its
    /// selector, too.
    fn complete_create(&self, object: &mut Value, is_labelled: bool) {
        if object["spec"]["manualSelector"] == true {
            return;
        }
        generate_selector(object);
        if !is_labelled {
            object["metadata"]["labels"] = object["spec"]["template"]["metadata"]["labels"].clone();
        }
    }

    fn validate_against(&self, object: &Value, old: Option<&Value>, errors: &mut Errors) {
        validation::validate_job(object, old, errors);
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut Errors) {
        validation::validate_update(new, old, errors);
    }

    fn validate_status(&self, new: &Value, old: &Value, errors: &mut Errors) {
        status::validate(new, old, errors);
    }

    fn warnings(&self, new: &Value, old: Option<&Value>) -> Vec<String> {
        let name = workload::name_warning(new, old, workload::POD_NAMES);
        name.into_iter().chain(spec_warnings(new, old, "spec")).collect()
    }
}

/// The warnings about the spec of a Job at a path, which may be in a CronJob.
pub(crate) fn spec_warnings(new: &Value, old: Option<&Value>, path: &'static str) -> Vec<String> {
    let spec = Field::root(new).below(path);
    let more_than = |field: &'static str, limit: i64| spec.at(field).number().is_some_and(|number| number > limit);
    let mut found = Vec::new();
    let is_unchanged = old.is_some_and(|old| old["metadata"]["generation"] == new["metadata"]["generation"]);
    let is_indexed = spec.at("completionMode").text() == "Indexed";
    if !is_unchanged && is_indexed && more_than("completions", 100_000) && more_than("parallelism", 10_000) {
        found.push(format!("{path}: In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, Kubernetes might not be able to track completedIndexes when a big number of indexes fail"));
    }
    found.extend(workload::template_warnings(new, old, &spec.at("template")));
    found
}

/// Sets the defaults that the Job of a CronJob has too.
pub(crate) fn default_template(spec: &mut Map<String, Value>) {
    if let Some(policy) = spec.get_mut("podFailurePolicy").and_then(Value::as_object_mut) {
        for rule in items(policy, "rules") {
            items(rule, "onPodConditions").for_each(|condition| set(condition, "status", json!("True")));
        }
    }
    workload::default_template(spec);
}

fn is_empty(labels: &Value) -> bool {
    labels.as_object().is_none_or(Map::is_empty)
}

/// A Job without labels has those of its template.
fn default_labels(object: &mut Map<String, Value>) {
    let labels = object.get("spec").map(|spec| spec["template"]["metadata"]["labels"].clone()).unwrap_or_default();
    let metadata = child(object, "metadata");
    if metadata.get("labels").is_none_or(is_empty) && !is_empty(&labels) {
        metadata.insert("labels".to_owned(), labels);
    }
}

/// Makes the selector of the Job's own pods, and their labels.
fn generate_selector(object: &mut Value) {
    let (name, uid) = (json!(object["metadata"]["name"].as_str().unwrap_or("")), object["metadata"]["uid"].clone());
    let fill = |labels: &mut Value, keys: &[&str], value: &Value| {
        if !labels.is_object() {
            *labels = json!({});
        }
        for key in keys {
            if labels.get(key).is_none() {
                labels[key] = value.clone();
            }
        }
    };
    let spec = &mut object["spec"];
    if !spec["template"].is_object() {
        spec["template"] = json!({});
    }
    if !spec["template"]["metadata"].is_object() {
        spec["template"]["metadata"] = json!({});
    }
    let labels = &mut spec["template"]["metadata"]["labels"];
    fill(labels, &NAME_LABELS, &name);
    fill(labels, &UID_LABELS, &uid);
    if !spec["selector"].is_object() {
        spec["selector"] = json!({});
    }
    fill(&mut spec["selector"]["matchLabels"], &UID_LABELS[1..], &uid);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_gets_a_selector_of_its_own() {
        let mut job =
            json!({"metadata": {"name": "j", "uid": "u"}, "spec": {"template": {"metadata": {"labels": {"a": "b"}}}}});
        Job.complete_create(&mut job, false);
        assert_eq!(job["spec"]["selector"], json!({"matchLabels": {"batch.kubernetes.io/controller-uid": "u"}}));
        assert_eq!(
            job["spec"]["template"]["metadata"]["labels"],
            json!({"a": "b", "controller-uid": "u", "job-name": "j",
                "batch.kubernetes.io/controller-uid": "u", "batch.kubernetes.io/job-name": "j"})
        );
        assert_eq!(job["metadata"]["labels"], job["spec"]["template"]["metadata"]["labels"]);
        // Labels of its own stay what they are, even if they are those of the template.
        let mut labelled = json!({"metadata": {"name": "j", "uid": "u", "labels": {"a": "b"}},
            "spec": {"template": {"metadata": {"labels": {"a": "b"}}}}});
        Job.complete_create(&mut labelled, true);
        assert_eq!(labelled["metadata"]["labels"], json!({"a": "b"}));
        let manual = json!({"metadata": {"name": "j"}, "spec": {"manualSelector": true, "selector": {"matchLabels": {"a": "b"}}}});
        let mut kept = manual.clone();
        Job.complete_create(&mut kept, false);
        assert_eq!(kept, manual);
    }
}
