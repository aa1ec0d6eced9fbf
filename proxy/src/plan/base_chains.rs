//! The jumps in the base chains of one table. We do not own these chains as a whole, and a jump inserted twice stays
//! there twice. So the jumps are state, known from reading or from our own transactions, or unknown. Pure.

use std::collections::{BTreeMap, BTreeSet};

/// The jumps in the base chains of one table, by their indices in [`crate::rules::JUMPS`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum BaseChains {
    /// Which jumps are missing, and how many copies there are beyond the first of others.
    Known { missing: BTreeSet<usize>, surplus: BTreeMap<usize, usize> },
    /// A transaction that may have inserted jumps had an unknown outcome: nothing is inserted before they are read.
    Unknown,
}

impl BaseChains {
    /// Every jump occurs exactly once.
    pub(super) const fn complete() -> Self {
        Self::Known { missing: BTreeSet::new(), surplus: BTreeMap::new() }
    }

    pub(super) fn missing(&self) -> impl Iterator<Item = usize> {
        let known = match self {
            Self::Known { missing, .. } => Some(missing),
            Self::Unknown => None,
        };
        known.into_iter().flatten().copied()
    }

    pub(super) fn surplus(&self) -> impl Iterator<Item = (usize, usize)> {
        let known = match self {
            Self::Known { surplus, .. } => Some(surplus),
            Self::Unknown => None,
        };
        known.into_iter().flatten().map(|(index, count)| (*index, *count))
    }

    /// A transaction with these changes was committed.
    pub(super) fn committed(&mut self, inserted: &[usize], single: &[usize]) {
        if let Self::Known { missing, surplus } = self {
            missing.retain(|index| !inserted.contains(index));
            surplus.retain(|index, _| !single.contains(index));
        }
    }
}
