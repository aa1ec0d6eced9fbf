//! Dispatch chains with many rules become prefix trees: a packet traverses a few rules instead of all. Pure.
//!
//! The shape depends only on the set of rules, so that any sequence of changes ends in the chains that a fresh start
//! would write. Inner nodes use `goto` (`-g`): a packet that no leaf matches returns to the dispatch chain, whose last
//! rule jumps to KUBE-NODEPORTS. Names start with `KUBE-SVC-`, which kube-proxy's clean-up knows, and contain a `-`
//! behind that, which the base32 name of a service chain never does.

mod tree;

#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, fmt::Write as _, net::IpAddr};

use ring::digest::{SHA256, digest};

pub use tree::DispatchRules;

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

/// A dispatch chain and what a rendering changed of its tree.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DispatchTree {
    /// The rules of the dispatch chain itself.
    pub root: String,
    /// The chains below it that may have changed, jump targets before the chains that jump to them.
    pub subchains: Vec<(String, String)>,
    /// Chains that are no longer in the tree.
    pub gone: BTreeSet<String>,
}

/// Whether a chain belongs to a dispatch tree.
#[must_use]
pub fn is_tree_chain(name: &str) -> bool {
    name.strip_prefix("KUBE-SVC-D").is_some_and(|tail| tail.contains('-'))
}

/// The match by which a tree sorts one rule, parsed from its text once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
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
    /// The one of keys of a [kind](LineKey::kind).
    const fn of(kind: u8) -> Self {
        match kind {
            4 => Self::Address(Family::V4),
            6 => Self::Address(Family::V6),
            letter => Self::Port(letter),
        }
    }

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

/// The first `len` bits.
fn mask(len: u32) -> u128 {
    u128::MAX.checked_shl(128 - len).unwrap_or(0)
}

fn prefix(key: u128, len: u32) -> u128 {
    key & mask(len)
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
