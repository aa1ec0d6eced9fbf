//! Groups pods by priority for graceful node shutdown, and how long each group may take. Pure; upstream's
//! `shutdownGracePeriodByPodPriority`.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::Pod;

use crate::pods::SYSTEM_CRITICAL_PRIORITY;

/// The grace period of pods from a priority up to that of the next entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GracePeriod {
    /// The lowest priority.
    pub priority: i32,
    /// The time for the whole group.
    pub period: Duration,
}

/// `shutdownGracePeriod` and `shutdownGracePeriodCriticalPods` as entries by priority: the last part of the total is
/// for critical pods alone. Empty when the total is zero.
#[must_use]
pub fn from_two(total: Duration, critical: Duration) -> Vec<GracePeriod> {
    if total.is_zero() {
        return Vec::new();
    }
    vec![
        GracePeriod { priority: 0, period: total.saturating_sub(critical) },
        GracePeriod { priority: SYSTEM_CRITICAL_PRIORITY, period: critical },
    ]
}

/// The sum of all grace periods.
#[must_use]
pub fn total(periods: &[GracePeriod]) -> Duration {
    periods.iter().map(|entry| entry.period).sum()
}

/// Pods that are terminated together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ShutdownGroup {
    pub(super) period: Duration,
    pub(super) uids: Vec<String>,
}

/// Groups pods, the lowest priority first. A pod below the lowest entry joins that one.
pub(super) fn groups<'a>(periods: &[GracePeriod], pods: impl Iterator<Item = &'a Pod>) -> Vec<ShutdownGroup> {
    let mut periods = periods.to_vec();
    periods.sort_by_key(|entry| entry.priority);
    let mut groups: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for pod in pods {
        let Some(uid) = pod.metadata.uid.clone() else { continue };
        let priority = pod.spec.as_ref().and_then(|s| s.priority).unwrap_or(0);
        let index = periods.partition_point(|entry| entry.priority <= priority).saturating_sub(1);
        groups.entry(index).or_default().push(uid);
    }
    let group =
        |(index, uids): (usize, Vec<String>)| periods.get(index).map(|s| ShutdownGroup { period: s.period, uids });
    groups.into_iter().filter_map(group).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(uid: &str, priority: Option<i32>) -> Pod {
        let spec = json!({"containers": [], "priority": priority});
        serde_json::from_value(json!({"metadata": {"uid": uid}, "spec": spec})).unwrap()
    }

    fn seconds(all: &[ShutdownGroup]) -> Vec<(u64, Vec<&str>)> {
        all.iter().map(|t| (t.period.as_secs(), t.uids.iter().map(String::as_str).collect())).collect()
    }

    #[test]
    fn critical_pods_are_terminated_last() {
        let periods = from_two(Duration::from_secs(30), Duration::from_secs(10));
        assert_eq!(total(&periods).as_secs(), 30);
        let pods = [
            pod("dns", Some(SYSTEM_CRITICAL_PRIORITY)),
            pod("web", None),
            pod("low", Some(-5)),
            pod("node", Some(2_000_001_000)),
        ];
        let groups = groups(&periods, pods.iter());
        assert_eq!(seconds(&groups), [(20, vec!["web", "low"]), (10, vec!["dns", "node"])]);
    }

    #[test]
    fn periods_in_any_order() {
        let entry = |priority, seconds| GracePeriod { priority, period: Duration::from_secs(seconds) };
        let periods = [entry(1000, 5), entry(0, 60), entry(100, 10)];
        let pods = [pod("a", Some(99)), pod("b", Some(100)), pod("c", Some(5000)), pod("d", Some(999))];
        assert_eq!(seconds(&groups(&periods, pods.iter())), [(60, vec!["a"]), (10, vec!["b", "d"]), (5, vec!["c"])]);
    }

    #[test]
    fn without_periods_there_are_no_groups() {
        assert!(from_two(Duration::ZERO, Duration::ZERO).is_empty());
        assert!(groups(&[], [pod("a", None)].iter()).is_empty());
    }
}
