//! Makes the chains and sets of one address family out of what the cluster has. What follows from policies alone is made once
//! ([`super::profile`]); what depends on pods, each time. Pure.

use std::{collections::BTreeMap, fmt::Write as _, sync::Arc};

use super::{
    Cluster,
    dispatch::{Leaf, Tree},
    objects::PodFacts,
    policy::{Policy, Rule},
    profile::Profile,
    sets::{Entry, IpSet, IpSets, SetKind},
};
use crate::model::Family;

/// The table of all chains.
pub const TABLE: &str = "mangle";
/// The base chain of [`JUMP`].
pub const BASE_CHAIN: &str = "FORWARD";
/// The chain that leads to those of profiles.
pub const ROOT_CHAIN: &str = "WINDLASS-POLICY";
/// The rule of the base chain.
pub const JUMP: &str = "-m comment --comment \"kubernetes network policies\" -j WINDLASS-POLICY";
/// How the sets of pods' own addresses and links begin.
const SELF_SET: &str = "WINDLASS-SELF";
/// How the names of sets of pods begin.
pub(super) const PODS_SET: &str = "WINDLASS-NP-";
/// How the names of sets of excepted ranges begin.
pub(super) const EXCEPT_SET: &str = "WINDLASS-NX-";

/// Which packets of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// Those to it.
    Ingress,
    /// Those from it.
    Egress,
}

/// Both, in the order in which packets are judged.
pub const DIRECTIONS: [Direction; 2] = [Direction::Egress, Direction::Ingress];

impl Direction {
    /// How the names of its chains begin; a set of the pods of a chain has the chain's name with the family behind.
    #[must_use]
    pub const fn chain_prefix(self) -> &'static str {
        match self {
            Self::Ingress => "WINDLASS-NI-",
            Self::Egress => "WINDLASS-NE-",
        }
    }

    /// How the names of the chains begin that lead to them; the sets of their pods are named in the same way.
    pub(super) const fn tree_prefix(self) -> &'static str {
        match self {
            Self::Ingress => "WINDLASS-NTI-",
            Self::Egress => "WINDLASS-NTE-",
        }
    }

    /// `ingress` or `egress`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        }
    }

    /// Which address of a packet is the pod's, in the words of the match `set`.
    pub(super) const fn own(self) -> &'static str {
        match self {
            Self::Ingress => "dst",
            Self::Egress => "src",
        }
    }

    /// And which is the peer's.
    pub(super) const fn peer(self) -> &'static str {
        match self {
            Self::Ingress => "src",
            Self::Egress => "dst",
        }
    }

    pub(super) fn rules(self, policy: &Policy) -> Option<&[Rule]> {
        match self {
            Self::Ingress => policy.ingress.as_deref(),
            Self::Egress => policy.egress.as_deref(),
        }
    }
}

/// Whether a chain of the mangle table is ours.
#[must_use]
pub fn is_policy_chain(name: &str) -> bool {
    name == ROOT_CHAIN || is_below_root(name)
}

fn is_below_root(name: &str) -> bool {
    DIRECTIONS.iter().any(|of| name.starts_with(of.chain_prefix()) || name.starts_with(of.tree_prefix()))
}

/// Whether an IP set is ours.
#[must_use]
pub fn is_policy_set(name: &str) -> bool {
    [SELF_SET, PODS_SET, EXCEPT_SET].iter().any(|prefix| name.starts_with(prefix)) || is_below_root(name)
}

/// The family's letter at the end of a set's name.
#[must_use]
pub const fn set_suffix(family: Family) -> &'static str {
    match family {
        Family::V4 => "-4",
        Family::V6 => "-6",
    }
}

/// What the kernel is to have of one family. Nothing at all while no policy selects a pod of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Which family.
    pub family: Family,
    /// Chains of the mangle table with their rules, each before those that lead to it.
    pub chains: Vec<(String, Arc<str>)>,
    /// The sets that they name.
    pub sets: IpSets,
}

impl Wanted {
    /// Nothing.
    #[must_use]
    pub fn nothing(family: Family) -> Self {
        Self { family, chains: Vec::new(), sets: IpSets::default() }
    }

    /// The sets as comments, and the chains as restore input, with the jump to them.
    #[must_use]
    pub fn text(&self) -> String {
        if self.chains.is_empty() {
            return String::new();
        }
        let mut out = self.sets.text(self.family);
        let _ = writeln!(out, "*{TABLE}\n:{BASE_CHAIN} ACCEPT [0:0]");
        self.chains.iter().for_each(|(name, _)| _ = writeln!(out, ":{name} - [0:0]"));
        let _ = writeln!(out, "-A {BASE_CHAIN} {JUMP}");
        self.chains.iter().for_each(|(_, body)| out.push_str(body));
        out.push_str("COMMIT\n");
        out
    }
}

impl Cluster {
    /// What the kernel is to have of these families.
    pub fn wanted(&mut self, families: &[Family]) -> Vec<Wanted> {
        self.compile();
        families.iter().map(|family| self.wanted_of(*family)).collect()
    }

    fn wanted_of(&self, family: Family) -> Wanted {
        let mut out = Wanted::nothing(family);
        let mut profiles: BTreeMap<&Profile, Vec<&PodFacts>> = BTreeMap::new();
        for (_, pod) in self.local_pods() {
            for profile in pod.profiles.iter().flatten() {
                profiles.entry(profile).or_default().push(&pod.facts);
            }
        }
        if profiles.is_empty() {
            return out;
        }
        let mut put = |stem: &str, set: IpSet| {
            let name = format!("{stem}{}", set_suffix(family));
            out.sets.0.entry(name.clone()).or_insert(set);
            name
        };
        let mut own = Vec::new();
        let mut chains = Vec::with_capacity(profiles.len() + 1);
        let mut leaves: [Vec<Leaf<'_>>; 2] = [Vec::new(), Vec::new()];
        let of_direction = |direction| profiles.iter().filter(move |(profile, _)| profile.direction == direction);
        for (profile, pods) in DIRECTIONS.into_iter().flat_map(of_direction) {
            let Some(compiled) = self.compiled(profile) else { continue };
            let chain = &compiled.chains[family as usize];
            chains.push((profile.chain.clone(), chain.rules.clone()));
            let addresses = || pods.iter().flat_map(|pod| pod.addresses.iter().map(move |ip| (pod, *ip)));
            let of_family = || addresses().filter(|(_, ip)| Family::of(ip) == family);
            own.extend(of_family().map(|(pod, ip)| Entry::Interface(ip, pod.interface.clone())));
            let entries: Vec<Entry> = of_family().map(|(_, ip)| Entry::Address(ip)).collect();
            put(&profile.chain, IpSet::new(SetKind::HashIp, entries.iter().cloned()));
            leaves[profile.direction as usize].push(Leaf { chain: &profile.chain, entries });
        }
        let own = put(SELF_SET, IpSet::new(SetKind::HashNetIface, own));
        let mut root = format!(
            "-A {ROOT_CHAIN} -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN\n\
             -A {ROOT_CHAIN} -m comment --comment \"a pod reaches itself\" -m set --match-set {own} src,dst -j RETURN\n"
        );
        for direction in DIRECTIONS {
            let mut tree = Tree::new(direction, family);
            let leaves: Vec<&Leaf<'_>> = leaves[direction as usize].iter().collect();
            root.push_str(&tree.rules(ROOT_CHAIN, "", &leaves));
            chains.extend(tree.chains.into_iter().map(|(name, body)| (name, body.into())));
            out.sets.0.extend(tree.sets);
        }
        out.sets.0.extend(self.named_sets(family));
        chains.push((ROOT_CHAIN.to_owned(), root.into()));
        out.chains = chains;
        out
    }
}
