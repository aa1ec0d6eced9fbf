//! Chain names as kube-proxy makes them: a prefix for the kind, then the first 80 bits of a SHA-256 digest in base32
//! (`portProtoHash` and `servicePortEndpointChainName` of pkg/proxy/iptables/proxier.go).

use std::fmt;

use ring::digest::{SHA256, digest};

use crate::model::Protocol;

/// What a chain of the nat table that belongs to one service port is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChainKind {
    /// DNAT to one endpoint.
    Endpoint,
    /// Load balancing among the endpoints of the cluster.
    Service,
    /// Load balancing among the endpoints of this node.
    ServiceLocal,
    /// Filter by load balancer source ranges.
    Firewall,
    /// Traffic to external addresses and node ports.
    External,
}

impl ChainKind {
    const ALL: [Self; 5] = [Self::Endpoint, Self::Service, Self::ServiceLocal, Self::Firewall, Self::External];

    /// The start of the chain's name.
    #[must_use]
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::Endpoint => "KUBE-SEP-",
            Self::Service => "KUBE-SVC-",
            Self::ServiceLocal => "KUBE-SVL-",
            Self::Firewall => "KUBE-FW-",
            Self::External => "KUBE-EXT-",
        }
    }
}

/// The alphabet of base32 (RFC 4648).
const ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

/// The first 80 bits of a digest.
fn short_digest(input: &str) -> [u8; 10] {
    let mut first = [0; 10];
    first.copy_from_slice(&digest(&SHA256, input.as_bytes()).as_ref()[..10]);
    first
}

fn base32(digest: &[u8; 10]) -> [u8; 16] {
    let mut text = [0; 16];
    for (half, bytes) in digest.chunks_exact(5).enumerate() {
        let bits = bytes.iter().fold(0_u64, |bits, byte| bits << 8 | u64::from(*byte));
        for i in 0..8 {
            text[half * 8 + i] = ALPHABET[(bits >> (35 - 5 * i) & 31) as usize];
        }
    }
    text
}

/// A name of a prefix and sixteen characters that stand for `input`, as those of service chains are made.
pub(crate) fn hashed_name(prefix: &str, input: &str) -> String {
    let digits = base32(&short_digest(input));
    prefix.chars().chain(digits.into_iter().map(char::from)).collect()
}

/// Levels of an endpoint tree: as many suffix letters fit in a chain's name.
pub const MAX_TREE_LEVELS: usize = 3;

/// The name of a chain that belongs to one service port, in 14 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChainId {
    kind: ChainKind,
    digest: [u8; 10],
    /// Its place in the tree of its service port: letters appended to the name, 0 for none.
    tree_suffix: [u8; MAX_TREE_LEVELS],
}

impl ChainId {
    /// The chain of `kind` for a service port; all kinds of one port share their last 16 characters.
    #[must_use]
    pub fn of_port(kind: ChainKind, full_name: &str, protocol: Protocol) -> Self {
        Self::from_hash(kind, &[full_name, protocol.lower()].concat())
    }

    /// The chain of one endpoint (`IP:port`) of a service port.
    #[must_use]
    pub fn of_endpoint(full_name: &str, protocol: Protocol, endpoint: &str) -> Self {
        Self::from_hash(ChainKind::Endpoint, &[full_name, protocol.lower(), endpoint].concat())
    }

    fn from_hash(kind: ChainKind, input: &str) -> Self {
        Self { kind, digest: short_digest(input), tree_suffix: [0; MAX_TREE_LEVELS] }
    }

    /// The child of this chain in a tree; `None` when the name has no room for another letter.
    #[must_use]
    pub fn child(&self, index: u8) -> Option<Self> {
        let free = self.tree_suffix.iter().position(|p| *p == 0)?;
        let mut tree_suffix = self.tree_suffix;
        tree_suffix[free] = *ALPHABET.get(usize::from(index))?;
        Some(Self { tree_suffix, ..*self })
    }

    /// The child, 0 to 7, of a tree's level below which this endpoint chain belongs: bits of its digest, so that chains
    /// are spread evenly.
    #[must_use]
    pub fn hash_bucket(&self, level: usize) -> u8 {
        (self.digest[level % self.digest.len()]) & 7
    }

    /// What the chain is for.
    #[must_use]
    pub const fn kind(&self) -> ChainKind {
        self.kind
    }

    /// The chains of one service port, written in this order, never jump to one that is not written yet.
    #[must_use]
    pub fn write_order(&self) -> (u8, u8) {
        let kind = match self.kind {
            ChainKind::Endpoint => 0,
            ChainKind::Service | ChainKind::ServiceLocal => 1,
            ChainKind::External => 2,
            ChainKind::Firewall => 3,
        };
        let depth = self.tree_suffix.iter().take_while(|p| **p != 0).count();
        (kind, u8::MAX - u8::try_from(depth).unwrap_or(u8::MAX))
    }

    /// Parses a chain name; `None` when it is not one that this proxy makes.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let kind = ChainKind::ALL.into_iter().find(|k| name.starts_with(k.prefix()))?;
        let text = name.strip_prefix(kind.prefix()).filter(|t| (16..=16 + MAX_TREE_LEVELS).contains(&t.len()))?;
        let (text, rest) = text.split_at_checked(16)?;
        let mut tree_suffix = [0; MAX_TREE_LEVELS];
        for (to, letter) in tree_suffix.iter_mut().zip(rest.bytes()) {
            *to = Some(letter).filter(|l| ALPHABET.contains(l))?;
        }
        let mut digest = [0u8; 10];
        for (i, c) in text.bytes().enumerate() {
            let value = match c {
                b'A'..=b'Z' => c - b'A',
                b'2'..=b'7' => c - b'2' + 26,
                _ => return None,
            };
            for bit in 0..5 {
                if value & (16 >> bit) != 0 {
                    let at = i * 5 + bit;
                    digest[at / 8] |= 0x80 >> (at % 8);
                }
            }
        }
        Some(Self { kind, digest, tree_suffix })
    }
}

/// Whether a chain of the nat table has a prefix that this proxy and kube-proxy use for chains of service ports; any
/// other chain is not ours to delete.
#[must_use]
pub fn is_service_chain(name: &str) -> bool {
    ChainKind::ALL.iter().any(|k| name.starts_with(k.prefix()))
}

impl fmt::Display for ChainId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Written as one string: names are most of the rendered text.
        let mut text = [0; 28];
        let prefix = self.kind.prefix().as_bytes();
        let digits = prefix.len();
        text[..digits].copy_from_slice(prefix);
        text[digits..digits + 16].copy_from_slice(&base32(&self.digest));
        let mut end = digits + 16;
        for letter in self.tree_suffix.iter().take_while(|p| **p != 0) {
            text[end] = *letter;
            end += 1;
        }
        f.write_str(std::str::from_utf8(&text[..end]).map_err(|_| fmt::Error)?)
    }
}
