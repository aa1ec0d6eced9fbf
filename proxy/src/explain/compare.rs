//! Compares the kernel's rules with the desired ones.

use std::{collections::HashSet, fmt};

use serde::Serialize;

use crate::{
    iptables_save::{Rule, SavedRuleset, canonical},
    rules::{JUMPS, StaticChain, Table, is_service_chain, is_tree_chain},
};

/// One chain or jump that differs from the desired one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Difference {
    /// The table.
    #[serde(serialize_with = "as_text")]
    pub table: Table,
    /// The chain.
    pub chain: String,
    /// The difference.
    #[serde(serialize_with = "as_text")]
    pub problem: Problem,
}

/// How a chain differs.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Problem {
    /// There is no such chain.
    Missing,
    /// Nothing wants this chain.
    Extra,
    /// It has another number of rules: the first that is too many, or too few.
    Length {
        /// From 1.
        rule: usize,
        /// The desired one, if any.
        wanted: Option<String>,
        /// The kernel's, if any.
        is: Option<String>,
    },
    /// A rule has other words: changed by somebody, or only printed in another form.
    Reworded {
        /// From 1.
        rule: usize,
        /// The desired one.
        wanted: String,
        /// The kernel's.
        is: String,
    },
    /// A base chain does not jump to this chain.
    JumpMissing(&'static str),
    /// A base chain jumps to this chain more than once.
    JumpRepeated(&'static str),
}

impl Problem {
    /// Whether it may only be the kernel's way of printing a rule. A missing or surplus rule, chain or jump never is.
    #[must_use]
    pub const fn may_be_form(&self) -> bool {
        matches!(self, Self::Reworded { .. })
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quoted =
            |rule: &Option<String>| rule.as_ref().map_or_else(|| "nothing".to_owned(), |rule| format!("\"{rule}\""));
        match self {
            Self::Missing => f.write_str("is missing"),
            Self::Extra => f.write_str("should not be there"),
            Self::Length { rule, wanted, is } => {
                write!(f, "rule {rule} should be {} and is {}", quoted(wanted), quoted(is))
            }
            Self::Reworded { rule, wanted, is } => write!(f, "rule {rule} should be \"{wanted}\" and is \"{is}\""),
            Self::JumpMissing(to) => write!(f, "does not lead to {to}"),
            Self::JumpRepeated(to) => write!(f, "leads to {to} more than once"),
        }
    }
}

fn as_text<T: fmt::Display, S: serde::Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

pub(crate) fn differences(wanted: &SavedRuleset<'_>, kernel: &SavedRuleset<'_>) -> Vec<Difference> {
    let mut comparison = Comparison::new(kernel);
    let _ = comparison.compare(wanted, |_, _| false);
    comparison.finish()
}

/// A comparison of the kernel's rules with the desired ones, which are passed in batches.
pub(crate) struct Comparison<'k> {
    kernel: &'k SavedRuleset<'k>,
    wanted: HashSet<(Table, String)>,
    found: Vec<Difference>,
}

impl<'k> Comparison<'k> {
    pub(crate) fn new(kernel: &'k SavedRuleset<'k>) -> Self {
        Self { kernel, wanted: HashSet::new(), found: Vec::new() }
    }

    fn add(&mut self, table: Table, chain: &str, problem: Problem) {
        self.found.push(Difference { table, chain: chain.to_owned(), problem });
    }

    /// Compares some desired chains, but those that are known to be right; returns those that differ.
    pub(crate) fn compare(
        &mut self,
        wanted: &SavedRuleset<'_>,
        is_right: impl Fn(Table, &str) -> bool,
    ) -> HashSet<(Table, String)> {
        let before = self.found.len();
        for table in Table::BOTH {
            for (name, chain) in wanted.chains(table).filter(|(name, _)| !is_right(table, name)) {
                self.wanted.insert((table, name.to_owned()));
                let Some(actual) = self.kernel.chain(table, name) else {
                    self.add(table, name, Problem::Missing);
                    continue;
                };
                if let Some(problem) = first_difference(&chain.rules, &actual.rules) {
                    self.add(table, name, problem);
                }
            }
        }
        self.found[before..].iter().map(|d| (d.table, d.chain.clone())).collect()
    }

    /// All differences, once all desired chains were passed.
    pub(crate) fn finish(mut self) -> Vec<Difference> {
        let kernel = self.kernel;
        for table in Table::BOTH {
            for (name, _) in kernel.chains(table) {
                let ours = (table == Table::Nat && is_service_chain(name))
                    || is_tree_chain(name)
                    || StaticChain::find(table, name).is_some_and(|f| f != StaticChain::FilterKubeletFirewall);
                if ours && !self.wanted.contains(&(table, name.to_owned())) {
                    self.add(table, name, Problem::Extra);
                }
            }
        }
        for (jump, count) in JUMPS.iter().zip(crate::iptables_save::jump_counts(kernel)) {
            match count {
                0 => self.add(jump.to.table(), jump.from, Problem::JumpMissing(jump.to.name())),
                1 => {}
                _ => self.add(jump.to.table(), jump.from, Problem::JumpRepeated(jump.to.name())),
            }
        }
        self.found
    }
}

/// The first rule that differs, in a chain of as many rules or of another number.
fn first_difference(want: &[Rule<'_>], have: &[Rule<'_>]) -> Option<Problem> {
    let same = |i: &usize| match (want.get(*i), have.get(*i)) {
        (Some(a), Some(b)) => a.text == b.text || canonical(a.text) == canonical(b.text),
        _ => false,
    };
    let i = (0..want.len().max(have.len())).find(|i| !same(i))?;
    let text = |rules: &[Rule<'_>]| rules.get(i).map(|rule| rule.text.to_owned());
    Some(match (text(want), text(have)) {
        (Some(wanted), Some(is)) if want.len() == have.len() => Problem::Reworded { rule: i + 1, wanted, is },
        (wanted, is) => Problem::Length { rule: i + 1, wanted, is },
    })
}
