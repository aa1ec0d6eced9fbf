//! Objects with the type that a schema gives them, as field ownership sees them: what their fields are, what changed
//! between two of them, and how one is merged into another.
//!
//! Everything here is a walk over a [`Type`]. [`Type::check`] comes first: it finds what does not fit the type and what
//! is nested too deeply, so that the other walks need not. Upstream: `structured-merge-diff/typed`.

mod atom;
mod atomics;
mod check;
mod compare;
mod list;
mod merge;
mod reconcile;
mod remove;
mod to_set;

use std::fmt;

pub use atom::Type;
pub use check::Duplicates;
pub use compare::Comparison;

use super::path::Path;

/// The depth to which objects are walked; requests are refused at less.
const MAX_DEPTH: usize = 256;

/// What of an object does not fit its type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeError {
    /// Where; empty for the whole object.
    pub path: Path,
    /// What, in upstream's words.
    pub message: String,
}

impl fmt::Display for TypeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.0.is_empty() { f.write_str(&self.message) } else { write!(f, "{}: {}", self.path, self.message) }
    }
}

/// All that does not fit, in upstream's form: one error alone, several as a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeErrors(pub Vec<TypeError>);

impl fmt::Display for TypeErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [only] = self.0.as_slice() {
            return only.fmt(f);
        }
        f.write_str("errors:")?;
        self.0.iter().try_for_each(|error| write!(f, "\n  {error}"))
    }
}

impl std::error::Error for TypeErrors {}
