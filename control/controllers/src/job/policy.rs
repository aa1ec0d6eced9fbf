//! Pod failure policies and success policies. Pure.

use k8s_openapi::api::batch::v1::{
    Job, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyOnPodConditionsPattern, SuccessPolicy,
};
use kube::ResourceExt;

use super::{
    indexes::Indexes,
    messages::{self, Reason},
    pod::{self, containers},
};
use crate::runtime::CachedPod;

/// What is to happen after a failed pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    Count,
    Ignore,
    FailIndex,
    FailJob(Reason),
}

impl Action {
    /// As the API names it.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Count => "Count",
            Self::Ignore => "Ignore",
            Self::FailIndex => "FailIndex",
            Self::FailJob(_) => "FailJob",
        }
    }
}

/// What is to happen after a failed pod; failures that no rule fits count.
pub(crate) fn action(job: &Job, failed: &CachedPod) -> Action {
    rule(job, failed).unwrap_or(Action::Count)
}

/// What the first rule that fits a failed pod says.
pub(crate) fn rule(job: &Job, failed: &CachedPod) -> Option<Action> {
    let rules = job.spec.as_ref().and_then(|spec| spec.pod_failure_policy.as_ref()).map(|policy| &policy.rules);
    for (at, rule) in rules.into_iter().flatten().enumerate() {
        let name = || format!("{}/{}", failed.namespace().unwrap_or_default(), failed.name_any());
        let reason = if let Some(wanted) = &rule.on_exit_codes {
            let found = exit_code(failed, wanted);
            found.map(|(container, code)| messages::failed_with_exit_code(container, &name(), code, at))
        } else {
            let found = condition(failed, rule.on_pod_conditions.as_deref().unwrap_or_default());
            found.map(|condition| messages::failed_with_condition(&name(), condition, at))
        };
        let Some(reason) = reason else { continue };
        match rule.action.as_str() {
            "Ignore" => return Some(Action::Ignore),
            "FailIndex" => return Some(Action::FailIndex),
            "FailJob" => return Some(Action::FailJob(reason)),
            "Count" => return Some(Action::Count),
            // An action of a later version: the next rule decides.
            _ => {}
        }
    }
    None
}

/// Whether a failed pod counts towards the back-off limits.
pub(crate) fn counts(job: &Job, failed: &CachedPod) -> bool {
    action(job, failed) != Action::Ignore
}

/// Why the whole Job has to fail.
pub(crate) fn fail_job<'a>(job: &Job, pods: impl IntoIterator<Item = &'a CachedPod>) -> Option<Reason> {
    job.spec.as_ref()?.pod_failure_policy.as_ref()?;
    pods.into_iter().filter(|pod| pod::has_failed(job, pod)).find_map(|pod| match action(job, pod) {
        Action::FailJob(reason) => Some(reason),
        _ => None,
    })
}

/// The container that failed with an exit code that the rule names.
fn exit_code<'a>(failed: &'a CachedPod, wanted: &PodFailurePolicyOnExitCodesRequirement) -> Option<(&'a str, i32)> {
    let ended = containers(failed).filter_map(|container| container.terminated.as_deref());
    let named = ended.filter(|end| wanted.container_name.as_ref().is_none_or(|name| *name == end.container));
    let mut failures = named.filter(|end| end.exit_code != 0);
    let found = failures.find(|end| match wanted.operator.as_str() {
        "In" => wanted.values.contains(&end.exit_code),
        "NotIn" => !wanted.values.contains(&end.exit_code),
        _ => false,
    })?;
    Some((&found.container, found.exit_code))
}

/// The condition that one of the patterns describes.
fn condition<'a>(failed: &'a CachedPod, patterns: &[PodFailurePolicyOnPodConditionsPattern]) -> Option<&'a str> {
    let conditions = failed.status.as_ref()?.conditions.as_deref().unwrap_or_default();
    let fits = |pattern: &PodFailurePolicyOnPodConditionsPattern, kind: &str, status: &str| {
        pattern.type_ == kind && pattern.status.as_deref().unwrap_or("True") == status
    };
    let found = conditions.iter().find(|c| patterns.iter().any(|pattern| fits(pattern, &c.type_, &c.status)))?;
    Some(&found.type_)
}

/// Why an indexed Job has succeeded already.
pub(crate) fn success(policy: Option<&SuccessPolicy>, completions: i32, succeeded: &Indexes) -> Option<Reason> {
    if succeeded.total() == 0 {
        return None;
    }
    let met = policy?.rules.iter().position(|rule| match (&rule.succeeded_indexes, rule.succeeded_count) {
        (Some(indexes), count) => {
            let wanted = Indexes::parse(indexes, completions);
            let (all, have) = (wanted.total(), wanted.common(succeeded));
            all > 0 && (have == all || count.is_some_and(|count| have >= count))
        }
        (None, Some(count)) => succeeded.total() >= count,
        (None, None) => false,
    });
    met.map(messages::success_policy)
}
