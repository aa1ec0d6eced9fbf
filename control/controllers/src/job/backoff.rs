//! How long a Job waits after failed pods before it makes new ones. Pure.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use windlass_kit::backoff::delay_after;

use super::pod::finished_at;
use crate::runtime::CachedPod;

/// The wait after a first failure; each further one in a row doubles it.
const BASE: Duration = Duration::from_secs(10);
/// The longest wait.
const CAP: Duration = Duration::from_secs(600);

/// The failures since the last success, upstream's `backoffRecord`. It is kept in memory only, as there.
///
/// After a first failure no pod is created for 10 s, after a second in a row for 20, then 40, 80, 160, 320, and from the seventh
/// on for 600; the wait counts from when the last of them ended. A pod that succeeds after them begins the count again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Backoff {
    failures: u32,
    last: Option<Timestamp>,
}

impl Backoff {
    /// The record with pods that have ended since.
    pub(crate) fn with(self, succeeded: &[&CachedPod], failed: &[&CachedPod]) -> Self {
        let times = |pods: &[&CachedPod]| pods.iter().map(|pod| finished_at(pod)).collect::<Vec<_>>();
        let (success, failures) = (times(succeeded).into_iter().max(), times(failed));
        let start = if success.is_some() { Self::default() } else { self };
        let later = failures.into_iter().filter(|at| success.is_none_or(|success| *at > success));
        later.fold(start, |record, at| Self {
            failures: record.failures.saturating_add(1),
            last: record.last.max(Some(at)),
        })
    }

    /// How long no pod may be created yet. Upstream's `getRemainingTime`.
    pub(crate) fn remaining(self, now: Timestamp) -> Duration {
        self.last.map_or(Duration::ZERO, |last| remaining(self.failures, last, now))
    }
}

/// How long an index may have no new pod, given its failed one and how many failed before that. Upstream's
/// `getRemainingTimePerIndex`.
pub(crate) fn remaining_of_index(failed_before: i32, failed: &CachedPod, now: Timestamp) -> Duration {
    let failures = u32::try_from(failed_before).unwrap_or(0).saturating_add(1);
    remaining(failures, finished_at(failed), now)
}

fn remaining(failures: u32, last: Timestamp, now: Timestamp) -> Duration {
    let Some(before) = failures.checked_sub(1) else { return Duration::ZERO };
    let wait = SignedDuration::try_from(delay_after(BASE, CAP, before)).unwrap_or(SignedDuration::MAX);
    // A node whose clock is ahead does not lengthen the wait.
    let passed = now.duration_since(last).max(SignedDuration::ZERO);
    Duration::try_from(wait.saturating_sub(passed)).unwrap_or(Duration::ZERO)
}
