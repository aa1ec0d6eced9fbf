//! What a look at the machine came to, for `windlass check`.

/// How it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// As it should be.
    Fine,
    /// The node works, with less.
    Doubtful,
    /// The node cannot work.
    Missing,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What was looked at.
    pub what: String,
    /// How it is.
    pub verdict: Verdict,
    /// What was seen.
    pub seen: String,
    /// What to do about it; empty when nothing.
    pub advice: String,
}

impl Finding {
    /// As it should be.
    #[must_use]
    pub fn fine(what: impl Into<String>, seen: impl Into<String>) -> Self {
        Self { what: what.into(), verdict: Verdict::Fine, seen: seen.into(), advice: String::new() }
    }

    /// The node works, with less.
    #[must_use]
    pub fn doubtful(what: impl Into<String>, seen: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { what: what.into(), verdict: Verdict::Doubtful, seen: seen.into(), advice: advice.into() }
    }

    /// The node cannot work.
    #[must_use]
    pub fn missing(what: impl Into<String>, seen: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { what: what.into(), verdict: Verdict::Missing, seen: seen.into(), advice: advice.into() }
    }
}
