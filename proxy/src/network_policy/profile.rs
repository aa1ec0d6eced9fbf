//! Makes the chain of a profile out of its policies alone: once, whatever pods come and go. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    sync::Arc,
};

use super::{
    cluster::Selected,
    policy::{Labels, Namespaces, Peer, Pods, Policy, PortMatch, Ports, Rule},
    rules::{Direction, EXCEPT_SET, PODS_SET, set_suffix},
    sets::{Entry, IpSet, SetKind},
};
use crate::{
    model::{Cidr, Family, Protocol},
    rules::hashed_name,
};

/// How the comment of a rule that drops begins; the names of policies follow.
pub(super) const DROP_COMMENT: &str = "no rule allows it of NetworkPolicy";
/// The longest comment of a rule (`XT_MAX_COMMENT_LEN`, with its NUL).
const MAX_COMMENT_LEN: usize = 255;

/// The policies that isolate some pods of a namespace in one direction.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Profile {
    pub(super) direction: Direction,
    pub(super) namespace: Arc<str>,
    pub(super) policies: Vec<Arc<str>>,
    /// The name of its chain, which follows from the rest.
    pub(super) chain: String,
}

impl Profile {
    /// `None` without a policy.
    pub(super) fn new(direction: Direction, namespace: &Arc<str>, policies: Vec<Arc<str>>) -> Option<Self> {
        let chain = hashed_name(direction.chain_prefix(), &format!("{namespace}/{}", policies.join(",")));
        (!policies.is_empty()).then(|| Self { direction, namespace: namespace.clone(), policies, chain })
    }

    /// The comment of the rule that drops.
    fn drop_comment(&self) -> String {
        let mut text = DROP_COMMENT.to_owned();
        for (i, name) in self.policies.iter().enumerate() {
            let next = format!("{}{}/{name}", if i == 0 { " " } else { ", " }, self.namespace);
            let others = |more: usize| if more == 0 { String::new() } else { format!(" and {more} more") };
            let room = MAX_COMMENT_LEN.saturating_sub(text.len() + others(self.policies.len() - i - 1).len());
            if next.len() <= room {
                text.push_str(&next);
                continue;
            }
            // Of the first a part is shown at least.
            if i == 0 {
                text.push_str(next.get(..room).unwrap_or_default());
            }
            return text + &others(self.policies.len() - i.max(1));
        }
        text
    }
}

/// What follows from the policies of a profile.
#[derive(Debug, Clone, Default)]
pub(super) struct Compiled {
    /// The sets of pods that its rules name, by their names without the family.
    pub(super) selected: BTreeMap<Arc<str>, Arc<Selected>>,
    /// By family.
    pub(super) chains: [CompiledChain; 2],
}

/// The chain in one family.
#[derive(Debug, Clone, Default)]
pub(super) struct CompiledChain {
    pub(super) rules: Arc<str>,
    /// The sets of excepted ranges with their names.
    pub(super) excepted: Vec<(String, IpSet)>,
}

/// Compiles the policies of a profile, in their order.
pub(super) fn compile(profile: &Profile, policies: &[(&str, &Policy)]) -> Compiled {
    let mut allowed = Vec::new();
    for (name, policy) in policies {
        for rule in profile.direction.rules(policy).unwrap_or_default() {
            let of_rule = Allowed::of(profile.direction, &profile.namespace, policy, rule);
            allowed.extend(of_rule.into_iter().map(|allowed| (*name, allowed)));
        }
    }
    let mut out = Compiled::default();
    for family in Family::BOTH {
        let selected = std::mem::take(&mut out.selected);
        let mut compiler = Compiler { profile, family, selected, out: CompiledChain::default() };
        compiler.chain(&allowed);
        out.selected = compiler.selected;
        out.chains[family as usize] = compiler.out;
    }
    out
}

/// Whom a rule of a chain allows.
#[derive(Debug, Clone, PartialEq, Eq)]
enum AllowedPeer<'a> {
    Anybody,
    Pods(Selected),
    Block(&'a Cidr, &'a [Cidr]),
}

/// And which ports.
#[derive(Debug, Clone, PartialEq, Eq)]
enum AllowedPorts {
    All,
    Range(u16, u16),
    Named(Selected),
}

/// A combination of a peer and ports that a policy allows: one rule of a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Allowed<'a> {
    peer: AllowedPeer<'a>,
    protocol: Option<Protocol>,
    ports: AllowedPorts,
}

impl<'a> Allowed<'a> {
    /// All combinations of a rule of a policy. A named port is that of the destination pod.
    fn of(direction: Direction, namespace: &Arc<str>, policy: &'a Policy, rule: &'a Rule) -> Vec<Self> {
        let peer = |peer: &'a Peer| match peer {
            Peer::Pods(pods) => AllowedPeer::Pods(Selected { pods: pods.clone(), port: None }),
            Peer::Block { range, except } => AllowedPeer::Block(range, except),
        };
        let peers: Vec<AllowedPeer<'a>> =
            rule.peers.as_ref().map_or_else(|| vec![AllowedPeer::Anybody], |list| list.iter().map(peer).collect());
        let any = [PortMatch { protocol: Protocol::Tcp, ports: Ports::All }];
        let (ports, of_any_protocol) = rule.ports.as_deref().map_or((&any[..], true), |list| (list, false));
        let mut out = Vec::new();
        for peer in peers {
            for PortMatch { protocol, ports } in ports {
                let (peer, ports) = match ports {
                    Ports::All => (peer.clone(), AllowedPorts::All),
                    Ports::Range(first, last) => (peer.clone(), AllowedPorts::Range(*first, *last)),
                    Ports::Named(name) => {
                        let port = Some((*protocol, name.clone()));
                        let everybody = || Pods { namespaces: Namespaces::Any, labels: Labels::all() };
                        match (direction, &peer) {
                            (Direction::Ingress, _) => {
                                let namespaces = Namespaces::One(namespace.clone());
                                let pods = Pods { namespaces, labels: policy.selects.clone() };
                                (peer.clone(), AllowedPorts::Named(Selected { pods, port }))
                            }
                            (Direction::Egress, AllowedPeer::Pods(of)) => {
                                let selected = Selected { pods: of.pods.clone(), port };
                                (AllowedPeer::Anybody, AllowedPorts::Named(selected))
                            }
                            (Direction::Egress, _) => {
                                (peer.clone(), AllowedPorts::Named(Selected { pods: everybody(), port }))
                            }
                        }
                    }
                };
                out.push(Self { peer, protocol: (!of_any_protocol).then_some(*protocol), ports });
            }
        }
        out
    }
}

struct Compiler<'a> {
    profile: &'a Profile,
    family: Family,
    selected: BTreeMap<Arc<str>, Arc<Selected>>,
    out: CompiledChain,
}

impl Compiler<'_> {
    fn chain(&mut self, allowed: &[(&str, Allowed<'_>)]) {
        let Profile { namespace, chain, .. } = self.profile;
        let mut body = String::new();
        let mut seen = BTreeSet::new();
        for (name, allowed) in allowed {
            let Some([before, behind]) = self.matches(self.profile.direction, allowed) else { continue };
            // Of equal ones the first decides.
            if seen.insert([before.clone(), behind.clone()]) {
                let name = format!("{namespace}/{name}");
                let comment = cut(&name);
                let _ = writeln!(body, "-A {chain} {before}-m comment --comment \"{comment}\" {behind}-j RETURN");
            }
        }
        let _ = writeln!(body, "-A {chain} -m comment --comment \"{}\" -j DROP", self.profile.drop_comment());
        self.out.rules = body.into();
    }

    /// Selects a set and returns its name.
    fn pods(&mut self, of: &Selected) -> String {
        let text = match &of.port {
            None => of.pods.to_string(),
            Some((protocol, name)) => format!("{}, port {protocol} {name}", of.pods),
        };
        let stem: Arc<str> = hashed_name(PODS_SET, &text).into();
        let name = format!("{stem}{}", set_suffix(self.family));
        self.selected.entry(stem).or_insert_with(|| Arc::new(of.clone()));
        name
    }

    /// The matches of a rule, before its comment and behind it; `None` if no packet of the family can match.
    fn matches(&mut self, direction: Direction, allowed: &Allowed<'_>) -> Option<[String; 2]> {
        let (mut before, mut behind) = (String::new(), String::new());
        let side = direction.peer();
        match &allowed.peer {
            AllowedPeer::Anybody => {}
            AllowedPeer::Pods(of) => {
                let set = self.pods(of);
                let _ = write!(behind, "-m set --match-set {set} {side} ");
            }
            AllowedPeer::Block(range, except) => {
                if range.family() != self.family {
                    return None;
                }
                if !range.is_all() {
                    let option = if direction == Direction::Ingress { "-s" } else { "-d" };
                    let _ = write!(before, "{option} {range} ");
                }
                if !except.is_empty() {
                    let ranges: BTreeSet<Cidr> = except.iter().copied().collect();
                    let text: Vec<String> = ranges.iter().map(ToString::to_string).collect();
                    let set = IpSet::new(SetKind::HashNet, ranges.into_iter().map(Entry::Range));
                    let name = hashed_name(EXCEPT_SET, &text.join(",")) + set_suffix(self.family);
                    let _ = write!(behind, "-m set ! --match-set {name} {side} ");
                    self.out.excepted.push((name, set));
                }
            }
        }
        if let Some(protocol) = allowed.protocol {
            let _ = write!(before, "-p {protocol} ");
            // The match `sctp` is a module that a kernel may lack; `multiport` knows the protocol, too.
            let (name, option) = match protocol {
                Protocol::Sctp => ("multiport", "--dports"),
                Protocol::Tcp | Protocol::Udp => (protocol.lower(), "--dport"),
            };
            match &allowed.ports {
                AllowedPorts::All => {}
                AllowedPorts::Range(first, last) if first == last => {
                    let _ = write!(behind, "-m {name} {option} {first} ");
                }
                AllowedPorts::Range(first, last) => {
                    let _ = write!(behind, "-m {name} {option} {first}:{last} ");
                }
                AllowedPorts::Named(of) => {
                    let set = self.pods(of);
                    let _ = write!(behind, "-m set --match-set {set} dst,dst ");
                }
            }
        }
        Some([before, behind])
    }
}

/// A comment that is not too long.
fn cut(text: &str) -> &str {
    text.get(..MAX_COMMENT_LEN.min(text.len())).unwrap_or_default()
}
