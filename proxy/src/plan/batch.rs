//! Batches of restore input, and the pass over dirty Services that produces them. Plain data.

use std::{collections::VecDeque, fmt::Write as _};

use super::{ChainHash, TreeChainId, lines};
use crate::{
    model::ServiceId,
    rules::{ChainId, JUMPS, StaticChain, Table},
};

/// How many rules one batch may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchLimit {
    /// No limit: the legacy back end replaces the whole table anyway.
    None,
    /// About this many: the time of one nf_tables transaction grows with the square of its size.
    Lines(usize),
}

impl BatchLimit {
    pub(super) const fn lines(self) -> usize {
        match self {
            Self::None => usize::MAX,
            Self::Lines(lines) => lines,
        }
    }
}

/// The input of one `iptables-restore`, and the chains it changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RestoreBatch {
    /// Standard input of `iptables-restore --noflush`.
    pub text: String,
    /// Number of rules and deletions in it.
    pub lines: usize,
    /// Number of rules in it, of filter and nat.
    pub rules: (u64, u64),
    pub(super) chains: Vec<(ChainId, ChainHash)>,
    pub(super) static_chains: Vec<(StaticChain, ChainHash)>,
    pub(super) tree_chains: Vec<(TreeChainId, ChainHash)>,
    pub(super) deleted_tree_chains: Vec<TreeChainId>,
    pub(super) deleted: Vec<ChainId>,
    pub(super) deleted_unknown: Vec<String>,
    pub(super) jumps: Vec<usize>,
    pub(super) creates_kubelet_firewall: bool,
    /// Services whose chains it contains.
    pub(super) services: Vec<ServiceId>,
}

impl RestoreBatch {
    /// Whether it deletes chains.
    #[must_use]
    pub const fn deletes(&self) -> bool {
        !(self.deleted_tree_chains.is_empty() && self.deleted.is_empty() && self.deleted_unknown.is_empty())
    }

    /// The chains that it deletes.
    pub fn deletions(&self) -> impl Iterator<Item = (Table, String)> {
        let chains = self.deleted.iter().map(ToString::to_string).chain(self.deleted_unknown.iter().cloned());
        chains.map(|name| (Table::Nat, name)).chain(self.deleted_tree_chains.iter().cloned())
    }

    /// The same batch, but stale chains are flushed and not deleted.
    #[must_use]
    pub fn without_deletions(&self) -> Self {
        let text = self.text.lines().filter(|l| !l.starts_with("-X ")).flat_map(|l| [l, "\n"]).collect();
        Self { text, deleted_tree_chains: Vec::new(), deleted: Vec::new(), deleted_unknown: Vec::new(), ..self.clone() }
    }

    /// The Services whose chains it contains.
    #[must_use]
    pub fn services(&self) -> &[ServiceId] {
        &self.services
    }

    /// Whether it contains only chains of Services, and the static chains that those jump to.
    #[must_use]
    pub fn contains_services_only(&self) -> bool {
        self.static_chains.iter().all(|(chain, _)| is_needed_first(*chain))
            && self.tree_chains.is_empty()
            && self.jumps.is_empty()
            && !self.creates_kubelet_firewall
    }

    /// The table of a line, counted from 1 as `iptables-restore` does in its errors.
    #[must_use]
    pub fn table_of_line(&self, line: usize) -> Option<Table> {
        let heads = self.text.lines().take(line).filter_map(|l| l.strip_prefix('*'));
        let name = heads.last()?;
        Table::BOTH.into_iter().find(|t| t.name() == name)
    }
}

/// Restore input under construction.
#[derive(Default)]
pub(super) struct BatchBuilder {
    /// Chain headers and rules.
    filter: (String, String),
    /// Chain headers and rules.
    nat: (String, String),
    pub(super) batch: RestoreBatch,
}

impl BatchBuilder {
    /// Adds a chain with all its rules; one that exists is flushed.
    pub(super) fn chain(&mut self, table: Table, name: &dyn std::fmt::Display, body: &str) {
        let (heads, rules) = match table {
            Table::Filter => &mut self.filter,
            Table::Nat => &mut self.nat,
        };
        let _ = writeln!(heads, ":{name} - [0:0]");
        rules.push_str(body);
        let lines = lines(body);
        self.batch.lines += lines;
        match table {
            Table::Filter => self.batch.rules.0 += lines as u64,
            Table::Nat => self.batch.rules.1 += lines as u64,
        }
    }

    pub(super) fn service_chain(&mut self, chain: ChainId, body: &str) {
        self.chain(Table::Nat, &chain, body);
        self.batch.chains.push((chain, ChainHash::of(body)));
    }

    pub(super) fn static_chain(&mut self, chain: StaticChain, body: &str) {
        self.chain(chain.table(), &chain.name(), body);
        self.batch.static_chains.push((chain, ChainHash::of(body)));
    }

    pub(super) fn tree_chain(&mut self, id: TreeChainId, body: &str) {
        self.chain(id.0, &id.1, body);
        self.batch.tree_chains.push((id, ChainHash::of(body)));
    }

    /// Flushes a chain, or deletes one that is empty.
    pub(super) fn remove(&mut self, table: Table, name: &dyn std::fmt::Display, flush: bool) {
        let (heads, rules) = match table {
            Table::Filter => &mut self.filter,
            Table::Nat => &mut self.nat,
        };
        let _ = if flush { writeln!(heads, ":{name} - [0:0]") } else { writeln!(rules, "-X {name}") };
        self.batch.lines += 1;
    }

    /// Inserts a jump at the top of its base chain.
    pub(super) fn jump(&mut self, index: usize) {
        let jump = &JUMPS[index];
        let rules = match jump.to.table() {
            Table::Filter => &mut self.filter.1,
            Table::Nat => &mut self.nat.1,
        };
        let _ = writeln!(rules, "-I {} {}", jump.from, jump.rule());
        self.batch.jumps.push(index);
        self.batch.lines += 1;
    }

    /// Prepends all of this to another one.
    pub(super) fn before(self, mut other: Self) -> Self {
        for (own, others) in [(self.filter, &mut other.filter), (self.nat, &mut other.nat)] {
            others.0.insert_str(0, &own.0);
            others.1.insert_str(0, &own.1);
        }
        other.batch.lines += self.batch.lines;
        other.batch.rules.0 += self.batch.rules.0;
        other.batch.rules.1 += self.batch.rules.1;
        other.batch.static_chains.extend(self.batch.static_chains);
        other.batch.services.extend(self.batch.services);
        other
    }

    /// The batch, if it is not empty. The rules of the nat table can be large and are not copied.
    pub(super) fn finish(self) -> Option<RestoreBatch> {
        let Self { filter, nat, mut batch } = self;
        let (mut before, mut text) = (String::new(), nat.1);
        if !filter.0.is_empty() || !filter.1.is_empty() {
            let _ = write!(before, "*{}\n{}{}COMMIT\n", Table::Filter.name(), filter.0, filter.1);
        }
        if !nat.0.is_empty() || !text.is_empty() {
            let _ = write!(before, "*{}\n{}", Table::Nat.name(), nat.0);
            text.push_str("COMMIT\n");
        }
        text.insert_str(0, &before);
        batch.text = text;
        (!batch.text.is_empty()).then_some(batch)
    }
}

/// One pass over the dirty Services: those that are not rendered yet, then the batches left to hand out.
#[derive(Debug)]
pub(super) struct SyncPass {
    /// Last first.
    pub(super) queue: Vec<ServiceId>,
    /// The write did not fit in one batch.
    pub(super) chunked: bool,
    /// Chains of a Service too large for one batch, jump targets last.
    pub(super) large: Option<(ServiceId, Vec<(ChainId, String)>)>,
    /// The batches behind those of single Services.
    pub(super) rest: Option<VecDeque<RestoreBatch>>,
}

impl SyncPass {
    /// A pass over Services in the given order, reversed: the last one is rendered first.
    pub(super) const fn new(queue: Vec<ServiceId>) -> Self {
        Self { queue, chunked: false, large: None, rest: None }
    }

    /// What was not handed out: Services that are not rendered, and batches that are.
    pub(super) fn into_remaining(mut self) -> (Vec<ServiceId>, VecDeque<RestoreBatch>) {
        self.queue.extend(self.large.map(|(id, _)| id));
        (self.queue, self.rest.unwrap_or_default())
    }
}

/// Static chains that chains of service ports jump to.
pub(super) const fn is_needed_first(chain: StaticChain) -> bool {
    matches!(chain, StaticChain::NatMarkMasq | StaticChain::NatPostrouting)
}
