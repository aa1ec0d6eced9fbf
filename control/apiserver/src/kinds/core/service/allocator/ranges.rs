//! The ranges of cluster IPs: what ServiceCIDR objects add, and which address comes next. IPv4 alone: this server gives
//! no IPv6 addresses. Pure.

use std::{collections::BTreeMap, net::Ipv4Addr};

use serde_json::Value;

/// The name of the object that stands for the configured range.
pub(crate) const DEFAULT_SERVICE_CIDR: &str = "kubernetes";

/// A range of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    first: u32,
    /// Of its size: how many bits are free.
    bits: u32,
}

impl Range {
    pub(super) fn new(first: Ipv4Addr, length: u8) -> Self {
        Self { first: first.to_bits(), bits: 32u32.saturating_sub(u32::from(length)) }
    }

    /// `None` for what is no IPv4 range.
    fn parse(text: &str) -> Option<Self> {
        let (first, length) = text.split_once('/')?;
        let length = length.parse().ok().filter(|length| *length <= 32)?;
        Some(Self::new(first.parse().ok()?, length))
    }

    /// The network address, which is never allocated.
    pub(super) fn network(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.first)
    }

    /// The number of addresses; saturates for the whole of IPv4.
    fn size(self) -> u32 {
        1u32.checked_shl(self.bits).unwrap_or(u32::MAX)
    }

    /// Whether an address can be given: neither that of the network nor of broadcasts.
    fn gives(self, address: Ipv4Addr) -> bool {
        let offset = address.to_bits().wrapping_sub(self.first);
        offset > 0 && offset < self.size() - 1
    }

    /// The size of the band for requested addresses; automatic allocation starts above it.
    fn static_band(self) -> u32 {
        if self.size() < 16 { 0 } else { (self.size() / 16).clamp(16, 256) }
    }

    /// A free address: the first one from `start` on above the static band, then one in it.
    fn next(self, start: u32, is_taken: impl Fn(Ipv4Addr) -> bool) -> Option<Ipv4Addr> {
        let band = self.static_band();
        let upper = self.size().saturating_sub(band + 2);
        let above = (0..upper).map(|at| band + 1 + (start % upper.max(1) + at) % upper);
        above
            .chain(1..=band)
            .map(|offset| Ipv4Addr::from_bits(self.first.wrapping_add(offset)))
            .find(|address| self.gives(*address) && !is_taken(*address))
    }
}

impl std::fmt::Display for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.network(), 32 - self.bits)
    }
}

/// The ranges of one ServiceCIDR.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServiceCidr {
    ranges: Vec<Range>,
    is_ready: bool,
}

impl ServiceCidr {
    pub(super) fn of(object: &Value) -> Self {
        let ranges = object["spec"]["cidrs"].as_array().into_iter().flatten();
        let ranges = ranges.filter_map(|range| Range::parse(range.as_str()?)).collect();
        let mut conditions = object["status"]["conditions"].as_array().into_iter().flatten();
        let is_ready = conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
        Self { ranges, is_ready: is_ready && object["metadata"]["deletionTimestamp"].is_null() }
    }
}

/// All ranges.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ranges {
    /// The configured range, used until its object exists.
    configured: Range,
    objects: BTreeMap<String, ServiceCidr>,
}

impl Ranges {
    pub(super) fn new(configured: Range) -> Self {
        Self { configured, objects: BTreeMap::new() }
    }

    #[cfg(test)]
    pub(super) fn configured(&self) -> Range {
        self.configured
    }

    /// Sets or removes the ranges of an object and returns the previous ones.
    pub(super) fn set(&mut self, name: &str, cidr: Option<ServiceCidr>) -> Option<ServiceCidr> {
        match cidr {
            Some(cidr) => self.objects.insert(name.to_owned(), cidr),
            None => self.objects.remove(name),
        }
    }

    /// Those of which addresses are given.
    fn ready(&self) -> impl Iterator<Item = Range> + '_ {
        let configured = (!self.objects.contains_key(DEFAULT_SERVICE_CIDR)).then_some(self.configured);
        let objects = self.objects.values().filter(|cidr| cidr.is_ready);
        configured.into_iter().chain(objects.flat_map(|cidr| cidr.ranges.iter().copied()))
    }

    /// The range that a dry run speaks of.
    pub(super) fn first(&self) -> Option<Range> {
        self.ready().next()
    }

    /// Whether an address can be given.
    pub(super) fn gives(&self, address: Ipv4Addr) -> bool {
        self.ready().any(|range| range.gives(address))
    }

    /// A free address.
    pub(super) fn next(&self, start: u32, is_taken: impl Fn(Ipv4Addr) -> bool) -> Option<Ipv4Addr> {
        self.ready().find_map(|range| range.next(start, &is_taken))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn cidr(range: &str, ready: bool, deleting: bool) -> Option<ServiceCidr> {
        let deleted = if deleting { json!("2026-01-01T00:00:00Z") } else { Value::Null };
        Some(ServiceCidr::of(&json!({
            "metadata": {"deletionTimestamp": deleted},
            "spec": {"cidrs": [range, "fd00::/112"]},
            "status": {"conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]},
        })))
    }

    #[test]
    fn objects_add_ranges_while_they_are_ready() {
        let mut ranges = Ranges::new(Range::parse("10.96.0.0/28").unwrap());
        let gives = |ranges: &Ranges, address: &str| ranges.gives(address.parse().unwrap());
        assert!(gives(&ranges, "10.96.0.1") && gives(&ranges, "10.96.0.14"));
        assert!(!gives(&ranges, "10.96.0.0") && !gives(&ranges, "10.96.0.15") && !gives(&ranges, "10.97.0.1"));
        for (object, wanted) in [
            (cidr("10.97.0.0/24", false, false), false),
            (cidr("10.97.0.0/24", true, false), true),
            (cidr("10.97.0.0/24", true, true), false),
            (None, false),
        ] {
            ranges.set("more", object);
            assert_eq!(gives(&ranges, "10.97.0.1"), wanted);
        }
        // Once the object of the configured range exists, it takes precedence.
        ranges.set(DEFAULT_SERVICE_CIDR, cidr("10.98.0.0/24", true, false));
        assert!(!gives(&ranges, "10.96.0.1") && gives(&ranges, "10.98.0.1"));
        ranges.set(DEFAULT_SERVICE_CIDR, None);
        assert!(gives(&ranges, "10.96.0.1"));
    }

    #[test]
    fn any_address_comes_from_above_the_static_band_while_there_is_one() {
        for (range, band) in [("10.0.0.0/24", 16), ("10.0.0.0/20", 256), ("10.0.0.0/12", 256), ("10.0.0.0/29", 0)] {
            let range = Range::parse(range).unwrap();
            assert_eq!(range.static_band(), band, "{range}");
            let lowest = range.next(0, |_| false).unwrap();
            assert_eq!(lowest.to_bits() - range.first, band + 1, "{range}");
        }
    }

    proptest! {
        #[test]
        fn all_addresses_are_given_once(length in 22u8..=32, starts in prop::collection::vec(any::<u32>(), 8)) {
            let range = Range::new(Ipv4Addr::new(10, 1, 0, 0), length);
            let mut taken = BTreeSet::new();
            while let Some(next) = range.next(starts[taken.len() % starts.len()], |address| taken.contains(&address)) {
                prop_assert!(range.gives(next) && taken.insert(next));
            }
            prop_assert_eq!(taken.len(), (1usize << (32 - length)).saturating_sub(2));
        }
    }
}
