//! What users read of CronJobs, in upstream's words: `pkg/controller/cronjob/cronjob_controllerv2.go` and `utils.go` of
//! Kubernetes. Pure.

use jiff::{Timestamp, tz::TimeZone};
use windlass_kit::events::Severity;

/// An event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) severity: Severity,
    pub(crate) reason: &'static str,
    pub(crate) text: String,
}

fn normal(reason: &'static str, text: String) -> Message {
    Message { severity: Severity::Normal, reason, text }
}

fn warning(reason: &'static str, text: String) -> Message {
    Message { severity: Severity::Warning, reason, text }
}

pub(crate) fn created(job: &str) -> Message {
    normal("SuccessfulCreate", format!("Created job {job}"))
}

pub(crate) fn create_failed(error: &str) -> Message {
    warning("FailedCreate", format!("Error creating job: {error}"))
}

pub(crate) fn deleted(job: &str) -> Message {
    normal("SuccessfulDelete", format!("Deleted job {job}"))
}

pub(crate) fn delete_failed(error: &str) -> Message {
    warning("FailedDelete", format!("Deleted job: {error}"))
}

pub(crate) fn completed(job: &str, condition: &str) -> Message {
    normal("SawCompletedJob", format!("Saw completed job: {job}, condition: {condition}"))
}

pub(crate) fn unexpected(job: &str) -> Message {
    warning("UnexpectedJob", format!("Saw a job that the controller did not create or forgot: {job}"))
}

pub(crate) fn missing(job: &str) -> Message {
    normal("MissingJob", format!("Active job went missing: {job}"))
}

pub(crate) fn already_active() -> Message {
    let text = "Not starting job because prior execution is running and concurrency policy is Forbid";
    normal("JobAlreadyActive", text.to_owned())
}

pub(crate) fn missed(at: Timestamp) -> Message {
    let time = at.to_zoned(TimeZone::UTC).strftime("%a, %d %b %Y %H:%M:%S %z").to_string();
    warning("MissSchedule", format!("Missed scheduled time to start a job: {time}"))
}

pub(crate) fn too_many_missed() -> Message {
    let text = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew";
    warning("TooManyMissedTimes", text.to_owned())
}

pub(crate) fn unknown_time_zone(zone: &str) -> Message {
    warning("UnknownTimeZone", format!("invalid timeZone: {zone:?}: unknown time zone {zone}"))
}

pub(crate) fn unparseable(schedule: &str, why: &str) -> Message {
    warning("UnparseableSchedule", format!("unparseable schedule: {schedule:?} : {why}"))
}

/// The schedule names no time.
pub(crate) fn invalid(schedule: &str) -> Message {
    let why = "time difference between two schedules is less than 1 second";
    warning("InvalidSchedule", format!("invalid schedule: {schedule} : {why}"))
}

pub(crate) fn unsupported(schedule: &str) -> Message {
    let text = format!(
        "CRON_TZ or TZ used in schedule {schedule:?} is not officially supported, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details"
    );
    warning("UnsupportedSchedule", text)
}
