//! What is in the kernel, as far as it is known: recorded from batches that were applied, and from comparisons.

use super::{
    ChainHash, Committed, RulesetState, TableBatch, VerifiedChains, batch::TableChanges,
    iptables_save_reader::PrintedHash,
};
use crate::rules::{ChainId, StaticChain, Table, is_tree_chain};

impl RulesetState {
    fn count_rules(&mut self, table: Table, new: Option<ChainHash>, old: Option<Committed>) {
        let rules = |hash: Option<ChainHash>| hash.map_or(0, ChainHash::rules);
        let sum = &mut self.rules[table as usize];
        *sum = (*sum + rules(new)).saturating_sub(rules(old.map(|old| old.written)));
    }

    /// Records that a batch was applied.
    pub fn commit(&mut self, batch: &TableBatch) {
        self.handed_out = self.handed_out.saturating_sub(1);
        self.base_chains[batch.table as usize].committed(&batch.changes.jumps, &batch.changes.single_jumps);
        self.record(&batch.changes);
    }

    fn put_chain(&mut self, chain: ChainId, content: Option<Committed>) {
        let old = self.committed.insert(chain, content).flatten();
        self.count_rules(Table::Nat, content.map(|content| content.written), old);
    }

    fn put_static_chain(&mut self, chain: StaticChain, content: Committed) {
        let old = self.static_chains.insert(chain, content);
        self.count_rules(chain.table(), Some(content.written), old);
    }

    fn put_tree_chain(&mut self, id: &(Table, String), content: Option<Committed>) {
        let old = self.tree_chains.insert(id.clone(), content).flatten();
        self.count_rules(id.0, content.map(|content| content.written), old);
    }

    fn record(&mut self, batch: &TableChanges) {
        // They are empty now: one that is wanted again is written again.
        batch.flushed.iter().for_each(|chain| self.put_chain(*chain, None));
        batch.flushed_tree_chains.iter().for_each(|id| self.put_tree_chain(id, None));
        batch.chains.iter().for_each(|(chain, hash)| self.put_chain(*chain, Some((*hash).into())));
        batch.static_chains.iter().for_each(|(chain, hash)| self.put_static_chain(*chain, (*hash).into()));
        batch.tree_chains.iter().for_each(|(id, hash)| self.put_tree_chain(id, Some((*hash).into())));
        for id in &batch.deleted_tree_chains {
            let old = self.tree_chains.remove(id).flatten();
            self.count_rules(id.0, None, old);
            self.stale_tree_chains.remove(id);
        }
        for chain in &batch.deleted {
            let old = self.committed.remove(chain).flatten();
            self.count_rules(Table::Nat, None, old);
            self.stale_chains.remove(chain);
        }
        for name in &batch.deleted_unknown {
            self.unknown_chains.remove(name);
        }
        if batch.creates_kubelet_firewall {
            self.kubelet_firewall_missing = false;
        }
    }

    /// Takes over what a comparison found in the kernel.
    pub(super) fn adopt(&mut self, verified: VerifiedChains) {
        verified.chains.into_iter().for_each(|(chain, content)| self.put_chain(chain, Some(content)));
        verified.static_chains.into_iter().for_each(|(chain, content)| self.put_static_chain(chain, content));
        verified.tree_chains.into_iter().for_each(|(id, content)| self.put_tree_chain(&id, Some(content)));
    }

    /// Learns from a comparison without differences what is printed of the chains that were committed.
    pub fn learn(&mut self, verified: &VerifiedChains) {
        let learn = |known: Option<&mut Committed>, found: &Committed| {
            if let Some(known) = known.filter(|known| known.written == found.written) {
                known.printed = found.printed;
            }
        };
        for (chain, found) in &verified.chains {
            learn(self.committed.get_mut(chain).and_then(Option::as_mut), found);
        }
        for (chain, found) in &verified.static_chains {
            learn(self.static_chains.get_mut(chain), found);
        }
        for (id, found) in &verified.tree_chains {
            learn(self.tree_chains.get_mut(id).and_then(Option::as_mut), found);
        }
    }

    /// A chain whose content is known.
    pub(super) fn committed_chain(&self, table: Table, name: &str) -> Option<Committed> {
        if is_tree_chain(name) {
            return self.tree_chains.get(&(table, name.to_owned())).copied().flatten();
        }
        match StaticChain::find(table, name) {
            Some(chain) => self.static_chains.get(&chain).copied(),
            None if table == Table::Nat => self.committed.get(&ChainId::parse(name)?).copied().flatten(),
            None => None,
        }
    }

    fn contents(&self) -> impl Iterator<Item = Option<Committed>> {
        let service_chains = self.committed.values().copied();
        service_chains.chain(self.static_chains.values().copied().map(Some)).chain(self.tree_chains.values().copied())
    }

    /// The number of chains of which it is known what is printed.
    pub(super) fn known_chains(&self) -> usize {
        let printed = |content: Option<Committed>| -> Option<PrintedHash> { content?.printed };
        self.contents().filter(|content| printed(*content).is_some()).count()
    }

    /// Whether that is known of all of them, and they are all that is wanted.
    pub(super) fn is_known(&self) -> bool {
        let stale = self.stale_chains.len() + self.stale_tree_chains.len() + self.unknown_chains.len();
        stale == 0 && !self.is_dirty() && self.contents().all(|content| content.is_some_and(|of| of.printed.is_some()))
    }
}
