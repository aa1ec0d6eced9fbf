//! The machine's clock, and what to do when somebody sets it: what is remembered moves along, so that what was to happen
//! in ten seconds happens in ten seconds.

use std::time::Instant;

use jiff::{SignedDuration, Timestamp};

use super::observed::{Failure, ImageState, Observed};
use crate::engine::instance::{Instance, State};

/// Differences below this are how clocks run.
const RUNS: SignedDuration = SignedDuration::from_secs(2);

/// The clock as it was when it was last looked at.
#[derive(Debug)]
pub(crate) struct Clock {
    shown: Timestamp,
    at: Instant,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self { shown: Timestamp::now(), at: Instant::now() }
    }

    /// What it shows, and by how much it was set since the last look.
    pub(crate) fn look(&mut self) -> (Timestamp, Option<SignedDuration>) {
        let before = std::mem::replace(self, Self::new());
        let passed = SignedDuration::try_from(self.at - before.at).unwrap_or(SignedDuration::ZERO);
        (self.shown, set_by(before.shown, self.shown, passed))
    }
}

fn set_by(before: Timestamp, shown: Timestamp, passed: SignedDuration) -> Option<SignedDuration> {
    let by = shown.duration_since(before) - passed;
    (by.abs() >= RUNS).then_some(by)
}

/// A time after the clock was set.
pub(crate) fn moved(at: Timestamp, by: SignedDuration) -> Timestamp {
    at.checked_add(by).unwrap_or(if by.is_negative() { Timestamp::MIN } else { Timestamp::MAX })
}

impl Observed {
    /// Moves every time that is remembered.
    pub(crate) fn clock_was_set(&mut self, by: SignedDuration) {
        let images = self.images.values_mut().filter_map(|state| match state {
            ImageState::Failed(failure) => Some(failure),
            ImageState::Present { .. } => None,
        });
        let failures = [&mut self.volumes_failure, &mut self.sandbox_failure, &mut self.resize_failure];
        let failures = failures.into_iter().flatten().chain(images).chain(self.start_failures.values_mut());
        for Failure { at, retry_at, .. } in failures {
            (*at, *retry_at) = (moved(*at, by), moved(*retry_at, by));
        }
        let single = [&mut self.stale, &mut self.end_by, &mut self.found_at].into_iter().flatten();
        single.chain(self.stopping.values_mut()).for_each(|at| *at = moved(*at, by));
        self.probes.values_mut().for_each(|record| record.clock_was_set(by));
        for instance in &mut self.instances {
            instance.created_at = moved(instance.created_at, by);
            match &mut instance.state {
                State::Created => {}
                State::Running { started_at, .. } => *started_at = moved(*started_at, by),
                State::Exited(exit) => {
                    exit.started_at = exit.started_at.map(|at| moved(at, by));
                    exit.finished_at = moved(exit.finished_at, by);
                }
            }
        }
    }
}

/// Docker's times as they are to be understood: what it noted before the clock was set stays as `known`, which has
/// moved along; and nothing has happened in the future.
pub(crate) fn understood(mut instance: Instance, known: Option<&Instance>, was_set: bool, now: Timestamp) -> Instance {
    let known = known.filter(|_| was_set);
    instance.created_at = known.map_or(instance.created_at, |k| k.created_at).min(now);
    match (&mut instance.state, known.map(|k| &k.state)) {
        (State::Running { pid, started_at }, Some(State::Running { pid: same, started_at: since })) if pid == same => {
            *started_at = *since;
        }
        (State::Exited(exit), Some(State::Exited(before))) => {
            (exit.started_at, exit.finished_at) = (before.started_at, before.finished_at);
        }
        (State::Running { started_at, .. }, _) => *started_at = (*started_at).min(now),
        (State::Exited(exit), _) => {
            exit.started_at = exit.started_at.map(|at| at.min(now));
            exit.finished_at = exit.finished_at.min(now);
        }
        (State::Created, _) => {}
    }
    instance
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_clock_that_runs_was_not_set() {
        let second = SignedDuration::from_secs(1);
        assert_eq!(set_by(at(1000), at(1010), second * 10), None);
        assert_eq!(set_by(at(1000), at(1011), second * 10), None);
        assert_eq!(set_by(at(1000), at(87_410), second * 10), Some(second * 86_400));
        assert_eq!(set_by(at(87_400), at(1010), second * 10), Some(second * -86_400));
    }

    #[test]
    fn all_that_is_remembered_moves() {
        let day = SignedDuration::from_hours(24);
        let failure = |second| Failure {
            reason: "X",
            message: String::new(),
            at: at(second),
            retry_at: at(second + 10),
            times: 1,
        };
        let mut observed = Observed {
            stale: Some(at(1)),
            end_by: Some(at(2)),
            volumes_failure: Some(failure(3)),
            ..Observed::default()
        };
        observed.images.insert("i".to_owned(), ImageState::Failed(failure(4)));
        observed.stopping.insert("c".to_owned(), at(5));
        let before = observed.clone();
        observed.clock_was_set(day);
        assert_eq!(observed.stale, Some(at(86_401)));
        assert_eq!(observed.end_by, Some(at(86_402)));
        assert_eq!(observed.volumes_failure.as_ref().unwrap().retry_at, at(86_413));
        assert_eq!(observed.stopping["c"], at(86_405));
        observed.clock_was_set(-day);
        assert_eq!(format!("{observed:?}"), format!("{before:?}"));
    }
}
