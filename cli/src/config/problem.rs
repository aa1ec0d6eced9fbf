//! A problem of a configuration file.

/// A problem, with its line if known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    /// Counted from 1; `None` for the file as a whole.
    pub(crate) line: Option<usize>,
    pub(crate) reason: String,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: {}", self.reason),
            None => f.write_str(&self.reason),
        }
    }
}
