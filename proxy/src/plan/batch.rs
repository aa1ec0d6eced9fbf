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

/// One transaction of the kernel: the changes of one table, with one COMMIT and one turn at the xtables lock. The
/// program commits and locks table by table, so that a text of two tables could fail with the first one applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableBatch {
    /// The table.
    pub table: Table,
    /// Standard input of `iptables-restore --noflush`.
    pub text: String,
    /// Number of rules and deletions in it.
    pub lines: usize,
    /// Number of rules in it.
    pub rules: u64,
    pub(super) changes: TableChanges,
}

/// What a transaction changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct TableChanges {
    pub(super) chains: Vec<(ChainId, ChainHash)>,
    pub(super) static_chains: Vec<(StaticChain, ChainHash)>,
    pub(super) tree_chains: Vec<(TreeChainId, ChainHash)>,
    /// Stale chains that are emptied.
    pub(super) flushed: Vec<ChainId>,
    pub(super) flushed_tree_chains: Vec<TreeChainId>,
    pub(super) deleted_tree_chains: Vec<TreeChainId>,
    pub(super) deleted: Vec<ChainId>,
    pub(super) deleted_unknown: Vec<String>,
    /// Jumps that are inserted.
    pub(super) jumps: Vec<usize>,
    /// Jumps of which there were several, and one is left.
    pub(super) single_jumps: Vec<usize>,
    pub(super) creates_kubelet_firewall: bool,
    /// Services whose chains it contains.
    pub(super) services: Vec<ServiceId>,
}

/// What is known of a transaction that was not reported as done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It was refused, or not begun: the table is as before.
    Unchanged,
    /// The program was killed or its end was not seen: the table is as before or as wanted.
    Unknown,
}

impl TableBatch {
    /// Whether it deletes chains.
    #[must_use]
    pub const fn deletes(&self) -> bool {
        let of = &self.changes;
        !(of.deleted_tree_chains.is_empty() && of.deleted.is_empty() && of.deleted_unknown.is_empty())
    }

    /// The chains that it deletes.
    pub fn deletions(&self) -> impl Iterator<Item = (Table, String)> {
        let of = &self.changes;
        let chains = of.deleted.iter().map(ToString::to_string).chain(of.deleted_unknown.iter().cloned());
        chains.map(|name| (Table::Nat, name)).chain(of.deleted_tree_chains.iter().cloned())
    }

    /// The same batch, but stale chains are flushed and not deleted.
    #[must_use]
    pub fn without_deletions(&self) -> Self {
        let text = self.text.lines().filter(|l| !l.starts_with("-X ")).flat_map(|l| [l, "\n"]).collect();
        let changes = TableChanges {
            deleted_tree_chains: Vec::new(),
            deleted: Vec::new(),
            deleted_unknown: Vec::new(),
            ..self.changes.clone()
        };
        Self { text, changes, ..self.clone() }
    }

    /// The Services whose chains it contains.
    #[must_use]
    pub fn services(&self) -> &[ServiceId] {
        &self.changes.services
    }

    /// Whether it contains only chains of Services, and the static chains that those jump to.
    #[must_use]
    pub fn contains_services_only(&self) -> bool {
        let of = &self.changes;
        of.static_chains.iter().all(|(chain, _)| is_needed_first(*chain))
            && of.tree_chains.is_empty()
            && of.jumps.is_empty()
            && of.single_jumps.is_empty()
            && !of.creates_kubelet_firewall
    }
}

/// The changes of one table under construction.
#[derive(Default)]
struct TableInput {
    heads: String,
    body: String,
    lines: usize,
    rules: u64,
    changes: TableChanges,
}

/// The changes of both tables under construction.
#[derive(Default)]
pub(super) struct BatchBuilder([TableInput; 2]);

impl BatchBuilder {
    fn of(&mut self, table: Table) -> &mut TableInput {
        &mut self.0[table as usize]
    }

    /// What changes in a table, to record what is added by name.
    pub(super) fn changes(&mut self, table: Table) -> &mut TableChanges {
        &mut self.of(table).changes
    }

    /// The number of rules and deletions so far.
    pub(super) fn lines(&self) -> usize {
        self.0.iter().map(|of| of.lines).sum()
    }

    /// The Services whose chains exist; these are in the nat table.
    pub(super) fn services(&mut self) -> &mut Vec<ServiceId> {
        &mut self.changes(Table::Nat).services
    }

    /// Adds a chain with all its rules; one that exists is flushed.
    pub(super) fn chain(&mut self, table: Table, name: &dyn std::fmt::Display, body: &str) {
        let of = self.of(table);
        let _ = writeln!(of.heads, ":{name} - [0:0]");
        of.body.push_str(body);
        let lines = lines(body);
        of.lines += lines;
        of.rules += lines as u64;
    }

    pub(super) fn service_chain(&mut self, chain: ChainId, body: &str) {
        self.chain(Table::Nat, &chain, body);
        self.changes(Table::Nat).chains.push((chain, ChainHash::of(body)));
    }

    pub(super) fn static_chain(&mut self, chain: StaticChain, body: &str) {
        self.chain(chain.table(), &chain.name(), body);
        self.changes(chain.table()).static_chains.push((chain, ChainHash::of(body)));
    }

    pub(super) fn tree_chain(&mut self, id: TreeChainId, body: &str) {
        self.chain(id.0, &id.1, body);
        self.changes(id.0).tree_chains.push((id, ChainHash::of(body)));
    }

    /// Flushes a chain, or deletes one that is empty.
    pub(super) fn remove(&mut self, table: Table, name: &dyn std::fmt::Display, flush: bool) {
        let of = self.of(table);
        let _ = if flush { writeln!(of.heads, ":{name} - [0:0]") } else { writeln!(of.body, "-X {name}") };
        of.lines += 1;
    }

    /// Inserts a jump at the top of its base chain.
    pub(super) fn jump(&mut self, index: usize) {
        let jump = &JUMPS[index];
        let of = self.of(jump.to.table());
        let _ = writeln!(of.body, "-I {} {}", jump.from, jump.rule());
        of.lines += 1;
        of.changes.jumps.push(index);
    }

    /// Deletes copies of a jump, of which there is one more.
    pub(super) fn delete_copies(&mut self, index: usize, copies: usize) {
        let jump = &JUMPS[index];
        let of = self.of(jump.to.table());
        for _ in 0..copies {
            let _ = writeln!(of.body, "-D {} {}", jump.from, jump.rule());
        }
        of.lines += copies;
        of.changes.single_jumps.push(index);
    }

    /// Prepends all of this, which has static chains alone, to another one.
    pub(super) fn before(self, mut other: Self) -> Self {
        for (own, others) in self.0.into_iter().zip(&mut other.0) {
            others.heads.insert_str(0, &own.heads);
            others.body.insert_str(0, &own.body);
            others.lines += own.lines;
            others.rules += own.rules;
            others.changes.static_chains.extend(own.changes.static_chains);
        }
        other
    }

    /// The transactions, filter first. The rules of the nat table can be large and are not copied.
    pub(super) fn finish(self) -> impl Iterator<Item = TableBatch> {
        Table::BOTH.into_iter().zip(self.0).filter_map(|(table, of)| {
            if of.heads.is_empty() && of.body.is_empty() {
                return None;
            }
            let mut text = of.body;
            text.push_str("COMMIT\n");
            text.insert_str(0, &format!("*{}\n{}", table.name(), of.heads));
            Some(TableBatch { table, text, lines: of.lines, rules: of.rules, changes: of.changes })
        })
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
    /// Batches that are rendered.
    pub(super) ready: VecDeque<TableBatch>,
    /// Nothing is left to be rendered.
    pub(super) is_rendered: bool,
}

impl SyncPass {
    /// A pass over Services in the given order, reversed: the last one is rendered first.
    pub(super) const fn new(queue: Vec<ServiceId>) -> Self {
        Self { queue, chunked: false, large: None, ready: VecDeque::new(), is_rendered: false }
    }

    /// What was not handed out: Services that are not rendered, and batches that are.
    pub(super) fn into_remaining(mut self) -> (Vec<ServiceId>, VecDeque<TableBatch>) {
        self.queue.extend(self.large.map(|(id, _)| id));
        (self.queue, self.ready)
    }
}

/// Static chains that chains of service ports jump to.
pub(super) const fn is_needed_first(chain: StaticChain) -> bool {
    matches!(chain, StaticChain::NatMarkMasq | StaticChain::NatPostrouting)
}
