//! The tree of chains that leads a packet to the profiles of its pods. Pure.
//!
//! A chain of the tree tests some sets of addresses, each of the pods of one profile or of all profiles below another chain.
//! So a packet's cost grows with the logarithm of the number of profiles, and a new profile writes its own chain and one of
//! the tree. Where a profile is follows from its name alone. A chain is entered by a jump and not by goto: a pod that changes
//! its profile is in the sets of both for a moment, and is judged by both.

use super::{
    rules::{Direction, set_suffix},
    sets::{Entry, IpSet, SetKind},
};
use crate::model::Family;

/// The profiles that one chain tests. Few in unit tests, so that small clusters have trees.
const MAX_PROFILES: usize = if cfg!(test) { 2 } else { 8 };
/// Bits of a name's hash that choose among the chains below one.
const BITS: u32 = 2;
/// Levels, after which a chain tests whatever is left.
const MAX_LEVELS: usize = 12;

/// A profile: its chain, which the set of its pods is named by, and their addresses.
pub(super) struct Leaf<'a> {
    pub(super) chain: &'a str,
    pub(super) entries: Vec<Entry>,
}

impl Leaf<'_> {
    /// Which of the chains below one of this level leads to it.
    fn branch(&self, level: usize) -> u64 {
        let digit = |letter: u8| u64::from(if letter.is_ascii_uppercase() { letter - b'A' } else { (letter & 7) | 24 });
        let hash = self.chain.bytes().rev().take(MAX_LEVELS).fold(0, |hash, letter| (hash << 5) | digit(letter));
        let shift = BITS * u32::try_from(level).unwrap_or(u32::MAX);
        hash.checked_shr(shift).unwrap_or_default() & ((1 << BITS) - 1)
    }
}

/// The chains below the root, each behind those that it leads to, and the sets of those that are not of one profile.
pub(super) struct Tree {
    direction: Direction,
    family: Family,
    pub(super) chains: Vec<(String, String)>,
    pub(super) sets: Vec<(String, IpSet)>,
}

impl Tree {
    pub(super) fn new(direction: Direction, family: Family) -> Self {
        Self { direction, family, chains: Vec::new(), sets: Vec::new() }
    }

    /// Adds what is below the chain `at`, and returns its rules. `path` are the branches that lead to it.
    pub(super) fn rules(&mut self, at: &str, path: &str, leaves: &[&Leaf<'_>]) -> String {
        if leaves.len() <= MAX_PROFILES || path.len() >= MAX_LEVELS {
            return leaves.iter().map(|leaf| self.jump(at, leaf.chain)).collect();
        }
        let mut rules = String::new();
        for branch in 0..1u64 << BITS {
            let below: Vec<&Leaf<'_>> =
                leaves.iter().filter(|leaf| leaf.branch(path.len()) == branch).copied().collect();
            match &below[..] {
                [] => {}
                [leaf] => rules.push_str(&self.jump(at, leaf.chain)),
                many => {
                    let path = format!("{path}{branch}");
                    let chain = format!("{}{path}", self.direction.tree_prefix());
                    let body = self.rules(&chain, &path, many);
                    rules.push_str(&self.jump(at, &chain));
                    let entries = many.iter().flat_map(|leaf| leaf.entries.iter().cloned());
                    self.sets
                        .push((format!("{chain}{}", set_suffix(self.family)), IpSet::new(SetKind::HashIp, entries)));
                    self.chains.push((chain, body));
                }
            }
        }
        rules
    }

    fn jump(&self, at: &str, to: &str) -> String {
        let (suffix, side) = (set_suffix(self.family), self.direction.own());
        format!("-A {at} -m set --match-set {to}{suffix} {side} -j {to}\n")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::rules::hashed_name;

    /// Each profile is reached by one way, over chains that test few sets, and a new one changes one chain besides its own.
    #[test]
    fn each_profile_is_found_in_few_steps() {
        let name = |i: usize| hashed_name(Direction::Ingress.chain_prefix(), &i.to_string());
        let tree = |count: usize| {
            let names: Vec<String> = (0..count).map(name).collect();
            let leaf = |(i, chain)| {
                let ip = std::net::Ipv4Addr::from(u32::try_from(i).unwrap()).into();
                Leaf { chain, entries: vec![Entry::Address(ip)] }
            };
            let leaves: Vec<Leaf<'_>> = names.iter().map(String::as_str).enumerate().map(leaf).collect();
            let mut tree = Tree::new(Direction::Ingress, Family::V4);
            let root = tree.rules("ROOT", "", &leaves.iter().collect::<Vec<_>>());
            let sets: BTreeMap<String, IpSet> = tree.sets.drain(..).collect();
            let mut chains: BTreeMap<String, String> = tree.chains.drain(..).collect();
            chains.insert("ROOT".to_owned(), root);
            (chains, sets)
        };
        let (chains, sets) = tree(1000);
        for (i, profile) in (0u32..).zip((0..1000).map(name)) {
            let mut tests = 0;
            let mut waiting = vec!["ROOT".to_owned()];
            let mut found = 0;
            while let Some(chain) = waiting.pop() {
                for rule in chains[&chain].lines() {
                    tests += 1;
                    let to = rule.rsplit(' ').next().unwrap();
                    let ip = std::net::Ipv4Addr::from(i).into();
                    if to == profile {
                        found += 1;
                    } else if sets
                        .get(&format!("{to}-4"))
                        .is_some_and(|set| set.entries.contains_key(&Entry::Address(ip)))
                    {
                        waiting.push(to.to_owned());
                    }
                }
            }
            assert_eq!(found, 1, "{profile}");
            assert!(tests <= 40, "{tests} for {profile}");
        }
        let (more, _) = tree(1001);
        let changed = more.iter().filter(|(chain, body)| chains.get(*chain) != Some(*body)).count();
        assert!(changed <= 2 && chains.keys().all(|chain| more.contains_key(chain)), "{changed}");
        assert!(chains.keys().all(|chain| chain.len() <= 28));
    }
}
