//! What users read of Jobs, in upstream's words: `pkg/controller/job/job_controller.go`, `pod_failure_policy.go`,
//! `success_policy.go` and `staging/src/k8s.io/api/batch/v1/types.go` of Kubernetes. Pure.

/// A reason and its message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reason {
    pub(crate) reason: String,
    pub(crate) message: String,
}

impl Reason {
    fn new(reason: &str, message: impl Into<String>) -> Self {
        Self { reason: reason.to_owned(), message: message.into() }
    }
}

pub(crate) fn backoff_limit_exceeded() -> Reason {
    Reason::new("BackoffLimitExceeded", "Job has reached the specified backoff limit")
}

pub(crate) fn deadline_exceeded() -> Reason {
    Reason::new("DeadlineExceeded", "Job was active longer than specified deadline")
}

pub(crate) fn max_failed_indexes_exceeded() -> Reason {
    Reason::new("MaxFailedIndexesExceeded", "Job has exceeded the specified maximal number of failed indexes")
}

pub(crate) fn failed_indexes() -> Reason {
    Reason::new("FailedIndexes", "Job has failed indexes")
}

/// A pod's container failed as a rule of action `FailJob` says.
pub(crate) fn failed_with_exit_code(container: &str, pod: &str, code: i32, rule: usize) -> Reason {
    let text = format!(
        "Container {container} for pod {pod} failed with exit code {code} matching FailJob rule at index {rule}"
    );
    Reason::new("PodFailurePolicy", text)
}

/// A pod has a condition of which a rule of action `FailJob` says so.
pub(crate) fn failed_with_condition(pod: &str, condition: &str, rule: usize) -> Reason {
    Reason::new(
        "PodFailurePolicy",
        format!("Pod {pod} has condition {condition} matching FailJob rule at index {rule}"),
    )
}

pub(crate) fn success_policy(rule: usize) -> Reason {
    Reason::new("SuccessPolicy", format!("Matched rules at index {rule}"))
}

pub(crate) fn completions_reached() -> Reason {
    Reason::new("CompletionsReached", "Reached expected number of succeeded pods")
}

/// The condition of a Job that has just been suspended.
pub(crate) fn suspended() -> Reason {
    Reason::new("JobSuspended", "Job suspended")
}

/// The condition of a Job that runs again.
pub(crate) fn resumed() -> Reason {
    Reason::new("JobResumed", "Job resumed")
}

/// Events.
pub(crate) mod events {
    use super::Reason;

    pub(crate) fn suspended() -> Reason {
        Reason::new("Suspended", "Job suspended")
    }

    pub(crate) fn resumed() -> Reason {
        Reason::new("Resumed", "Job resumed")
    }

    pub(crate) fn completed() -> Reason {
        Reason::new("Completed", "Job completed")
    }

    pub(crate) fn too_many_succeeded() -> Reason {
        Reason::new("TooManySucceededPods", "Too many succeeded pods running after completion count reached")
    }

    pub(crate) fn unknown_completion_mode() -> Reason {
        Reason::new("UnknownCompletionMode", "Skipped Job sync because completion mode is unknown")
    }
}
