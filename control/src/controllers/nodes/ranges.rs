//! Splits the cluster CIDR into node CIDRs. Pure.

use std::{
    collections::BTreeSet,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use crate::controllers::error::Error;

/// Maximum number of node CIDRs of one cluster CIDR.
const MAX_BITS: u8 = 16;

/// A cluster CIDR and the prefix length of node CIDRs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ranges {
    base: u128,
    v6: bool,
    prefix: u8,
    node_prefix: u8,
}

impl Ranges {
    /// Reads `10.244.0.0/16` or `fd00:10:244::/56`; several are separated by commas.
    pub(crate) fn parse_all(text: &str, mask_v4: u8, mask_v6: u8) -> Result<Vec<Self>, Error> {
        text.split(',').map(str::trim).filter(|t| !t.is_empty()).map(|t| Self::parse(t, mask_v4, mask_v6)).collect()
    }

    fn parse(text: &str, mask_v4: u8, mask_v6: u8) -> Result<Self, Error> {
        let refuse = |why: &str| Error::ClusterRange { range: text.to_owned(), why: why.to_owned() };
        let (address, prefix) = text.split_once('/').ok_or_else(|| refuse("it has no prefix length"))?;
        let address: IpAddr = address.parse().map_err(|_| refuse("its address cannot be read"))?;
        let prefix: u8 = prefix.parse().map_err(|_| refuse("its prefix length cannot be read"))?;
        let (v6, bits, node_prefix, value) = match address {
            IpAddr::V4(ip) => (false, 32, mask_v4, u128::from(u32::from(ip))),
            IpAddr::V6(ip) => (true, 128, mask_v6, u128::from(ip)),
        };
        if prefix == 0 || prefix > bits {
            return Err(refuse("its prefix length is out of range"));
        }
        if node_prefix < prefix || node_prefix >= bits {
            return Err(refuse("a node's part must be smaller than the whole and hold addresses"));
        }
        // The network address, whatever host bits were written.
        let host_bits = u32::from(bits - prefix);
        let base = value.checked_shr(host_bits).and_then(|v| v.checked_shl(host_bits)).unwrap_or(0);
        Ok(Self { base, v6, prefix, node_prefix })
    }

    /// The number of node CIDRs.
    fn len(&self) -> u32 {
        1 << (self.node_prefix - self.prefix).min(MAX_BITS)
    }

    fn part(&self, index: u32) -> String {
        let bits = if self.v6 { 128 } else { 32 };
        let value = self.base + (u128::from(index) << u32::from(bits - self.node_prefix));
        let address = if self.v6 {
            IpAddr::V6(Ipv6Addr::from(value))
        } else {
            IpAddr::V4(Ipv4Addr::from(u32::try_from(value).unwrap_or(u32::MAX)))
        };
        format!("{address}/{}", self.node_prefix)
    }

    /// The first node CIDR that overlaps none of `taken`.
    pub(crate) fn next_free<'a>(&self, taken: impl Iterator<Item = &'a str>) -> Option<String> {
        let mut used: BTreeSet<u32> = BTreeSet::new();
        for other in taken {
            let Ok(other) = Self::parse(other, 31, 127).or_else(|_| Self::parse(other, 32, 128)) else { continue };
            if other.v6 != self.v6 {
                continue;
            }
            let bits = if self.v6 { 128u32 } else { 32 };
            let shift = bits - u32::from(self.node_prefix);
            let size = 1u128.checked_shl(bits - u32::from(other.prefix)).unwrap_or(u128::MAX);
            let last = other.base.saturating_add(size - 1);
            let first = other.base.max(self.base).saturating_sub(self.base) >> shift;
            if last < self.base || first >= u128::from(self.len()) {
                continue;
            }
            let end = ((last - self.base) >> shift).min(u128::from(self.len() - 1));
            used.extend((first..=end).filter_map(|i| u32::try_from(i).ok()));
        }
        (0..self.len()).find(|index| !used.contains(index)).map(|index| self.part(index))
    }
}

impl fmt::Display for Ranges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = Self { node_prefix: self.prefix, ..self.clone() };
        f.write_str(&whole.part(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(text: &str) -> Ranges {
        Ranges::parse_all(text, 24, 64).unwrap().remove(0)
    }

    #[test]
    fn parts_are_given_in_order_and_reused() {
        let r = ranges("10.244.0.0/16");
        assert_eq!(r.next_free([].into_iter()).unwrap(), "10.244.0.0/24");
        assert_eq!(r.next_free(["10.244.0.0/24", "10.244.2.0/24"].into_iter()).unwrap(), "10.244.1.0/24");
        assert_eq!(r.next_free(["10.244.0.0/23", "192.168.0.0/16"].into_iter()).unwrap(), "10.244.2.0/24");
        assert_eq!(r.next_free(["10.244.0.128/25"].into_iter()).unwrap(), "10.244.1.0/24");
        assert_eq!(r.next_free(["10.0.0.0/8"].into_iter()), None);
        assert_eq!(r.to_string(), "10.244.0.0/16");
    }

    #[test]
    fn a_full_range_has_none_left() {
        let r = ranges("10.1.2.0/23");
        assert_eq!(r.next_free(["10.1.2.0/24", "10.1.3.0/24"].into_iter()), None);
        let r = ranges("10.1.2.77/24");
        assert_eq!(r.next_free([].into_iter()).unwrap(), "10.1.2.0/24");
    }

    #[test]
    fn both_families() {
        let all = Ranges::parse_all("10.244.0.0/16,fd00:10:244::/56", 24, 64).unwrap();
        assert_eq!(all[1].next_free(["fd00:10:244::/64", "10.244.0.0/24"].into_iter()).unwrap(), "fd00:10:244:1::/64");
    }

    #[test]
    fn bad_ranges_are_refused() {
        for text in ["10.244.0.0", "10.244.0.0/33", "x/16", "10.244.0.0/28", "10.0.0.0/0"] {
            assert!(Ranges::parse_all(text, 24, 64).is_err(), "{text}");
        }
    }
}
