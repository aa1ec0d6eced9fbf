//! The upstream name servers: those of the host's resolv.conf, in order. Pure.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use windlass_kit::resolv_conf::ResolvConf;

/// The port of name servers.
const DNS_PORT: u16 = 53;
/// The most that are used, CoreDNS's limit.
const MAX_UPSTREAMS: usize = 15;

/// The name servers of a resolv.conf.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Upstreams {
    pub(super) servers: Vec<SocketAddr>,
    /// Those that lead back here, which are not asked.
    pub(super) own: Vec<IpAddr>,
    /// What is no address.
    pub(super) unreadable: Vec<String>,
}

impl Upstreams {
    /// The servers of a file. `own` are the addresses under which this server is reached; `index_of` finds the number of
    /// an interface.
    pub(super) fn of(conf: &ResolvConf, own: &[IpAddr], index_of: impl Fn(&str) -> Option<u32>) -> Self {
        let mut found = Self::default();
        for text in &conf.servers {
            match server(text, &index_of) {
                None => found.unreadable.push(text.clone()),
                Some(at) if own.contains(&at.ip()) => found.own.push(at.ip()),
                Some(at) if found.servers.contains(&at) => {}
                Some(at) => found.servers.push(at),
            }
        }
        found.servers.truncate(MAX_UPSTREAMS);
        found
    }
}

/// `192.0.2.1`, `2001:db8::1`, or `fe80::1%eth0`.
fn server(text: &str, index_of: impl Fn(&str) -> Option<u32>) -> Option<SocketAddr> {
    let (address, interface) = text.split_once('%').map_or((text, None), |(address, name)| (address, Some(name)));
    Some(match (address.parse().ok()?, interface) {
        (IpAddr::V6(v6), Some(name)) => {
            let index = name.parse().ok().or_else(|| index_of(name))?;
            SocketAddr::V6(SocketAddrV6::new(v6, DNS_PORT, 0, index))
        }
        (ip, None) => SocketAddr::new(ip, DNS_PORT),
        (IpAddr::V4(_), Some(_)) => return None,
    })
}
