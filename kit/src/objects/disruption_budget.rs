//! The condition of a PodDisruptionBudget, which both its controller and evictions write. Upstream's
//! `component-helpers/apps/poddisruptionbudget`. Pure.

use jiff::Timestamp;
use k8s_openapi::{
    api::policy::v1::PodDisruptionBudgetStatus,
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
};

/// The type of the condition.
const DISRUPTION_ALLOWED: &str = "DisruptionAllowed";
/// Its reason while pods may be disrupted.
const SUFFICIENT_PODS: &str = "SufficientPods";
/// Its reason while none may be.
const INSUFFICIENT_PODS: &str = "InsufficientPods";
/// Its reason when the controller does not know.
pub const SYNC_FAILED: &str = "SyncFailed";

/// The condition, if there is one.
#[must_use]
pub fn disruption_allowed(status: &PodDisruptionBudgetStatus) -> Option<&Condition> {
    status.conditions.iter().flatten().find(|condition| condition.type_ == DISRUPTION_ALLOWED)
}

/// Sets the condition by the number of disruptions that the status allows. Upstream's `UpdateDisruptionAllowedCondition`.
pub fn update_condition(status: &mut PodDisruptionBudgetStatus, now: Timestamp) {
    let (is, reason) = if status.disruptions_allowed.unwrap_or(0) > 0 {
        ("True", SUFFICIENT_PODS)
    } else {
        ("False", INSUFFICIENT_PODS)
    };
    set_condition(status, (is, reason, ""), now);
}

/// Sets status, reason and message of the condition; its transition time changes with its status alone.
pub fn set_condition(
    status: &mut PodDisruptionBudgetStatus,
    (is, reason, message): (&str, &str, &str),
    now: Timestamp,
) {
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    let mut condition = Condition {
        type_: DISRUPTION_ALLOWED.to_owned(),
        status: is.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        observed_generation: status.observed_generation,
        last_transition_time: Time(now),
    };
    let conditions = status.conditions.get_or_insert_default();
    match conditions.iter_mut().find(|one| one.type_ == DISRUPTION_ALLOWED) {
        None => conditions.push(condition),
        Some(before) => {
            if before.status == is {
                condition.last_transition_time = before.last_transition_time.clone();
            }
            *before = condition;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transition_time_is_that_of_the_last_change_of_status() {
        let at = |second| Timestamp::from_second(second).expect("a time");
        let mut status = PodDisruptionBudgetStatus { observed_generation: Some(3), ..Default::default() };
        let shown = |status: &PodDisruptionBudgetStatus| {
            let c = disruption_allowed(status).expect("a condition");
            (c.status.clone(), c.reason.clone(), c.observed_generation, c.last_transition_time.0.as_second())
        };
        let wanted = |is: &str, reason: &str, generation, since| (is.to_owned(), reason.to_owned(), generation, since);
        update_condition(&mut status, at(10));
        assert_eq!(shown(&status), wanted("False", INSUFFICIENT_PODS, Some(3), 10));
        set_condition(&mut status, ("False", SYNC_FAILED, "why"), at(20));
        assert_eq!(shown(&status), wanted("False", SYNC_FAILED, Some(3), 10));
        (status.disruptions_allowed, status.observed_generation) = (Some(1), Some(4));
        update_condition(&mut status, at(30));
        assert_eq!(shown(&status), wanted("True", SUFFICIENT_PODS, Some(4), 30));
        assert_eq!(status.conditions.as_ref().map(Vec::len), Some(1));
    }
}
