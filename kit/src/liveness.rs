//! Liveness of long-running loops: a loop that is stuck is reported by name. The decision is pure; loops only report.

use std::{
    collections::BTreeMap,
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Mutex, MutexGuard};

/// How often a loop reports while it has nothing else to do.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);
/// A loop without a report for so long is stuck, unless its work may take longer.
pub const STUCK_AFTER: Duration = Duration::from_secs(300);

/// The loops of a process. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Heartbeats {
    loops: Arc<Mutex<BTreeMap<Key, LoopState>>>,
}

/// The name of a loop, and the instance where several have one name.
type Key = (&'static str, String);

/// The state of one loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoopState {
    /// When it last reported.
    pub reported_at: Instant,
    /// How long it may go without a report.
    pub within: Duration,
    /// It waits for something that may never happen.
    pub resting: bool,
}

/// A loop that is stuck.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StuckLoop {
    /// The loop's name.
    pub name: &'static str,
    /// The instance; empty where there is only one.
    pub instance: String,
    /// Time since its last report.
    pub since_report: Duration,
}

impl fmt::Display for StuckLoop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, instance, since_report } = self;
        let space = if instance.is_empty() { "" } else { " " };
        write!(f, "{name}{space}{instance} has not moved for {} s", since_report.as_secs())
    }
}

impl LoopState {
    /// Time since its last report, if that is too long at `now`.
    #[must_use]
    pub fn stuck(&self, now: Instant) -> Option<Duration> {
        let since_report = now.saturating_duration_since(self.reported_at);
        (!self.resting && since_report > self.within).then_some(since_report)
    }
}

impl Heartbeats {
    /// Registers a loop, which counts as alive; it is stuck when it does not report again `within`.
    #[must_use]
    pub fn begin(&self, name: &'static str, instance: impl Into<String>, within: Duration) -> LoopProbe {
        let probe = LoopProbe { all: self.clone(), key: (name, instance.into()) };
        self.loops().insert(probe.key.clone(), LoopState { reported_at: Instant::now(), within, resting: false });
        probe
    }

    fn loops(&self) -> MutexGuard<'_, BTreeMap<Key, LoopState>> {
        self.loops.lock()
    }

    /// The loops that are stuck at `now`.
    #[must_use]
    pub fn stuck(&self, now: Instant) -> Vec<StuckLoop> {
        let loops = self.loops();
        let stuck = loops.iter().filter_map(|((name, instance), state)| {
            Some(StuckLoop { name, instance: instance.clone(), since_report: state.stuck(now)? })
        });
        stuck.collect()
    }

    /// The names of all registered loops.
    #[must_use]
    pub fn names(&self) -> Vec<&'static str> {
        let mut names: Vec<&'static str> = self.loops().keys().map(|(name, _)| *name).collect();
        names.dedup();
        names
    }
}

/// The handle of one loop. Dropping it reports nothing, so that a loop that was lost counts as stuck; one that ends
/// regularly calls [`Self::end`].
#[derive(Debug)]
pub struct LoopProbe {
    all: Heartbeats,
    key: Key,
}

impl LoopProbe {
    /// The loop is alive.
    pub fn beat(&self) {
        self.report(false);
    }

    /// The loop waits for something that may never happen.
    pub fn rest(&self) {
        self.report(true);
    }

    fn report(&self, resting: bool) {
        if let Some(state) = self.all.loops().get_mut(&self.key) {
            (state.reported_at, state.resting) = (Instant::now(), resting);
        }
    }

    /// The loop has ended regularly.
    pub fn end(self) {
        self.all.loops().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stuck() {
        let begun = Instant::now();
        let state = |resting| LoopState { reported_at: begun, within: Duration::from_secs(10), resting };
        for (resting, after, expected) in
            [(false, 0, None), (false, 10, None), (false, 11, Some(11)), (true, 11, None), (true, 100_000, None)]
        {
            let stuck = state(resting).stuck(begun + Duration::from_secs(after));
            assert_eq!(stuck, expected.map(Duration::from_secs), "{resting} {after}");
        }
        // A time from before the report.
        assert_eq!(LoopState { reported_at: begun + Duration::from_secs(1), ..state(false) }.stuck(begun), None);
    }

    #[test]
    fn a_loop_that_is_lost_is_stuck_and_one_that_ends_is_not() {
        let all = Heartbeats::default();
        let limit = Duration::from_secs(60);
        let (lost, ended) = (all.begin("lost", "one", limit), all.begin("ended", "", limit));
        let resting = all.begin("resting", "", limit);
        resting.rest();
        assert_eq!(all.names(), ["ended", "lost", "resting"]);
        drop(lost);
        ended.end();
        let later = Instant::now() + Duration::from_secs(3600);
        let stuck: Vec<String> = all.stuck(later).iter().map(ToString::to_string).collect();
        assert!(stuck.len() == 1 && stuck[0].starts_with("lost one has not moved for "), "{stuck:?}");
        resting.beat();
        assert_eq!(all.stuck(Instant::now() + Duration::from_secs(7200)).len(), 2);
    }
}
