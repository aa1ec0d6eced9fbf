//! IP addresses and CIDRs of both families, with the lenient parsing of old objects.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

/// The addresses of the interfaces in this thread's network namespace.
///
/// # Errors
/// When they cannot be read.
pub fn interface_addresses() -> nix::Result<Vec<IpAddr>> {
    let addresses = nix::ifaddrs::getifaddrs()?.filter_map(|interface| interface.address);
    let ip = |address: nix::sys::socket::SockaddrStorage| {
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
    };
    Ok(addresses.filter_map(ip).collect())
}

/// An address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4 (iptables).
    V4,
    /// IPv6 (ip6tables).
    V6,
}

impl Family {
    /// Both, IPv4 first.
    pub const BOTH: [Self; 2] = [Self::V4, Self::V6];

    /// The family of an address.
    #[must_use]
    pub const fn of(ip: &IpAddr) -> Self {
        match ip {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// `IPv4` or `IPv6`, as Kubernetes writes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }

    /// Bits of a full address: 32 or 128.
    #[must_use]
    pub const fn bits(self) -> u8 {
        match self {
            Self::V4 => 32,
            Self::V6 => 128,
        }
    }
}

/// The addresses of a node: one, or one of each family; the first is its primary address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeIps {
    first: IpAddr,
    second: Option<IpAddr>,
}

impl NodeIps {
    /// The primary address.
    #[must_use]
    pub const fn first(self) -> IpAddr {
        self.first
    }

    /// All addresses, the primary one first.
    pub fn iter(self) -> impl Iterator<Item = IpAddr> {
        std::iter::once(self.first).chain(self.second)
    }
}

impl From<IpAddr> for NodeIps {
    fn from(first: IpAddr) -> Self {
        Self { first, second: None }
    }
}

/// Parses kubelet's `--node-ip`: `192.0.2.1`, or `192.0.2.1,2001:db8::1`.
impl FromStr for NodeIps {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let read = |part: &str| part.trim().parse::<IpAddr>().map_err(|_| format!("{part:?} is no IP address"));
        let all = text.split(',').map(read).collect::<Result<Vec<_>, _>>()?;
        match all[..] {
            [first] => Ok(first.into()),
            [first, second] if Family::of(&first) != Family::of(&second) => Ok(Self { first, second: Some(second) }),
            _ => Err(format!("{text:?} is neither one address nor one of each family with a comma between")),
        }
    }
}

impl fmt::Display for NodeIps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.first)?;
        self.second.map_or(Ok(()), |second| write!(f, ",{second}"))
    }
}

/// A CIDR; host bits are always zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cidr {
    base: IpAddr,
    len: u8,
}

impl Cidr {
    /// Parses `ADDRESS/LENGTH`; leading zeros are accepted and dropped, host bits are cleared. `::ffff:192.0.2.0/120` is
    /// `192.0.2.0/24` and `::ffff:192.0.2.0/24` is `::/24`, as Go reads them.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (written, len) = text.trim().split_once('/')?;
        let ip = parse_ip(written)?;
        if len.is_empty() || len.len() > 4 || !len.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let len: u8 = len.parse().ok()?;
        let (ip, len) = match ip {
            IpAddr::V4(_) if written.contains(':') && len >= 96 => (ip, len - 96),
            IpAddr::V4(mapped) if written.contains(':') => (mapped.to_ipv6_mapped().into(), len),
            ip => (ip, len),
        };
        if len > Family::of(&ip).bits() {
            return None;
        }
        Some(Self { base: mask(ip, len), len })
    }

    /// The CIDR of `len` bits around `ip`; a longer prefix than an address has is clamped.
    #[must_use]
    pub fn new(ip: IpAddr, len: u8) -> Self {
        let len = len.min(Family::of(&ip).bits());
        Self { base: mask(ip, len), len }
    }

    /// The first address.
    #[must_use]
    pub const fn base(&self) -> IpAddr {
        self.base
    }

    /// The prefix length.
    #[must_use]
    pub const fn length(&self) -> u8 {
        self.len
    }

    /// Base and prefix length of an IPv4 CIDR.
    #[must_use]
    pub const fn v4(&self) -> Option<(Ipv4Addr, u8)> {
        match self.base {
            IpAddr::V4(base) => Some((base, self.len)),
            IpAddr::V6(_) => None,
        }
    }

    /// Whether both have an address in common; never across families.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        if self.len <= other.len { self.contains(&other.base) } else { other.contains(&self.base) }
    }

    /// The CIDR of the single address `ip`.
    #[must_use]
    pub const fn host(ip: IpAddr) -> Self {
        Self { base: ip, len: Family::of(&ip).bits() }
    }

    /// Whether it contains `ip`; never across families.
    #[must_use]
    pub fn contains(&self, ip: &IpAddr) -> bool {
        Family::of(ip) == self.family() && mask(*ip, self.len) == self.base
    }

    /// The family of the range.
    #[must_use]
    pub const fn family(&self) -> Family {
        Family::of(&self.base)
    }

    /// Whether it is everything (`/0`).
    #[must_use]
    pub const fn is_all(&self) -> bool {
        self.len == 0
    }

    /// Whether the range shares an address with the loopback range of its family.
    #[must_use]
    pub fn covers_loopback(&self) -> bool {
        match self.base {
            IpAddr::V4(v4) => {
                self.contains(&IpAddr::V4(Ipv4Addr::LOCALHOST)) || (self.len >= 8 && v4.octets()[0] == 127)
            }
            IpAddr::V6(_) => self.contains(&IpAddr::V6(Ipv6Addr::LOCALHOST)),
        }
    }
}

/// Parses a configured CIDR strictly: host bits are an error.
impl FromStr for Cidr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let range = Self::parse(text).ok_or_else(|| format!("{text:?} is not a range such as 10.244.0.0/16"))?;
        let written = text.split('/').next().and_then(parse_ip);
        if written != Some(range.base) {
            return Err(format!("{text:?} has bits set beyond its length; did you mean {range}?"));
        }
        Ok(range)
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.len)
    }
}

fn mask(ip: IpAddr, len: u8) -> IpAddr {
    match ip {
        IpAddr::V4(v4) => {
            let keep = u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits() & keep))
        }
        IpAddr::V6(v6) => {
            let keep = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & keep))
        }
    }
}

/// Parses an address as Kubernetes parses those of old objects (`netutils.ParseIPSloppy`): decimal parts may have
/// leading zeros, an IPv4 address written as IPv6 counts as IPv4.
#[must_use]
pub fn parse_ip(text: &str) -> Option<IpAddr> {
    if text.contains(':') {
        let v6: Ipv6Addr = text.parse().ok()?;
        return Some(v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4));
    }
    let mut octets = [0u8; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let part = parts.next()?;
        if part.is_empty() || part.len() > 8 || !part.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        *octet = part.parse().ok()?;
    }
    parts.next().is_none().then(|| IpAddr::from(octets))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_people_are_read_strictly() {
        let cidr = |text: &str| text.parse::<Cidr>();
        assert_eq!(cidr("10.244.0.0/16").map(|c| c.to_string()).as_deref(), Ok("10.244.0.0/16"));
        assert_eq!(cidr("fd00:1::/56").map(|c| c.to_string()).as_deref(), Ok("fd00:1::/56"));
        assert!(cidr("0.0.0.0/0").unwrap().overlaps(&cidr("10.0.0.0/8").unwrap()));
        assert!(!cidr("10.96.0.0/16").unwrap().overlaps(&cidr("10.97.0.0/16").unwrap()));
        assert!(!cidr("::/0").unwrap().overlaps(&cidr("10.97.0.0/16").unwrap()));
        for wrong in ["10.0.0.0", "10.0.0.0/33", "x/8", "10.0.0.1/8", "fd00::1/64", "fd00::/129"] {
            assert!(cidr(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_node_has_one_address_or_one_of_each_family() {
        for (text, all) in [
            ("192.0.2.1", Some(vec!["192.0.2.1"])),
            ("2001:db8::1, 192.0.2.1", Some(vec!["2001:db8::1", "192.0.2.1"])),
            ("192.0.2.1,192.0.2.2", None),
            ("192.0.2.1,2001:db8::1,192.0.2.2", None),
            ("192.0.2.1,", None),
            ("", None),
            ("node", None),
        ] {
            let read = text.parse::<NodeIps>().ok();
            let texts = read.map(|ips| ips.iter().map(|ip| ip.to_string()).collect::<Vec<_>>());
            assert_eq!(texts, all.map(|all| all.into_iter().map(str::to_owned).collect()), "{text}");
            if let Some(ips) = read {
                assert_eq!(ips.to_string().parse(), Ok(ips));
            }
        }
    }
}
