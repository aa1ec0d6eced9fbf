//! How the steps of a reconciliation end. A step that failed cannot be mistaken for one that is done: its result has to be
//! used, and only [`Step::and`] and the conversion to an [`Outcome`] make anything of it. Pure.

use super::{informer::Cache, workqueue::Outcome};

/// How one step ended. Of several, the worst counts.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    Done,
    /// Nothing to do until an informer shows a change, which queues the key.
    Waits(Wakes),
    /// Refused by another component, which may grant it later without a change that an informer sees: retried slowly.
    Refused,
    /// Tried again with back-off.
    Failed,
}

/// Proof that an informer queues the key again. Only a cache can create it: unwatched objects cannot be waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Wakes(());

impl Step {
    /// Waits until the cache shows a change.
    pub(crate) fn waits_for<K>(_: &Cache<K>) -> Self {
        Self::Waits(Wakes(()))
    }

    /// Both steps.
    pub(crate) fn and(self, other: Self) -> Self {
        self.max(other)
    }
}

impl FromIterator<Step> for Step {
    fn from_iter<I: IntoIterator<Item = Self>>(steps: I) -> Self {
        steps.into_iter().fold(Self::Done, Self::and)
    }
}

impl From<Step> for Outcome {
    fn from(step: Step) -> Self {
        match step {
            Step::Done | Step::Waits(_) => Self::Done,
            Step::Refused => Self::Refused,
            Step::Failed => Self::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failed_step_makes_the_whole_fail() {
        let waits = Step::Waits(Wakes(()));
        for (steps, outcome) in [
            (vec![], Outcome::Done),
            (vec![Step::Done, waits], Outcome::Done),
            (vec![Step::Refused, Step::Done, waits], Outcome::Refused),
            (vec![Step::Failed, Step::Done, Step::Refused], Outcome::Failed),
        ] {
            assert_eq!(Outcome::from(steps.into_iter().collect::<Step>()), outcome);
        }
    }
}
