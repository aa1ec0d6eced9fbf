//! Makes the chains and sets of one address family out of what the cluster has. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    sync::Arc,
};

use super::{
    Cluster,
    cluster::{PodState, Selected},
    policy::{Labels, Namespaces, Peer, Pods, Policy, PortMatch, Ports, Rule},
    sets::{Entry, IpSet, IpSets, SetKind},
};
use crate::{
    model::{Cidr, Family, Protocol},
    rules::hashed_name,
};

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
const PODS_SET: &str = "WINDLASS-NP-";
/// How the names of sets of excepted ranges begin.
const EXCEPT_SET: &str = "WINDLASS-NX-";
/// How the comment of a rule that drops begins; the names of policies follow.
pub(super) const DROP_COMMENT: &str = "no rule allows it of NetworkPolicy";
/// The longest comment of a rule (`XT_MAX_COMMENT_LEN`, with its NUL).
const MAX_COMMENT_LEN: usize = 255;

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

    /// `ingress` or `egress`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        }
    }

    /// Which address of a packet is the pod's, in the words of the match `set`.
    const fn own(self) -> &'static str {
        match self {
            Self::Ingress => "dst",
            Self::Egress => "src",
        }
    }

    /// And which is the peer's.
    const fn peer(self) -> &'static str {
        match self {
            Self::Ingress => "src",
            Self::Egress => "dst",
        }
    }

    fn rules(self, policy: &Policy) -> Option<&[Rule]> {
        match self {
            Self::Ingress => policy.ingress.as_deref(),
            Self::Egress => policy.egress.as_deref(),
        }
    }
}

/// Whether a chain of the mangle table is ours.
#[must_use]
pub fn is_policy_chain(name: &str) -> bool {
    name == ROOT_CHAIN || DIRECTIONS.iter().any(|of| name.starts_with(of.chain_prefix()))
}

/// Whether an IP set is ours.
#[must_use]
pub fn is_policy_set(name: &str) -> bool {
    [SELF_SET, PODS_SET, EXCEPT_SET].iter().any(|prefix| name.starts_with(prefix))
        || DIRECTIONS.iter().any(|of| name.starts_with(of.chain_prefix()))
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
    pub chains: Vec<(String, String)>,
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

/// The policies that isolate some pods of a namespace in one direction.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Profile {
    direction: Direction,
    namespace: Arc<str>,
    policies: Vec<Arc<str>>,
}

impl Profile {
    fn chain(&self) -> String {
        hashed_name(self.direction.chain_prefix(), &format!("{}/{}", self.namespace, self.policies.join(",")))
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

    fn selected(&self) -> impl Iterator<Item = &Selected> {
        let peer = if let AllowedPeer::Pods(of) = &self.peer { Some(of) } else { None };
        let port = if let AllowedPorts::Named(of) = &self.ports { Some(of) } else { None };
        peer.into_iter().chain(port)
    }
}

impl Cluster {
    /// What the kernel is to have of these families.
    pub fn wanted(&mut self, families: &[Family]) -> Vec<Wanted> {
        let mut profiles: BTreeMap<Profile, Vec<Arc<PodState>>> = BTreeMap::new();
        for ((namespace, _), pod) in self.local_pods().filter(|(_, pod)| !pod.policies.is_empty()) {
            let state = Arc::new(pod.clone());
            for direction in DIRECTIONS {
                let isolates = |name: &&Arc<str>| {
                    self.policy(namespace, name).is_some_and(|policy| direction.rules(policy).is_some())
                };
                let policies: Vec<Arc<str>> = pod.policies.iter().filter(isolates).cloned().collect();
                if !policies.is_empty() {
                    let profile = Profile { direction, namespace: namespace.clone(), policies };
                    profiles.entry(profile).or_default().push(state.clone());
                }
            }
        }
        let mut needed = BTreeSet::new();
        for profile in profiles.keys() {
            self.each_allowed(profile, |_, allowed| needed.extend(allowed.selected().cloned()));
        }
        self.select(&needed);
        families.iter().map(|family| Renderer::new(self, *family).render(&profiles)).collect()
    }

    /// Calls for each combination that the policies of a profile allow, with the name of the policy.
    fn each_allowed<'a>(&'a self, profile: &Profile, mut each: impl FnMut(&str, Allowed<'a>)) {
        for name in &profile.policies {
            let Some(policy) = self.policy(&profile.namespace, name) else { continue };
            for rule in profile.direction.rules(policy).unwrap_or_default() {
                for allowed in Allowed::of(profile.direction, &profile.namespace, policy, rule) {
                    each(name, allowed);
                }
            }
        }
    }
}

struct Renderer<'a> {
    cluster: &'a Cluster,
    out: Wanted,
}

impl<'a> Renderer<'a> {
    fn new(cluster: &'a Cluster, family: Family) -> Self {
        Self { cluster, out: Wanted::nothing(family) }
    }

    fn render(mut self, profiles: &BTreeMap<Profile, Vec<Arc<PodState>>>) -> Wanted {
        if profiles.is_empty() {
            return self.out;
        }
        let family = self.out.family;
        let mut own = Vec::new();
        let mut dispatch = String::new();
        for direction in DIRECTIONS {
            for (profile, pods) in profiles.iter().filter(|(profile, _)| profile.direction == direction) {
                let chain = profile.chain();
                self.profile(profile, &chain);
                let pods = || pods.iter().flat_map(|pod| pod.facts.addresses.iter().map(move |ip| (pod, *ip)));
                let of_family = || pods().filter(|(_, ip)| Family::of(ip) == family);
                own.extend(of_family().map(|(pod, ip)| Entry::Interface(ip, pod.facts.interface.clone())));
                let members = IpSet::new(SetKind::HashIp, of_family().map(|(_, ip)| Entry::Address(ip)));
                let set = self.put(chain.clone(), members);
                let side = direction.own();
                let _ = writeln!(dispatch, "-A {ROOT_CHAIN} -m set --match-set {set} {side} -j {chain}");
            }
        }
        let own = self.put(SELF_SET.to_owned(), IpSet::new(SetKind::HashNetIface, own));
        let root = format!(
            "-A {ROOT_CHAIN} -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN\n\
             -A {ROOT_CHAIN} -m comment --comment \"a pod reaches itself\" -m set --match-set {own} src,dst -j RETURN\n\
             {dispatch}"
        );
        self.out.chains.push((ROOT_CHAIN.to_owned(), root));
        self.out
    }

    /// Adds a set and returns its name.
    fn put(&mut self, stem: String, set: IpSet) -> String {
        let name = stem + set_suffix(self.out.family);
        self.out.sets.0.entry(name.clone()).or_insert(set);
        name
    }

    /// The set of some pods.
    fn pods(&mut self, of: &Selected) -> String {
        let (kind, text) = match &of.port {
            None => (SetKind::HashIp, of.pods.to_string()),
            Some((protocol, name)) => (SetKind::HashIpPort, format!("{}, port {protocol} {name}", of.pods)),
        };
        let entries = self.cluster.entries(of, self.out.family);
        self.put(hashed_name(PODS_SET, &text), IpSet { kind, entries })
    }

    /// Adds the chain of a profile.
    fn profile(&mut self, profile: &Profile, chain: &str) {
        let mut body = String::new();
        let mut seen = BTreeSet::new();
        let cluster = self.cluster;
        cluster.each_allowed(profile, |name, allowed| {
            let Some([before, behind]) = self.matches(profile.direction, &allowed) else { return };
            // Of equal ones the first decides.
            if seen.insert([before.clone(), behind.clone()]) {
                let name = format!("{}/{name}", profile.namespace);
                let comment = cut(&name);
                let _ = writeln!(body, "-A {chain} {before}-m comment --comment \"{comment}\" {behind}-j RETURN");
            }
        });
        let _ = writeln!(body, "-A {chain} -m comment --comment \"{}\" -j DROP", profile.drop_comment());
        self.out.chains.push((chain.to_owned(), body));
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
                if range.family() != self.out.family {
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
                    let set = self.put(hashed_name(EXCEPT_SET, &text.join(",")), set);
                    let _ = write!(behind, "-m set ! --match-set {set} {side} ");
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
