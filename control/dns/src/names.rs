//! What a name asks for: the schema of names of the Kubernetes DNS specification, as CoreDNS reads them. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hickory_proto::rr::Name;

use super::records::Key;

/// What a name stands for. Whether that exists is not known here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Subject {
    /// A name outside of the cluster.
    Foreign,
    /// The domain itself.
    Apex,
    /// `svc`, `pod` and `dns`, below which names are.
    Branch,
    /// `dns-version`
    Version,
    /// `ns.dns`, the name server of the domain.
    NameServer,
    /// `<namespace>.svc` and `<namespace>.pod`.
    Namespace(Box<str>),
    Service(Key),
    /// `<label>.<service>`, an endpoint by its host name or its address.
    Endpoint(Key, Box<str>),
    /// `_<protocol>.<service>`, below which ports are.
    Protocol(Key, Box<str>),
    /// `_<port>._<protocol>.<service>`
    Port(Key, Box<str>, Box<str>),
    /// `<address>.<namespace>.pod`
    Pod(Box<str>, IpAddr),
    /// The name of an address.
    Reverse(IpAddr),
    /// A name of the domain that cannot exist.
    Unknown,
}

/// Reads a name; letters of either case are the same.
pub(super) fn subject(name: &Name, domain: &Name) -> Subject {
    if !domain.zone_of(name) {
        return reverse(name).map_or(Subject::Foreign, Subject::Reverse);
    }
    let below = usize::from(name.num_labels()).saturating_sub(usize::from(domain.num_labels()));
    let labels: Option<Vec<String>> = name.iter().take(below).map(label).collect();
    let Some(labels) = labels else { return Subject::Unknown };
    let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
    let key = |namespace: &str, service: &str| Key::new(namespace, service);
    match labels[..] {
        [] => Subject::Apex,
        ["svc" | "pod" | "dns"] => Subject::Branch,
        ["dns-version"] => Subject::Version,
        ["ns", "dns"] => Subject::NameServer,
        [namespace, "svc" | "pod"] => Subject::Namespace(namespace.into()),
        [address, namespace, "pod"] => {
            pod_address(address).map_or(Subject::Unknown, |address| Subject::Pod(namespace.into(), address))
        }
        [service, namespace, "svc"] => Subject::Service(key(namespace, service)),
        [label, service, namespace, "svc"] => match label.strip_prefix('_') {
            Some(protocol) => Subject::Protocol(key(namespace, service), protocol.into()),
            None => Subject::Endpoint(key(namespace, service), label.into()),
        },
        [port, protocol, service, namespace, "svc"] => match (port.strip_prefix('_'), protocol.strip_prefix('_')) {
            (Some(port), Some(protocol)) => Subject::Port(key(namespace, service), port.into(), protocol.into()),
            _ => Subject::Unknown,
        },
        _ => Subject::Unknown,
    }
}

/// A label in lower case; `None` for one with bytes that no object's name has.
fn label(bytes: &[u8]) -> Option<String> {
    let is_known = bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'));
    is_known.then(|| String::from_utf8_lossy(bytes).to_ascii_lowercase())
}

/// `10-244-0-5`, or an address of IPv6 with dashes in place of colons.
fn pod_address(label: &str) -> Option<IpAddr> {
    if label.matches('-').count() == 3 && !label.contains("--") {
        return label.replace('-', ".").parse().ok();
    }
    label.replace('-', ":").parse().ok()
}

/// The address of a whole name in `in-addr.arpa` or `ip6.arpa`.
fn reverse(name: &Name) -> Option<IpAddr> {
    let labels: Vec<String> = name.iter().map(label).collect::<Option<_>>()?;
    let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
    match labels[..] {
        [d, c, b, a, "in-addr", "arpa"] => format!("{a}.{b}.{c}.{d}").parse::<Ipv4Addr>().ok().map(IpAddr::V4),
        [ref nibbles @ .., "ip6", "arpa"] if nibbles.len() == 32 => {
            let mut bits = 0u128;
            for nibble in nibbles.iter().rev() {
                let digit = u128::from_str_radix(nibble, 16).ok().filter(|_| nibble.len() == 1)?;
                bits = bits << 4 | digit;
            }
            Some(IpAddr::V6(Ipv6Addr::from_bits(bits)))
        }
        _ => None,
    }
}
