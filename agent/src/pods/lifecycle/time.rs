//! Arithmetic of times, and their correction when the machine's clock is set: every remembered time is shifted, so that
//! what was due in ten seconds stays due in ten seconds. Pure; `worker::clock` reads the clock.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::{
    observed::{Failure, ImageState, Observed},
    volumes::VolumeState,
};
use crate::engine::inspect::{Instance, State};

/// `at` plus a duration; the end of time instead of an overflow.
pub(crate) fn saturating_add(at: Timestamp, by: Duration) -> Timestamp {
    SignedDuration::try_from(by).ok().and_then(|by| at.checked_add(by).ok()).unwrap_or(Timestamp::MAX)
}

/// `now` plus a grace period in seconds; a negative one counts as none.
pub(crate) fn after_grace(now: Timestamp, grace: i64) -> Timestamp {
    saturating_add(now, Duration::from_secs(u64::try_from(grace).unwrap_or(0)))
}

/// A time after the clock was set forward or back.
pub(crate) fn shift(at: Timestamp, by: SignedDuration) -> Timestamp {
    at.checked_add(by).unwrap_or(if by.is_negative() { Timestamp::MIN } else { Timestamp::MAX })
}

impl Observed {
    /// Shifts every remembered time.
    pub(crate) fn shift_times(&mut self, by: SignedDuration) {
        let images = self.images.values_mut().filter_map(|state| match state {
            ImageState::Failed(failure) | ImageState::FailedAhead(failure) => Some(failure),
            ImageState::Present { .. } | ImageState::Doubtful(_) => None,
        });
        let mut refreshes = Vec::new();
        let mut failures: Vec<&mut Failure> = Vec::new();
        for volume in self.volumes.values_mut() {
            match volume {
                VolumeState::Ready { refresh_at, .. } => refreshes.extend(refresh_at),
                VolumeState::Failed { failure, .. } => failures.push(failure),
            }
        }
        failures.extend([&mut self.sandbox_failure, &mut self.resize_failure].into_iter().flatten());
        failures.extend(images.chain(self.start_failures.values_mut()));
        for Failure { at, retry_at, .. } in failures {
            (*at, *retry_at) = (shift(*at, by), shift(*retry_at, by));
        }
        let single = [&mut self.kill_deadline, &mut self.adopted_at].into_iter().flatten();
        single.chain(refreshes).chain(self.stopping.values_mut()).for_each(|at| *at = shift(*at, by));
        self.probes.values_mut().for_each(|record| record.shift_times(by));
        for instance in &mut self.instances {
            instance.created_at = shift(instance.created_at, by);
            match &mut instance.state {
                State::Created => {}
                State::Running { started_at, .. } => *started_at = shift(*started_at, by),
                State::Exited(exit) => {
                    exit.started_at = exit.started_at.map(|at| shift(at, by));
                    exit.finished_at = shift(exit.finished_at, by);
                }
            }
        }
    }
}

/// Corrects the times that the engine reports: times that it recorded before the clock was set stay those of `known`,
/// which were shifted; and no time lies in the future.
pub(crate) fn normalize_times(
    mut instance: Instance,
    known: Option<&Instance>,
    clock_was_set: bool,
    now: Timestamp,
) -> Instance {
    let known = known.filter(|_| clock_was_set);
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
    fn all_that_is_remembered_moves() {
        let day = SignedDuration::from_hours(24);
        let failure = |second| Failure {
            reason: "X",
            message: String::new(),
            at: at(second),
            retry_at: at(second + 10),
            count: 1,
        };
        let mut observed = Observed { kill_deadline: Some(at(2)), ..Observed::default() };
        let ready = VolumeState::Ready { refresh_at: Some(at(1)), failures: 0 };
        let failed = VolumeState::Failed { failure: failure(3), pending: false };
        observed.volumes.extend([("v".to_owned(), ready), ("w".to_owned(), failed)]);
        observed.images.insert("i".to_owned(), ImageState::Failed(failure(4)));
        observed.stopping.insert("c".to_owned(), at(5));
        let before = observed.clone();
        observed.shift_times(day);
        assert_eq!(observed.volumes["v"], VolumeState::Ready { refresh_at: Some(at(86_401)), failures: 0 });
        assert_eq!(observed.kill_deadline, Some(at(86_402)));
        let VolumeState::Failed { failure, .. } = &observed.volumes["w"] else { panic!("{observed:?}") };
        assert_eq!(failure.retry_at, at(86_413));
        assert_eq!(observed.stopping["c"], at(86_405));
        observed.shift_times(-day);
        assert_eq!(format!("{observed:?}"), format!("{before:?}"));
    }
}
