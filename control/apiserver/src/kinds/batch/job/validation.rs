//! Which Jobs are good, and what may change of one.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use windlass_apimachinery::selectors::LabelSelector;

use super::{NAME_LABELS, UID_LABELS};
use crate::{
    apiserver::{
        pipeline::validation::{errors::Errors, names},
        types::keep_field,
    },
    kinds::shared::{
        field::{Field, IMMUTABLE, immutable, none_negative},
        internal_version::{Internal, Table},
        selector, workload,
    },
};

/// Upstream's limits.
const MAX_RULES: usize = 20;
const MAX_EXIT_CODES: usize = 255;
const MAX_CONDITIONS: usize = 20;
const MAX_INDEXES_BYTES: usize = 64 * 1024;
const MAX_PARALLELISM: i64 = 100_000;
const MAX_FAILED_INDEXES: i64 = 100_000;
const COMPLETIONS_SOFT_LIMIT: i64 = 100_000;
const PARALLELISM_ABOVE_SOFT_LIMIT: i64 = 10_000;
const MAX_MANAGER_BYTES: usize = 63;

const ACTIONS: [&str; 4] = ["Count", "FailIndex", "FailJob", "Ignore"];
const STATUSES: [&str; 3] = ["False", "True", "Unknown"];
/// Upstream's type of when a Job has succeeded.
const SUCCESS_POLICY: Table = "\
Rules rules []
 SucceededIndexes succeededIndexes null
 SucceededCount succeededCount null
";
const INDEXED: &str = "requires indexed completion mode";

pub(super) fn validate_job(object: &Value, old: Option<&Value>, errors: &mut Errors) {
    let root = Field::root(object);
    generated_selector(&root, old, errors);
    validate_whole_spec(object, old, errors);
    let spec = root.at("spec");
    let (name, completions) = (root.below("metadata.name"), spec.at("completions").number().unwrap_or(0));
    if spec.at("completionMode").text() == "Indexed" && completions > 0 {
        let pod = format!("{}-{}", name.text(), completions - 1);
        if names::label(&pod).is_some() {
            name.invalid(&format!("will not able to create pod with invalid DNS label: {pod}"), errors);
        }
    }
}

/// Validates the spec of a Job with its selector.
fn validate_whole_spec(object: &Value, old: Option<&Value>, errors: &mut Errors) {
    let spec = Field::root(object).at("spec");
    validate_spec((object, old), "spec", errors);
    if spec.at("selector").is_set() {
        selector::validate(&spec.at("selector"), errors);
    } else {
        spec.at("selector").required("", errors);
    }
    selector::validate_match(&spec, errors);
}

/// Refuses labels that contradict a generated selector. Jobs from before there were labels with a prefix may lack these.
fn generated_selector(root: &Field<'_>, old: Option<&Value>, errors: &mut Errors) {
    let spec = root.at("spec");
    if spec.at("manualSelector").value == &Value::Bool(true) || spec.at("selector").value.is_null() {
        return;
    }
    let (uid, name) = (root.below("metadata.uid"), root.below("metadata.name"));
    let labels = spec.below("template.metadata.labels");
    let ([uid_label, prefixed_uid], [name_label, prefixed_name]) = (UID_LABELS, NAME_LABELS);
    let had = |label: &str| old.is_none_or(|old| old["spec"]["template"]["metadata"]["labels"][label].is_string());
    let prefixed = had(prefixed_uid) && had(prefixed_name);
    let wanted = [(uid_label, &uid), (name_label, &name), (prefixed_uid, &uid), (prefixed_name, &name)];
    let wanted = &wanted[..if prefixed { 4 } else { 2 }];
    for (label, wanted) in wanted {
        let path = format!("{}[{label}]", labels.path);
        let why = format!("must be '{}'", wanted.text());
        match labels.value.get(label).and_then(Value::as_str) {
            None => errors.required(path, &why),
            Some(found) if found != wanted.text() => errors.invalid(path, labels.value, &why),
            Some(_) => {}
        }
    }
    let expected: Map<String, Value> =
        wanted.iter().map(|(label, wanted)| ((*label).to_owned(), json!(wanted.text()))).collect();
    let expected = Value::Object(expected);
    let matches = |selector: &Value| {
        LabelSelector::from_label_selector(selector).is_ok_and(|parsed| parsed.matches_labels(&expected))
    };
    if !matches(spec.at("selector").value) {
        spec.at("selector").invalid("`selector` not auto-generated", errors);
    }
}

/// Validates the spec of a Job at a path of an object, which may be a CronJob, against the stored one.
pub(crate) fn validate_spec((object, old): (&Value, Option<&Value>), path: &'static str, errors: &mut Errors) {
    let spec = &Field::root(object).below(path);
    let counts = [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ];
    none_negative(spec, &counts, errors);
    let (per_index, failed) = (spec.at("backoffLimitPerIndex"), spec.at("maxFailedIndexes"));
    if failed.is_set() && !per_index.is_set() {
        per_index.required("when maxFailedIndexes is specified", errors);
    }
    let manager = spec.at("managedBy");
    if manager.is_set() {
        manager.domain_prefixed_path(errors);
        manager.max_bytes(MAX_MANAGER_BYTES, errors);
    }
    let mode = spec.at("completionMode");
    mode.optional_one_of(&["NonIndexed", "Indexed"], errors);
    if mode.text() == "Indexed" {
        indexed(spec, errors);
    }
    if mode.text() != "Indexed" {
        for field in [&per_index, &failed].into_iter().filter(|field| field.is_set()) {
            field.invalid(INDEXED, errors);
        }
    }
    if spec.at("podFailurePolicy").is_set() {
        failure_policy(spec, errors);
    }
    if spec.at("successPolicy").is_set() {
        success_policy(spec, errors);
    }
    let replacement = spec.at("podReplacementPolicy");
    if spec.at("podFailurePolicy").is_set() {
        replacement.optional_one_of(&["Failed"], errors);
    } else {
        replacement.optional_one_of(&["Failed", "TerminatingOrFailed"], errors);
    }
    let template = spec.at("template");
    let of = |object| Field::root(object).below(path).at("template");
    workload::validate_pod_template(&template, old.map(of).as_ref(), errors);
    let restart = template.below("spec.restartPolicy");
    match restart.text() {
        "" | "Always" => restart.required("valid values: \"OnFailure\", \"Never\"", errors),
        "OnFailure" | "Never" => {}
        _ => restart.one_of(&["OnFailure", "Never"], errors),
    }
    if spec.at("podFailurePolicy").is_set() && restart.text() != "Never" {
        restart.invalid("only \"Never\" is supported when podFailurePolicy is specified", errors);
    }
}

fn indexed(spec: &Field<'_>, errors: &mut Errors) {
    let (completions, parallelism) = (spec.at("completions"), spec.at("parallelism"));
    let (per_index, failed) = (spec.at("backoffLimitPerIndex"), spec.at("maxFailedIndexes"));
    let above = |field: &Field<'_>, limit: i64| field.number().is_some_and(|n| n > limit);
    if !completions.is_set() {
        completions.required("when completion mode is Indexed", errors);
    }
    if above(&parallelism, MAX_PARALLELISM) {
        parallelism.invalid(
            &format!("must be less than or equal to {MAX_PARALLELISM} when completion mode is Indexed"),
            errors,
        );
    }
    if completions.number().is_some_and(|completions| above(&failed, completions)) {
        failed.invalid("must be less than or equal to completions", errors);
    }
    if above(&failed, MAX_FAILED_INDEXES) {
        failed.invalid(&format!("must be less than or equal to {MAX_FAILED_INDEXES}"), errors);
    }
    if above(&completions, COMPLETIONS_SOFT_LIMIT) && per_index.is_set() {
        if !failed.is_set() {
            failed.required(&format!("must be specified when completions is above {COMPLETIONS_SOFT_LIMIT}"), errors);
        }
        for field in [&parallelism, &failed].into_iter().filter(|field| above(field, PARALLELISM_ABOVE_SOFT_LIMIT)) {
            field.invalid(&format!("must be less than or equal to {PARALLELISM_ABOVE_SOFT_LIMIT} when completions are above {COMPLETIONS_SOFT_LIMIT} and used with backoff limit per index"), errors);
        }
    }
}

fn failure_policy(spec: &Field<'_>, errors: &mut Errors) {
    let rules = spec.below("podFailurePolicy.rules");
    if rules.len() > MAX_RULES {
        return rules.max_items(MAX_RULES, errors);
    }
    let pod = spec.below("template.spec");
    let containers: BTreeSet<&str> = ["initContainers", "containers"]
        .into_iter()
        .flat_map(|kind| pod.at(kind).value.as_array().into_iter().flatten())
        .filter_map(|container| container["name"].as_str())
        .collect();
    for rule in rules.items() {
        let action = rule.at("action");
        match action.text() {
            "" => action.required(&valid_values(&ACTIONS), errors),
            "FailIndex" if !spec.at("backoffLimitPerIndex").is_set() => {
                action.invalid("requires the backoffLimitPerIndex to be set", errors);
            }
            _ => action.one_of(&ACTIONS, errors),
        }
        let (codes, conditions) = (rule.at("onExitCodes"), rule.at("onPodConditions"));
        if codes.is_set() {
            exit_codes(&codes, &containers, errors);
        }
        if !conditions.is_empty() {
            pod_conditions(&conditions, errors);
        }
        match (codes.is_set(), !conditions.is_empty()) {
            (true, true) => {
                rule.invalid_whole("specifying both OnExitCodes and OnPodConditions is not supported", errors)
            }
            (false, false) => {
                rule.invalid_whole("specifying one of OnExitCodes and OnPodConditions is required", errors)
            }
            _ => {}
        }
    }
}

fn exit_codes(codes: &Field<'_>, containers: &BTreeSet<&str>, errors: &mut Errors) {
    let (operator, container, values) = (codes.at("operator"), codes.at("containerName"), codes.at("values"));
    match operator.text() {
        "" => operator.required(&valid_values(&["In", "NotIn"]), errors),
        _ => operator.one_of(&["In", "NotIn"], errors),
    }
    if container.is_set() && !containers.contains(container.text()) {
        container.invalid("must be one of the container or initContainer names in the pod template", errors);
    }
    if values.is_empty() {
        return values.invalid("at least one value is required", errors);
    }
    values.max_items(MAX_EXIT_CODES, errors);
    let (mut seen, mut ordered, mut last) = (BTreeSet::new(), true, None);
    for value in values.items() {
        let code = value.number();
        if operator.text() == "In" && code == Some(0) {
            value.invalid("must not be 0 for the In operator", errors);
        }
        if seen.insert(code) {
            ordered &= last.is_none_or(|last| last <= code);
        } else {
            value.duplicate(errors);
        }
        last = Some(code);
    }
    if !ordered {
        values.invalid("must be ordered", errors);
    }
}

fn pod_conditions(conditions: &Field<'_>, errors: &mut Errors) {
    conditions.max_items(MAX_CONDITIONS, errors);
    for condition in conditions.items() {
        condition.at("type").fits(names::qualified, errors);
        let status = condition.at("status");
        match status.text() {
            "" => status.required(&valid_values(&STATUSES), errors),
            _ => status.one_of(&STATUSES, errors),
        }
    }
}

/// A list of texts as Go's `%q` writes it.
fn valid_values(values: &[&str]) -> String {
    let quoted: Vec<String> = values.iter().map(|value| format!("{value:?}")).collect();
    format!("valid values: [{}]", quoted.join(" "))
}

fn success_policy(spec: &Field<'_>, errors: &mut Errors) {
    let policy = spec.at("successPolicy");
    if spec.at("completionMode").text() != "Indexed" {
        policy.invalid_as(&Internal::new(SUCCESS_POLICY, policy.value).text(), INDEXED, errors);
    }
    let rules = policy.at("rules");
    if rules.is_empty() {
        rules.required("at least one rules must be specified when the successPolicy is specified", errors);
    }
    rules.max_items(MAX_RULES, errors);
    let known = spec.at("completions").number();
    let completions = known.unwrap_or(0);
    for rule in rules.items() {
        let (count, indexes) = (rule.at("succeededCount"), rule.at("succeededIndexes"));
        if !count.is_set() && !indexes.is_set() {
            rule.required("at least one of succeededCount or succeededIndexes must be specified", errors);
        }
        let mut total = None;
        if indexes.is_set() {
            indexes.max_bytes(MAX_INDEXES_BYTES, errors);
            match parse_indexes(indexes.text(), completions) {
                Ok(found) => total = Some(found),
                Err(why) => indexes.invalid(&format!("error parsing succeededIndexes: {why}"), errors),
            }
        }
        let Some(wanted) = count.number() else { continue };
        count.at_least_0(errors);
        if known.is_some_and(|completions| wanted > completions) {
            count.invalid(
                &format!("must be less than or equal to {completions} (the number of specified completions)"),
                errors,
            );
        }
        if let Some(total) = total.filter(|total| wanted > *total) {
            count.invalid(&format!("must be less than or equal to {total} (the number of indexes in the specified succeededIndexes field)"), errors);
        }
    }
}

/// How many indexes a text such as `1,3-5` names.
///
/// # Errors
/// Upstream's words for what is wrong.
/// The first index that two lists of intervals share. Intervals that cannot be read are left out: they are refused for
/// themselves. Upstream: `validateFailedIndexesNotOverlapCompleted`.
pub(super) fn first_shared(one: &str, other: &str, completions: i64) -> Option<i64> {
    let read = |text: &str| -> Vec<(i64, i64)> {
        let interval = |text: &str| {
            let (from, to) = text.split_once('-').unwrap_or((text, text));
            let (from, to) = (from.parse::<i64>().ok()?, to.parse::<i64>().ok()?);
            (from <= to && to < completions).then_some((from, to))
        };
        text.split(',').filter_map(interval).collect()
    };
    let (one, other) = (read(one), read(other));
    let (mut at, mut with) = (one.iter().peekable(), other.iter().peekable());
    while let (Some((from, to)), Some((start, end))) = (at.peek(), with.peek()) {
        if from <= end && start <= to {
            return Some(*from.max(start));
        }
        if from <= start {
            at.next()
        } else {
            with.next()
        };
    }
    None
}

pub(super) fn parse_indexes(text: &str, completions: i64) -> Result<i64, String> {
    if text.is_empty() {
        return Ok(0);
    }
    let index = |text: &str| -> Result<i64, String> {
        let index = text.parse::<i64>().map_err(|_| format!("cannot convert string to integer for index: {text:?}"))?;
        if index >= completions { Err(format!("too large index: {text:?}")) } else { Ok(index) }
    };
    let order =
        |previous: i64, current: i64| Err(format!("non-increasing order, previous: {previous}, current: {current}"));
    let (mut last, mut total) = (None, 0_i64);
    for interval in text.split(',') {
        let parts: Vec<&str> = interval.split('-').collect();
        let (first, end) = match parts[..] {
            [one] => (index(one)?, index(one)?),
            [one, other] => (index(one)?, index(other)?),
            _ => {
                return Err(format!(
                    "the fragment {interval:?} violates the requirement that an index interval can have at most two parts separated by '-'"
                ));
            }
        };
        if parts.len() == 2 && first >= end {
            return order(first, end);
        }
        if let Some(previous) = last.filter(|previous| *previous >= first) {
            return order(previous, first);
        }
        total = total.saturating_add(end - first + 1);
        last = Some(end);
    }
    Ok(total)
}

/// The parts of a template that may change while a Job is suspended and has not been started.
const SCHEDULING: [&str; 4] = ["affinity", "nodeSelector", "tolerations", "schedulingGates"];

pub(super) fn validate_update(new: &Value, old: &Value, errors: &mut Errors) {
    // Upstream validates a changed spec twice, and reports its errors twice.
    validate_whole_spec(new, Some(old), errors);
    completions(new, old, errors);
    immutable(new, old, &["spec.selector"], errors);
    template(new, old, errors);
    let fixed = [
        "spec.completionMode",
        "spec.podFailurePolicy",
        "spec.backoffLimitPerIndex",
        "spec.managedBy",
        "spec.successPolicy",
    ];
    immutable(new, old, &fixed, errors);
}

fn completions(new: &Value, old: &Value, errors: &mut Errors) {
    let now = Field::root(new).below("spec.completions");
    let before = &old["spec"]["completions"];
    if now.value == before {
        return;
    }
    let elastic = old["spec"]["completionMode"] == "Indexed" && now.is_set() && !before.is_null();
    if !elastic {
        return now.invalid(IMMUTABLE, errors);
    }
    let (parallelism, was) = (&new["spec"]["parallelism"], &old["spec"]["parallelism"]);
    if now.value != parallelism || before != was {
        now.invalid("can only be modified in tandem with spec.parallelism", errors);
    }
}

/// Takes what containers ask for from the new template: it may change while a Job is suspended.
fn keep_resources(now: &Value, before: &mut Value) {
    for kind in ["containers", "initContainers"] {
        let wanted = now["spec"][kind].as_array().into_iter().flatten();
        let own = before.pointer_mut(&format!("/spec/{kind}")).and_then(Value::as_array_mut).into_iter().flatten();
        for (container, wanted) in own.zip(wanted).filter(|(own, wanted)| own["name"] == wanted["name"]) {
            keep_field(container, wanted, "resources");
        }
    }
}

fn template(new: &Value, old: &Value, errors: &mut Errors) {
    let (now, mut before) = (Field::root(new).below("spec.template"), old["spec"]["template"].clone());
    let suspended = old["spec"]["suspend"] == true;
    if suspended {
        keep_resources(now.value, &mut before);
    }
    if suspended && old["status"]["startTime"].is_null() {
        for field in SCHEDULING {
            let value = &now.value["spec"][field];
            match before["spec"].as_object_mut() {
                Some(spec) if value.is_null() => drop(spec.remove(field)),
                Some(spec) => drop(spec.insert(field.to_owned(), value.clone())),
                None => {}
            }
        }
        for field in ["labels", "annotations"] {
            keep_field(&mut before["metadata"], &now.value["metadata"], field);
        }
    }
    if *now.value != before {
        now.invalid(IMMUTABLE, errors);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_of_the_template_of_a_suspended_job_may_change() {
        let job = |suspend: bool, pod: Value| json!({"spec": {"suspend": suspend, "template": {"metadata": {"labels": {}}, "spec": pod}}});
        let container =
            |image: &str, cpu: &str| json!([{"name": "c", "image": image, "resources": {"requests": {"cpu": cpu}}}]);
        let before = json!({"containers": container("i", "1")});
        for (after, suspended_is_fine) in [
            (json!({"containers": container("i", "2")}), true),
            (json!({"containers": container("i", "1"), "nodeSelector": {"a": "b"}}), true),
            (json!({"containers": container("j", "1")}), false),
        ] {
            for suspended in [true, false] {
                let mut errors = Errors::default();
                template(&job(suspended, after.clone()), &job(suspended, before.clone()), &mut errors);
                assert_eq!(errors.0.is_empty(), suspended && suspended_is_fine, "{suspended} {after}");
            }
        }
    }

    #[test]
    fn indexes_are_counted() {
        for (text, found) in [
            ("", Ok(0)),
            ("0", Ok(1)),
            ("0,2-4", Ok(4)),
            ("a", Err("cannot convert string to integer for index: \"a\"")),
            ("10", Err("too large index: \"10\"")),
            ("3-1", Err("non-increasing order, previous: 3, current: 1")),
            ("3,2", Err("non-increasing order, previous: 3, current: 2")),
            (
                "1-2-3",
                Err(
                    "the fragment \"1-2-3\" violates the requirement that an index interval can have at most two parts separated by '-'",
                ),
            ),
        ] {
            assert_eq!(parse_indexes(text, 10), found.map_err(str::to_owned), "{text}");
        }
    }
}
