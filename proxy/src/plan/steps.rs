//! Restore texts: one for small changes; for large ones on nf_tables several, each of which leaves
//! a consistent rule set and none of which splits a service port.

use std::fmt::Write as _;

use super::{Ledger, Print, ledger::DispatchId};
use crate::rules::{ChainId, Fixed, JUMPS, Table};

/// How many rule lines one restore may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// No bound: the legacy back end exchanges the whole table anyway.
    None,
    /// About this many: the time of one nf_tables transaction grows with its square.
    Lines(usize),
}

/// One restore.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Step {
    /// Standard input of `iptables-restore --noflush`.
    pub text: String,
    /// Lines of rules and deletions in it.
    pub lines: usize,
    /// Rules in it, of filter and nat.
    pub rules: (u64, u64),
    pub(super) chains: Vec<(ChainId, Print)>,
    pub(super) fixed: Vec<(Fixed, Print)>,
    pub(super) dispatch: Vec<(DispatchId, Print)>,
    pub(super) dispatch_deleted: Vec<DispatchId>,
    pub(super) deleted: Vec<ChainId>,
    pub(super) deleted_names: Vec<String>,
    pub(super) jumps: Vec<usize>,
    pub(super) creates_firewall: bool,
}

#[derive(Default)]
struct Draft {
    filter: (String, String),
    nat: (String, String),
    step: Step,
}

impl Draft {
    fn chain(&mut self, table: Table, name: &dyn std::fmt::Display, body: &str) {
        let (heads, rules) = match table {
            Table::Filter => &mut self.filter,
            Table::Nat => &mut self.nat,
        };
        let _ = writeln!(heads, ":{name} - [0:0]");
        rules.push_str(body);
        let lines = body.bytes().filter(|b| *b == b'\n').count();
        self.step.lines += lines;
        match table {
            Table::Filter => self.step.rules.0 += lines as u64,
            Table::Nat => self.step.rules.1 += lines as u64,
        }
    }

    fn own(&mut self, chain: ChainId, body: &str) {
        self.chain(Table::Nat, &chain, body);
        self.step.chains.push((chain, Print::of(body)));
    }

    fn fixed(&mut self, chain: Fixed, body: &str) {
        self.chain(chain.table(), &chain.name(), body);
        self.step.fixed.push((chain, Print::of(body)));
    }

    fn dispatch(&mut self, id: DispatchId, body: &str) {
        self.chain(id.0, &id.1, body);
        self.step.dispatch.push((id, Print::of(body)));
    }

    /// Empties a chain, or deletes one that is empty.
    fn remove(&mut self, table: Table, name: &dyn std::fmt::Display, emptying: bool) {
        let (heads, rules) = match table {
            Table::Filter => &mut self.filter,
            Table::Nat => &mut self.nat,
        };
        let _ = if emptying { writeln!(heads, ":{name} - [0:0]") } else { writeln!(rules, "-X {name}") };
        self.step.lines += 1;
    }

    fn jump(&mut self, index: usize) {
        let jump = &JUMPS[index];
        let rules = match jump.to.table() {
            Table::Filter => &mut self.filter.1,
            Table::Nat => &mut self.nat.1,
        };
        let _ = writeln!(rules, "-I {} {}", jump.from, jump.rule());
        self.step.jumps.push(index);
        self.step.lines += 1;
    }

    fn finish(mut self) -> Option<Step> {
        for (table, (heads, rules)) in Table::BOTH.into_iter().zip([self.filter, self.nat]) {
            if !heads.is_empty() || !rules.is_empty() {
                let _ = write!(self.step.text, "*{}\n{heads}{rules}COMMIT\n", table.name());
            }
        }
        (!self.step.text.is_empty()).then_some(self.step)
    }
}

pub(super) fn build(
    ledger: &mut Ledger,
    fixed: Vec<(Fixed, String)>,
    trees: Vec<(DispatchId, String)>,
    limit: Limit,
) -> Vec<Step> {
    let pending = std::mem::take(&mut ledger.pending);
    let own_lines: usize = pending.values().flatten().map(|(_, b)| b.bytes().filter(|b| *b == b'\n').count()).sum();
    let tree_lines: usize = trees.iter().map(|(_, b)| b.bytes().filter(|b| *b == b'\n').count()).sum();
    let dead_trees = ledger.dead_dispatch();
    let total = own_lines + tree_lines + ledger.dead.len() + ledger.foreign.len() + dead_trees.len();
    let bound = match limit {
        Limit::Lines(bound) if total > bound => bound,
        _ => usize::MAX,
    };
    let mut out = Vec::new();
    let mut draft = Draft::default();
    // Chains that others jump to come first; so do the marks, which every endpoint chain needs.
    let (first, last): (Vec<_>, Vec<_>) =
        fixed.into_iter().partition(|(f, _)| matches!(f, Fixed::NatMarkMasq | Fixed::NatPostrouting));
    if bound != usize::MAX {
        first.iter().for_each(|(chain, body)| draft.fixed(*chain, body));
    }
    for chains in pending.into_values() {
        if draft.step.lines > bound {
            out.extend(std::mem::take(&mut draft).finish());
        }
        chains.iter().for_each(|(chain, body)| draft.own(*chain, body));
    }
    for (id, body) in trees {
        if draft.step.lines > bound {
            out.extend(std::mem::take(&mut draft).finish());
        }
        draft.dispatch(id, &body);
    }
    if bound == usize::MAX {
        // One text: fixed chains first, as upstream writes them.
        let mut whole = Draft::default();
        last.iter().chain(&first).for_each(|(chain, body)| whole.fixed(*chain, body));
        for (whole, draft) in [(&mut whole.filter, &draft.filter), (&mut whole.nat, &draft.nat)] {
            whole.0.push_str(&draft.0);
            whole.1.push_str(&draft.1);
        }
        whole.step.lines += draft.step.lines;
        whole.step.rules.0 += draft.step.rules.0;
        whole.step.rules.1 += draft.step.rules.1;
        whole.step.chains = draft.step.chains;
        whole.step.dispatch = draft.step.dispatch;
        draft = whole;
    } else {
        out.extend(std::mem::take(&mut draft).finish());
        last.iter().for_each(|(chain, body)| draft.fixed(*chain, body));
    }
    if ledger.firewall_missing {
        if !draft.step.fixed.iter().any(|(f, _)| *f == Fixed::FilterFirewall) {
            draft.chain(Table::Filter, &Fixed::FilterFirewall.name(), "");
        }
        draft.step.creates_firewall = true;
    }
    for index in ledger.jumps.clone() {
        draft.jump(index);
    }
    if bound != usize::MAX || ledger.deletes_apart {
        out.extend(std::mem::take(&mut draft).finish());
    }
    let dead: Vec<ChainId> = ledger.dead.iter().copied().collect();
    let foreign: Vec<String> = ledger.foreign.iter().cloned().collect();
    // Stale chains may lead to each other: all are emptied before the first is deleted.
    for (names, emptying) in [(&dead, true), (&dead, false)] {
        for chain in names {
            if draft.step.lines > bound {
                out.extend(std::mem::take(&mut draft).finish());
            }
            draft.remove(Table::Nat, chain, emptying);
            if !emptying {
                draft.step.deleted.push(*chain);
            }
        }
        for id in &dead_trees {
            draft.remove(id.0, &id.1, emptying);
            if !emptying {
                draft.step.dispatch_deleted.push(id.clone());
            }
        }
        for name in &foreign {
            draft.remove(Table::Nat, name, emptying);
            if !emptying {
                draft.step.deleted_names.push(name.clone());
            }
        }
    }
    out.extend(draft.finish());
    out
}
