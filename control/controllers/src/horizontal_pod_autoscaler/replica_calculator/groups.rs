//! Which pods of a target count, and as what: upstream's `groupPods`. Pure.

use std::{collections::BTreeSet, sync::Arc};

use jiff::{SignedDuration, Timestamp};

use super::{PodMetric, PodMetrics};
use crate::{pods, runtime::CachedPod};

/// `--horizontal-pod-autoscaler-cpu-initialization-period`.
const CPU_INITIALIZATION_PERIOD: SignedDuration = SignedDuration::from_secs(300);
/// `--horizontal-pod-autoscaler-initial-readiness-delay`.
const DELAY_OF_INITIAL_READINESS_STATUS: SignedDuration = SignedDuration::from_secs(30);

/// The pods of a target, by name.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Groups<'a> {
    /// Have a sample that counts.
    pub(in super::super) ready: usize,
    /// Pending, or their use of CPU is that of their start.
    pub(in super::super) unready: BTreeSet<&'a str>,
    /// Have no sample.
    pub(in super::super) missing: BTreeSet<&'a str>,
    /// Failed, or being deleted.
    pub(in super::super) ignored: BTreeSet<&'a str>,
}

pub(in super::super) fn group_pods<'a>(
    all: &'a [Arc<CachedPod>],
    metrics: &PodMetrics,
    is_cpu: bool,
    now: Timestamp,
) -> Groups<'a> {
    let mut groups = Groups::default();
    for pod in all {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        if pod.metadata.deletion_timestamp.is_some() || pods::phase(pod) == "Failed" {
            groups.ignored.insert(name);
        } else if pods::phase(pod) == "Pending" {
            groups.unready.insert(name);
        } else if let Some(metric) = metrics.get(name) {
            if is_cpu && is_starting(pod, metric, now) {
                groups.unready.insert(name);
            } else {
                groups.ready += 1;
            }
        } else {
            groups.missing.insert(name);
        }
    }
    groups
}

/// Whether a sample of CPU measures the pod's start rather than its load.
fn is_starting(pod: &CachedPod, metric: &PodMetric, now: Timestamp) -> bool {
    let started = pod.status.as_ref().and_then(|status| status.start_time.as_ref()).map(|time| time.0);
    let (Some(started), Some(condition)) = (started, pods::condition(pod, "Ready")) else { return true };
    let unready = condition.status == "False";
    let transition = condition.last_transition_time.as_ref().map_or(Timestamp::MIN, |time| time.0);
    if now.duration_since(started) < CPU_INITIALIZATION_PERIOD {
        // The whole window of the sample must be after the last transition.
        let window = SignedDuration::try_from(metric.window).unwrap_or(SignedDuration::MAX);
        unready || metric.at.duration_since(transition) < window
    } else {
        // It has never been ready.
        unready && transition.duration_since(started) < DELAY_OF_INITIAL_READINESS_STATUS
    }
}
