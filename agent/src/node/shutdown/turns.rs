//! In which order pods end when the machine is switched off, and how long each turn may take. Pure.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::Pod;

use crate::pods::SYSTEM_CRITICAL_PRIORITY;

/// How long pods of a priority, and of all above it up to the next, have to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// From this priority on.
    pub priority: i32,
    /// For all of them together.
    pub period: Duration,
}

/// The two settings of upstream's as shares: of the `whole` time the last part is `critical` pods' alone. Empty when
/// nobody is given any time.
#[must_use]
pub fn of_two(whole: Duration, critical: Duration) -> Vec<Share> {
    if whole.is_zero() {
        return Vec::new();
    }
    vec![
        Share { priority: 0, period: whole.saturating_sub(critical) },
        Share { priority: SYSTEM_CRITICAL_PRIORITY, period: critical },
    ]
}

/// How long all turns together may take.
#[must_use]
pub fn whole(shares: &[Share]) -> Duration {
    shares.iter().map(|share| share.period).sum()
}

/// Pods that end together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Turn {
    pub(super) period: Duration,
    pub(super) uids: Vec<String>,
}

/// Who ends when: the least important first. A pod below the lowest share goes with that one.
pub(super) fn turns<'a>(shares: &[Share], pods: impl Iterator<Item = &'a Pod>) -> Vec<Turn> {
    let mut shares = shares.to_vec();
    shares.sort_by_key(|share| share.priority);
    let mut turns: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for pod in pods {
        let Some(uid) = pod.metadata.uid.clone() else { continue };
        let priority = pod.spec.as_ref().and_then(|s| s.priority).unwrap_or(0);
        let index = shares.partition_point(|share| share.priority <= priority).saturating_sub(1);
        turns.entry(index).or_default().push(uid);
    }
    let turn = |(index, uids): (usize, Vec<String>)| shares.get(index).map(|s| Turn { period: s.period, uids });
    turns.into_iter().filter_map(turn).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(uid: &str, priority: Option<i32>) -> Pod {
        let spec = json!({"containers": [], "priority": priority});
        serde_json::from_value(json!({"metadata": {"uid": uid}, "spec": spec})).unwrap()
    }

    fn seconds(all: &[Turn]) -> Vec<(u64, Vec<&str>)> {
        all.iter().map(|t| (t.period.as_secs(), t.uids.iter().map(String::as_str).collect())).collect()
    }

    #[test]
    fn the_critical_end_last_in_their_own_time() {
        let shares = of_two(Duration::from_secs(30), Duration::from_secs(10));
        assert_eq!(whole(&shares).as_secs(), 30);
        let pods = [
            pod("dns", Some(SYSTEM_CRITICAL_PRIORITY)),
            pod("web", None),
            pod("low", Some(-5)),
            pod("node", Some(2_000_001_000)),
        ];
        let turns = turns(&shares, pods.iter());
        assert_eq!(seconds(&turns), [(20, vec!["web", "low"]), (10, vec!["dns", "node"])]);
    }

    #[test]
    fn as_many_shares_as_wanted_in_any_order() {
        let share = |priority, seconds| Share { priority, period: Duration::from_secs(seconds) };
        let shares = [share(1000, 5), share(0, 60), share(100, 10)];
        let pods = [pod("a", Some(99)), pod("b", Some(100)), pod("c", Some(5000)), pod("d", Some(999))];
        assert_eq!(seconds(&turns(&shares, pods.iter())), [(60, vec!["a"]), (10, vec!["b", "d"]), (5, vec!["c"])]);
    }

    #[test]
    fn without_time_there_are_no_turns() {
        assert!(of_two(Duration::ZERO, Duration::ZERO).is_empty());
        assert!(turns(&[], [pod("a", None)].iter()).is_empty());
    }
}
