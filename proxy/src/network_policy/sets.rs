//! IP sets as data, in the kernel's terms and in those of the program `ipset`.

use std::{collections::BTreeMap, fmt, net::IpAddr, sync::Arc};

use crate::{
    iptables_save::ParseError,
    model::{Cidr, Family, Protocol, parse_ip},
};

/// What a set's entries are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SetKind {
    /// Addresses.
    HashIp,
    /// An address with a port of a protocol.
    HashIpPort,
    /// Ranges.
    HashNet,
    /// A range with an interface.
    HashNetIface,
}

impl SetKind {
    /// The kernel's name of the type.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::HashIp => "hash:ip",
            Self::HashIpPort => "hash:ip,port",
            Self::HashNet => "hash:net",
            Self::HashNetIface => "hash:net,iface",
        }
    }

    /// The type of this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        [Self::HashIp, Self::HashIpPort, Self::HashNet, Self::HashNetIface].into_iter().find(|kind| kind.name() == name)
    }
}

/// An entry of a set.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Entry {
    /// Of `hash:ip`.
    Address(IpAddr),
    /// Of `hash:ip,port`.
    Port(IpAddr, Protocol, u16),
    /// Of `hash:net`.
    Range(Cidr),
    /// Of `hash:net,iface`: an address with an interface.
    Interface(IpAddr, String),
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(ip) => write!(f, "{ip}"),
            Self::Port(ip, protocol, port) => write!(f, "{ip},{protocol}:{port}"),
            Self::Range(range) => write!(f, "{range}"),
            Self::Interface(ip, name) => write!(f, "{ip},{name}"),
        }
    }
}

impl Entry {
    /// Reads the form of `ipset save`.
    fn parse(kind: SetKind, text: &str) -> Option<Self> {
        Some(match kind {
            SetKind::HashIp => Self::Address(parse_ip(text)?),
            SetKind::HashIpPort => {
                let (ip, port) = text.split_once(',')?;
                let (protocol, port) = port.split_once(':')?;
                let protocol =
                    [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into_iter().find(|p| p.lower() == protocol)?;
                Self::Port(parse_ip(ip)?, protocol, port.parse().ok()?)
            }
            SetKind::HashNet => Self::Range(Cidr::parse(text).or_else(|| parse_ip(text).map(Cidr::host))?),
            SetKind::HashNetIface => {
                let (ip, name) = text.split_once(',')?;
                Self::Interface(parse_ip(ip)?, name.to_owned())
            }
        })
    }
}

/// A set of one family. Entries have a number of owners, which does not count.
#[derive(Debug, Clone)]
pub struct IpSet {
    /// What its entries are.
    pub kind: SetKind,
    /// The entries.
    pub entries: Arc<BTreeMap<Entry, usize>>,
}

impl PartialEq for IpSet {
    fn eq(&self, other: &Self) -> bool {
        let same = Arc::ptr_eq(&self.entries, &other.entries) || self.entries.keys().eq(other.entries.keys());
        self.kind == other.kind && same
    }
}

impl Eq for IpSet {}

impl IpSet {
    /// A set of these entries.
    #[must_use]
    pub fn new(kind: SetKind, entries: impl IntoIterator<Item = Entry>) -> Self {
        Self { kind, entries: Arc::new(entries.into_iter().map(|entry| (entry, 1)).collect()) }
    }
}

/// Sets by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IpSets(pub BTreeMap<String, IpSet>);

/// How lines of sets begin in a text of rules: a comment for `iptables-restore`, and the rest of the line is one for
/// `ipset restore`.
const LINE: &str = "# ipset ";

impl IpSets {
    /// The sets as comments of a text of rules.
    #[must_use]
    pub fn text(&self, family: Family) -> String {
        let family = match family {
            Family::V4 => "inet",
            Family::V6 => "inet6",
        };
        let mut out = String::new();
        for (name, set) in &self.0 {
            out.push_str(&format!("{LINE}create {name} {} family {family}\n", set.kind.name()));
            set.entries.keys().for_each(|entry| out.push_str(&format!("{LINE}add {name} {entry}\n")));
        }
        out
    }

    /// Reads the sets of a text of rules.
    ///
    /// # Errors
    /// The first line that is about a set and cannot be read.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let mut sets: BTreeMap<String, (SetKind, BTreeMap<Entry, usize>)> = BTreeMap::new();
        for (number, whole) in text.lines().enumerate() {
            let Some(line) = whole.strip_prefix(LINE) else { continue };
            let mut words = line.split(' ');
            let read = match (words.next(), words.next(), words.next()) {
                (Some("create"), Some(name), Some(kind)) => {
                    SetKind::parse(kind).map(|kind| drop(sets.insert(name.to_owned(), (kind, BTreeMap::new()))))
                }
                (Some("add"), Some(name), Some(entry)) => sets.get_mut(name).and_then(|(kind, entries)| {
                    entries.insert(Entry::parse(*kind, entry)?, 1);
                    Some(())
                }),
                _ => None,
            };
            read.ok_or_else(|| ParseError { line: number + 1, text: whole.chars().take(200).collect() })?;
        }
        let made = sets.into_iter().map(|(name, (kind, entries))| (name, IpSet { kind, entries: Arc::new(entries) }));
        Ok(Self(made.collect()))
    }
}
