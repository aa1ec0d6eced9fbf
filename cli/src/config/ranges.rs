//! CIDR ranges of one or both families, separated by a comma.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr},
    str::FromStr,
};

use windlass_kit::net::{Cidr, Family};

/// At most one range per family, IPv4 first. Empty for none, which is not the same as not set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ranges(Vec<Cidr>);

impl Ranges {
    /// Ranges of different families.
    ///
    /// # Errors
    /// Two of one family.
    pub(crate) fn new(mut ranges: Vec<Cidr>) -> Result<Self, String> {
        ranges.sort_by_key(Cidr::family);
        if ranges.windows(2).any(|pair| pair[0].family() == pair[1].family()) {
            let texts: Vec<String> = ranges.iter().map(ToString::to_string).collect();
            return Err(format!(
                "{:?} has two ranges of one family; give one of IPv4 and one of IPv6 at most",
                texts.join(",")
            ));
        }
        Ok(Self(ranges))
    }

    /// A single IPv4 range.
    pub(crate) fn v4(base: Ipv4Addr, length: u8) -> Self {
        Self(vec![Cidr::new(IpAddr::V4(base), length)])
    }

    pub(crate) fn none() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn is_none(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Cidr> {
        self.0.iter()
    }

    /// The range of a family.
    pub(crate) fn of(&self, family: Family) -> Option<&Cidr> {
        self.iter().find(|range| range.family() == family)
    }

    /// Base and length of the IPv4 range, which nodes require.
    pub(crate) fn ipv4(&self) -> Option<(Ipv4Addr, u8)> {
        self.of(Family::V4).and_then(Cidr::v4)
    }

    pub(crate) fn overlap(&self, other: &Self) -> bool {
        self.iter().any(|a| other.iter().any(|b| a.overlaps(b)))
    }
}

impl FromStr for Ranges {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split(',').filter(|_| !text.trim().is_empty());
        Self::new(parts.map(|part| part.trim().parse()).collect::<Result<Vec<Cidr>, String>>()?)
    }
}

impl fmt::Display for Ranges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> = self.iter().map(ToString::to_string).collect();
        f.write_str(&texts.join(","))
    }
}

impl<'de> serde::Deserialize<'de> for Ranges {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}
