//! How many replicas a metric asks for, as upstream's `pkg/controller/podautoscaler/replica_calculator.go` and
//! `metrics/utilization.go` compute it. All values are thousandths. Pure: may not import tokio or kube's client.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;

use crate::{pods, runtime::CachedPod};

pub(super) mod groups;
mod requests;

use groups::{Groups, group_pods};
use requests::{Requests, calculate_requests};

/// `--horizontal-pod-autoscaler-tolerance`.
const TOLERANCE: f64 = 0.1;

/// One sample of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PodMetric {
    pub(super) at: Timestamp,
    pub(super) window: Duration,
    pub(super) value: i64,
}

/// Samples by the name of the pod; upstream's `PodMetricsInfo`.
pub(super) type PodMetrics = BTreeMap<String, PodMetric>;

/// How far the ratio of usage and target may be from one without a change.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Tolerances {
    pub(super) down: f64,
    pub(super) up: f64,
}

impl Default for Tolerances {
    fn default() -> Self {
        Self { down: TOLERANCE, up: TOLERANCE }
    }
}

impl Tolerances {
    fn include(self, ratio: f64) -> bool {
        (1.0 - self.down) <= ratio && ratio <= (1.0 + self.up)
    }
}

/// What is scaled.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target<'a> {
    /// The pods that the selector of the scale selects.
    pub(super) pods: &'a [Arc<CachedPod>],
    /// The replicas that the scale asks for.
    pub(super) current: i32,
    /// The replicas that there are.
    pub(super) present: i32,
    pub(super) tolerances: Tolerances,
    pub(super) now: Timestamp,
}

/// The answer to one metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Replicas {
    pub(super) count: i32,
    /// Percent of the requests, for a target of utilization.
    pub(super) utilization: Option<i32>,
    /// The average of the pods, or the value of the object.
    pub(super) usage: i64,
}

/// Ratio, utilization and average of samples.
struct Usage {
    ratio: f64,
    utilization: Option<i32>,
    average: i64,
}

const NO_PODS: &str = "no pods returned by selector while calculating replica count";
const NO_METRICS: &str = "did not receive metrics for targeted pods (pods might be unready)";
const NO_KNOWN_PODS: &str = "no metrics returned matched known pods";

fn total(metrics: impl Iterator<Item = i64>) -> i64 {
    metrics.fold(0, i64::saturating_add)
}

#[allow(clippy::cast_precision_loss, reason = "upstream computes with these floats")]
fn float(value: i64) -> f64 {
    value as f64
}

/// Rounds up; what is no count of replicas becomes the nearest one.
#[allow(clippy::cast_possible_truncation, reason = "saturates")]
fn ceil(count: f64) -> i32 {
    count.ceil() as i32
}

/// `GetResourceUtilizationRatio`: percent of the requests of the same pods.
fn resource_utilization(metrics: &PodMetrics, requests: &Requests<'_>, target: i32) -> Result<Usage, String> {
    let known = || metrics.iter().filter_map(|(name, metric)| Some((metric.value, *requests.get(name.as_str())?)));
    let (used, requested) = (total(known().map(|(used, _)| used)), total(known().map(|(_, request)| request)));
    if requested == 0 {
        return Err(NO_KNOWN_PODS.to_owned());
    }
    let percent = i128::from(used) * 100 / i128::from(requested);
    let percent = i32::try_from(percent).unwrap_or(if percent < 0 { i32::MIN } else { i32::MAX });
    let entries = i64::try_from(known().count()).unwrap_or(i64::MAX);
    let ratio = f64::from(percent) / f64::from(target);
    Ok(Usage { ratio, utilization: Some(percent), average: used / entries.max(1) })
}

/// `GetMetricUsageRatio`: the average.
fn metric_usage(metrics: &PodMetrics, target: i64) -> Usage {
    let entries = i64::try_from(metrics.len()).unwrap_or(i64::MAX);
    let average = total(metrics.values().map(|metric| metric.value)) / entries.max(1);
    Usage { ratio: float(average) / float(target), utilization: None, average }
}

/// `GetResourceReplicas`: for a target in percent of the requests; of one container if it is named.
///
/// # Errors
/// What is missing, for an event.
pub(super) fn resource_replicas(
    of: &Target<'_>,
    metrics: PodMetrics,
    target: i32,
    resource: &str,
    container: Option<&str>,
) -> Result<Replicas, String> {
    let (metrics, groups) = targeted(of, metrics, resource)?;
    let requests = calculate_requests(of.pods, container, resource)?;
    let percent = i128::from(target.max(100));
    // Missing pods use all that they request, or the target where that is more.
    let fallback = |pod: &str| {
        let request = requests.get(pod).copied().unwrap_or(0);
        i64::try_from(i128::from(request) * percent / 100).unwrap_or(i64::MAX)
    };
    replicas(of, metrics, &groups, fallback, |metrics| resource_utilization(metrics, &requests, target))
}

/// `calcPlainMetricReplicas`: for a target of the pods' average. `resource` is empty for other metrics.
///
/// # Errors
/// What is missing, for an event.
pub(super) fn plain_replicas(
    of: &Target<'_>,
    metrics: PodMetrics,
    target: i64,
    resource: &str,
) -> Result<Replicas, String> {
    let (metrics, groups) = targeted(of, metrics, resource)?;
    replicas(of, metrics, &groups, |_| target, |metrics| Ok(metric_usage(metrics, target)))
}

/// The samples of pods that count, and all pods by what they are.
fn targeted<'a>(of: &Target<'a>, mut metrics: PodMetrics, resource: &str) -> Result<(PodMetrics, Groups<'a>), String> {
    if of.pods.is_empty() {
        return Err(NO_PODS.to_owned());
    }
    let groups = group_pods(of.pods, &metrics, resource == "cpu", of.now);
    metrics.retain(|name, _| !groups.ignored.contains(name.as_str()) && !groups.unready.contains(name.as_str()));
    if metrics.is_empty() {
        return Err(NO_METRICS.to_owned());
    }
    Ok((metrics, groups))
}

/// What both kinds of targets have in common. The number of pods is that which would bring the ratio of usage and target to
/// one, rounded up; a ratio within the tolerance changes nothing.
///
/// 3 ready pods use 90 % where 60 % is the target: the ratio is 1.5 and 4.5 pods are needed, so 5. At 63 % the ratio is 1.05,
/// within a tolerance of 0.1: 3 stay. What is not known counts against the change: if one of 4 pods has no sample and the
/// others use 90 %, it is taken to use nothing; the ratio is then 270 ∕ 4 ∕ 60, which is 1.125, and 4 pods
/// become 5.
fn replicas(
    of: &Target<'_>,
    mut metrics: PodMetrics,
    groups: &Groups<'_>,
    fallback: impl Fn(&str) -> i64,
    usage: impl Fn(&PodMetrics) -> Result<Usage, String>,
) -> Result<Replicas, String> {
    let Usage { ratio, utilization, average } = usage(&metrics)?;
    let answer = |count| Ok(Replicas { count, utilization, usage: average });
    let with_unready = !groups.unready.is_empty() && ratio > 1.0;
    if !with_unready && groups.missing.is_empty() {
        if of.tolerances.include(ratio) {
            return answer(of.current);
        }
        return answer(ceil(ratio * float(i64::try_from(groups.ready).unwrap_or(i64::MAX))));
    }
    // What is not known counts against the change.
    let mut assume = |pod: &str, value| {
        metrics.insert(pod.to_owned(), PodMetric { at: of.now, window: Duration::ZERO, value });
    };
    if ratio < 1.0 {
        groups.missing.iter().for_each(|pod| assume(pod, fallback(pod)));
    } else if ratio > 1.0 {
        groups.missing.iter().for_each(|pod| assume(pod, 0));
    }
    if with_unready {
        groups.unready.iter().for_each(|pod| assume(pod, 0));
    }
    let corrected = usage(&metrics)?.ratio;
    let turned = (ratio < 1.0 && corrected > 1.0) || (ratio > 1.0 && corrected < 1.0);
    if of.tolerances.include(corrected) || turned {
        return answer(of.current);
    }
    let count = ceil(corrected * float(i64::try_from(metrics.len()).unwrap_or(i64::MAX)));
    let against = (corrected < 1.0 && count > of.current) || (corrected > 1.0 && count < of.current);
    answer(if against { of.current } else { count })
}

/// `GetObjectMetricReplicas` and `GetExternalMetricReplicas`: for a target of the value as a whole.
///
/// # Errors
/// When there are no pods.
pub(super) fn value_replicas(of: &Target<'_>, usage: i64, target: i64) -> Result<Replicas, String> {
    let ratio = float(usage) / float(target);
    let answer = |count| Ok(Replicas { count, utilization: None, usage });
    if of.current == 0 {
        return answer(ceil(ratio));
    }
    if of.tolerances.include(ratio) {
        return answer(of.current);
    }
    if of.pods.is_empty() {
        return Err(format!("unable to calculate ready pods: {NO_PODS}"));
    }
    let ready = of.pods.iter().filter(|pod| pods::phase(pod) == "Running" && pods::is_ready(pod)).count();
    answer(ceil(ratio * float(i64::try_from(ready).unwrap_or(i64::MAX))))
}

/// `GetObjectPerPodMetricReplicas` and `GetExternalPerPodMetricReplicas`: for a target of each pod's part of the value.
pub(super) fn per_pod_replicas(of: &Target<'_>, usage: i64, target: i64) -> Replicas {
    let present = i64::from(of.present);
    let ratio = float(usage) / (float(target) * float(present));
    let count = if of.tolerances.include(ratio) { of.present } else { ceil(float(usage) / float(target)) };
    // Of no pods, the value as a whole.
    let parts = i128::from(present.max(1));
    let average = i128::from(usage).div_euclid(parts) + i128::from(i128::from(usage).rem_euclid(parts) != 0);
    Replicas { count, utilization: None, usage: i64::try_from(average).unwrap_or(i64::MAX) }
}
