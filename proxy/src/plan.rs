//! What the kernel holds, what it should hold, and the smallest restore texts between the two.
//! Pure: texts go in and out; nothing here runs a program.

mod ledger;
mod steps;
#[cfg(test)]
mod tests;

pub use ledger::{Drift, Ledger};
pub use steps::{Limit, Step};

use std::hash::{DefaultHasher, Hasher};

/// What one chain was last written with: a fingerprint of its rules, and their number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Print {
    hash: u64,
    rules: u32,
}

impl Print {
    fn of(rules: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        hasher.write(rules.as_bytes());
        let lines = rules.bytes().filter(|b| *b == b'\n').count();
        Self { hash: hasher.finish(), rules: u32::try_from(lines).unwrap_or(u32::MAX) }
    }
}
