//! Where the kernel's rules are not those that should be.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::{
    kernel::{Saved, normal},
    rules::{Fixed, JUMPS, Table, is_dispatch, is_owned},
};

/// One chain or jump that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// `filter` or `nat`.
    pub table: String,
    /// The chain.
    pub chain: String,
    /// What is wrong, in words.
    pub problem: String,
}

pub(crate) fn differences(wanted: &Saved<'_>, kernel: &Saved<'_>) -> Vec<Difference> {
    let mut out = Vec::new();
    let mut add = |table: Table, chain: &str, problem: String| {
        out.push(Difference { table: table.name().to_owned(), chain: chain.to_owned(), problem });
    };
    for table in Table::BOTH {
        let mut known: BTreeSet<&str> = BTreeSet::new();
        for (name, chain) in wanted.chains(table) {
            known.insert(name);
            let Some(actual) = kernel.chain(table, name) else {
                add(table, name, "is missing".to_owned());
                continue;
            };
            let want: Vec<Vec<String>> = chain.rules.iter().map(|r| normal(r.text)).collect();
            let have: Vec<Vec<String>> = actual.rules.iter().map(|r| normal(r.text)).collect();
            if let Some(i) = (0..want.len().max(have.len())).find(|i| want.get(*i) != have.get(*i)) {
                let text = |rules: &[crate::kernel::Rule<'_>]| {
                    rules.get(i).map_or_else(|| "nothing".to_owned(), |r| format!("\"{}\"", r.text))
                };
                let problem = format!("rule {} should be {} and is {}", i + 1, text(&chain.rules), text(&actual.rules));
                add(table, name, problem);
            }
        }
        for (name, _) in kernel.chains(table).filter(|(name, _)| !known.contains(name)) {
            let ours = (table == Table::Nat && is_owned(name))
                || is_dispatch(name)
                || Fixed::find(table, name).is_some_and(|f| f != Fixed::FilterFirewall);
            if ours {
                add(table, name, "should not be there".to_owned());
            }
        }
    }
    for index in kernel.missing_jumps() {
        let jump = &JUMPS[index];
        add(jump.to.table(), jump.from, format!("does not lead to {}", jump.to.name()));
    }
    out
}
