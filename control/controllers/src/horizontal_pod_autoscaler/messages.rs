//! Texts of an autoscaler's events and conditions, as in upstream's `pkg/controller/podautoscaler/horizontal.go` and
//! `metrics/client.go`. Pure.

use windlass_kit::events::Severity;

use super::conditions::Condition;
use crate::runtime::Key;

const ABLE_TO_SCALE: &str = "AbleToScale";
const SCALING_ACTIVE: &str = "ScalingActive";
const SCALING_LIMITED: &str = "ScalingLimited";

/// Reasons of events and of `ScalingActive`.
pub(super) const FAILED_GET_RESOURCE_METRIC: &str = "FailedGetResourceMetric";
pub(super) const FAILED_GET_CONTAINER_RESOURCE_METRIC: &str = "FailedGetContainerResourceMetric";
pub(super) const FAILED_GET_PODS_METRIC: &str = "FailedGetPodsMetric";
pub(super) const FAILED_GET_OBJECT_METRIC: &str = "FailedGetObjectMetric";
pub(super) const FAILED_GET_EXTERNAL_METRIC: &str = "FailedGetExternalMetric";
pub(super) const INVALID_METRIC_SOURCE_TYPE: &str = "InvalidMetricSourceType";
const INVALID_SELECTOR: &str = "InvalidSelector";
const AMBIGUOUS_SELECTOR: &str = "AmbiguousSelector";

/// Why a rescale is needed whatever the metrics say.
pub(super) const ABOVE_MAXIMUM: &str = "Current number of replicas above Spec.MaxReplicas";
pub(super) const BELOW_MINIMUM: &str = "Current number of replicas below Spec.MinReplicas";
pub(super) const ALL_BELOW_TARGET: &str = "All metrics below target";

/// Targets that no metric can be compared with.
pub(super) const NO_RESOURCE_TARGET: &str =
    "invalid resource metric source: neither an average utilization target nor an average value (usage) target was set";
pub(super) const NO_OBJECT_TARGET: &str =
    "invalid object metric source: neither a value target nor an average value target was set";
pub(super) const NO_EXTERNAL_TARGET: &str =
    "invalid external metric source: neither a value target nor an average value target was set";

/// An event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) severity: Severity,
    pub(super) reason: &'static str,
    pub(super) text: String,
}

pub(super) fn warning(reason: &'static str, text: impl Into<String>) -> Message {
    Message { severity: Severity::Warning, reason, text: text.into() }
}

pub(super) fn failed_get_scale(why: &str) -> Message {
    warning("FailedGetScale", why)
}

/// What is no quantity: apimachinery's `ErrFormatWrong`.
pub(super) const BAD_QUANTITY: &str =
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";

/// An answer without a body.
pub(super) fn no_body(code: u16, content_type: &str) -> String {
    format!("0-length response with status code: {code} and content type: {content_type}")
}

/// An answer that is no JSON.
pub(super) fn no_json(error: &serde_json::Error) -> String {
    let why = if error.is_eof() { "unexpected end of JSON input".to_owned() } else { error.to_string() };
    format!("couldn't get version/kind; json parse error: {why}")
}

/// An object that does not say what it is.
pub(super) fn missing_member(member: &str, body: &str) -> String {
    format!("Object '{member}' is missing in '{body}'")
}

/// An object of another kind than those that a client knows; `scheme` is the place of its list in `k8s.io/metrics`.
pub(super) fn unregistered(kind: &str, version: &str, scheme: &str) -> String {
    format!("no kind {kind:?} is registered for version {version:?} in scheme \"k8s.io/metrics/pkg/client/{scheme}\"")
}

/// A scale whose selector cannot be read: client-go's `scaleConverter`.
pub(super) fn bad_scale(why: &str) -> String {
    let what = "received an object from a /scale endpoint which was not convertible to autoscaling Scale";
    format!("{what}: failed to parse target selector: {why}")
}

pub(super) fn failed_compute(why: &str) -> Message {
    warning("FailedComputeMetricsReplicas", why)
}

pub(super) fn failed_update_status(why: &str) -> Message {
    warning("FailedUpdateStatus", why)
}

pub(super) fn rescaled(size: i32, reason: &str) -> Message {
    let text = format!("New size: {size}; reason: {reason}");
    Message { severity: Severity::Normal, reason: "SuccessfulRescale", text }
}

pub(super) fn failed_rescale(size: i32, reason: &str, why: &str) -> Message {
    warning("FailedRescale", format!("New size: {size}; reason: {reason}; error: {why}"))
}

pub(super) fn above_target(metric: &str) -> String {
    format!("{metric} above target")
}

pub(super) fn invalid_metrics(invalid: usize, all: usize, first: &str) -> String {
    format!("invalid metrics ({invalid} invalid out of {all}), first error is: {first}")
}

/// Why the pods of a scale cannot be measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SelectorProblem {
    Missing,
    Ambiguous { selector: String, autoscalers: Vec<Key> },
}

impl SelectorProblem {
    pub(super) fn text(&self) -> String {
        match self {
            Self::Missing => "selector is required".to_owned(),
            Self::Ambiguous { selector, autoscalers } => {
                let keys: Vec<String> = autoscalers.iter().map(Key::to_string).collect();
                format!("pods by selector {selector} are controlled by multiple HPAs: [{}]", keys.join(" "))
            }
        }
    }

    pub(super) fn event(&self) -> Message {
        let reason = match self {
            Self::Missing => "SelectorRequired",
            Self::Ambiguous { .. } => AMBIGUOUS_SELECTOR,
        };
        warning(reason, self.text())
    }

    pub(super) fn condition(&self) -> Condition {
        match self {
            Self::Missing => active(false, INVALID_SELECTOR, "the HPA target's scale is missing a selector".to_owned()),
            Self::Ambiguous { .. } => active(false, AMBIGUOUS_SELECTOR, self.text()),
        }
    }
}

fn able(holds: bool, reason: &'static str, message: impl Into<String>) -> Condition {
    Condition { kind: ABLE_TO_SCALE, holds, reason, message: message.into() }
}

fn active(holds: bool, reason: &'static str, message: String) -> Condition {
    Condition { kind: SCALING_ACTIVE, holds, reason, message }
}

pub(super) fn got_scale() -> Condition {
    able(true, "SucceededGetScale", "the HPA controller was able to get the target's current scale")
}

pub(super) fn no_scale(why: &str) -> Condition {
    let message = format!("the HPA controller was unable to get the target's current scale: {why}");
    able(false, "FailedGetScale", message)
}

pub(super) fn updated_scale(size: i32) -> Condition {
    able(true, "SucceededRescale", format!("the HPA controller was able to update the target scale to {size}"))
}

pub(super) fn no_update_of_scale(why: &str) -> Condition {
    let message = format!("the HPA controller was unable to update the target scale: {why}");
    able(false, "FailedUpdateScale", message)
}

pub(super) fn ready_for_new_scale() -> Condition {
    able(true, "ReadyForNewScale", "recommended size matches current size")
}

pub(super) fn scale_down_stabilized() -> Condition {
    let message = "recent recommendations were higher than current one, applying the highest recent recommendation";
    able(true, "ScaleDownStabilized", message)
}

pub(super) fn scale_up_stabilized() -> Condition {
    let message = "recent recommendations were lower than current one, applying the lowest recent recommendation";
    able(true, "ScaleUpStabilized", message)
}

pub(super) fn scaling_disabled() -> Condition {
    let message = "scaling is disabled since the replica count of the target is zero";
    active(false, "ScalingDisabled", message.to_owned())
}

pub(super) fn valid_metric_found(metric: &str) -> Condition {
    let message = format!("the HPA was able to successfully calculate a replica count from {metric}");
    active(true, "ValidMetricFound", message)
}

pub(super) fn unable_to_compute(reason: &'static str, why: &str) -> Condition {
    active(false, reason, format!("the HPA was unable to compute the replica count: {why}"))
}

/// What keeps an autoscaler from what it wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Limit {
    Within,
    TooFewReplicas,
    TooManyReplicas,
    ScaleUp,
    ScaleDown,
}

pub(super) fn limited(limit: Limit, holds: bool) -> Condition {
    let (reason, message) = match limit {
        Limit::Within => ("DesiredWithinRange", "the desired count is within the acceptable range"),
        Limit::TooFewReplicas => ("TooFewReplicas", "the desired replica count is less than the minimum replica count"),
        Limit::TooManyReplicas => {
            ("TooManyReplicas", "the desired replica count is more than the maximum replica count")
        }
        Limit::ScaleUp => {
            ("ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate")
        }
        Limit::ScaleDown => {
            ("ScaleDownLimit", "the desired replica count is decreasing faster than the maximum scale rate")
        }
    };
    Condition { kind: SCALING_LIMITED, holds, reason, message: message.to_owned() }
}
