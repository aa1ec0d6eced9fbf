//! What of the kernel's rules is as it should be: read back, set beside what would be rendered, chain by chain, so that
//! only the difference is written. Pure.

use std::collections::{BTreeSet, HashSet};

use super::{
    BatchLimit, ChainHash, RulesetState, TableBatch, TreeChainId, base_chains::BaseChains, render::for_each_batch,
};
use crate::{
    explain::{Comparison, Difference},
    iptables_save::{ParseError, SavedRuleset},
    model::Model,
    rules::{ChainId, JUMPS, StaticChain, Table, is_service_chain, is_tree_chain},
};

/// Rules that are rendered at a time to be compared with the kernel's.
const COMPARE_BATCH: BatchLimit = BatchLimit::Lines(5000);

/// Our chains and jumps in the kernel, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KernelState {
    pub(super) service_chains: Vec<ChainId>,
    /// Names that this version would not make.
    pub(super) unknown_chains: BTreeSet<String>,
    pub(super) tree_chains: Vec<TreeChainId>,
    pub(super) kubelet_firewall_missing: bool,
    /// Of filter and nat.
    pub(super) base_chains: Option<[BaseChains; 2]>,
}

impl KernelState {
    /// Reads the names.
    #[must_use]
    pub fn of(kernel: &SavedRuleset<'_>) -> Self {
        let mut out = Self::default();
        for table in Table::BOTH {
            let trees = kernel.chains(table).filter(|(name, _)| is_tree_chain(name));
            out.tree_chains.extend(trees.map(|(name, _)| (table, name.to_owned())));
        }
        for (name, _) in kernel.chains(Table::Nat).filter(|(name, _)| is_service_chain(name) && !is_tree_chain(name)) {
            match ChainId::parse(name) {
                Some(id) => out.service_chains.push(id),
                None => drop(out.unknown_chains.insert(name.to_owned())),
            }
        }
        out.kubelet_firewall_missing = kernel.chain(Table::Filter, StaticChain::FilterKubeletFirewall.name()).is_none();
        let counts = crate::iptables_save::jump_counts(kernel);
        out.base_chains = Some(Table::BOTH.map(|table| {
            let of_table = || counts.iter().enumerate().filter(|(i, _)| JUMPS[*i].to.table() == table);
            BaseChains::Known {
                missing: of_table().filter(|(_, count)| **count == 0).map(|(i, _)| i).collect(),
                surplus: of_table().filter(|(_, count)| **count > 1).map(|(i, count)| (i, count - 1)).collect(),
            }
        }));
        out
    }

    /// Whether there is any chain of ours.
    fn is_ours(kernel: &SavedRuleset<'_>) -> bool {
        Table::BOTH.into_iter().any(|table| {
            let ours = |name| StaticChain::find(table, name).is_some() || is_service_chain(name) || is_tree_chain(name);
            kernel.chains(table).any(|(name, _)| ours(name))
        })
    }
}

/// Chains of the kernel that equal the wanted ones, with their hashes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VerifiedChains {
    pub(super) chains: Vec<(ChainId, ChainHash)>,
    pub(super) static_chains: Vec<(StaticChain, ChainHash)>,
    pub(super) tree_chains: Vec<(TreeChainId, ChainHash)>,
}

impl VerifiedChains {
    fn extend(&mut self, batch: TableBatch, differ: &HashSet<(Table, String)>) {
        let is_verified = |table: Table, name: String| !differ.contains(&(table, name));
        let batch = batch.changes;
        self.chains.extend(batch.chains.into_iter().filter(|(id, _)| is_verified(Table::Nat, id.to_string())));
        self.static_chains
            .extend(batch.static_chains.into_iter().filter(|(f, _)| is_verified(f.table(), f.name().to_owned())));
        self.tree_chains.extend(batch.tree_chains.into_iter().filter(|(id, _)| is_verified(id.0, id.1.clone())));
    }
}

/// The result of comparing the kernel's rules with the wanted ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KernelComparison {
    /// The chains and jumps of the kernel, by name.
    pub kernel: KernelState,
    /// Chains that need not be written.
    pub verified: VerifiedChains,
    /// Rules and chains that differ.
    pub differences: Vec<Difference>,
}

/// Compares the output of `iptables-save` with the rules of a model. Chains that could not be deleted are no
/// difference.
///
/// # Errors
/// When the text is not a rule set.
pub fn compare_with_kernel(model: &Model, ruleset: &RulesetState, saved: &str) -> Result<KernelComparison, ParseError> {
    let saved = SavedRuleset::parse(saved)?;
    let kernel = KernelState::of(&saved);
    // An empty kernel is not compared with ten thousand services.
    if !KernelState::is_ours(&saved) {
        let differences = Comparison::new(&saved).finish();
        return Ok(KernelComparison { kernel, verified: VerifiedChains::default(), differences });
    }
    let mut comparison = Comparison::new(&saved);
    let mut verified = VerifiedChains::default();
    let mut unread = None;
    for_each_batch(model, ruleset.empty_copy(), COMPARE_BATCH, |batch| match SavedRuleset::parse(&batch.text) {
        Ok(wanted) => {
            let differ = comparison.compare(&wanted);
            verified.extend(batch.clone(), &differ);
        }
        Err(error) => unread = Some(error),
    });
    if let Some(error) = unread {
        return Err(error);
    }
    let mut differences = comparison.finish();
    let known = |d: &Difference| ruleset.undeletable().contains(&(d.table, d.chain.clone()));
    differences.retain(|d| !known(d));
    Ok(KernelComparison { kernel, verified, differences })
}
