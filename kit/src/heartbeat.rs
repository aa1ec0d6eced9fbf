//! Heartbeats of long-running loops, so that one that is stuck is known by name. The decision is pure; loops only note
//! what they do.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// The loops of a process. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Heartbeats {
    loops: Arc<Mutex<BTreeMap<Key, Pulse>>>,
}

/// Who it is, and which of those of one name.
type Key = (&'static str, String);

/// What is known of one loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pulse {
    /// When it was heard of last.
    pub heard_at: Instant,
    /// How long it may be silent.
    pub within: Duration,
    /// It waits for something that may never come, which may last.
    pub resting: bool,
}

/// A loop that is stuck.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stuck {
    /// The loop's name.
    pub name: &'static str,
    /// Which of those of one name; empty where there is one only.
    pub which: String,
    /// How long nothing was heard of it.
    pub silent: Duration,
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, which, silent } = self;
        let space = if which.is_empty() { "" } else { " " };
        write!(f, "{name}{space}{which} has not moved for {} s", silent.as_secs())
    }
}

impl Pulse {
    /// How long it has been silent, if that is too long at `now`.
    #[must_use]
    pub fn stuck(&self, now: Instant) -> Option<Duration> {
        let silent = now.saturating_duration_since(self.heard_at);
        (!self.resting && silent > self.within).then_some(silent)
    }
}

impl Heartbeats {
    /// A loop begins, and moves; it is stuck when it does not beat or rest again `within`.
    #[must_use]
    pub fn begin(&self, name: &'static str, which: impl Into<String>, within: Duration) -> Heart {
        let heart = Heart { all: self.clone(), key: (name, which.into()) };
        self.loops().insert(heart.key.clone(), Pulse { heard_at: Instant::now(), within, resting: false });
        heart
    }

    fn loops(&self) -> MutexGuard<'_, BTreeMap<Key, Pulse>> {
        self.loops.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The loops that are stuck at `now`.
    #[must_use]
    pub fn stuck(&self, now: Instant) -> Vec<Stuck> {
        let loops = self.loops();
        let stuck = loops
            .iter()
            .filter_map(|((name, which), pulse)| Some(Stuck { name, which: which.clone(), silent: pulse.stuck(now)? }));
        stuck.collect()
    }

    /// The names of all loops that were begun.
    #[must_use]
    pub fn names(&self) -> Vec<&'static str> {
        let mut names: Vec<&'static str> = self.loops().keys().map(|(name, _)| *name).collect();
        names.dedup();
        names
    }
}

/// What one loop tells. Dropping it tells nothing, so that a loop that is lost is stuck; one that ends in order says so
/// by [`Self::end`].
#[derive(Debug)]
pub struct Heart {
    all: Heartbeats,
    key: Key,
}

impl Heart {
    /// It moves.
    pub fn beat(&self) {
        self.note(false);
    }

    /// It waits for something that may never come.
    pub fn rest(&self) {
        self.note(true);
    }

    fn note(&self, resting: bool) {
        if let Some(pulse) = self.all.loops().get_mut(&self.key) {
            (pulse.heard_at, pulse.resting) = (Instant::now(), resting);
        }
    }

    /// It has ended, in order.
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
        let pulse = |resting| Pulse { heard_at: begun, within: Duration::from_secs(10), resting };
        for (resting, after, expected) in
            [(false, 0, None), (false, 10, None), (false, 11, Some(11)), (true, 11, None), (true, 100_000, None)]
        {
            let stuck = pulse(resting).stuck(begun + Duration::from_secs(after));
            assert_eq!(stuck, expected.map(Duration::from_secs), "{resting} {after}");
        }
        // A clock that was read before the beat.
        assert_eq!(Pulse { heard_at: begun + Duration::from_secs(1), ..pulse(false) }.stuck(begun), None);
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
