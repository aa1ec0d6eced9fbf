//! What the kernel holds, what it should hold, and the smallest restore texts between the two.
//! Pure: texts go in and out; nothing here runs a program.

mod ledger;
mod quarantine;
mod resync;
mod steps;
#[cfg(test)]
mod tests;

pub use ledger::Ledger;
pub use resync::{Compared, KernelState, Standing, compare};
pub use steps::{Limit, Step};

use std::{
    hash::{DefaultHasher, Hasher},
    num::NonZeroU64,
};

/// What one chain was last written with: 40 bits of a fingerprint of its rules, and their number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Print(NonZeroU64);

/// Bits for the number of rules.
const COUNT: u32 = 24;

impl Print {
    fn of(rules: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        hasher.write(rules.as_bytes());
        let lines = lines(rules).min((1 << COUNT) - 1);
        // One bit of the fingerprint is always set, so that the whole is never zero and needs no room beside it.
        let all = (hasher.finish() | 1) << COUNT | lines as u64;
        Self(NonZeroU64::new(all).unwrap_or(NonZeroU64::MIN))
    }

    fn rules(self) -> u64 {
        self.0.get() & ((1 << COUNT) - 1)
    }
}

fn lines(text: &str) -> usize {
    text.bytes().filter(|b| *b == b'\n').count()
}
