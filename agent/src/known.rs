//! Facts that may not be known: "unknown" is neither "no" nor "none".

/// A fact, or why it is not known. Unlike an `Option` it has no default to fall back to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Known<T> {
    /// It is known.
    Is(T),
    /// It is not, and why.
    Unknown(String),
}

impl<T, E: std::fmt::Display> From<Result<T, E>> for Known<T> {
    fn from(read: Result<T, E>) -> Self {
        match read {
            Ok(fact) => Self::Is(fact),
            Err(error) => Self::Unknown(error.to_string()),
        }
    }
}
