//! Splits the cluster CIDR into node CIDRs. Pure.

use std::{
    collections::HashMap,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use crate::runtime::Error;

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

    /// The first and last node CIDR that `other` overlaps, if any.
    fn overlap(&self, other: &str) -> Option<(u32, u32)> {
        let other = Self::parse(other, 31, 127).or_else(|_| Self::parse(other, 32, 128)).ok()?;
        if other.v6 != self.v6 {
            return None;
        }
        let bits = if self.v6 { 128u32 } else { 32 };
        let shift = bits - u32::from(self.node_prefix);
        let size = 1u128.checked_shl(bits - u32::from(other.prefix)).unwrap_or(u128::MAX);
        let last = other.base.saturating_add(size - 1);
        let first = other.base.max(self.base).saturating_sub(self.base) >> shift;
        if last < self.base || first >= u128::from(self.len()) {
            return None;
        }
        let end = ((last - self.base) >> shift).min(u128::from(self.len() - 1));
        Some((u32::try_from(first).ok()?, u32::try_from(end).ok()?))
    }
}

/// The node CIDRs of a range that are in use, kept up to date node by node.
#[derive(Debug)]
pub(crate) struct CidrSet {
    ranges: Ranges,
    /// One bit for each node CIDR: set while it is in use.
    used: Vec<u64>,
    /// How many users those have that have more than one: nodes may have been given the same by hand.
    shared: HashMap<u32, u32>,
}

impl CidrSet {
    pub(crate) fn new(ranges: Ranges) -> Self {
        let words = ranges.len().div_ceil(u64::BITS);
        Self { used: vec![0; usize::try_from(words).unwrap_or(0)], ranges, shared: HashMap::new() }
    }

    /// Takes the node CIDRs that `cidr` overlaps.
    pub(crate) fn occupy(&mut self, cidr: &str) {
        for index in self.overlap(cidr) {
            let (word, bit) = position(index);
            let Some(word) = self.used.get_mut(word) else { return };
            if *word & bit == 0 {
                *word |= bit;
            } else {
                *self.shared.entry(index).or_insert(1) += 1;
            }
        }
    }

    /// Gives back what [`occupy`](Self::occupy) took for the same `cidr`.
    pub(crate) fn release(&mut self, cidr: &str) {
        for index in self.overlap(cidr) {
            match self.shared.get_mut(&index) {
                Some(users) if *users > 2 => *users -= 1,
                Some(_) => drop(self.shared.remove(&index)),
                None => {
                    let (word, bit) = position(index);
                    self.used.get_mut(word).into_iter().for_each(|word| *word &= !bit);
                }
            }
        }
    }

    fn overlap(&self, cidr: &str) -> impl Iterator<Item = u32> + use<> {
        self.ranges.overlap(cidr).into_iter().flat_map(|(first, last)| first..=last)
    }

    /// The first free node CIDR.
    pub(crate) fn next_free(&self) -> Option<String> {
        let word = self.used.iter().position(|word| *word != u64::MAX)?;
        let bit = self.used.get(word)?.trailing_ones();
        let index = u32::try_from(word).ok()? * u64::BITS + bit;
        (index < self.ranges.len()).then(|| self.ranges.part(index))
    }
}

/// The word and the bit of a node CIDR.
fn position(index: u32) -> (usize, u64) {
    (usize::try_from(index / u64::BITS).unwrap_or(usize::MAX), 1 << (index % u64::BITS))
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

    impl Ranges {
        fn next_free<'a>(&self, taken: impl Iterator<Item = &'a str>) -> Option<String> {
            let mut set = CidrSet::new(self.clone());
            taken.for_each(|cidr| set.occupy(cidr));
            set.next_free()
        }
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
    fn a_part_is_free_when_its_last_user_has_gone() {
        let mut set = CidrSet::new(ranges("10.244.0.0/16"));
        for cidr in ["10.244.0.0/24", "10.244.0.128/25", "10.244.0.0/23", "fd00::/64", "none"] {
            set.occupy(cidr);
        }
        assert_eq!(set.next_free().unwrap(), "10.244.2.0/24");
        set.release("10.244.0.128/25");
        set.release("10.244.0.0/23");
        assert_eq!(set.next_free().unwrap(), "10.244.1.0/24");
        set.release("10.244.0.0/24");
        assert_eq!(set.next_free().unwrap(), "10.244.0.0/24");
        assert!(set.shared.is_empty());
        (0..=255).for_each(|part| set.occupy(&format!("10.244.{part}.0/24")));
        assert_eq!(set.next_free(), None);
        set.release("10.244.255.0/24");
        assert_eq!(set.next_free().unwrap(), "10.244.255.0/24");
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
