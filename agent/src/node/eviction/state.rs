//! Evaluates observations against thresholds: which node conditions hold, and what to reclaim. Pure.

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

/// State between evaluations.
#[derive(Debug, Clone, Default)]
pub(super) struct State {
    /// Since when each threshold is met, by index.
    since: BTreeMap<usize, Timestamp>,
    /// Thresholds past their grace period in the last evaluation: they stay met until the minimum is reclaimed.
    active: BTreeSet<usize>,
    /// When a threshold of each condition was last met.
    observed: BTreeMap<Condition, Timestamp>,
}

/// The result of an evaluation.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Decision {
    pub(super) pressure: Pressure,
    /// The threshold to reclaim for, and its observation.
    pub(super) reclaim: Option<(Threshold, Observation)>,
}

/// Whether a threshold is met; with its minimum reclaim added if `reclaim`.
fn is_met(threshold: &Threshold, observed: &Observations, reclaim: bool) -> bool {
    observed.get(&threshold.signal).is_some_and(|o| {
        let more = if reclaim { threshold.reclaim.of(o.capacity) } else { 0 };
        o.available < threshold.amount.of(o.capacity).saturating_add(more)
    })
}

/// Whether a threshold is met, so that something may be reclaimed.
pub(super) fn is_any_met(thresholds: &[Threshold], observed: &Observations) -> bool {
    thresholds.iter().any(|threshold| is_met(threshold, observed, true))
}

impl State {
    /// Evaluates observations; `transition` is how long a condition holds after its last threshold was met.
    pub(super) fn evaluate(
        &mut self,
        thresholds: &[Threshold],
        transition: Duration,
        observed: &Observations,
        now: Timestamp,
    ) -> Decision {
        let met: BTreeSet<usize> = thresholds
            .iter()
            .enumerate()
            .filter(|(at, t)| is_met(t, observed, self.active.contains(at)))
            .map(|(at, _)| at)
            .collect();
        self.since.retain(|at, _| met.contains(at));
        for at in &met {
            self.since.entry(*at).or_insert(now);
            self.observed.insert(thresholds[*at].signal.condition(), now);
        }
        let elapsed = |since: Timestamp| Duration::try_from(now.duration_since(since)).unwrap_or(Duration::ZERO);
        let holds = |condition: Condition| {
            let current = met.iter().any(|at| thresholds[*at].signal.condition() == condition);
            current || self.observed.get(&condition).is_some_and(|at| elapsed(*at) < transition)
        };
        let pressure =
            Pressure { memory: holds(Condition::Memory), disk: holds(Condition::Disk), pid: holds(Condition::Pid) };
        self.active = met
            .into_iter()
            .filter(|at| thresholds[*at].soft.is_none_or(|grace| elapsed(self.since[at]) >= grace))
            .collect();
        // By condition, hard before soft: a hard threshold leaves less time.
        let urgent = self.active.iter().map(|at| thresholds[*at]);
        let first = urgent.min_by_key(|t| (t.signal.condition(), t.soft.is_some(), t.signal));
        Decision { pressure, reclaim: first.and_then(|t| Some((t, *observed.get(&t.signal)?))) }
    }
}

/// Whether memory is so close to a threshold that it is monitored every second.
pub(super) fn is_close(thresholds: &[Threshold], memory: Option<Observation>) -> bool {
    let Some(observed) = memory else { return false };
    thresholds.iter().any(|t| {
        let limit = t.amount.of(observed.capacity);
        // Within a tenth of the capacity, or the threshold again.
        t.signal.condition() == Condition::Memory
            && observed.available < limit.saturating_add(limit.max(observed.capacity / 10))
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

    fn observed(all: &[(Signal, i64)]) -> Observations {
        all.iter().map(|(signal, available)| (*signal, Observation { available: *available, capacity: 1000 })).collect()
    }

    /// (time, memory left) → (pressure, reclaims), one row after the other.
    fn memory_over_time(thresholds: &[Threshold], rows: &[(i64, i64, bool, bool)]) {
        let mut state = State::default();
        for (time, left, pressure, reclaims) in rows {
            let decision = state.evaluate(thresholds, TRANSITION, &observed(&[(Signal::Memory, *left)]), at(*time));
            let found = (decision.pressure.memory, decision.reclaim.is_some());
            assert_eq!(found, (*pressure, *reclaims), "{left} left after {time} s");
        }
    }

    #[test]
    fn a_hard_threshold_acts_at_once_and_its_condition_stays() {
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
    fn a_soft_threshold_waits_for_its_grace_period() {
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
    fn the_minimum_reclaim_is_honored() {
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
    fn order_of_reclaim() {
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
            // An unreadable signal evicts no pod.
            (&[], None),
        ] {
            let decision = State::default().evaluate(&all, TRANSITION, &observed(left), at(0));
            assert_eq!(decision.reclaim.map(|(t, _)| t.signal), first, "{left:?}");
        }
        let both =
            State::default().evaluate(&all, TRANSITION, &observed(&[(Signal::NodeFs, 1), (Signal::Pid, 1)]), at(0));
        assert_eq!(both.pressure, Pressure { memory: false, disk: true, pid: true });
    }

    #[test]
    fn memory_close_to_a_threshold() {
        let thresholds = [hard(Signal::Memory, 100, 0), hard(Signal::NodeFs, 900, 0)];
        let close = |available| is_close(&thresholds, Some(Observation { available, capacity: 1000 }));
        assert_eq!([close(500), close(200), close(199), close(0)], [false, false, true, true]);
        assert!(!is_close(&thresholds, None));
    }
}
