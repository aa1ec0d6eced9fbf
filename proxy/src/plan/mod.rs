//! The rules in the kernel, the desired rules, and the smallest restore input that turns the one into the other.
//! Pure: texts go in and out; nothing here runs a program. May import the model and the rules, never `apply` or `sync`.

mod base_chains;
mod batch;
mod committed_chains;
mod iptables_save_reader;
mod quarantine;
mod render;
mod restore;
mod resync;
mod ruleset_state;
#[cfg(test)]
mod tests;

pub use batch::{BatchLimit, Outcome, TableBatch};
pub use iptables_save_reader::{Committed, PrintedHash, ReadKernel, read_kernel};
pub use render::{Objects, policies_from_objects, rules_from_objects};
pub use resync::{KernelComparison, KernelState, VerifiedChains};
pub use ruleset_state::RulesetState;

#[cfg(test)]
pub(crate) use render::{LARGE_CLUSTER_ENDPOINTS, for_each_batch};
pub(crate) use render::{Observed, is_large_cluster, rules_of_objects};

use std::{
    hash::{DefaultHasher, Hasher},
    num::NonZeroU64,
};

use batch::SyncPass;

use crate::rules::Table;

/// Table and name of a chain of a dispatch tree.
type TreeChainId = (Table, String);

/// Chains with their rules.
type Bodies<Id> = Vec<(Id, String)>;

/// The content that a chain was last written with: 40 bits of a hash of its rules, and their number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChainHash(NonZeroU64);

/// Bits for the number of rules.
const COUNT_BITS: u32 = 24;

impl ChainHash {
    fn of(rules: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        hasher.write(rules.as_bytes());
        let lines = lines(rules).min((1 << COUNT_BITS) - 1);
        // One bit of the hash is always set: the value is never zero, and an `Option` of it takes no more space.
        let all = (hasher.finish() | 1) << COUNT_BITS | lines as u64;
        Self(NonZeroU64::new(all).unwrap_or(NonZeroU64::MIN))
    }

    fn rules(self) -> u64 {
        self.0.get() & ((1 << COUNT_BITS) - 1)
    }
}

fn lines(text: &str) -> usize {
    text.bytes().filter(|b| *b == b'\n').count()
}
