//! How much processor time a computation may take whose input says how long it takes: regular expressions, expressions.
//!
//! Counted, not measured: where a computation ends does not depend on the machine. A unit is some 50 ns of a current processor.

/// What is left for a computation. What is left out for the lack of it makes the result worthless.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effort {
    left: u64,
    is_exceeded: bool,
}

impl Effort {
    /// No limit.
    #[must_use]
    pub const fn unlimited() -> Self {
        Self::new(u64::MAX)
    }

    /// So many units.
    #[must_use]
    pub const fn new(units: u64) -> Self {
        Self { left: units, is_exceeded: false }
    }

    /// What is left.
    #[must_use]
    pub const fn left(&self) -> u64 {
        self.left
    }

    /// Takes units for what comes next; `false` if there are not so many. Then nothing is left.
    #[must_use = "what there is nothing left for must not be computed"]
    pub const fn take(&mut self, units: u64) -> bool {
        match self.left.checked_sub(units) {
            Some(left) => self.left = left,
            None => (self.left, self.is_exceeded) = (0, true),
        }
        !self.is_exceeded
    }

    /// Whether there was too little.
    #[must_use]
    pub const fn is_exceeded(&self) -> bool {
        self.is_exceeded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_too_little_once_stays_so() {
        let mut effort = Effort::new(10);
        assert!(effort.take(4) && effort.take(6) && effort.take(0) && !effort.is_exceeded());
        assert!(!effort.take(1) && effort.is_exceeded());
        assert!(!effort.take(0));
        let mut effort = Effort::new(10);
        assert!(!effort.take(11));
        assert_eq!((effort.left(), effort.is_exceeded()), (0, true));
        let mut unlimited = Effort::unlimited();
        assert!(unlimited.take(u64::MAX - 1) && !unlimited.is_exceeded());
    }
}
