//! The status of owners of identical pods, which is the same for all kinds. Pure.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::plan::Counts;
use crate::pod_control::Failure;

const FAILURE: &str = "ReplicaFailure";

/// The merge patch from status `old` to the counts, or `None` when nothing changes. `terminating` is absent where the kind
/// has no such count.
pub(super) fn patch(
    old: &Value,
    generation: Option<i64>,
    counts: Counts,
    terminating: Option<i32>,
    failure: Option<&Failure>,
    now: Timestamp,
) -> Option<Value> {
    let mut new = json!({
        "replicas": counts.replicas,
        "fullyLabeledReplicas": counts.fully_labeled,
        "readyReplicas": counts.ready,
        "availableReplicas": counts.available,
        "observedGeneration": generation.unwrap_or(0),
    });
    // An absent count is zero.
    let mut same = new.as_object().into_iter().flatten().all(|(name, value)| {
        let before = &old[name];
        before == value || (before.is_null() && *value == 0)
    });
    if let Some(terminating) = terminating {
        same &= old["terminatingReplicas"] == terminating;
        new["terminatingReplicas"] = json!(terminating);
    }
    let before = old["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let conditions = conditions(before, failure, now);
    same &= conditions == before;
    new["conditions"] = if conditions.is_empty() { Value::Null } else { json!(conditions) };
    (!same).then(|| json!({ "status": new }))
}

/// The conditions with `ReplicaFailure` set or removed.
fn conditions(old: &[Value], failure: Option<&Failure>, now: Timestamp) -> Vec<Value> {
    let mut all: Vec<Value> = old.iter().filter(|condition| condition["type"] != FAILURE).cloned().collect();
    if let Some(failure) = failure {
        let same = |condition: &&Value| condition["type"] == FAILURE && condition["reason"] == failure.reason;
        all.push(old.iter().find(same).cloned().unwrap_or_else(|| {
            json!({
                "type": FAILURE,
                "status": "True",
                "reason": failure.reason,
                "message": failure.message,
                "lastTransitionTime": Time(now),
            })
        }));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_is_written_only_when_it_changes() {
        let (now, counts) = (Timestamp::UNIX_EPOCH, Counts { replicas: 2, ready: 1, ..Counts::default() });
        for terminating in [None, Some(0)] {
            let patch = |old: &Value, failure| patch(old, Some(3), counts, terminating, failure, now);
            let first = patch(&Value::Null, None).unwrap();
            assert_eq!(
                (&first["status"]["observedGeneration"], &first["status"]["readyReplicas"]),
                (&json!(3), &json!(1))
            );
            assert_eq!(first["status"]["terminatingReplicas"], json!(terminating));
            assert!(first["status"]["conditions"].is_null());
            assert_eq!(patch(&first["status"], None), None);
            // As the API shows it: counts of zero are absent.
            let mut shown = json!({"replicas": 2, "readyReplicas": 1, "observedGeneration": 3});
            if terminating.is_some() {
                assert!(patch(&shown, None).is_some(), "the count of terminating pods is told even if it is zero");
                shown["terminatingReplicas"] = json!(0);
            }
            assert_eq!(patch(&shown, None), None);

            let failure = Failure { reason: "FailedCreate", message: "quota".into() };
            let failed = patch(&shown, Some(&failure)).unwrap();
            assert_eq!(failed["status"]["conditions"][0]["type"], FAILURE);
            assert_eq!(patch(&failed["status"], Some(&failure)), None);
            assert!(patch(&failed["status"], None).is_some(), "the condition goes away");
        }
    }
}
