//! Addresses and ranges by purpose. Only their constructors validate, so that API validation and the code that acts on
//! an object cannot disagree.

use std::{fmt, net::IpAddr};

use crate::net::{Cidr, Family};

/// Why an address is nothing that packets of others may be sent to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the ranges are the field's")]
pub enum SpecialAddress {
    Unspecified,
    Loopback,
    LinkLocal,
    LinkLocalMulticast,
}

impl SpecialAddress {
    /// The range that an address is in; one of IPv4 that is written as IPv6 counts as IPv4, as the kernel has it.
    #[must_use]
    pub fn of(ip: IpAddr) -> Option<Self> {
        let ip = ip.to_canonical();
        let (link_local, link_local_multicast) = match ip {
            IpAddr::V4(v4) => (v4.is_link_local(), v4.octets().starts_with(&[224, 0, 0])),
            IpAddr::V6(v6) => {
                let [first, second, ..] = v6.octets();
                (v6.is_unicast_link_local(), first == 0xff && second & 0x0f == 2)
            }
        };
        [
            (ip.is_unspecified(), Self::Unspecified),
            (ip.is_loopback(), Self::Loopback),
            (link_local, Self::LinkLocal),
            (link_local_multicast, Self::LinkLocalMulticast),
        ]
        .into_iter()
        .find_map(|(is, kind)| is.then_some(kind))
    }
}

/// Upstream's words (`ValidateEndpointIP`).
impl fmt::Display for SpecialAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unspecified => "may not be unspecified",
            Self::Loopback => "may not be in the loopback range (127.0.0.0/8, ::1/128)",
            Self::LinkLocal => "may not be in the link-local range (169.254.0.0/16, fe80::/10)",
            Self::LinkLocalMulticast => "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)",
        })
    }
}

/// An address that other clients' packets may be sent to: of an endpoint, an external IP, a load balancer. Without
/// these restrictions, writers of such objects could reach, or take over, loopback listeners on every node, and a
/// cloud's link-local services.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndpointIp(IpAddr);

impl EndpointIp {
    /// Takes all but special addresses.
    ///
    /// # Errors
    /// The special range that the address is in.
    pub fn new(ip: IpAddr) -> Result<Self, SpecialAddress> {
        SpecialAddress::of(ip).map_or(Ok(Self(ip)), Err)
    }

    /// The address of an endpoint of the API itself, which may listen on the loopback device alone.
    ///
    /// # Errors
    /// The special range that the address is in, if it is not the loopback range.
    pub fn of_the_api(ip: IpAddr) -> Result<Self, SpecialAddress> {
        match SpecialAddress::of(ip) {
            None | Some(SpecialAddress::Loopback) => Ok(Self(ip)),
            Some(other) => Err(other),
        }
    }

    /// The address.
    #[must_use]
    pub const fn get(self) -> IpAddr {
        self.0
    }
}

/// Whether an EndpointSlice is the one of the API itself.
#[must_use]
pub fn is_slice_of_the_api(namespace: &str, name: &str) -> bool {
    (namespace, name) == ("default", "kubernetes")
}

/// Annotation: the source ranges of a Service, separated by commas, where its field has none
/// (`AnnotationLoadBalancerSourceRangesKey`).
pub const SOURCE_RANGES_ANNOTATION: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";

/// Who may use the addresses of a load balancer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SourceRanges {
    ranges: Vec<Cidr>,
    /// An entry could not be parsed. Since the list restricts clients, it matches no client of either family.
    unreadable: bool,
}

impl SourceRanges {
    /// Reads `spec.loadBalancerSourceRanges`, or the annotation where that has no entries. Blanks around an entry are
    /// allowed, as in upstream.
    pub fn of<'a>(field: impl Iterator<Item = &'a str>, annotation: Option<&'a str>) -> Self {
        let mut field = field.peekable();
        if field.peek().is_some() {
            return Self::read(field);
        }
        match annotation.map(str::trim) {
            None | Some("") => Self::default(),
            Some(listed) => Self::read(listed.split(',')),
        }
    }

    fn read<'a>(entries: impl Iterator<Item = &'a str>) -> Self {
        let mut read = Self::default();
        for entry in entries {
            match Cidr::parse(entry) {
                Some(range) if !read.ranges.contains(&range) => read.ranges.push(range),
                Some(_) => {}
                None => read.unreadable = true,
            }
        }
        read
    }

    /// The client ranges allowed for a family: an empty list admits no client; `None` means no restriction.
    #[must_use]
    pub fn of_family(&self, family: Family) -> Option<Vec<Cidr>> {
        let ranges: Vec<Cidr> = self.ranges.iter().copied().filter(|range| range.family() == family).collect();
        let restricts = self.unreadable || !ranges.is_empty();
        (restricts && !ranges.iter().any(Cidr::is_all)).then_some(ranges)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_of_others_are_sent_to_no_special_address() {
        use SpecialAddress::{LinkLocal, LinkLocalMulticast, Loopback, Unspecified};
        for (text, special) in [
            ("10.0.0.1", None),
            ("2001:db8::1", None),
            ("224.0.1.1", None),
            ("ff05::1", None),
            ("0.0.0.0", Some(Unspecified)),
            ("::", Some(Unspecified)),
            ("127.0.0.1", Some(Loopback)),
            ("127.255.0.9", Some(Loopback)),
            ("::1", Some(Loopback)),
            ("::ffff:127.0.0.1", Some(Loopback)),
            ("169.254.169.254", Some(LinkLocal)),
            ("::ffff:169.254.169.254", Some(LinkLocal)),
            ("fe80::1", Some(LinkLocal)),
            ("febf::1", Some(LinkLocal)),
            ("224.0.0.1", Some(LinkLocalMulticast)),
            ("ff02::1", Some(LinkLocalMulticast)),
            ("ff12::1", Some(LinkLocalMulticast)),
        ] {
            let ip = text.parse().unwrap();
            assert_eq!(EndpointIp::new(ip).err(), special, "{text}");
            let of_the_api = special.filter(|special| *special != Loopback);
            assert_eq!(EndpointIp::of_the_api(ip).err(), of_the_api, "{text}");
        }
    }

    #[test]
    fn a_range_that_cannot_be_read_matches_nobody() {
        let shown = |field: &[&str], annotation: Option<&str>, family: Family| {
            let ranges = SourceRanges::of(field.iter().copied(), annotation).of_family(family);
            ranges.map(|ranges| ranges.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
        };
        let some = |text: &str| Some(text.to_owned());
        for (field, annotation, v4, v6) in [
            (&[][..], None, None, None),
            (&["203.0.113.7"], None, some(""), some("")),
            (&["office"], Some("10.0.0.0/8"), some(""), some("")),
            (&["203.0.113.7", " 10.0.0.0/8"], None, some("10.0.0.0/8"), some("")),
            (&["10.0.0.0/8", "10.0.0.0/8"], None, some("10.0.0.0/8"), None),
            (&["10.0.0.0/8", "0.0.0.0/0"], None, None, None),
            (&["office", "0.0.0.0/0"], None, None, some("")),
            (&["10.0.0.0/8", "fd00::/8"], Some("::/0"), some("10.0.0.0/8"), some("fd00::/8")),
            (&[], Some(" 10.0.0.0/8 , 192.0.2.0/24 "), some("10.0.0.0/8 192.0.2.0/24"), None),
            (&[], Some(" "), None, None),
            (&[], Some("10.0.0.0/8,,"), some("10.0.0.0/8"), some("")),
        ] {
            assert_eq!(shown(field, annotation, Family::V4), v4, "{field:?} {annotation:?}");
            assert_eq!(shown(field, annotation, Family::V6), v6, "{field:?} {annotation:?}");
        }
    }
}
