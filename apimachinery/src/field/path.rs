//! The path to a field, extended and truncated as a walk descends and returns.

use std::fmt::{self, Write as _};

/// A path such as `spec.containers[0].image`. A walk enters a field, and leaves it with what entering has returned.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Path(String);

impl Path {
    /// A path that begins with `root`, which may be empty.
    #[must_use]
    pub fn new(root: impl Into<String>) -> Self {
        Self(root.into())
    }

    /// The path as text; empty at the root.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Goes into the field `name`.
    pub fn enter_field(&mut self, name: &str) -> usize {
        let before = self.0.len();
        if before > 0 {
            self.0.push('.');
        }
        self.0.push_str(name);
        before
    }

    /// Goes into an item of a list: `[0]`.
    pub fn enter_item(&mut self, at: usize) -> usize {
        let before = self.0.len();
        // Writing to a text cannot fail.
        let _ = write!(self.0, "[{at}]");
        before
    }

    /// Goes into a key of a map: `[key]`.
    pub fn enter_key(&mut self, key: &str) -> usize {
        let before = self.0.len();
        let _ = write!(self.0, "[{key}]");
        before
    }

    /// Stays where it is.
    #[must_use]
    pub fn enter_nothing(&self) -> usize {
        self.0.len()
    }

    /// Goes back to where the path was `before` entering.
    pub fn leave(&mut self, before: usize) {
        self.0.truncate(before);
    }

    /// The path of the field `name` below this one.
    #[must_use]
    pub fn field(&self, name: &str) -> String {
        if self.0.is_empty() { name.to_owned() } else { format!("{}.{name}", self.0) }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
