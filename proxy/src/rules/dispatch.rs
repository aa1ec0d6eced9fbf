//! Dispatch chains with many rules become prefix trees: a packet traverses a few rules instead of all. Pure.
//!
//! The shape depends only on the set of rules, so that any sequence of changes ends in the chains that a fresh start
//! would write. Inner nodes use `goto` (`-g`): a packet that no leaf matches returns to the dispatch chain, whose last
//! rule jumps to KUBE-NODEPORTS. Names start with `KUBE-SVC-`, which kube-proxy's clean-up knows, and contain a `-`
//! behind that, which the base32 name of a service chain never does.

use std::{collections::BTreeMap, fmt::Write as _, net::IpAddr};

use ring::digest::{SHA256, digest};

use super::DispatchChain;
use crate::model::{Cidr, Family, parse_ip};

/// A dispatch chain with more rules than this becomes a tree.
pub const MAX_FLAT_LINES: usize = 64;
/// Rules in a leaf, unless their keys are equal or the tree has its maximal depth.
const MAX_LEAF_LINES: usize = 16;
/// Bits of the key that one level of the tree distinguishes.
const BITS_PER_LEVEL: u32 = 4;
/// Levels below the dispatch chain. nf_tables follows at most 16 nested jumps (`NFT_JUMP_STACK_SIZE`), and up to nine
/// chains of the service port may follow the tree.
const MAX_DEPTH: u32 = 4;

/// A dispatch chain and the chains of its tree.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DispatchTree {
    /// The rules of the dispatch chain itself.
    pub root: String,
    /// The chains below it, jump targets before the chains that jump to them.
    pub subchains: Vec<(String, String)>,
}

/// Whether a chain belongs to a dispatch tree.
#[must_use]
pub fn is_tree_chain(name: &str) -> bool {
    name.strip_prefix("KUBE-SVC-D").is_some_and(|tail| tail.contains('-'))
}

/// The match by which a tree sorts one rule, parsed from its text once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LineKey {
    /// The protocol's first letter where ports count; 4 or 6 where addresses do.
    kind: u8,
    /// Left-aligned in 128 bits.
    key: u128,
}

impl LineKey {
    /// Parses the key of a rule; `None` for a rule that stays in the dispatch chain itself.
    #[must_use]
    pub fn of(chain: DispatchChain, line: &str) -> Option<Self> {
        key(chain, line).map(|(space, key)| {
            let kind = match space {
                KeySpace::Address(Family::V4) => 4,
                KeySpace::Address(Family::V6) => 6,
                KeySpace::Port(letter) | KeySpace::PortAt(letter, ..) => letter,
            };
            Self { kind, key }
        })
    }

    const fn space(self) -> KeySpace {
        match self.kind {
            4 => KeySpace::Address(Family::V4),
            6 => KeySpace::Address(Family::V6),
            letter => KeySpace::Port(letter),
        }
    }
}

/// The values that one tree branches on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum KeySpace {
    Address(Family),
    /// By the protocol's first letter.
    Port(u8),
    /// The ports of one address, by the protocol's first letter.
    PortAt(u8, Family, u128),
}

impl KeySpace {
    const fn width(self) -> u32 {
        match self {
            Self::Address(family) => family.bits() as u32,
            Self::Port(_) | Self::PortAt(..) => 16,
        }
    }

    /// The maximal depth of the tree. The ports of a single address get one level more: a tree of cluster IPs does not
    /// use the whole jump stack of nf_tables.
    const fn depth(self) -> u32 {
        match self {
            Self::PortAt(..) => MAX_DEPTH + 1,
            _ => MAX_DEPTH,
        }
    }

    /// The first `len` bits of a key as a match.
    fn matching(self, key: u128, len: u32) -> String {
        let base = prefix(key, len);
        match self {
            Self::Address(family) => format!("-d {}", range(family, base, len)),
            Self::Port(letter) | Self::PortAt(letter, ..) => {
                let protocol = protocol(letter);
                let first = u16::try_from(base >> 112).unwrap_or(0);
                let last = first | u16::MAX.checked_shr(len).unwrap_or(0);
                let ports = if first == last { first.to_string() } else { format!("{first}:{last}") };
                format!("-p {protocol} -m {protocol} --dport {ports}")
            }
        }
    }

    /// A chain name of at most 28 characters (`XT_EXTENSION_MAXNAMELEN` less the NUL): the prefix itself, or a digest
    /// of it where it does not fit.
    fn name(self, chain: DispatchChain, key: u128, len: u32) -> String {
        let base = prefix(key, len);
        let tag = tree_tag(chain);
        match self {
            Self::Address(Family::V4) => format!("KUBE-SVC-D{tag}{:08X}-{len}", base >> 96),
            Self::Port(letter) => {
                format!("KUBE-SVC-D{tag}P{}{:04X}-{len}", char::from(letter).to_ascii_uppercase(), base >> 112)
            }
            Self::Address(Family::V6) => digest_name(tag, &range(Family::V6, base, len).to_string()),
            Self::PortAt(letter, family, address) => {
                let at = range(family, address, family.bits() as u32);
                digest_name(tag, &format!("{at} {} {:04X}/{len}", protocol(letter), base >> 112))
            }
        }
    }
}

/// The chain name of a prefix that does not fit into a name: its SHA-256 digest.
fn digest_name(tag: &str, what: &str) -> String {
    let full = digest(&SHA256, what.as_bytes());
    let mut name = format!("KUBE-SVC-D{tag}-");
    full.as_ref()[..8].iter().for_each(|byte| {
        let _ = write!(name, "{byte:02X}");
    });
    name
}

/// The letter in a chain's name that keeps the trees of one table apart.
const fn tree_tag(chain: DispatchChain) -> &'static str {
    match chain {
        DispatchChain::Services | DispatchChain::NodePorts => "",
        DispatchChain::Refused => "R",
        DispatchChain::External => "E",
        DispatchChain::HealthChecks => "H",
        DispatchChain::Firewall => "F",
    }
}

const fn protocol(letter: u8) -> &'static str {
    match letter {
        b't' => "tcp",
        b'u' => "udp",
        _ => "sctp",
    }
}

fn prefix(key: u128, len: u32) -> u128 {
    key & u128::MAX.checked_shl(128 - len).unwrap_or(0)
}

fn range(family: Family, base: u128, len: u32) -> Cidr {
    let ip = match family {
        Family::V4 => IpAddr::from(u32::try_from(base >> 96).unwrap_or(0).to_be_bytes()),
        Family::V6 => IpAddr::from(base.to_be_bytes()),
    };
    Cidr::new(ip, u8::try_from(len).unwrap_or(0))
}

fn after<'a>(line: &'a str, option: &str) -> Option<&'a str> {
    line.split_once(option)?.1.split(' ').next()
}

/// The protocol's first letter and the port of a line.
fn port(line: &str) -> Option<(u8, u128)> {
    let port: u16 = after(line, " --dport ")?.parse().ok()?;
    Some((*after(line, " -p ")?.as_bytes().first()?, u128::from(port) << 112))
}

/// The key of a rule: its whole destination address, else its port. Left-aligned in 128 bits.
fn key(chain: DispatchChain, line: &str) -> Option<(KeySpace, u128)> {
    let address = after(line, " -d ");
    // In KUBE-EXTERNAL-SERVICES a rule without destination rejects a node port at all addresses of this node.
    if matches!(chain, DispatchChain::NodePorts | DispatchChain::HealthChecks)
        || (chain == DispatchChain::External && address.is_none())
    {
        let (letter, key) = port(line)?;
        return Some((KeySpace::Port(letter), key));
    }
    match parse_ip(address?)? {
        IpAddr::V4(v4) => Some((KeySpace::Address(Family::V4), u128::from(v4.to_bits()) << 96)),
        IpAddr::V6(v6) => Some((KeySpace::Address(Family::V6), v6.to_bits())),
    }
}

/// Builds the chains for `lines`, which all start with `-A CHAIN `, in order, each with its key.
#[must_use]
pub fn build_dispatch_tree<'a>(
    chain: DispatchChain,
    lines: impl Iterator<Item = (Option<LineKey>, &'a str)>,
    tree: bool,
) -> DispatchTree {
    let static_chain = chain.static_chain();
    let mut out = DispatchTree::default();
    if !tree {
        for (_, line) in lines {
            out.root.push_str(line);
            out.root.push('\n');
        }
        return out;
    }
    let mut spaces: BTreeMap<KeySpace, Vec<(u128, &str)>> = BTreeMap::new();
    let mut others = String::new();
    let head = format!("-A {} ", static_chain.name());
    for (key, line) in lines {
        match key {
            Some(key) => {
                let rule = line.strip_prefix(&head).unwrap_or(line);
                spaces.entry(key.space()).or_default().push((key.key, rule));
            }
            None => {
                others.push_str(line);
                others.push('\n');
            }
        }
    }
    let mut subchains: Vec<(u32, String, String)> = Vec::new();
    for (space, mut entries) in spaces {
        entries.sort_by_key(|(key, _)| *key);
        let mut root = TreeNode {
            root_chain: chain,
            space,
            chain: static_chain.name().to_owned(),
            depth: 0,
            shared_bits: 0,
            body: String::new(),
        };
        root.build_subtree(&entries, &mut subchains);
        out.root.push_str(&root.body);
    }
    out.root.push_str(&others);
    // Jump targets come first: a write in several batches never jumps to an empty chain.
    subchains.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    out.subchains = subchains.into_iter().map(|(_, name, body)| (name, body)).collect();
    out
}

/// A chain of the tree under construction.
struct TreeNode {
    root_chain: DispatchChain,
    space: KeySpace,
    chain: String,
    /// Levels above it.
    depth: u32,
    /// Leading bits that all its keys share.
    shared_bits: u32,
    body: String,
}

impl TreeNode {
    /// Writes its rules, and pushes the chains below it to `out` with their depth.
    fn build_subtree(&mut self, entries: &[(u128, &str)], out: &mut Vec<(u32, String, String)>) {
        let (Some(first), Some(last)) = (entries.first(), entries.last()) else { return };
        let width = self.space.width();
        let common_bits = (first.0 ^ last.0).leading_zeros().min(width);
        let at = (common_bits / BITS_PER_LEVEL * BITS_PER_LEVEL).max(self.shared_bits);
        let max_depth = self.space.depth();
        if self.depth > 0 && (entries.len() <= MAX_LEAF_LINES || self.depth >= max_depth || at >= width) {
            if let KeySpace::Address(family) = self.space
                && entries.len() > MAX_LEAF_LINES
                && common_bits >= width
            {
                return self.split_by_port(family, first.0, entries, out);
            }
            for (_, line) in entries {
                self.body.extend(["-A ", self.chain.as_str(), " ", line, "\n"]);
            }
            return;
        }
        let verb = if self.depth == 0 { "-j" } else { "-g" };
        // The last level before the leaves distinguishes as many ports as a leaf may hold.
        let last = width == 16 && self.depth + 1 >= max_depth;
        let shared_bits = (at + BITS_PER_LEVEL).max(if last { width - BITS_PER_LEVEL } else { 0 }).min(width);
        let local = match self.space {
            KeySpace::Port(_) if self.root_chain == DispatchChain::External && self.depth == 0 => {
                " -m addrtype --dst-type LOCAL"
            }
            _ => "",
        };
        for group in entries.chunk_by(|a, b| prefix(a.0, shared_bits) == prefix(b.0, shared_bits)) {
            let key = group[0].0;
            let chain = self.space.name(self.root_chain, key, shared_bits);
            let matching = self.space.matching(key, shared_bits);
            let _ = writeln!(self.body, "-A {} {matching}{local} {verb} {chain}", self.chain);
            let mut child = Self { chain, depth: self.depth + 1, shared_bits, body: String::new(), ..*self };
            child.build_subtree(group, out);
            out.push((child.depth, child.chain, child.body));
        }
    }

    /// Branches on the ports of one address, by protocol and number.
    fn split_by_port(
        &mut self,
        family: Family,
        address: u128,
        entries: &[(u128, &str)],
        out: &mut Vec<(u32, String, String)>,
    ) {
        let mut protocols: BTreeMap<u8, Vec<(u128, &str)>> = BTreeMap::new();
        let mut of_all_ports = String::new();
        for (_, line) in entries {
            match port(line) {
                Some((letter, port)) => protocols.entry(letter).or_default().push((port, line)),
                None => of_all_ports.extend(["-A ", self.chain.as_str(), " ", line, "\n"]),
            }
        }
        for (letter, mut ports) in protocols {
            ports.sort_by_key(|(port, _)| *port);
            let space = KeySpace::PortAt(letter, family, address);
            let mut part = Self { space, chain: self.chain.clone(), shared_bits: 0, body: String::new(), ..*self };
            part.build_subtree(&ports, out);
            self.body.push_str(&part.body);
        }
        self.body.push_str(&of_all_ports);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn made<'a>(chain: DispatchChain, lines: impl Iterator<Item = &'a String>, tree: bool) -> DispatchTree {
        build_dispatch_tree(chain, lines.map(|line| (LineKey::of(chain, line), line.as_str())), tree)
    }

    fn lines(addresses: &[u32]) -> Vec<String> {
        let sorted: std::collections::BTreeSet<&u32> = addresses.iter().collect();
        sorted
            .into_iter()
            .map(|a| {
                format!("-A KUBE-SERVICES -m tcp -p tcp -d {} --dport 80 -j X{a}", std::net::Ipv4Addr::from_bits(*a))
            })
            .collect()
    }

    /// Where a packet goes, and how many rules and chains it meets.
    fn walk(tree: &DispatchTree, to: u32) -> (Option<String>, usize, usize) {
        let chains: BTreeMap<&str, &str> = tree.subchains.iter().map(|(n, b)| (n.as_str(), b.as_str())).collect();
        let (mut body, mut rules, mut depth) = (tree.root.as_str(), 0, 0);
        'chain: loop {
            for line in body.lines() {
                rules += 1;
                let words: Vec<&str> = line.split(' ').collect();
                let d = words.iter().position(|w| *w == "-d").unwrap();
                let range = Cidr::parse(words[d + 1]).unwrap_or_else(|| Cidr::host(parse_ip(words[d + 1]).unwrap()));
                if range.contains(&IpAddr::from(to.to_be_bytes())) {
                    let target = *words.last().unwrap();
                    let Some(next) = chains.get(target) else { return (Some(target.to_owned()), rules, depth) };
                    depth += 1;
                    body = next;
                    continue 'chain;
                }
            }
            return (None, rules, depth);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// A tree leads where the flat chain leads, and the order in which lines came makes no difference.
        #[test]
        fn trees_lead_where_flat_chains_lead(
            near in prop::collection::vec(0x0a60_0000u32..0x0a60_ffff, 1..400),
            far in prop::collection::vec(any::<u32>(), 0..30),
            others in prop::collection::vec(any::<u32>(), 20),
        ) {
            let all: Vec<u32> = near.iter().chain(&far).copied().collect();
            let lines = lines(&all);
            let tree = made(DispatchChain::Services, lines.iter(), true);
            for to in all.iter().chain(&others) {
                let (target, _, depth) = walk(&tree, *to);
                prop_assert_eq!(target, all.contains(to).then(|| format!("X{to}")));
                prop_assert!(depth <= 4);
            }
            let reversed = made(DispatchChain::Services, lines.iter().rev(), true);
            prop_assert_eq!(&tree, &reversed);
            for (name, _) in &tree.subchains {
                prop_assert!(name.len() <= 28 && is_tree_chain(name), "{}", name);
            }
        }
    }

    #[test]
    fn a_packet_meets_few_rules() {
        let all: Vec<u32> = (0..10_000).map(|i| 0x0a60_0001 + i * 6).collect();
        let lines = lines(&all);
        let tree = made(DispatchChain::Services, lines.iter(), true);
        for to in [all[0], all[5000], all[9999], 0x0808_0808] {
            let (_, rules, _) = walk(&tree, to);
            assert!(rules <= 64, "{rules} rules");
        }
        // One service more: a leaf, and little else.
        let mut more = all.clone();
        more.push(0x0a60_0004);
        let other = self::lines(&more);
        let grown = made(DispatchChain::Services, other.iter(), true);
        let changed = grown.subchains.iter().filter(|chain| !tree.subchains.contains(chain)).count();
        assert!(changed <= 2 && grown.root == tree.root, "{changed} chains changed");
    }

    #[test]
    fn node_ports_are_told_apart_by_ranges_and_protocol() {
        let line = |p: &str, port: u32| {
            format!("-A KUBE-NODEPORTS -m comment --comment a/b -m {p} -p {p} --dport {port} -j X")
        };
        let all: Vec<String> = (0..100).map(|i| line("tcp", 30_000 + i)).chain([line("udp", 30_000)]).collect();
        let tree = made(DispatchChain::NodePorts, all.iter(), true);
        assert!(
            tree.root.contains("-A KUBE-NODEPORTS -p tcp -m tcp --dport 29952:30207 -j KUBE-SVC-DPT7500-8\n")
                || tree.root.contains("--dport 30000:30015 -j KUBE-SVC-DPT7530-12\n"),
            "{}",
            tree.root
        );
        assert!(tree.root.contains("-p udp -m udp"), "{}", tree.root);
        let flat = made(DispatchChain::NodePorts, all.iter(), false);
        assert_eq!(flat.root.lines().count(), 101);
    }

    /// The chains of a tree by name, their longest, and where a packet for a port ends that starts at the root.
    fn reach(tree: &DispatchTree, protocol: &str, to: u16) -> (usize, Option<String>) {
        let chains: BTreeMap<&str, &str> = tree.subchains.iter().map(|(n, b)| (n.as_str(), b.as_str())).collect();
        let longest = chains.values().chain([&tree.root.as_str()]).map(|b| b.lines().count()).max().unwrap();
        let (mut body, mut depth) = (tree.root.as_str(), 0);
        'chain: loop {
            for line in body.lines() {
                let of = |option| after(line, option);
                let (low, high) = of(" --dport ").map_or((0, u16::MAX), |ports| {
                    let (low, high) = ports.split_once(':').unwrap_or((ports, ports));
                    (low.parse().unwrap(), high.parse().unwrap())
                });
                if of(" -p ").is_none_or(|p| p == protocol) && (low..=high).contains(&to) {
                    let target = line.rsplit(' ').next().unwrap();
                    let Some(next) = chains.get(target) else { return (longest, Some(target.to_owned())) };
                    depth += 1;
                    assert!(depth <= 5, "{target}");
                    body = next;
                    continue 'chain;
                }
            }
            return (longest, None);
        }
    }

    #[test]
    fn a_service_of_very_many_ports_is_told_apart_by_port() {
        let line =
            |p: &str, port: u32| format!("-A KUBE-SERVICES -m {p} -p {p} -d 10.96.0.9 --dport {port} -j {p}{port}");
        let other = "-A KUBE-SERVICES -m tcp -p tcp -d 10.97.0.9 --dport 80 -j X".to_owned();
        let ports = (20_000..21_000).flat_map(|port| [line("tcp", port), line("udp", port)]);
        let all: Vec<String> = ports.chain([other]).collect();
        let tree = made(DispatchChain::Services, all.iter(), true);
        for (protocol, port) in [("tcp", 20_000), ("udp", 20_999), ("udp", 20_500), ("tcp", 20_511)] {
            let (longest, target) = reach(&tree, protocol, port);
            assert_eq!((target, longest <= 17), (Some(format!("{protocol}{port}")), true), "{longest}");
        }
        assert_eq!(reach(&tree, "sctp", 20_000).1, None);
        let reversed = made(DispatchChain::Services, all.iter().rev(), true);
        assert_eq!(tree, reversed);
        assert!(tree.subchains.iter().all(|(name, _)| name.len() <= 28 && is_tree_chain(name)));
    }

    #[test]
    fn refused_node_ports_are_told_apart_by_port() {
        let line = |port: u32| {
            format!(
                "-A KUBE-EXTERNAL-SERVICES -m comment --comment \"a/b has no local endpoints\" \
                 -m addrtype --dst-type LOCAL -m tcp -p tcp --dport {port} -j DROP{port}"
            )
        };
        let all: Vec<String> = (30_000..31_000).map(line).collect();
        let tree = made(DispatchChain::External, all.iter(), true);
        assert!(tree.root.lines().all(|l| l.contains(" -m addrtype --dst-type LOCAL -j ")), "{}", tree.root);
        for port in [30_000, 30_500, 30_999] {
            let (longest, target) = reach(&tree, "tcp", port);
            assert_eq!((target, longest <= 16), (Some(format!("DROP{port}")), true), "{longest}");
        }
    }

    #[test]
    fn service_chains_are_no_dispatch_chains() {
        assert!(!is_tree_chain("KUBE-SVC-DAAAAAAAAAAAAAAA") && !is_tree_chain("KUBE-SVC-XPGD46QRK7WJZT7O"));
    }
}
