//! Where the kernel's rules are not those that should be.

use std::collections::HashSet;

use serde::Serialize;

use crate::{
    kernel::{Saved, normal},
    rules::{Fixed, JUMPS, Table, is_dispatch, is_owned},
};

/// One chain or jump that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Difference {
    /// `filter` or `nat`.
    pub table: String,
    /// The chain.
    pub chain: String,
    /// What is wrong, in words.
    pub problem: String,
}

pub(crate) fn differences(wanted: &Saved<'_>, kernel: &Saved<'_>) -> Vec<Difference> {
    let mut comparison = Comparison::new(kernel);
    let _ = comparison.look(wanted);
    comparison.end()
}

/// Sets wanted rules beside the kernel's, piece by piece.
pub(crate) struct Comparison<'k> {
    kernel: &'k Saved<'k>,
    wanted: HashSet<(Table, String)>,
    found: Vec<Difference>,
}

impl<'k> Comparison<'k> {
    pub(crate) fn new(kernel: &'k Saved<'k>) -> Self {
        Self { kernel, wanted: HashSet::new(), found: Vec::new() }
    }

    fn add(&mut self, table: Table, chain: &str, problem: String) {
        self.found.push(Difference { table: table.name().to_owned(), chain: chain.to_owned(), problem });
    }

    /// Takes in chains that should be as they are here; gives those that are not.
    pub(crate) fn look(&mut self, wanted: &Saved<'_>) -> HashSet<(Table, String)> {
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
                    (Some(a), Some(b)) => a.text == b.text || normal(a.text) == normal(b.text),
                    _ => false,
                };
                if let Some(i) = (0..want.len().max(have.len())).find(|i| !same(i)) {
                    let text = |rules: &[crate::kernel::Rule<'_>]| {
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

    /// What is not as it should be, once all chains that should be were looked at.
    pub(crate) fn end(mut self) -> Vec<Difference> {
        let kernel = self.kernel;
        for table in Table::BOTH {
            for (name, _) in kernel.chains(table) {
                let ours = (table == Table::Nat && is_owned(name))
                    || is_dispatch(name)
                    || Fixed::find(table, name).is_some_and(|f| f != Fixed::FilterFirewall);
                if ours && !self.wanted.contains(&(table, name.to_owned())) {
                    self.add(table, name, "should not be there".to_owned());
                }
            }
        }
        for index in kernel.missing_jumps() {
            let jump = &JUMPS[index];
            self.add(jump.to.table(), jump.from, format!("does not lead to {}", jump.to.name()));
        }
        self.found
    }
}
