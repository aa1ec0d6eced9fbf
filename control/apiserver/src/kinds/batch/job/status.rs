//! Which changes of a Job's status are good: what is checked is what has changed.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::Value;

use super::validation::{first_shared, parse_indexes};
use crate::{
    apiserver::pipeline::validation::errors::Errors,
    kinds::shared::{
        conditions::is_true,
        field::{Field, IMMUTABLE, none_negative},
    },
};

/// What a status says, and whether that is new.
struct Change<'a> {
    new: &'a Value,
    old: &'a Value,
}

impl Change<'_> {
    fn is(&self, condition: &str) -> bool {
        is_true(self.new, condition)
    }

    fn is_finished(object: &Value) -> bool {
        is_true(object, "Complete") || is_true(object, "Failed")
    }

    /// Whether one of the conditions is new or gone.
    fn of_conditions(&self, kinds: &[&str]) -> bool {
        kinds.iter().any(|kind| is_true(self.new, kind) != is_true(self.old, kind))
    }

    fn of_end(&self) -> bool {
        Self::is_finished(self.new) != Self::is_finished(self.old)
    }

    fn of_fields(&self, fields: &[&str]) -> bool {
        fields.iter().any(|field| self.new["status"][field] != self.old["status"][field])
    }

    fn count(&self, field: &str) -> i64 {
        self.new["status"][field].as_i64().unwrap_or(0)
    }

    fn is_indexed(&self) -> bool {
        self.new["spec"]["completionMode"] == "Indexed"
    }
}

pub(super) fn validate(new: &Value, old: &Value, errors: &mut Errors) {
    let change = Change { new, old };
    let status = Field::root(new).at("status");
    none_negative(&status, &["active", "succeeded", "failed", "ready", "terminating"], errors);
    for kind in ["succeeded", "failed"] {
        let mut seen = BTreeSet::new();
        for uid in status.at("uncountedTerminatedPods").at(kind).items() {
            if uid.text().is_empty() {
                uid.invalid("must not be empty", errors);
            } else if !seen.insert(uid.text()) {
                uid.duplicate(errors);
            }
        }
    }
    ends(&change, errors);
    times(&change, &status, errors);
    targets(&change, errors);
    ended(&change, &status, errors);
    indexes(&change, &status, errors);
    success(&change, errors);
    transitions(&change, &status, errors);
}

/// Refuses conditions that contradict each other, where one of them is new or gone.
fn refuse(change: &Change<'_>, (one, other): (&str, &str), broken: bool, why: &str, errors: &mut Errors) {
    if change.of_conditions(&[one, other]) && broken {
        Field::root(change.new).below("status.conditions").invalid_whole(why, errors);
    }
}

fn ends(change: &Change<'_>, errors: &mut Errors) {
    let (complete, failed) = (change.is("Complete"), change.is("Failed"));
    let why = "cannot set Complete=True and Failed=true conditions";
    refuse(change, ("Complete", "Failed"), complete && failed, why, errors);
    let why = "cannot set Complete=True and FailureTarget=true conditions";
    refuse(change, ("Complete", "FailureTarget"), complete && change.is("FailureTarget"), why, errors);
}

fn targets(change: &Change<'_>, errors: &mut Errors) {
    let without = |one: &str, other: &str| change.is(one) && !change.is(other);
    let pair = ("Failed", "FailureTarget");
    let why = "cannot set Failed=True condition without the FailureTarget=true condition";
    refuse(change, pair, without(pair.0, pair.1), why, errors);
    let pair = ("Complete", "SuccessCriteriaMet");
    let why = "cannot set Complete=True condition without the SuccessCriteriaMet=true condition";
    refuse(change, pair, without(pair.0, pair.1), why, errors);
}

fn success(change: &Change<'_>, errors: &mut Errors) {
    let all = Field::root(change.new).below("status.conditions");
    for other in ["Failed", "FailureTarget"] {
        if change.is("SuccessCriteriaMet") && change.is(other) {
            all.invalid_whole(&format!("cannot set SuccessCriteriaMet=True and {other}=true conditions"), errors);
        }
    }
    let with_policy = !change.new["spec"]["successPolicy"].is_null();
    if with_policy && !change.is("SuccessCriteriaMet") && change.is("Complete") {
        let why = "cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True";
        all.invalid_whole(why, errors);
    }
}

fn times(change: &Change<'_>, status: &Field<'_>, errors: &mut Errors) {
    let (start, end) = (status.at("startTime"), status.at("completionTime"));
    let complete = change.is("Complete");
    let changed = change.of_conditions(&["Complete"]) || change.of_fields(&["completionTime"]);
    if changed && end.is_set() && !complete {
        end.invalid("cannot set completionTime when there is no Complete=True condition", errors);
    }
    if changed && !end.is_set() && complete {
        end.required("completionTime is required for Complete jobs", errors);
    }
    let time = |field: &Field<'_>| field.text().parse::<Timestamp>().ok();
    if change.of_fields(&["startTime", "completionTime"])
        && let (Some(from), Some(to)) = (time(&start), time(&end))
        && to < from
    {
        end.invalid("must be equal to or after `startTime`", errors);
    }
}

fn ended(change: &Change<'_>, status: &Field<'_>, errors: &mut Errors) {
    let finished = Change::is_finished(change.new);
    let since = |fields: &[&str]| change.of_end() || change.of_fields(fields);
    if since(&["active"]) && finished && change.count("active") > 0 {
        status.at("active").invalid("active>0 is invalid for finished job", errors);
    }
    let spec = &change.new["spec"];
    let never_runs = spec["suspend"] == true && spec["completions"] == 0;
    if since(&["startTime"]) && !never_runs && finished && !status.at("startTime").is_set() {
        status.at("startTime").required("startTime is required for finished job", errors);
    }
    let uncounted = status.at("uncountedTerminatedPods");
    let some = !uncounted.at("failed").is_empty() || !uncounted.at("succeeded").is_empty();
    if since(&["uncountedTerminatedPods"]) && finished && some {
        uncounted.invalid("must be empty for finished job", errors);
    }
    if since(&["terminating"]) && finished && change.count("terminating") > 0 {
        status.at("terminating").invalid("terminating>0 is invalid for finished job", errors);
    }
    let more = status.at("ready").is_set() && change.count("ready") > change.count("active");
    if change.of_fields(&["ready", "active"]) && more {
        status.at("ready").invalid("cannot set more ready pods than active", errors);
    }
}

fn indexes(change: &Change<'_>, status: &Field<'_>, errors: &mut Errors) {
    let (completed, failed) = (status.at("completedIndexes"), status.at("failedIndexes"));
    let spec = &change.new["spec"];
    if let Some(completions) = spec["completions"].as_i64() {
        if change.of_fields(&["completedIndexes"])
            && let Err(why) = parse_indexes(completed.text(), completions)
        {
            completed.invalid(&format!("error parsing completedIndexes: {why}"), errors);
        }
        if change.of_fields(&["failedIndexes"])
            && !spec["backoffLimitPerIndex"].is_null()
            && failed.is_set()
            && let Err(why) = parse_indexes(failed.text(), completions)
        {
            failed.invalid(&format!("error parsing failedIndexes: {why}"), errors);
        }
    }
    if change.of_fields(&["completedIndexes"]) && !completed.is_empty() && !change.is_indexed() {
        completed.invalid("cannot set non-empty completedIndexes when non-indexed completion mode", errors);
    }
    if change.of_fields(&["failedIndexes"]) && spec["backoffLimitPerIndex"].is_null() && failed.is_set() {
        failed.invalid("cannot set non-null failedIndexes when backoffLimitPerIndex is null", errors);
    }
    if change.of_fields(&["completedIndexes", "failedIndexes"])
        && let Some(completions) = spec["completions"].as_i64()
        && let Some(index) = first_shared(completed.text(), failed.text(), completions)
    {
        failed.invalid(&format!("failedIndexes and completedIndexes overlap at index: {index}"), errors);
    }
}

fn transitions(change: &Change<'_>, status: &Field<'_>, errors: &mut Errors) {
    let all = status.at("conditions");
    let gone = |kind: &str| is_true(change.old, kind) && !change.is(kind);
    for kind in ["Failed", "Complete", "FailureTarget"].into_iter().filter(|kind| gone(kind)) {
        all.invalid_whole(&format!("cannot disable the terminal {kind}=True condition"), errors);
    }
    let spec = &change.new["spec"];
    let elastic = change.is_indexed() && spec["completions"] == spec["parallelism"];
    for (field, may_shrink) in [("failed", false), ("succeeded", elastic)] {
        if !may_shrink && change.count(field) < change.old["status"][field].as_i64().unwrap_or(0) {
            status.at(field).invalid(&format!("cannot decrease the {field} counter"), errors);
        }
    }
    let (start, end) = (status.at("startTime"), status.at("completionTime"));
    let old = &change.old["status"];
    if end.is_set() && !old["completionTime"].is_null() && *end.value != old["completionTime"] {
        end.invalid(IMMUTABLE, errors);
    }
    if !old["startTime"].is_null() && *start.value != old["startTime"] && spec["suspend"] != true {
        start.invalid("field is immutable for unsuspended job once set", errors);
    }
    if gone("SuccessCriteriaMet") {
        all.invalid_whole("cannot disable the SuccessCriteriaMet=True condition", errors);
    }
    let late = is_true(change.old, "Complete") && !is_true(change.old, "SuccessCriteriaMet");
    if late && change.is("SuccessCriteriaMet") {
        all.invalid_whole("cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions", errors);
    }
}
