//! IPv4 ranges as people write them.

use std::{fmt, net::Ipv4Addr, str::FromStr};

/// A range such as `10.244.0.0/16`; host bits are always zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ipv4Cidr {
    pub(crate) address: Ipv4Addr,
    pub(crate) length: u8,
}

impl Ipv4Cidr {
    /// The range of `length` bits around `address`.
    pub(crate) const fn new(address: Ipv4Addr, length: u8) -> Self {
        Self { address: Ipv4Addr::from_bits(address.to_bits() & mask(length)), length }
    }

    pub(crate) const fn overlaps(self, other: Self) -> bool {
        let length = if self.length < other.length { self.length } else { other.length };
        (self.address.to_bits() ^ other.address.to_bits()) & mask(length) == 0
    }
}

const fn mask(length: u8) -> u32 {
    if length == 0 { 0 } else { u32::MAX << (32 - length) }
}

impl fmt::Display for Ipv4Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

impl FromStr for Ipv4Cidr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not an IPv4 range such as 10.244.0.0/16");
        let (address, length) = text.split_once('/').ok_or_else(wrong)?;
        let address: Ipv4Addr = address.parse().map_err(|_| wrong())?;
        let length: u8 = length.parse().ok().filter(|l| *l <= 32).ok_or_else(wrong)?;
        let range = Self::new(address, length);
        if range.address != address {
            return Err(format!("{text:?} has bits set beyond its length; did you mean {range}?"));
        }
        Ok(range)
    }
}

impl<'de> serde::Deserialize<'de> for Ipv4Cidr {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}
