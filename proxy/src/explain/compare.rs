//! Compares the kernel's rules with the desired ones.

use std::collections::HashSet;

use serde::Serialize;

use crate::{
    iptables_save::{SavedRuleset, canonical},
    rules::{JUMPS, StaticChain, Table, is_service_chain, is_tree_chain},
};

/// One chain or jump that differs from the desired one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Difference {
    /// `filter` or `nat`.
    pub table: String,
    /// The chain.
    pub chain: String,
    /// The difference, in words.
    pub problem: String,
}

pub(crate) fn differences(wanted: &SavedRuleset<'_>, kernel: &SavedRuleset<'_>) -> Vec<Difference> {
    let mut comparison = Comparison::new(kernel);
    let _ = comparison.compare(wanted);
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

    fn add(&mut self, table: Table, chain: &str, problem: String) {
        self.found.push(Difference { table: table.name().to_owned(), chain: chain.to_owned(), problem });
    }

    /// Compares some desired chains; returns those that differ.
    pub(crate) fn compare(&mut self, wanted: &SavedRuleset<'_>) -> HashSet<(Table, String)> {
        let before = self.found.len();
        for table in Table::BOTH {
            for (name, chain) in wanted.chains(table) {
                self.wanted.insert((table, name.to_owned()));
                let Some(actual) = self.kernel.chain(table, name) else {
                    self.add(table, name, "is missing".to_owned());
                    continue;
                };
                let (want, have) = (&chain.rules, &actual.rules);
                let same = |i: &usize| match (want.get(*i), have.get(*i)) {
                    (Some(a), Some(b)) => a.text == b.text || canonical(a.text) == canonical(b.text),
                    _ => false,
                };
                if let Some(i) = (0..want.len().max(have.len())).find(|i| !same(i)) {
                    let text = |rules: &[crate::iptables_save::Rule<'_>]| {
                        rules.get(i).map_or_else(|| "nothing".to_owned(), |r| format!("\"{}\"", r.text))
                    };
                    let problem = format!("rule {} should be {} and is {}", i + 1, text(want), text(have));
                    self.add(table, name, problem);
                }
            }
        }
        let table = |name: &str| Table::BOTH.into_iter().find(|t| t.name() == name);
        self.found[before..].iter().filter_map(|d| Some((table(&d.table)?, d.chain.clone()))).collect()
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
                    self.add(table, name, "should not be there".to_owned());
                }
            }
        }
        for index in crate::iptables_save::missing_jumps(kernel) {
            let jump = &JUMPS[index];
            self.add(jump.to.table(), jump.from, format!("does not lead to {}", jump.to.name()));
        }
        self.found
    }
}
