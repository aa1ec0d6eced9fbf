//! UDP connections that are tracked towards endpoints that are gone: found and forgotten, so that
//! the next packet is sent to one that exists. Which ones is decided by a pure function; only
//! [`Program`] touches the kernel.

use std::{
    collections::{HashMap, HashSet},
    net::{IpAddr, SocketAddr},
};

use crate::{
    apply::{Error, Runner},
    model::{Family, Model, Protocol},
};

/// One tracked UDP connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flow {
    /// Who opened it.
    pub source: SocketAddr,
    /// Whom it was sent to.
    pub destination: SocketAddr,
    /// Who answers: the endpoint, when the destination is a service.
    pub answers: SocketAddr,
}

/// Where tracked connections are read and forgotten; both block.
pub trait Conntrack: Send + Sync + std::fmt::Debug {
    /// All UDP connections of a family.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    fn udp(&self, family: Family) -> Result<Vec<Flow>, Error>;
    /// Forgets one; one that is gone already is no error.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn forget(&self, flow: &Flow) -> Result<(), Error>;
}

/// UDP addresses of services and the endpoints that may answer there.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Frontends {
    addresses: HashMap<SocketAddr, HashSet<SocketAddr>>,
    node_ports: HashMap<u16, HashSet<SocketAddr>>,
}

impl Frontends {
    /// All UDP frontends of a family, also those without any endpoint.
    #[must_use]
    pub fn of(model: &Model, family: Family) -> Self {
        let mut out = Self::default();
        for (id, service) in model.services() {
            let Some(cluster_ip) = service.cluster_ip(family) else { continue };
            for port in service.ports.iter().filter(|p| p.protocol == Protocol::Udp) {
                let serving: HashSet<SocketAddr> = model
                    .endpoints(id, port, family)
                    .iter()
                    .filter(|e| e.serving)
                    .map(|e| SocketAddr::new(e.ip, e.port))
                    .collect();
                let others = service.external_ips.iter().chain(&service.lb_ips).copied();
                for ip in others.filter(|ip| Family::of(ip) == family).chain([cluster_ip]) {
                    out.addresses.entry(SocketAddr::new(ip, port.port)).or_default().extend(&serving);
                }
                if port.node_port != 0 {
                    out.node_ports.entry(port.node_port).or_default().extend(&serving);
                }
            }
        }
        out
    }

    /// Whether there is anything to look for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.node_ports.is_empty()
    }

    /// The flows whose service no longer has the endpoint that answers them. A node port counts
    /// only at an address of this machine.
    #[must_use]
    pub fn stale<'a>(&self, flows: &'a [Flow], local: &HashSet<IpAddr>) -> Vec<&'a Flow> {
        let is_stale = |flow: &&Flow| {
            let endpoints = self.addresses.get(&flow.destination).or_else(|| {
                self.node_ports.get(&flow.destination.port()).filter(|_| local.contains(&flow.destination.ip()))
            });
            endpoints.is_some_and(|known| !known.contains(&flow.answers))
        };
        flows.iter().filter(is_stale).collect()
    }
}

/// The `conntrack` program.
#[derive(Debug, Clone, Default)]
pub struct Program {
    runner: Runner,
}

impl Program {
    /// Runs `conntrack` behind the runner's prefix.
    #[must_use]
    pub const fn new(runner: Runner) -> Self {
        Self { runner }
    }
}

impl Conntrack for Program {
    fn udp(&self, family: Family) -> Result<Vec<Flow>, Error> {
        let word = if family == Family::V4 { "ipv4" } else { "ipv6" };
        let text = self.runner.run("conntrack", &["-L", "-p", "udp", "-f", word], "")?;
        Ok(text.lines().filter_map(parse).collect())
    }

    fn forget(&self, flow: &Flow) -> Result<(), Error> {
        let (source, destination) = (flow.source, flow.destination);
        let args = [
            "-D".to_owned(),
            "-f".to_owned(),
            if source.is_ipv4() { "ipv4" } else { "ipv6" }.to_owned(),
            "-p".to_owned(),
            "udp".to_owned(),
            "-s".to_owned(),
            source.ip().to_string(),
            "--sport".to_owned(),
            source.port().to_string(),
            "-d".to_owned(),
            destination.ip().to_string(),
            "--dport".to_owned(),
            destination.port().to_string(),
        ];
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        match self.runner.run("conntrack", &args, "") {
            // "0 flow entries have been deleted": it ended by itself.
            Err(Error::Failed { stderr, .. }) if stderr.contains("0 flow entries") => Ok(()),
            other => other.map(drop),
        }
    }
}

/// Reads one line of `conntrack -L`: the second group of addresses is the answer's.
fn parse(line: &str) -> Option<Flow> {
    let values = |key: &'static str| line.split_whitespace().filter_map(move |w| w.strip_prefix(key));
    let (mut sources, mut destinations) = (values("src="), values("dst="));
    let (mut from, mut to) = (values("sport="), values("dport="));
    let mut next_source = || Some(SocketAddr::new(sources.next()?.parse().ok()?, from.next()?.parse().ok()?));
    let source = next_source()?;
    let answers = next_source()?;
    let destination = SocketAddr::new(destinations.next()?.parse().ok()?, to.next()?.parse().ok()?);
    line.starts_with("udp").then_some(Flow { source, destination, answers })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "udp      17 25 src=10.0.0.2 dst=172.30.0.41 sport=4000 dport=53 [UNREPLIED] src=10.180.0.1 \
                        dst=10.0.0.2 sport=5353 dport=4000 mark=0 use=1";

    #[test]
    fn lines_of_the_program_are_read() {
        let flow = parse(LINE).unwrap();
        assert_eq!(flow.source, "10.0.0.2:4000".parse().unwrap());
        assert_eq!(flow.destination, "172.30.0.41:53".parse().unwrap());
        assert_eq!(flow.answers, "10.180.0.1:5353".parse().unwrap());
        assert_eq!(parse("tcp 6 1 src=1.1.1.1"), None);
    }

    #[test]
    fn only_flows_of_known_frontends_to_other_endpoints_are_stale() {
        let addr = |s: &str| s.parse::<SocketAddr>().unwrap();
        let mut frontends = Frontends::default();
        frontends.addresses.insert(addr("172.30.0.41:53"), HashSet::from([addr("10.180.0.1:53")]));
        frontends.addresses.insert(addr("172.30.0.42:53"), HashSet::new());
        frontends.node_ports.insert(3001, HashSet::from([addr("10.180.0.1:53")]));
        let flow =
            |to: &str, from: &str| Flow { source: addr("10.0.0.2:4000"), destination: addr(to), answers: addr(from) };
        let flows = [
            flow("172.30.0.41:53", "10.180.0.1:53"),
            flow("172.30.0.41:53", "10.180.0.2:53"),
            flow("172.30.0.41:54", "10.180.0.2:53"),
            flow("172.30.0.42:53", "10.180.0.2:53"),
            flow("192.168.0.2:3001", "10.180.0.9:53"),
            flow("8.8.8.8:3001", "8.8.8.8:3001"),
        ];
        let local = HashSet::from(["192.168.0.2".parse().unwrap()]);
        let stale = frontends.stale(&flows, &local);
        assert_eq!(stale, [&flows[1], &flows[3], &flows[4]]);
    }
}
