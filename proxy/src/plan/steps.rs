//! Restore texts: one for small changes; for large ones on nf_tables several, each of which leaves
//! a consistent rule set and none of which splits a service port.

use std::{collections::VecDeque, fmt::Write as _};

use super::{Ledger, Print, ledger::DispatchId, lines};
use crate::{
    model::{Model, ServiceId},
    rules::{ChainId, Fixed, JUMPS, Table},
};

/// How many rule lines one restore may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// No bound: the legacy back end exchanges the whole table anyway.
    None,
    /// About this many: the time of one nf_tables transaction grows with its square.
    Lines(usize),
}

impl Limit {
    const fn lines(self) -> usize {
        match self {
            Self::None => usize::MAX,
            Self::Lines(lines) => lines,
        }
    }
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
    /// Services whose chains are in it.
    pub(super) services: Vec<ServiceId>,
}

impl Step {
    /// Whether chains are deleted in it.
    #[must_use]
    pub const fn deletes(&self) -> bool {
        !(self.dispatch_deleted.is_empty() && self.deleted.is_empty() && self.deleted_names.is_empty())
    }

    /// The chains that it deletes.
    pub fn deletions(&self) -> impl Iterator<Item = (Table, String)> {
        let chains = self.deleted.iter().map(ToString::to_string).chain(self.deleted_names.iter().cloned());
        chains.map(|name| (Table::Nat, name)).chain(self.dispatch_deleted.iter().cloned())
    }

    /// The same, but chains that nobody wants are emptied only.
    #[must_use]
    pub fn without_deletions(&self) -> Self {
        let text = self.text.lines().filter(|l| !l.starts_with("-X ")).flat_map(|l| [l, "\n"]).collect();
        Self { text, dispatch_deleted: Vec::new(), deleted: Vec::new(), deleted_names: Vec::new(), ..self.clone() }
    }

    /// The Services whose chains are in it.
    #[must_use]
    pub fn services(&self) -> &[ServiceId] {
        &self.services
    }

    /// Whether it holds nothing but chains of single Services, and those that they lead to.
    #[must_use]
    pub fn is_of_services(&self) -> bool {
        self.fixed.iter().all(|(chain, _)| is_needed_first(*chain))
            && self.dispatch.is_empty()
            && self.jumps.is_empty()
            && !self.creates_firewall
    }

    /// The table of a line, counted from 1.
    #[must_use]
    pub fn table_of_line(&self, line: usize) -> Option<Table> {
        let heads = self.text.lines().take(line).filter_map(|l| l.strip_prefix('*'));
        let name = heads.last()?;
        Table::BOTH.into_iter().find(|t| t.name() == name)
    }
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
        let lines = lines(body);
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

    /// Puts all of this before what is in another.
    fn before(self, mut other: Self) -> Self {
        for (own, others) in [(self.filter, &mut other.filter), (self.nat, &mut other.nat)] {
            others.0.insert_str(0, &own.0);
            others.1.insert_str(0, &own.1);
        }
        other.step.lines += self.step.lines;
        other.step.rules.0 += self.step.rules.0;
        other.step.rules.1 += self.step.rules.1;
        other.step.fixed.extend(self.step.fixed);
        other.step.services.extend(self.step.services);
        other
    }

    /// The step, if anything is in it. The nat table's rules can be large and are not copied.
    fn finish(self) -> Option<Step> {
        let Self { filter, nat, mut step } = self;
        let (mut before, mut text) = (String::new(), nat.1);
        if !filter.0.is_empty() || !filter.1.is_empty() {
            let _ = write!(before, "*{}\n{}{}COMMIT\n", Table::Filter.name(), filter.0, filter.1);
        }
        if !nat.0.is_empty() || !text.is_empty() {
            let _ = write!(before, "*{}\n{}", Table::Nat.name(), nat.0);
            text.push_str("COMMIT\n");
        }
        text.insert_str(0, &before);
        step.text = text;
        (!step.text.is_empty()).then_some(step)
    }
}

/// A write under way: what is not rendered yet, then what is left to hand out.
#[derive(Debug)]
pub(super) struct Round {
    /// Last first.
    queue: Vec<ServiceId>,
    /// The write did not fit in one step.
    chunked: bool,
    /// Chains of a Service too large for one step, those that others lead to last.
    large: Option<(ServiceId, Vec<(ChainId, String)>)>,
    /// The steps behind those of single Services.
    rest: Option<VecDeque<Step>>,
}

impl Round {
    /// In order of address, as the rules of dispatching chains are.
    fn new(ledger: &mut Ledger, model: &Model) -> Self {
        let family = ledger.settings().family;
        let mut queue: Vec<ServiceId> = std::mem::take(&mut ledger.touched).into_iter().collect();
        queue.sort_by_cached_key(|id| {
            std::cmp::Reverse((model.service(id).and_then(|s| s.cluster_ip(family)), id.clone()))
        });
        Self { queue, chunked: false, large: None, rest: None }
    }
}

impl Round {
    /// What was not handed out: Services that are not rendered, and steps that are.
    pub(super) fn left(mut self) -> (Vec<ServiceId>, VecDeque<Step>) {
        self.queue.extend(self.large.map(|(id, _)| id));
        (self.queue, self.rest.unwrap_or_default())
    }
}

/// Chains that single Services' chains lead to.
const fn is_needed_first(chain: Fixed) -> bool {
    matches!(chain, Fixed::NatMarkMasq | Fixed::NatPostrouting)
}

impl Ledger {
    /// The next text to restore, until there is none: then the kernel holds everything. Rules are rendered as they
    /// are handed out, so that a large write is never in memory as a whole where the limit does not ask for it. After
    /// each one that was applied call [`commit`](Self::commit), before the next but one is asked for; one that failed
    /// goes back by [`abandon`](Self::abandon): rules are handed out once.
    pub fn next_step(&mut self, model: &Model, limit: Limit) -> Option<Step> {
        let mut round = match self.round.take() {
            Some(round) => round,
            None => Round::new(self, model),
        };
        let step = self.next_of(&mut round, model, limit);
        if step.is_some() {
            self.round = Some(round);
        }
        step
    }

    fn next_of(&mut self, round: &mut Round, model: &Model, limit: Limit) -> Option<Step> {
        if let Some(rest) = &mut round.rest {
            return rest.pop_front();
        }
        let bound = limit.lines();
        let mut draft = Draft::default();
        loop {
            let full = draft.step.lines > bound
                || (round.large.is_none() && draft.step.services.len() >= self.services_per_step);
            if full {
                if !std::mem::replace(&mut round.chunked, true) {
                    let first = Fixed::ALL.into_iter().filter(|chain| is_needed_first(*chain));
                    let first = first.filter_map(|chain| self.changed(chain, String::new()));
                    first.for_each(|(chain, body)| draft.fixed(chain, &body));
                }
                return draft.finish();
            }
            if let Some((id, chains)) = &mut round.large {
                if let Some((chain, body)) = chains.pop() {
                    draft.own(chain, &body);
                    if draft.step.services.last() != Some(id) {
                        draft.step.services.push(id.clone());
                    }
                } else {
                    round.large = None;
                }
                continue;
            }
            let Some(id) = round.queue.pop() else { break };
            let mut chains = self.take(model, &id);
            if chains.is_empty() {
                continue;
            }
            if chains.iter().map(|(_, body)| lines(body)).sum::<usize>() > bound {
                // One after the other, each after those that it leads to: a packet always finds a whole way.
                chains.sort_by_key(|(chain, _)| std::cmp::Reverse(chain.write_order()));
                round.large = Some((id, chains));
            } else {
                chains.iter().for_each(|(chain, body)| draft.own(*chain, body));
                draft.step.services.push(id);
            }
        }
        let rest = round.rest.insert(self.rest(draft, round.chunked, bound));
        rest.pop_front()
    }

    /// What follows the chains of single Services, `draft` being the last of these.
    fn rest(&mut self, mut draft: Draft, chunked: bool, bound: usize) -> VecDeque<Step> {
        let (fixed, trees) = self.common();
        let tree_lines: usize = trees.iter().map(|(_, body)| lines(body)).sum();
        let kept = &self.undeletable;
        let stays =
            |table: Table, name: &dyn std::fmt::Display| !kept.is_empty() && kept.contains(&(table, name.to_string()));
        let dead: Vec<ChainId> = self.dead.iter().filter(|c| !stays(Table::Nat, c)).copied().collect();
        let dead_trees: Vec<&DispatchId> = self.dead_dispatch.iter().filter(|id| !stays(id.0, &id.1)).collect();
        let foreign: Vec<&String> = self.foreign.iter().filter(|name| !stays(Table::Nat, name)).collect();
        let deletions = dead.len() + foreign.len() + dead_trees.len();
        let chunked = chunked || draft.step.lines + tree_lines + deletions > bound;
        let bound = if chunked { bound } else { usize::MAX };
        let mut out = VecDeque::new();
        // Chains that others jump to come first.
        let (first, last): (Vec<_>, Vec<_>) = fixed.into_iter().partition(|(f, _)| is_needed_first(*f));
        if chunked {
            first.iter().for_each(|(chain, body)| draft.fixed(*chain, body));
        }
        for (id, body) in trees {
            if draft.step.lines > bound {
                out.extend(std::mem::take(&mut draft).finish());
            }
            draft.dispatch(id, &body);
        }
        if chunked {
            out.extend(std::mem::take(&mut draft).finish());
            last.iter().for_each(|(chain, body)| draft.fixed(*chain, body));
        } else {
            // One text: fixed chains first, as upstream writes them.
            let mut common = Draft::default();
            last.iter().chain(&first).for_each(|(chain, body)| common.fixed(*chain, body));
            draft = common.before(draft);
        }
        if self.firewall_missing {
            if !draft.step.fixed.iter().any(|(f, _)| *f == Fixed::FilterFirewall) {
                draft.chain(Table::Filter, &Fixed::FilterFirewall.name(), "");
            }
            draft.step.creates_firewall = true;
        }
        self.jumps.iter().for_each(|index| draft.jump(*index));
        if chunked {
            out.extend(std::mem::take(&mut draft).finish());
        }
        // Stale chains may lead to each other: all are emptied before the first is deleted.
        for emptying in [true, false] {
            for chain in &dead {
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
                    draft.step.dispatch_deleted.push((*id).clone());
                }
            }
            for name in &foreign {
                draft.remove(Table::Nat, name, emptying);
                if !emptying {
                    draft.step.deleted_names.push((*name).clone());
                }
            }
        }
        out.extend(draft.finish());
        out
    }
}
