//! Chain names: the first 80 bits of a SHA-256 digest in base32 behind a prefix that tells the kind.

use std::fmt;

use ring::digest::{SHA256, digest};

use crate::model::Protocol;

/// What a chain of the nat table that belongs to one service port is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Leads to one endpoint.
    Endpoint,
    /// Balances over the whole cluster.
    Service,
    /// Balances over this node's endpoints.
    ServiceLocal,
    /// Load balancer source ranges.
    Firewall,
    /// Traffic from outside.
    External,
}

impl Kind {
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

/// Of base32.
const ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

/// Most levels of an endpoint tree.
pub const PARTS: usize = 3;

/// The name of a chain that belongs to one service port, in 14 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChainId {
    kind: Kind,
    digest: [u8; 10],
    /// Where in the tree of its service port: letters behind the name, 0 for none.
    part: [u8; PARTS],
}

impl ChainId {
    /// The chain of `kind` for a service port; all kinds of one port share their last 16 characters.
    #[must_use]
    pub fn of_port(kind: Kind, full_name: &str, protocol: Protocol) -> Self {
        Self::hashed(kind, &[full_name, protocol.lower()].concat())
    }

    /// The chain of one endpoint (`IP:port`) of a service port.
    #[must_use]
    pub fn of_endpoint(full_name: &str, protocol: Protocol, endpoint: &str) -> Self {
        Self::hashed(Kind::Endpoint, &[full_name, protocol.lower(), endpoint].concat())
    }

    fn hashed(kind: Kind, input: &str) -> Self {
        let full = digest(&SHA256, input.as_bytes());
        let mut first = [0; 10];
        first.copy_from_slice(&full.as_ref()[..10]);
        Self { kind, digest: first, part: [0; PARTS] }
    }

    /// The chain below this one in a tree; `None` at the end of the name's room.
    #[must_use]
    pub fn child(&self, index: u8) -> Option<Self> {
        let free = self.part.iter().position(|p| *p == 0)?;
        let mut part = self.part;
        part[free] = *ALPHABET.get(usize::from(index))?;
        Some(Self { part, ..*self })
    }

    /// Bits that spread chains evenly over a tree: three for each level.
    #[must_use]
    pub fn spread(&self, level: usize) -> u8 {
        (self.digest[level % self.digest.len()]) & 7
    }

    /// What the chain is for.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// Chains of one service port in this order never lead to one that is not written yet.
    #[must_use]
    pub fn write_order(&self) -> (u8, u8) {
        let kind = match self.kind {
            Kind::Endpoint => 0,
            Kind::Service | Kind::ServiceLocal => 1,
            Kind::External => 2,
            Kind::Firewall => 3,
        };
        let depth = self.part.iter().take_while(|p| **p != 0).count();
        (kind, u8::MAX - u8::try_from(depth).unwrap_or(u8::MAX))
    }

    /// Reads a name back; `None` when it is not one that this proxy makes.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let kind = Kind::ALL.into_iter().find(|k| name.starts_with(k.prefix()))?;
        let text = name.strip_prefix(kind.prefix()).filter(|t| (16..=16 + PARTS).contains(&t.len()))?;
        let (text, rest) = text.split_at_checked(16)?;
        let mut part = [0; PARTS];
        for (to, letter) in part.iter_mut().zip(rest.bytes()) {
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
        Some(Self { kind, digest, part })
    }
}

/// Whether a chain of the nat table is of the kind that this proxy (and upstream's) makes and
/// removes; anything else is not ours to delete.
#[must_use]
pub fn is_owned(name: &str) -> bool {
    Kind::ALL.iter().any(|k| name.starts_with(k.prefix()))
}

impl fmt::Display for ChainId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // One piece: names are most of what is written.
        let mut text = [0; 28];
        let prefix = self.kind.prefix().as_bytes();
        let digits = prefix.len();
        text[..digits].copy_from_slice(prefix);
        for (half, bytes) in self.digest.chunks_exact(5).enumerate() {
            let bits = bytes.iter().fold(0_u64, |bits, byte| bits << 8 | u64::from(*byte));
            for i in 0..8 {
                text[digits + half * 8 + i] = ALPHABET[(bits >> (35 - 5 * i) & 31) as usize];
            }
        }
        let mut end = digits + 16;
        for letter in self.part.iter().take_while(|p| **p != 0) {
            text[end] = *letter;
            end += 1;
        }
        f.write_str(std::str::from_utf8(&text[..end]).map_err(|_| fmt::Error)?)
    }
}
