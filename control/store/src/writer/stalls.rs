//! For how long in all the disk took no writes, so that a silence of those whose writes waited is not taken for theirs. Pure.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// What a commit may take: disks that are busy take that long.
const USUAL: Duration = Duration::from_secs(1);

/// The times in which a commit was on its way, or had failed and no later one had succeeded.
#[derive(Debug, Default)]
pub(crate) struct Stalls(Mutex<Times>);

#[derive(Debug, Default)]
struct Times {
    /// Since when there is such a commit.
    since: Option<Instant>,
    /// The sum of those that have ended and were longer than usual.
    ended: Duration,
}

fn counted(took: Duration) -> Duration {
    if took > USUAL { took } else { Duration::ZERO }
}

impl Stalls {
    fn times(&self) -> MutexGuard<'_, Times> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A commit begins.
    pub(super) fn begun(&self, now: Instant) {
        self.times().since.get_or_insert(now);
    }

    /// A commit has succeeded, and with it whatever had failed before.
    pub(super) fn succeeded(&self, now: Instant) {
        let mut times = self.times();
        if let Some(since) = times.since.take() {
            times.ended += counted(now.saturating_duration_since(since));
        }
    }

    /// The sum until now, which never becomes less.
    pub(crate) fn total(&self, now: Instant) -> Duration {
        let times = self.times();
        times.ended + times.since.map_or(Duration::ZERO, |since| counted(now.saturating_duration_since(since)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_long_commits_count_and_failed_ones_until_one_succeeds() {
        let start = Instant::now();
        let at = |millis: u64| start + Duration::from_millis(millis);
        let stalls = Stalls::default();
        let total = |millis: u64| stalls.total(at(millis)).as_millis();
        stalls.begun(at(0));
        assert_eq!(total(900), 0, "a busy disk");
        stalls.succeeded(at(900));
        assert_eq!(total(60_000), 0, "nothing to write");
        stalls.begun(at(60_000));
        assert_eq!(total(90_000), 30_000, "while it lasts");
        stalls.succeeded(at(100_000));
        assert_eq!(total(200_000), 40_000, "and after it");
        // The first one fails, and so does the attempt to restore the disk.
        stalls.begun(at(200_000));
        stalls.begun(at(200_500));
        assert_eq!(total(210_000), 50_000);
        stalls.begun(at(210_000));
        stalls.succeeded(at(220_000));
        assert_eq!(total(300_000), 60_000);
    }
}
