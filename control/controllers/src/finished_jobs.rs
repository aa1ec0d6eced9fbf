//! Predicates of Jobs for controllers. Pure.

use k8s_openapi::api::batch::v1::{Job, JobCondition, JobStatus};

fn true_in<'a>(status: &'a JobStatus, kind: &str) -> Option<&'a JobCondition> {
    status.conditions.iter().flatten().find(|condition| condition.type_ == kind && condition.status == "True")
}

/// The condition of a type that is true.
pub(crate) fn true_condition<'a>(job: &'a Job, kind: &str) -> Option<&'a JobCondition> {
    true_in(job.status.as_ref()?, kind)
}

/// The condition that says that a Job has ended, `Complete` or `Failed`.
pub(crate) fn finished(job: &Job) -> Option<&JobCondition> {
    end(job.status.as_ref()?)
}

/// The same of a status.
pub(crate) fn end(status: &JobStatus) -> Option<&JobCondition> {
    true_in(status, "Complete").or_else(|| true_in(status, "Failed"))
}
