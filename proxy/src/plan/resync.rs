//! What of the kernel's rules is as it should be: read back and compared with what would be rendered, chain by chain, so that
//! only the difference is written. Pure.

use std::collections::BTreeSet;

use super::{
    BatchLimit, ChainHash, Committed, TableBatch, TreeChainId,
    base_chains::BaseChains,
    batch::TableChanges,
    iptables_save_reader::{PrintedHash, ReadKernel},
    render::for_each_batch,
};
use crate::{
    explain::{Comparison, Difference},
    iptables_save::{ParseError, SavedRuleset},
    model::Model,
    rules::{ChainId, JUMPS, StaticChain, Table, is_service_chain, is_tree_chain},
};

/// Rules that are rendered in one batch to be compared with the kernel's.
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

/// Chains of the kernel whose rules are known, with their hashes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VerifiedChains {
    pub(super) chains: Vec<(ChainId, Committed)>,
    pub(super) static_chains: Vec<(StaticChain, Committed)>,
    pub(super) tree_chains: Vec<(TreeChainId, Committed)>,
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

impl ReadKernel<'_> {
    /// Compares the kernel's rules with those of a model. Chains that could not be deleted are no difference.
    ///
    /// # Errors
    /// When what was read is not a rule set.
    pub fn compare(&self, model: &Model) -> Result<KernelComparison, ParseError> {
        let ruleset = self.ruleset;
        let rest = SavedRuleset::parse(&self.text)?;
        let mut kernel = KernelState::of(&rest);
        let mut verified = VerifiedChains::default();
        self.add_recognised(&mut kernel, &mut verified);
        // An empty kernel is not compared with ten thousand services.
        if verified == VerifiedChains::default() && !KernelState::is_ours(&rest) {
            let differences = Comparison::new(&rest).finish();
            return Ok(KernelComparison { kernel, verified, differences });
        }
        let mut comparison = Comparison::new(&rest);
        let mut unread = None;
        for_each_batch(model, ruleset.empty_copy(), COMPARE_BATCH, |batch| {
            if self.has_all_of(batch) {
                return;
            }
            match SavedRuleset::parse(&batch.text) {
                Ok(wanted) => {
                    let recognised =
                        |table, name: &str| self.recognised(table, name, ruleset.committed_chain(table, name));
                    let differ = comparison.compare(&wanted, recognised);
                    let is_right = |table: Table, name: &str| {
                        !recognised(table, name) && !differ.contains(&(table, name.to_owned()))
                    };
                    verified.add(&batch.changes, &rest, is_right);
                }
                Err(error) => unread = Some(error),
            }
        });
        if let Some(error) = unread {
            return Err(error);
        }
        let mut differences = comparison.finish();
        let known = |d: &Difference| ruleset.undeletable().contains(&(d.table, d.chain.clone()));
        differences.retain(|d| !known(d));
        Ok(KernelComparison { kernel, verified, differences })
    }

    /// Adds the chains that were recognised.
    fn add_recognised(&self, kernel: &mut KernelState, verified: &mut VerifiedChains) {
        if self.changed.is_none() {
            return;
        }
        let ruleset = self.ruleset;
        for (id, content) in &ruleset.committed {
            if let Some(content) = content.filter(|of| self.recognised(Table::Nat, &id.to_string(), Some(*of))) {
                kernel.service_chains.push(*id);
                verified.chains.push((*id, content));
            }
        }
        for (id, content) in &ruleset.tree_chains {
            if let Some(content) = content.filter(|of| self.recognised(id.0, &id.1, Some(*of))) {
                kernel.tree_chains.push(id.clone());
                verified.tree_chains.push((id.clone(), content));
            }
        }
        for (chain, content) in &ruleset.static_chains {
            if self.recognised(chain.table(), chain.name(), Some(*content)) {
                kernel.kubelet_firewall_missing &= *chain != StaticChain::FilterKubeletFirewall;
                verified.static_chains.push((*chain, *content));
            }
        }
    }

    /// Whether all wanted chains of a batch were recognised, with the wanted rules.
    fn has_all_of(&self, wanted: &TableBatch) -> bool {
        if self.changed.is_none() {
            return false;
        }
        let has = |table, name: &str, known: Option<Committed>, hash: ChainHash| {
            known.is_some_and(|known| known.written == hash) && self.recognised(table, name, known)
        };
        let (ruleset, of) = (self.ruleset, &wanted.changes);
        of.chains
            .iter()
            .all(|(id, hash)| has(Table::Nat, &id.to_string(), ruleset.committed.get(id).copied().flatten(), *hash))
            && of
                .tree_chains
                .iter()
                .all(|(id, hash)| has(id.0, &id.1, ruleset.tree_chains.get(id).copied().flatten(), *hash))
            && of
                .static_chains
                .iter()
                .all(|(chain, hash)| has(chain.table(), chain.name(), ruleset.static_chains.get(chain).copied(), *hash))
    }
}

impl VerifiedChains {
    /// Adds the chains of a batch that are right, with what is printed of them.
    fn add(&mut self, batch: &TableChanges, kernel: &SavedRuleset<'_>, is_right: impl Fn(Table, &str) -> bool) {
        let content = |table: Table, name: &str, written: ChainHash| {
            let rules = kernel.chain(table, name).filter(|_| is_right(table, name))?.rules.iter();
            Some(Committed { written, printed: Some(PrintedHash::of(rules.map(|rule| rule.text))) })
        };
        for (id, hash) in &batch.chains {
            self.chains.extend(content(Table::Nat, &id.to_string(), *hash).map(|content| (*id, content)));
        }
        for (chain, hash) in &batch.static_chains {
            self.static_chains.extend(content(chain.table(), chain.name(), *hash).map(|content| (*chain, content)));
        }
        for (id, hash) in &batch.tree_chains {
            self.tree_chains.extend(content(id.0, &id.1, *hash).map(|content| (id.clone(), content)));
        }
    }
}
