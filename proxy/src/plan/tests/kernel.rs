//! A fake of `iptables-restore` and the kernel behind it, which fails where the real one does, and the loop before it.

use std::collections::{BTreeMap, VecDeque};

use super::*;

/// A kernel behind `iptables-restore`: tables, chains and their rules. Like the program it commits at each COMMIT,
/// before it reads on, and takes the lock again for each table.
#[derive(Default, Clone, PartialEq, Eq, Debug)]
pub(super) struct Kernel(pub(super) BTreeMap<(String, String), Vec<String>>);

/// What happens to a restore.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    /// A rule of the table is refused.
    Refused,
    /// Somebody holds the lock.
    Locked,
    /// The program is killed before its COMMIT.
    KilledBefore,
    /// The program is killed after its COMMIT, before its end is seen.
    KilledAfter,
}

pub(super) const FAULTS: [Fault; 4] = [Fault::Refused, Fault::Locked, Fault::KilledBefore, Fault::KilledAfter];

impl Kernel {
    pub(super) fn restore(&mut self, text: &str) -> Result<(), String> {
        self.restore_until(text, usize::MAX)
    }

    /// Runs a text up to this number of COMMITs.
    pub(super) fn restore_until(&mut self, text: &str, commits: usize) -> Result<(), String> {
        let mut next = self.0.clone();
        let mut done = 0;
        let mut table = String::new();
        for line in text.lines() {
            let word = |i: usize| line.split(' ').nth(i).unwrap_or_default().to_owned();
            if let Some(name) = line.strip_prefix('*') {
                name.clone_into(&mut table);
            } else if let Some(chain) = line.strip_prefix(':') {
                next.insert((table.clone(), chain.split(' ').next().unwrap().to_owned()), Vec::new());
            } else if line.starts_with("-A ") {
                let rules = next.get_mut(&(table.clone(), word(1))).ok_or_else(|| format!("no chain: {line}"))?;
                rules.push(line.split_once(' ').unwrap().1.split_once(' ').unwrap().1.to_owned());
            } else if line.starts_with("-I ") {
                next.entry((table.clone(), word(1)))
                    .or_default()
                    .insert(0, line.splitn(3, ' ').nth(2).unwrap().to_owned());
            } else if let Some(rule) = line.strip_prefix("-D ") {
                let (chain, rule) = rule.split_once(' ').unwrap();
                let rules = next.get_mut(&(table.clone(), chain.to_owned())).ok_or("no chain")?;
                let at = rules.iter().position(|r| r == rule).ok_or_else(|| format!("no rule: {line}"))?;
                rules.remove(at);
            } else if line.starts_with("-X ") {
                let rules = next.remove(&(table.clone(), word(1))).ok_or_else(|| format!("no chain: {line}"))?;
                if !rules.is_empty() {
                    return Err(format!("not empty: {line}"));
                }
            } else if line == "COMMIT" {
                if done == commits {
                    return Ok(());
                }
                done += 1;
                for ((of, chain), rules) in &next {
                    for rule in rules {
                        let target = rule.rsplit(' ').next().unwrap_or_default();
                        if target.starts_with("KUBE-") && !next.contains_key(&(of.clone(), target.to_owned())) {
                            return Err(format!("{chain} leads to {target}, which is not there"));
                        }
                    }
                }
                self.0.clone_from(&next);
            }
        }
        Ok(())
    }

    pub(super) fn text(&self) -> String {
        let mut out = String::new();
        for table in Table::BOTH {
            out.push_str(&format!("*{}\n", table.name()));
            for ((_, chain), rules) in self.0.iter().filter(|((t, _), _)| t == table.name()) {
                out.push_str(&format!(":{chain} - [0:0]\n"));
                rules.iter().for_each(|r| out.push_str(&format!("-A {chain} {r}\n")));
            }
            out.push_str("COMMIT\n");
        }
        out
    }

    /// As the loop does it: each batch is rendered before the one before is known to be good.
    pub(super) fn apply(&mut self, ruleset: &mut RulesetState, model: &Model, limit: BatchLimit) -> usize {
        self.apply_with(ruleset, model, limit, &mut |_| None)
    }

    /// The same with faults, by the number of the restore: what was refused is rendered again, what was locked is sent
    /// again, and what has an unknown outcome is read back before. Returns how many restores there were.
    pub(super) fn apply_with(
        &mut self,
        ruleset: &mut RulesetState,
        model: &Model,
        limit: BatchLimit,
        fault: &mut impl FnMut(usize) -> Option<Fault>,
    ) -> usize {
        let mut count = 0;
        let mut waiting: VecDeque<TableBatch> = VecDeque::new();
        loop {
            if ruleset.needs_read_back() {
                let found = compare_with_kernel(model, ruleset, &self.text()).unwrap();
                ruleset.resync(found.kernel, found.verified);
                ruleset.mark_all_dirty(model);
            }
            let Some(batch) = waiting.pop_front().or_else(|| ruleset.next_batch(model, limit)) else {
                if ruleset.is_dirty() {
                    continue;
                }
                return count;
            };
            if waiting.is_empty() {
                waiting.extend(ruleset.next_batch(model, limit));
            }
            assert_eq!(batch.text.lines().filter(|l| *l == "COMMIT").count(), 1, "{}", batch.text);
            let fault = fault(count);
            count += 1;
            match fault {
                None => {
                    self.restore(&batch.text).unwrap_or_else(|e| panic!("{e}\n{}", batch.text));
                    ruleset.commit(&batch);
                }
                // The write ends, and the next one begins with it.
                Some(Fault::Locked) => waiting.push_front(batch),
                Some(fault) => {
                    let commits = usize::from(fault == Fault::KilledAfter);
                    self.restore_until(&batch.text, commits).unwrap_or_else(|e| panic!("{e}\n{}", batch.text));
                    let outcome = if fault == Fault::Refused { Outcome::Unchanged } else { Outcome::Unknown };
                    ruleset.abandon(batch, outcome, waiting.drain(..));
                }
            }
        }
    }

    /// The rules that occur more than once in a base chain.
    pub(super) fn repeated(&self) -> Vec<String> {
        let twice = |rules: &Vec<String>| {
            rules
                .iter()
                .filter(|rule| rules.iter().filter(|other| other == rule).count() > 1)
                .cloned()
                .collect::<Vec<_>>()
        };
        self.0
            .iter()
            .filter(|((_, chain), _)| !chain.starts_with("KUBE-"))
            .flat_map(|(_, rules)| twice(rules))
            .collect()
    }
}
