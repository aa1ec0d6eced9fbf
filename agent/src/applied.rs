//! Desired and applied state of something outside this process: a request is never mistaken for a completed write.
//! Pure.

/// A writer's proof that a value was written. Only the writer can construct the types that implement it.
pub(crate) trait Proof<T> {
    /// The value that was written.
    fn into_written(self) -> T;
}

/// What is wanted of one part of the world, and what was last applied to it. Nothing is known to be applied at first,
/// nor after a write that failed half way.
#[derive(Debug, Clone)]
pub(crate) struct Applied<T> {
    wanted: T,
    applied: Option<T>,
}

impl<T: PartialEq> Applied<T> {
    /// Wants this value; the applied one is unknown.
    pub(crate) const fn new(wanted: T) -> Self {
        Self { wanted, applied: None }
    }

    /// What is wanted.
    pub(crate) const fn wanted(&self) -> &T {
        &self.wanted
    }

    /// This is wanted from now on; returns what was before.
    pub(crate) const fn want(&mut self, wanted: T) -> T {
        std::mem::replace(&mut self.wanted, wanted)
    }

    /// The applied value, if known.
    pub(crate) const fn applied(&self) -> Option<&T> {
        self.applied.as_ref()
    }

    /// What must be written; `None` when it is applied.
    pub(crate) fn pending(&self) -> Option<&T> {
        Some(&self.wanted).filter(|wanted| self.applied.as_ref() != Some(wanted))
    }

    /// The writer has written.
    pub(crate) fn record(&mut self, proof: impl Proof<T>) {
        self.applied = Some(proof.into_written());
    }

    /// The applied value is no longer known: a write failed, or another program changed it.
    pub(crate) fn forget(&mut self) {
        self.applied = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Written(u8);

    impl Proof<u8> for Written {
        fn into_written(self) -> u8 {
            self.0
        }
    }

    #[test]
    fn what_is_asked_for_is_pending_until_its_writer_says_otherwise() {
        let mut state = Applied::new(1);
        assert_eq!((state.pending(), state.applied()), (Some(&1), None), "what is there at a start is not known");
        state.record(Written(1));
        assert_eq!((state.pending(), state.applied()), (None, Some(&1)));
        assert_eq!(state.want(2), 1);
        assert_eq!((state.pending(), state.applied()), (Some(&2), Some(&1)));
        // A write that began before.
        state.record(Written(1));
        assert_eq!(state.pending(), Some(&2));
        state.want(1);
        assert_eq!(state.pending(), None, "what is there is wanted again");
        state.forget();
        assert_eq!((state.pending(), state.wanted()), (Some(&1), &1));
    }
}
