//! Dispatching chains that grow large become prefix trees: a packet meets a few rules instead of all. Pure.
//!
//! The shape depends only on the set of lines, so that any way of changes ends in the chains that a fresh start would
//! write. Inner nodes go on with `goto`: behind a tree a packet comes back to the chain that the tree hangs in, where
//! the node ports' rule is the last. Names start with a prefix that upstream's clean-up knows, and hold a `-`, which
//! no name of a service's chain does.

use std::{collections::BTreeMap, fmt::Write as _, net::IpAddr};

use ring::digest::{SHA256, digest};

use super::Top;
use crate::model::{Cidr, Family, parse_ip};

/// Chains with more lines than this become trees.
pub const FLAT: usize = 64;
/// Most lines of a leaf, unless its lines cannot be told apart or the tree is as deep as it may be.
const LEAF: usize = 16;
/// Bits that one level looks at.
const STEP: u32 = 4;
/// Most levels below the chain that the tree hangs in: nf_tables takes 15 chains on a packet's way, and up to nine
/// more may follow.
const DEPTH: u32 = 4;

/// The chains of one dispatching chain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dispatch {
    /// The rules of the dispatching chain itself.
    pub root: String,
    /// The chains below it, those that others lead to first.
    pub below: Vec<(String, String)>,
}

/// Whether a chain is one of a tree.
#[must_use]
pub fn is_dispatch(name: &str) -> bool {
    name.strip_prefix("KUBE-SVC-D").is_some_and(|tail| tail.contains('-'))
}

/// What one line is told apart by, read out of its text once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LineKey {
    /// The protocol's first letter where ports count; 4 or 6 where addresses do.
    kind: u8,
    /// At the left of its 128 bits.
    key: u128,
}

impl LineKey {
    /// Reads the key of a line; `None` for one that stays in the chain itself.
    #[must_use]
    pub fn of(top: Top, line: &str) -> Option<Self> {
        key(top, line).map(|(space, key)| {
            let kind = match space {
                Space::Address(Family::V4) => 4,
                Space::Address(Family::V6) => 6,
                Space::Port(letter) | Space::PortAt(letter, ..) => letter,
            };
            Self { kind, key }
        })
    }

    const fn space(self) -> Space {
        match self.kind {
            4 => Space::Address(Family::V4),
            6 => Space::Address(Family::V6),
            letter => Space::Port(letter),
        }
    }
}

/// What lines are told apart by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Space {
    Address(Family),
    /// By the protocol's first letter.
    Port(u8),
    /// The ports of one address, by the protocol's first letter.
    PortAt(u8, Family, u128),
}

impl Space {
    const fn width(self) -> u32 {
        match self {
            Self::Address(family) => family.bits() as u32,
            Self::Port(_) | Self::PortAt(..) => 16,
        }
    }

    /// Most levels of the whole tree. A single address with very many ports gets one more: what is led to from a
    /// cluster's prefix tree is not as deep as nf_tables allows.
    const fn depth(self) -> u32 {
        match self {
            Self::PortAt(..) => DEPTH + 1,
            _ => DEPTH,
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

    /// A name of at most 28 letters that tells the prefix, or for long addresses a digest of it.
    fn name(self, top: Top, key: u128, len: u32) -> String {
        let base = prefix(key, len);
        let tree = letter(top);
        match self {
            Self::Address(Family::V4) => format!("KUBE-SVC-D{tree}{:08X}-{len}", base >> 96),
            Self::Port(letter) => {
                format!("KUBE-SVC-D{tree}P{}{:04X}-{len}", char::from(letter).to_ascii_uppercase(), base >> 112)
            }
            Self::Address(Family::V6) => digest_name(tree, &range(Family::V6, base, len).to_string()),
            Self::PortAt(letter, family, address) => {
                let at = range(family, address, family.bits() as u32);
                digest_name(tree, &format!("{at} {} {:04X}/{len}", protocol(letter), base >> 112))
            }
        }
    }
}

/// A name for what does not fit one.
fn digest_name(tree: &str, what: &str) -> String {
    let full = digest(&SHA256, what.as_bytes());
    let mut name = format!("KUBE-SVC-D{tree}-");
    full.as_ref()[..8].iter().for_each(|byte| {
        let _ = write!(name, "{byte:02X}");
    });
    name
}

/// Tells the trees of one table apart.
const fn letter(top: Top) -> &'static str {
    match top {
        Top::Services | Top::NodePorts => "",
        Top::Refused => "R",
        Top::External => "E",
        Top::HealthChecks => "H",
        Top::Firewall => "F",
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

/// What a line is told apart by: its whole address, else its port. Keys stand at the left of their 128 bits.
fn key(top: Top, line: &str) -> Option<(Space, u128)> {
    let address = after(line, " -d ");
    // Among external addresses those without one are refused node ports, at all addresses of this machine.
    if matches!(top, Top::NodePorts | Top::HealthChecks) || (top == Top::External && address.is_none()) {
        let (letter, key) = port(line)?;
        return Some((Space::Port(letter), key));
    }
    match parse_ip(address?)? {
        IpAddr::V4(v4) => Some((Space::Address(Family::V4), u128::from(v4.to_bits()) << 96)),
        IpAddr::V6(v6) => Some((Space::Address(Family::V6), v6.to_bits())),
    }
}

/// Makes the chains for `lines`, which all start with `-A CHAIN `, in order, each with its key.
#[must_use]
pub fn dispatch<'a>(top: Top, lines: impl Iterator<Item = (Option<LineKey>, &'a str)>, tree: bool) -> Dispatch {
    let chain = top.fixed();
    let mut out = Dispatch::default();
    if !tree {
        for (_, line) in lines {
            out.root.push_str(line);
            out.root.push('\n');
        }
        return out;
    }
    let mut spaces: BTreeMap<Space, Vec<(u128, &str)>> = BTreeMap::new();
    let mut others = String::new();
    let head = format!("-A {} ", chain.name());
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
    let mut levels: Vec<(u32, String, String)> = Vec::new();
    for (space, mut entries) in spaces {
        entries.sort_by_key(|(key, _)| *key);
        let mut trunk = Node { top, space, chain: chain.name().to_owned(), depth: 0, known: 0, body: String::new() };
        trunk.grow(&entries, &mut levels);
        out.root.push_str(&trunk.body);
    }
    out.root.push_str(&others);
    // What is led to comes first, so that a load in steps never leads to an empty chain.
    levels.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    out.below = levels.into_iter().map(|(_, name, body)| (name, body)).collect();
    out
}

/// A chain that is being made.
struct Node {
    top: Top,
    space: Space,
    chain: String,
    /// Levels above it.
    depth: u32,
    /// Bits that all its keys are known to share.
    known: u32,
    body: String,
}

impl Node {
    /// Writes its rules, and the chains below it into `out` with their depth.
    fn grow(&mut self, entries: &[(u128, &str)], out: &mut Vec<(u32, String, String)>) {
        let (Some(first), Some(last)) = (entries.first(), entries.last()) else { return };
        let width = self.space.width();
        let common = (first.0 ^ last.0).leading_zeros().min(width);
        let at = (common / STEP * STEP).max(self.known);
        let most = self.space.depth();
        if self.depth > 0 && (entries.len() <= LEAF || self.depth >= most || at >= width) {
            if let Space::Address(family) = self.space
                && entries.len() > LEAF
                && common >= width
            {
                return self.by_port(family, first.0, entries, out);
            }
            for (_, line) in entries {
                self.body.extend(["-A ", self.chain.as_str(), " ", line, "\n"]);
            }
            return;
        }
        let verb = if self.depth == 0 { "-j" } else { "-g" };
        // The last level before the leaves tells as much apart as those hold.
        let last = width == 16 && self.depth + 1 >= most;
        let known = (at + STEP).max(if last { width - STEP } else { 0 }).min(width);
        let local = match self.space {
            Space::Port(_) if self.top == Top::External && self.depth == 0 => " -m addrtype --dst-type LOCAL",
            _ => "",
        };
        for group in entries.chunk_by(|a, b| prefix(a.0, known) == prefix(b.0, known)) {
            let key = group[0].0;
            let chain = self.space.name(self.top, key, known);
            let matching = self.space.matching(key, known);
            let _ = writeln!(self.body, "-A {} {matching}{local} {verb} {chain}", self.chain);
            let mut child = Self { chain, depth: self.depth + 1, known, body: String::new(), ..*self };
            child.grow(group, out);
            out.push((child.depth, child.chain, child.body));
        }
    }

    /// Tells the ports of one address apart, by protocol and number.
    fn by_port(
        &mut self,
        family: Family,
        address: u128,
        entries: &[(u128, &str)],
        out: &mut Vec<(u32, String, String)>,
    ) {
        let mut protocols: BTreeMap<u8, Vec<(u128, &str)>> = BTreeMap::new();
        for (_, line) in entries {
            match port(line) {
                Some((letter, port)) => protocols.entry(letter).or_default().push((port, line)),
                None => drop(writeln!(self.body, "-A {} {line}", self.chain)),
            }
        }
        for (letter, mut ports) in protocols {
            ports.sort_by_key(|(port, _)| *port);
            let space = Space::PortAt(letter, family, address);
            let mut part = Self { space, chain: self.chain.clone(), known: 0, body: String::new(), ..*self };
            part.grow(&ports, out);
            self.body.push_str(&part.body);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn made<'a>(top: Top, lines: impl Iterator<Item = &'a String>, tree: bool) -> Dispatch {
        dispatch(top, lines.map(|line| (LineKey::of(top, line), line.as_str())), tree)
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
    fn walk(tree: &Dispatch, to: u32) -> (Option<String>, usize, usize) {
        let chains: BTreeMap<&str, &str> = tree.below.iter().map(|(n, b)| (n.as_str(), b.as_str())).collect();
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
            asked in prop::collection::vec(any::<u32>(), 20),
        ) {
            let all: Vec<u32> = near.iter().chain(&far).copied().collect();
            let lines = lines(&all);
            let tree = made(Top::Services, lines.iter(), true);
            for to in all.iter().chain(&asked) {
                let (target, _, depth) = walk(&tree, *to);
                prop_assert_eq!(target, all.contains(to).then(|| format!("X{to}")));
                prop_assert!(depth <= 4);
            }
            let reversed = made(Top::Services, lines.iter().rev(), true);
            prop_assert_eq!(&tree, &reversed);
            for (name, _) in &tree.below {
                prop_assert!(name.len() <= 28 && is_dispatch(name), "{}", name);
            }
        }
    }

    #[test]
    fn a_packet_meets_few_rules() {
        let all: Vec<u32> = (0..10_000).map(|i| 0x0a60_0001 + i * 6).collect();
        let lines = lines(&all);
        let tree = made(Top::Services, lines.iter(), true);
        for to in [all[0], all[5000], all[9999], 0x0808_0808] {
            let (_, rules, _) = walk(&tree, to);
            assert!(rules <= 64, "{rules} rules");
        }
        // One service more: a leaf, and little else.
        let mut more = all.clone();
        more.push(0x0a60_0004);
        let other = self::lines(&more);
        let grown = made(Top::Services, other.iter(), true);
        let changed = grown.below.iter().filter(|chain| !tree.below.contains(chain)).count();
        assert!(changed <= 2 && grown.root == tree.root, "{changed} chains changed");
    }

    #[test]
    fn node_ports_are_told_apart_by_ranges_and_protocol() {
        let line = |p: &str, port: u32| {
            format!("-A KUBE-NODEPORTS -m comment --comment a/b -m {p} -p {p} --dport {port} -j X")
        };
        let all: Vec<String> = (0..100).map(|i| line("tcp", 30_000 + i)).chain([line("udp", 30_000)]).collect();
        let tree = made(Top::NodePorts, all.iter(), true);
        assert!(
            tree.root.contains("-A KUBE-NODEPORTS -p tcp -m tcp --dport 29952:30207 -j KUBE-SVC-DPT7500-8\n")
                || tree.root.contains("--dport 30000:30015 -j KUBE-SVC-DPT7530-12\n"),
            "{}",
            tree.root
        );
        assert!(tree.root.contains("-p udp -m udp"), "{}", tree.root);
        let flat = made(Top::NodePorts, all.iter(), false);
        assert_eq!(flat.root.lines().count(), 101);
    }

    /// The chains of a tree by name, their longest, and where a packet for a port ends that starts at the root.
    fn reach(tree: &Dispatch, protocol: &str, to: u16) -> (usize, Option<String>) {
        let chains: BTreeMap<&str, &str> = tree.below.iter().map(|(n, b)| (n.as_str(), b.as_str())).collect();
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
        let tree = made(Top::Services, all.iter(), true);
        for (protocol, port) in [("tcp", 20_000), ("udp", 20_999), ("udp", 20_500), ("tcp", 20_511)] {
            let (longest, target) = reach(&tree, protocol, port);
            assert_eq!((target, longest <= 17), (Some(format!("{protocol}{port}")), true), "{longest}");
        }
        assert_eq!(reach(&tree, "sctp", 20_000).1, None);
        let reversed = made(Top::Services, all.iter().rev(), true);
        assert_eq!(tree, reversed);
        assert!(tree.below.iter().all(|(name, _)| name.len() <= 28 && is_dispatch(name)));
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
        let tree = made(Top::External, all.iter(), true);
        assert!(tree.root.lines().all(|l| l.contains(" -m addrtype --dst-type LOCAL -j ")), "{}", tree.root);
        for port in [30_000, 30_500, 30_999] {
            let (longest, target) = reach(&tree, "tcp", port);
            assert_eq!((target, longest <= 16), (Some(format!("DROP{port}")), true), "{longest}");
        }
    }

    #[test]
    fn service_chains_are_no_dispatch_chains() {
        assert!(!is_dispatch("KUBE-SVC-DAAAAAAAAAAAAAAA") && !is_dispatch("KUBE-SVC-XPGD46QRK7WJZT7O"));
    }
}
