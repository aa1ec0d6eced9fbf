//! The status of a Job, as it is written. Pure.

use std::collections::HashSet;

use jiff::Timestamp;
use k8s_openapi::{
    api::batch::v1::{JobCondition, JobStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};
use serde_json::{Map, Value, json};

use super::messages::Reason;

/// The fields that a status can have.
const FIELDS: [&str; 11] = [
    "active",
    "completedIndexes",
    "completionTime",
    "conditions",
    "failed",
    "failedIndexes",
    "ready",
    "startTime",
    "succeeded",
    "terminating",
    "uncountedTerminatedPods",
];

/// Moves the UIDs of pods without the finalizer from the uncounted ones to the counters.
pub(crate) fn move_counted(status: &mut JobStatus, tracked: &HashSet<String>) {
    let Some(uncounted) = &mut status.uncounted_terminated_pods else { return };
    for (uids, counter) in
        [(&mut uncounted.succeeded, &mut status.succeeded), (&mut uncounted.failed, &mut status.failed)]
    {
        let Some(uids) = uids else { continue };
        let before = uids.len();
        uids.retain(|uid| tracked.contains(uid));
        let counted = i32::try_from(before - uids.len()).unwrap_or(i32::MAX);
        *counter = Some(counter.unwrap_or(0).saturating_add(counted));
    }
}

pub(crate) fn is_set(status: &JobStatus, kind: &str) -> bool {
    status.conditions.iter().flatten().any(|condition| condition.type_ == kind)
}

/// Sets a condition; returns whether that changed it.
pub(crate) fn set_condition(status: &mut JobStatus, kind: &str, is_true: bool, why: &Reason, now: Timestamp) -> bool {
    let new = JobCondition {
        type_: kind.to_owned(),
        status: if is_true { "True" } else { "False" }.to_owned(),
        reason: Some(why.reason.clone()),
        message: Some(why.message.clone()),
        last_probe_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
    };
    let conditions = status.conditions.get_or_insert_default();
    let Some(known) = conditions.iter_mut().find(|condition| condition.type_ == kind) else {
        conditions.push(new);
        return true;
    };
    let same = known.status == new.status && known.reason == new.reason && known.message == new.message;
    if !same {
        *known = new;
    }
    !same
}

/// The one form of a status, as the API shows it: without zeros and empty lists where upstream leaves them out.
pub(crate) fn normal(mut status: JobStatus) -> JobStatus {
    for counter in [&mut status.active, &mut status.succeeded, &mut status.failed] {
        *counter = counter.filter(|count| *count != 0);
    }
    status.ready = Some(status.ready.unwrap_or(0));
    status.terminating = Some(status.terminating.unwrap_or(0));
    status.completed_indexes = status.completed_indexes.filter(|indexes| !indexes.is_empty());
    status.conditions = status.conditions.filter(|conditions| !conditions.is_empty());
    let uncounted = status.uncounted_terminated_pods.get_or_insert_default();
    for uids in [&mut uncounted.succeeded, &mut uncounted.failed] {
        *uids = uids.take().filter(|uids| !uids.is_empty());
    }
    status
}

/// The merge patch that makes `new` of the status in version `version` of the Job; `None` when nothing changes.
pub(crate) fn patch(version: Option<&str>, old: Option<&JobStatus>, new: &JobStatus) -> Option<Value> {
    if old.is_some_and(|old| normal(old.clone()) == *new) {
        return None;
    }
    let Ok(Value::Object(mut fields)) = serde_json::to_value(new) else { return None };
    clear(&mut fields, &FIELDS);
    if let Some(Value::Object(uncounted)) = fields.get_mut("uncountedTerminatedPods") {
        clear(uncounted, &["succeeded", "failed"]);
    }
    Some(json!({"metadata": {"resourceVersion": version}, "status": fields}))
}

/// A merge patch removes what it says to be null.
fn clear(fields: &mut Map<String, Value>, names: &[&str]) {
    for name in names {
        fields.entry(*name).or_insert(Value::Null);
    }
}
