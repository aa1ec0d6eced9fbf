//! The conditions of an autoscaler: upstream's `setConditionInList`. Pure.

use jiff::Timestamp;
use k8s_openapi::{api::autoscaling::v2::HorizontalPodAutoscalerCondition, apimachinery::pkg::apis::meta::v1::Time};

/// What a condition says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Condition {
    pub(super) kind: &'static str,
    pub(super) holds: bool,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// Sets a condition; a new one comes last, and the time changes with the status only.
pub(super) fn set(all: &mut Vec<HorizontalPodAutoscalerCondition>, condition: Condition, now: Timestamp) {
    let Condition { kind, holds, reason, message } = condition;
    let status = if holds { "True" } else { "False" };
    let at = all.iter().position(|one| one.type_ == kind).unwrap_or_else(|| {
        all.push(HorizontalPodAutoscalerCondition { type_: kind.to_owned(), ..Default::default() });
        all.len() - 1
    });
    let Some(found) = all.get_mut(at) else { return };
    if found.status != status {
        found.last_transition_time = Some(Time(now));
    }
    status.clone_into(&mut found.status);
    found.reason = Some(reason.to_owned());
    found.message = Some(message);
}
