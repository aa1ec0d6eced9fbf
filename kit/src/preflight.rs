//! Results of preflight checks, for `windlass check`.

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    /// As it should be.
    Pass,
    /// The node works with restrictions.
    Warn,
    /// The node cannot work.
    Fail,
}

/// The result of one check, with advice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What was checked.
    pub what: String,
    /// The result.
    pub status: Status,
    /// What was found.
    pub seen: String,
    /// What to do about it; empty when nothing.
    pub advice: String,
}

impl Finding {
    /// The check passed.
    #[must_use]
    pub fn pass(what: impl Into<String>, seen: impl Into<String>) -> Self {
        Self { what: what.into(), status: Status::Pass, seen: seen.into(), advice: String::new() }
    }

    /// The node works with restrictions.
    #[must_use]
    pub fn warn(what: impl Into<String>, seen: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { what: what.into(), status: Status::Warn, seen: seen.into(), advice: advice.into() }
    }

    /// The node cannot work.
    #[must_use]
    pub fn fail(what: impl Into<String>, seen: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { what: what.into(), status: Status::Fail, seen: seen.into(), advice: advice.into() }
    }
}
