//! What the kernel has of chains and sets, and the steps from there to what it is to have. Pure: texts and plain data.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    sync::Arc,
};

use serde::Serialize;

use super::{
    rules::{BASE_CHAIN, JUMP, ROOT_CHAIN, TABLE, Wanted, is_policy_chain},
    sets::{Entry, IpSet, IpSets, SetKind},
};
use crate::iptables_save::{Rule, SavedRuleset, canonical};

/// Rules in one transaction of nf_tables, whose time grows with the square of its size.
const MAX_BATCH_LINES: usize = 4000;

/// Entries of a set that are shown where it differs.
const MAX_SHOWN: usize = 4;

/// Our chains and sets in the kernel, of one family.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kernel {
    /// Chains; `None` where the rules are others than were wanted when they were read.
    chains: BTreeMap<String, Option<Arc<str>>>,
    /// Copies of the jump in the base chain.
    jumps: usize,
    sets: IpSets,
    /// Sets of our names with entries that are not ours.
    foreign_sets: BTreeSet<String>,
}

/// A set as it was read: `None` if its type is not one of ours.
pub type ReadSets = BTreeMap<String, Option<IpSet>>;

impl Kernel {
    /// The kernel's state once all steps to `wanted` have been done.
    #[must_use]
    pub fn of(wanted: &Wanted) -> Self {
        Self {
            chains: wanted.chains.iter().map(|(name, body)| (name.clone(), Some(body.clone()))).collect(),
            jumps: usize::from(!wanted.chains.is_empty()),
            sets: wanted.sets.clone(),
            foreign_sets: BTreeSet::new(),
        }
    }

    /// Whether the kernel has nothing of ours.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What was read of the kernel. Rules count as wanted in whatever form they are printed.
    #[must_use]
    pub fn read(saved: &SavedRuleset<'_>, sets: ReadSets, wanted: &Wanted) -> Self {
        let bodies: BTreeMap<&str, &Arc<str>> =
            wanted.chains.iter().map(|(name, body)| (name.as_str(), body)).collect();
        let mut out = Self::default();
        for (name, chain) in saved.chains(TABLE) {
            if is_policy_chain(name) {
                let same = bodies.get(name).filter(|body| is_same(name, body, &chain.rules));
                out.chains.insert(name.to_owned(), same.map(|body| Arc::clone(body)));
            } else if name == BASE_CHAIN {
                let jump = canonical(JUMP);
                out.jumps = chain.rules.iter().filter(|rule| canonical(rule.text) == jump).count();
            }
        }
        out.with_sets(sets)
    }

    /// The same chains with sets that were read.
    #[must_use]
    pub fn with_sets(self, sets: ReadSets) -> Self {
        let mut out = Self { sets: IpSets::default(), foreign_sets: BTreeSet::new(), ..self };
        for (name, set) in sets {
            match set {
                Some(set) => drop(out.sets.0.insert(name, set)),
                None => drop(out.foreign_sets.insert(name)),
            }
        }
        out
    }

    /// The steps from here to what is wanted.
    #[must_use]
    pub fn steps_to(&self, wanted: &Wanted) -> Steps {
        let mut steps = Steps::default();
        self.plan_sets(wanted, &mut steps);
        self.plan_rules(wanted, &mut steps);
        steps
    }

    fn plan_sets(&self, wanted: &Wanted, steps: &mut Steps) {
        let mut all_known = self.sets.0.iter().peekable();
        for (name, set) in &wanted.sets.0 {
            // Both are in order of names.
            while all_known.next_if(|(of, _)| *of < name).is_some() {}
            let known = all_known.next_if(|(of, _)| *of == name).map(|(_, known)| known);
            if self.foreign_sets.contains(name) || known.is_some_and(|known| known.kind != set.kind) {
                steps.destroy_first.push(name.clone());
            }
            let known = known.filter(|known| known.kind == set.kind);
            if known.is_none() {
                steps.create.push((name.clone(), set.kind));
            }
            if known == Some(set) {
                continue;
            }
            let has = |entry: &&Entry| known.is_some_and(|known| known.entries.contains_key(entry));
            let new: Vec<Entry> = set.entries.keys().filter(|entry| !has(entry)).cloned().collect();
            if !new.is_empty() {
                steps.add.push((name.clone(), new));
            }
            let stale = |entry: &&Entry| !set.entries.contains_key(*entry);
            let old: Vec<Entry> =
                known.into_iter().flat_map(|known| known.entries.keys()).filter(stale).cloned().collect();
            if !old.is_empty() {
                steps.delete.push((name.clone(), old));
            }
        }
        let gone = self.sets.0.keys().chain(&self.foreign_sets).filter(|name| !wanted.sets.0.contains_key(*name));
        steps.destroy = gone.cloned().collect();
    }

    fn plan_rules(&self, wanted: &Wanted, steps: &mut Steps) {
        let is_known =
            |(name, body): &&(String, Arc<str>)| self.chains.get(name).is_some_and(|k| k.as_ref() == Some(body));
        let mut batch = Batch::default();
        for (name, body) in wanted.chains.iter().filter(|chain| !is_known(chain)) {
            if batch.lines > MAX_BATCH_LINES {
                steps.texts.push(std::mem::take(&mut batch).text());
            }
            batch.chain(name, body);
        }
        let jumps = usize::from(!wanted.chains.is_empty());
        (self.jumps..jumps).for_each(|_| batch.line(&format!("-I {BASE_CHAIN} {JUMP}")));
        (jumps..self.jumps).for_each(|_| batch.line(&format!("-D {BASE_CHAIN} {JUMP}")));
        let names: BTreeSet<&String> = wanted.chains.iter().map(|(name, _)| name).collect();
        let stale: Vec<&String> = self.chains.keys().filter(|name| !names.contains(name)).collect();
        // All are emptied before the first is deleted: they may jump to each other.
        stale.iter().for_each(|name| batch.chain(name, ""));
        stale.iter().for_each(|name| batch.line(&format!("-X {name}")));
        if batch.lines > 0 {
            steps.texts.push(batch.text());
        }
    }
}

/// Something of the kernel that is not as the policies want it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PolicyDifference {
    /// A chain of the mangle table, or an IP set.
    pub object: String,
    /// How it differs.
    pub problem: String,
}

impl Kernel {
    /// What is not as wanted. Interfaces are not compared: the API does not show those of static pods.
    #[must_use]
    pub fn differences(&self, wanted: &Wanted) -> Vec<PolicyDifference> {
        let mut found = Vec::new();
        let mut add = |object: String, problem: String| found.push(PolicyDifference { object, problem });
        let chain = |name: &str| format!("{TABLE} {name}");
        for (name, body) in &wanted.chains {
            match self.chains.get(name) {
                None => add(chain(name), "is missing".to_owned()),
                Some(is) if is.as_ref() != Some(body) => add(chain(name), "has other rules".to_owned()),
                Some(_) => {}
            }
        }
        let names: BTreeSet<&String> = wanted.chains.iter().map(|(name, _)| name).collect();
        for name in self.chains.keys().filter(|name| !names.contains(name)) {
            add(chain(name), "should not be there".to_owned());
        }
        match (self.jumps, usize::from(!wanted.chains.is_empty())) {
            (0, 1) => add(chain(BASE_CHAIN), format!("does not lead to {ROOT_CHAIN}")),
            (is, jumps) if is > jumps => add(chain(BASE_CHAIN), format!("leads to {ROOT_CHAIN} too often")),
            _ => {}
        }
        let set = |name: &str| format!("IP set {name}");
        let plain = |set: &IpSet| -> BTreeSet<Entry> {
            let plain = |entry: &Entry| match entry {
                Entry::Interface(ip, _) => Entry::Address(*ip),
                other => other.clone(),
            };
            set.entries.keys().map(plain).collect()
        };
        for (name, want) in &wanted.sets.0 {
            match self.sets.0.get(name) {
                Some(is) if is.kind == want.kind => {
                    let (is, want) = (plain(is), plain(want));
                    let list = |entries: Vec<&Entry>| {
                        let shown: Vec<String> = entries.iter().take(MAX_SHOWN).map(ToString::to_string).collect();
                        let more = entries.len().saturating_sub(MAX_SHOWN);
                        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                        shown.join(", ") + &more
                    };
                    if want.difference(&is).next().is_some() {
                        add(set(name), format!("lacks {}", list(want.difference(&is).collect())));
                    }
                    if is.difference(&want).next().is_some() {
                        add(set(name), format!("should not have {}", list(is.difference(&want).collect())));
                    }
                }
                Some(_) => add(set(name), "is of another type".to_owned()),
                None if self.foreign_sets.contains(name) => add(set(name), "is of another type".to_owned()),
                None => add(set(name), "is missing".to_owned()),
            }
        }
        let gone = self.sets.0.keys().chain(&self.foreign_sets).filter(|name| !wanted.sets.0.contains_key(*name));
        gone.for_each(|name| add(set(name), "should not be there".to_owned()));
        found
    }
}

/// Whether a chain of the kernel has the rules of a body.
fn is_same(name: &str, body: &str, rules: &[Rule<'_>]) -> bool {
    let wanted = body.lines().map(|line| line.strip_prefix("-A ").and_then(|l| l.strip_prefix(name)).unwrap_or(line));
    wanted.map(canonical).eq(rules.iter().map(|rule| canonical(rule.text)))
}

/// A transaction of the table under construction.
#[derive(Debug, Default)]
struct Batch {
    heads: String,
    body: String,
    lines: usize,
}

impl Batch {
    fn chain(&mut self, name: &str, body: &str) {
        let _ = writeln!(self.heads, ":{name} - [0:0]");
        self.body.push_str(body);
        self.lines += 1 + body.lines().count();
    }

    fn line(&mut self, line: &str) {
        self.body.extend([line, "\n"]);
        self.lines += 1;
    }

    fn text(self) -> String {
        format!("*{TABLE}\n{}{}COMMIT\n", self.heads, self.body)
    }
}

/// What is to be done, in this order. Each step may be done again after one behind it has failed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Steps {
    /// Sets of another type than is wanted of their names.
    pub destroy_first: Vec<String>,
    /// New sets.
    pub create: Vec<(String, SetKind)>,
    /// New entries.
    pub add: Vec<(String, Vec<Entry>)>,
    /// Inputs of `iptables-restore --noflush`, each a transaction.
    pub texts: Vec<String>,
    /// Entries that are wanted no more.
    pub delete: Vec<(String, Vec<Entry>)>,
    /// Sets that no rule names any more.
    pub destroy: Vec<String>,
}

impl Steps {
    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A text that leaves stale chains empty instead of deleting them, which a rule of another program may prevent.
#[must_use]
pub fn without_deletions(text: &str) -> String {
    text.lines().filter(|line| !line.starts_with("-X ")).flat_map(|line| [line, "\n"]).collect()
}
