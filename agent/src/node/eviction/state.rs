//! From what is left and the thresholds: what the node says of itself, and what to reclaim. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;

use super::{
    signals::{Observation, Observations},
    thresholds::{Condition, Threshold},
};
use crate::Pressure;

/// What earlier passes have seen.
#[derive(Debug, Clone, Default)]
pub(super) struct State {
    /// Since when each threshold is met, by its place.
    since: BTreeMap<usize, Timestamp>,
    /// Those that had lasted long enough in the last pass: they hold until the minimum is reclaimed.
    acted_on: BTreeSet<usize>,
    /// When a threshold of each condition was last met.
    seen: BTreeMap<Condition, Timestamp>,
}

/// What one pass comes to.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Verdict {
    pub(super) pressure: Pressure,
    /// The threshold to be reclaimed for, and what was seen of it.
    pub(super) reclaim: Option<(Threshold, Observation)>,
}

/// Whether less is left than a threshold allows; with what must be free beyond it if `reclaim`.
fn is_met(threshold: &Threshold, seen: &Observations, reclaim: bool) -> bool {
    seen.get(&threshold.signal).is_some_and(|o| {
        let more = if reclaim { threshold.reclaim.of(o.capacity) } else { 0 };
        o.available < threshold.amount.of(o.capacity).saturating_add(more)
    })
}

impl State {
    /// Judges what was seen; `transition` is how long a condition stays after its last threshold was met.
    pub(super) fn judge(
        &mut self,
        thresholds: &[Threshold],
        transition: Duration,
        seen: &Observations,
        now: Timestamp,
    ) -> Verdict {
        let met: BTreeSet<usize> = thresholds
            .iter()
            .enumerate()
            .filter(|(at, t)| is_met(t, seen, self.acted_on.contains(at)))
            .map(|(at, _)| at)
            .collect();
        self.since.retain(|at, _| met.contains(at));
        for at in &met {
            self.since.entry(*at).or_insert(now);
            self.seen.insert(thresholds[*at].signal.condition(), now);
        }
        let elapsed = |since: Timestamp| Duration::try_from(now.duration_since(since)).unwrap_or(Duration::ZERO);
        let holds = |condition: Condition| {
            let current = met.iter().any(|at| thresholds[*at].signal.condition() == condition);
            current || self.seen.get(&condition).is_some_and(|at| elapsed(*at) < transition)
        };
        let pressure =
            Pressure { memory: holds(Condition::Memory), disk: holds(Condition::Disk), pid: holds(Condition::Pid) };
        self.acted_on = met
            .into_iter()
            .filter(|at| thresholds[*at].soft.is_none_or(|grace| elapsed(self.since[at]) >= grace))
            .collect();
        // Thresholds are in the order of their urgency, but a hard one leaves less time than a soft one.
        let urgent = self.acted_on.iter().map(|at| thresholds[*at]);
        let first = urgent.min_by_key(|t| (t.signal.condition(), t.soft.is_some(), t.signal));
        Verdict { pressure, reclaim: first.and_then(|t| Some((t, *seen.get(&t.signal)?))) }
    }
}

/// Whether memory is so close to a threshold that it is looked at each second.
pub(super) fn is_close(thresholds: &[Threshold], memory: Option<Observation>) -> bool {
    let Some(seen) = memory else { return false };
    thresholds.iter().any(|t| {
        let limit = t.amount.of(seen.capacity);
        // A tenth of the machine, or as much again as the threshold.
        t.signal.condition() == Condition::Memory
            && seen.available < limit.saturating_add(limit.max(seen.capacity / 10))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::eviction::thresholds::{Amount, Signal};

    const TRANSITION: Duration = Duration::from_secs(300);

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + seconds).unwrap()
    }

    fn hard(signal: Signal, amount: i64, reclaim: i64) -> Threshold {
        Threshold { signal, amount: Amount::Of(amount), soft: None, reclaim: Amount::Of(reclaim) }
    }

    fn soft(signal: Signal, amount: i64, seconds: u64) -> Threshold {
        Threshold { soft: Some(Duration::from_secs(seconds)), ..hard(signal, amount, 0) }
    }

    fn seen(all: &[(Signal, i64)]) -> Observations {
        all.iter().map(|(signal, available)| (*signal, Observation { available: *available, capacity: 1000 })).collect()
    }

    /// (time, memory left) → (pressure, reclaims), one row after the other.
    fn memory_over_time(thresholds: &[Threshold], rows: &[(i64, i64, bool, bool)]) {
        let mut state = State::default();
        for (time, left, pressure, reclaims) in rows {
            let verdict = state.judge(thresholds, TRANSITION, &seen(&[(Signal::Memory, *left)]), at(*time));
            let found = (verdict.pressure.memory, verdict.reclaim.is_some());
            assert_eq!(found, (*pressure, *reclaims), "{left} left after {time} s");
        }
    }

    #[test]
    fn a_hard_threshold_acts_at_once_and_is_shown_for_a_while() {
        memory_over_time(
            &[hard(Signal::Memory, 100, 0)],
            &[
                (0, 100, false, false),
                (10, 99, true, true),
                (20, 100, true, false),
                (309, 500, true, false),
                (310, 500, false, false),
                (320, 1, true, true),
            ],
        );
    }

    #[test]
    fn a_soft_one_waits_for_its_grace_without_a_break() {
        memory_over_time(
            &[soft(Signal::Memory, 100, 30)],
            &[
                (0, 50, true, false),
                (20, 50, true, false),
                (25, 150, true, false),
                (30, 50, true, false),
                (59, 50, true, false),
                (60, 50, true, true),
            ],
        );
    }

    #[test]
    fn the_minimum_is_reclaimed_before_it_ends() {
        memory_over_time(
            &[hard(Signal::Memory, 100, 50)],
            &[
                (0, 120, false, false),
                (10, 99, true, true),
                (20, 149, true, true),
                (30, 150, true, false),
                (40, 120, true, false),
            ],
        );
    }

    #[test]
    fn memory_comes_first_and_hard_before_soft() {
        let all = [
            soft(Signal::Memory, 200, 0),
            hard(Signal::AllocatableMemory, 100, 0),
            hard(Signal::NodeFs, 100, 0),
            hard(Signal::Pid, 100, 0),
        ];
        for (left, first) in [
            (&[(Signal::NodeFs, 1), (Signal::Pid, 1)][..], Some(Signal::NodeFs)),
            (&[(Signal::NodeFs, 1), (Signal::Memory, 150)], Some(Signal::Memory)),
            (&[(Signal::AllocatableMemory, 1), (Signal::Memory, 150)], Some(Signal::AllocatableMemory)),
            (&[(Signal::Pid, 1)], Some(Signal::Pid)),
            // What could not be read is no reason to end anybody.
            (&[], None),
        ] {
            let verdict = State::default().judge(&all, TRANSITION, &seen(left), at(0));
            assert_eq!(verdict.reclaim.map(|(t, _)| t.signal), first, "{left:?}");
        }
        let both = State::default().judge(&all, TRANSITION, &seen(&[(Signal::NodeFs, 1), (Signal::Pid, 1)]), at(0));
        assert_eq!(both.pressure, Pressure { memory: false, disk: true, pid: true });
    }

    #[test]
    fn near_a_threshold_it_is_looked_at_often() {
        let thresholds = [hard(Signal::Memory, 100, 0), hard(Signal::NodeFs, 900, 0)];
        let close = |available| is_close(&thresholds, Some(Observation { available, capacity: 1000 }));
        assert_eq!([close(500), close(200), close(199), close(0)], [false, false, true, true]);
        assert!(!is_close(&thresholds, None));
    }
}
