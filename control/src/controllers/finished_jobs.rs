//! Predicates of Jobs for controllers. Pure.

use k8s_openapi::api::batch::v1::{Job, JobCondition};

/// The condition of a type that is true.
pub(crate) fn true_condition<'a>(job: &'a Job, kind: &str) -> Option<&'a JobCondition> {
    let conditions = job.status.as_ref()?.conditions.as_deref().unwrap_or_default();
    conditions.iter().find(|condition| condition.type_ == kind && condition.status == "True")
}

/// The condition that says that a Job has ended, `Complete` or `Failed`.
pub(crate) fn finished(job: &Job) -> Option<&JobCondition> {
    true_condition(job, "Complete").or_else(|| true_condition(job, "Failed"))
}
