//! Answers questions about names of the cluster, as CoreDNS's `kubernetes` plugin does with kubeadm's settings. Pure.
//!
//! A headless Service without ready endpoints does not exist, as the specification says. An alias of an ExternalName
//! Service is followed within the cluster; where it leads outside, the caller asks others for its target.

use std::{collections::BTreeSet, net::IpAddr};

use hickory_proto::{
    op::{Query, ResponseCode},
    rr::{
        Name, RData, Record, RecordType,
        rdata::{CNAME, NS, PTR, SOA, SRV, TXT},
    },
};

use super::{
    answer::Answer,
    names::{Subject, subject},
    records::{Key, Leads, Port, Records},
};

/// Seconds for which an answer may be kept: CoreDNS's default. kubeadm's Corefile has 30, which names of services that are
/// made again would be wrong for.
const TTL: u32 = 5;
/// CoreDNS's times of the domain's SOA record, in seconds.
const SOA_REFRESH: i32 = 7200;
const SOA_RETRY: i32 = 1800;
const SOA_EXPIRE: i32 = 86400;
/// The version of the specification, `DNSSchemaVersion`.
const SPECIFICATION: &str = "1.1.0";
/// Aliases that are followed for one question.
const MAX_ALIASES: usize = 8;
/// The sum of the weights of SRV records.
const WEIGHTS: usize = 100;

/// The domain of the cluster.
#[derive(Debug, Clone)]
pub(super) struct Zone {
    domain: Name,
    serial: u32,
    /// The Service of this server.
    server: Key,
}

/// What is found.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Found {
    Answer(Answer),
    /// Aliases whose last one leads out of the cluster, to a name.
    Alias(Vec<Record>, Name),
    /// A name of others.
    Foreign,
}

/// What a name of the domain holds.
enum Held {
    /// The name does not exist.
    Nothing,
    /// It exists, and perhaps others below it.
    Name,
    Alias(Name),
    Hosts(Vec<Host>),
    Records(Vec<RData>, Vec<Record>),
}

/// An address with a port.
#[derive(Debug, Clone)]
struct Host {
    address: IpAddr,
    port: Option<u16>,
    /// The label of an endpoint below its Service.
    label: Option<Box<str>>,
}

impl Zone {
    /// The zone of a domain such as `cluster.local`; `None` if that is no name.
    pub(super) fn new(domain: &str, serial: u32, server: Key) -> Option<Self> {
        let labels = domain.trim_matches('.').split('.').map(|label| label.as_bytes().to_vec());
        let mut domain = Name::from_labels(labels).ok().filter(|name| !name.is_root())?;
        domain.set_fqdn(true);
        Some(Self { domain, serial, server })
    }

    /// Whether all objects must be known to answer for a name.
    pub(super) fn needs_records(&self, name: &Name) -> bool {
        subject(name, &self.domain) != Subject::Foreign
    }

    /// What a name is counted as: its zone in CoreDNS's metrics.
    pub(super) fn label_of(&self, name: &Name) -> String {
        if self.domain.zone_of(name) { self.domain.to_ascii() } else { ".".to_owned() }
    }

    fn name(&self, labels: &[&str]) -> Option<Name> {
        Name::from_labels(labels.iter().map(|label| label.as_bytes())).ok()?.append_domain(&self.domain).ok()
    }

    fn service_name(&self, key: &Key, label: Option<&str>) -> Option<Name> {
        let labels: Vec<&str> = label.into_iter().chain([&*key.name, &*key.namespace, "svc"]).collect();
        self.name(&labels)
    }

    fn soa(&self) -> Option<Record> {
        let (server, mailbox) = (self.name(&["ns", "dns"])?, self.name(&["hostmaster"])?);
        let soa = SOA::new(server, mailbox, self.serial, SOA_REFRESH, SOA_RETRY, SOA_EXPIRE, TTL);
        Some(Record::from_rdata(self.domain.clone(), TTL, RData::SOA(soa)))
    }

    /// The answer that a name does not exist, or has no records of a type.
    fn negative(&self, code: ResponseCode) -> Answer {
        Answer { code, authorities: self.soa().into_iter().collect(), ..Answer::own() }
    }
}

/// Answers a question. `turn` says which of several addresses is first.
pub(super) fn lookup(zone: &Zone, records: &Records, question: &Query, turn: u16) -> Found {
    let mut aliases: Vec<Record> = Vec::new();
    let mut name = question.name.clone();
    loop {
        let about = subject(&name, &zone.domain);
        let held = match &about {
            Subject::Foreign if aliases.is_empty() => return Found::Foreign,
            Subject::Foreign => return Found::Alias(aliases, name),
            Subject::Reverse(address) => match pointers(zone, records, *address, question.query_type) {
                Some(pointers) => Held::Records(pointers, Vec::new()),
                None if aliases.is_empty() => return Found::Foreign,
                None => return Found::Alias(aliases, name),
            },
            about => held(zone, records, about, question.query_type),
        };
        let mut answer = match held {
            // Upstream has no SRV records of ExternalName Services.
            Held::Alias(_) if question.query_type == RecordType::SRV => zone.negative(ResponseCode::NoError),
            Held::Alias(target) => {
                let alias = Record::from_rdata(name, TTL, RData::CNAME(CNAME(target.clone())));
                if question.query_type == RecordType::CNAME {
                    return Found::Answer(Answer { answers: vec![alias], ..Answer::own() });
                }
                aliases.push(alias);
                if aliases.len() > MAX_ALIASES {
                    return Found::Answer(Answer { code: ResponseCode::ServFail, ..Answer::own() });
                }
                name = target;
                continue;
            }
            Held::Nothing => zone.negative(ResponseCode::NXDomain),
            Held::Name => zone.negative(ResponseCode::NoError),
            Held::Hosts(hosts) => of_hosts(zone, &about, &name, hosts, question.query_type, turn),
            Held::Records(data, additionals) => {
                let answers = data.into_iter().map(|data| Record::from_rdata(name.clone(), TTL, data)).collect();
                Answer { answers, additionals, ..Answer::own() }
            }
        };
        answer.answers.splice(0..0, aliases);
        return Found::Answer(answer);
    }
}

/// The names of an address; `None` where others may know one.
fn pointers(zone: &Zone, records: &Records, address: IpAddr, wanted: RecordType) -> Option<Vec<RData>> {
    if wanted != RecordType::PTR {
        return None;
    }
    let pointer = |key: &Key, label: Option<&str>| Some(RData::PTR(PTR(zone.service_name(key, label)?)));
    if let Some(key) = records.service_at(address) {
        return pointer(key, None).map(|pointer| vec![pointer]);
    }
    let names: BTreeSet<(&Key, &str)> = records.hosts_at(address).collect();
    let pointers: Vec<RData> = names.into_iter().filter_map(|(key, host)| pointer(key, Some(host))).collect();
    (!pointers.is_empty()).then_some(pointers)
}

/// What a name of the domain holds.
fn held(zone: &Zone, records: &Records, about: &Subject, wanted: RecordType) -> Held {
    match about {
        Subject::Foreign | Subject::Reverse(_) | Subject::Unknown => Held::Nothing,
        Subject::Branch => Held::Name,
        Subject::Apex => match wanted {
            RecordType::SOA => Held::Records(zone.soa().into_iter().map(|soa| soa.data).collect(), Vec::new()),
            RecordType::NS => name_server(zone, records),
            _ => Held::Name,
        },
        Subject::Version => match wanted {
            RecordType::TXT => Held::Records(vec![RData::TXT(TXT::new(vec![SPECIFICATION.to_owned()]))], Vec::new()),
            _ => Held::Name,
        },
        Subject::NameServer => Held::Hosts(server_addresses(zone, records)),
        Subject::Namespace(name) => {
            if records.has_namespace(name) {
                Held::Name
            } else {
                Held::Nothing
            }
        }
        Subject::Pod(namespace, address) if records.has_namespace(namespace) => {
            Held::Hosts(vec![Host { address: *address, port: None, label: None }])
        }
        Subject::Pod(..) => Held::Nothing,
        Subject::Service(key) => of_service(records, key, None, |_| true),
        Subject::Endpoint(key, label) => below(of_service(records, key, Some(label), |_| true)),
        Subject::Port(key, name, protocol) => {
            below(of_service(records, key, None, |port| port.name == *name && port.protocol == *protocol))
        }
        // Nothing has this name, but ports are below it.
        Subject::Protocol(key, protocol) => {
            match of_service(records, key, None, |port| !port.name.is_empty() && port.protocol == *protocol) {
                Held::Hosts(_) => Held::Name,
                _ => Held::Nothing,
            }
        }
    }
}

/// As upstream, nothing is below the name of an ExternalName Service.
fn below(held: Held) -> Held {
    if matches!(held, Held::Alias(_)) { Held::Nothing } else { held }
}

/// What a Service has: its cluster IPs, or its endpoints, by `label` only the one with it; of the ports that are
/// `wanted`. Upstream's `findServices`.
fn of_service(records: &Records, key: &Key, label: Option<&str>, wanted: impl Fn(&Port) -> bool) -> Held {
    let Some(service) = records.service(key) else { return Held::Nothing };
    let mut hosts = Vec::new();
    match &service.leads {
        Leads::External(target) => return target.clone().map_or(Held::Nothing, Held::Alias),
        Leads::ClusterIps(ips) if label.is_none() => {
            for port in service.ports.iter().filter(|port| wanted(port)) {
                hosts.extend(ips.iter().map(|ip| Host { address: *ip, port: port.number, label: None }));
            }
            if service.ports.iter().any(wanted) {
                return Held::Hosts(hosts);
            }
        }
        Leads::ClusterIps(_) | Leads::Headless => {
            for slice in records.slices(key) {
                for endpoint in &slice.endpoints {
                    if label.is_some_and(|label| !endpoint.is(label)) {
                        continue;
                    }
                    let ports = slice.ports.iter().filter(|port| wanted(port));
                    hosts.extend(ports.map(|port| Host {
                        address: endpoint.address,
                        port: port.number,
                        label: Some(endpoint.label()),
                    }));
                }
            }
        }
    }
    if hosts.is_empty() { Held::Nothing } else { Held::Hosts(hosts) }
}

/// The records of a type of what has addresses.
fn of_hosts(zone: &Zone, about: &Subject, name: &Name, hosts: Vec<Host>, wanted: RecordType, turn: u16) -> Answer {
    let mut answer = Answer::own();
    match (wanted, about) {
        (RecordType::A | RecordType::AAAA, _) => {
            let mut seen = BTreeSet::new();
            let of_type = |address: &IpAddr| address.is_ipv4() == (wanted == RecordType::A);
            let addresses = hosts.iter().map(|host| host.address).filter(of_type);
            let addresses: Vec<IpAddr> = addresses.filter(|address| seen.insert(*address)).collect();
            answer.answers = addresses.into_iter().map(|address| address_record(name.clone(), address)).collect();
            let first = usize::from(turn).checked_rem(answer.answers.len()).unwrap_or_default();
            answer.answers.rotate_left(first);
        }
        (RecordType::SRV, Subject::Service(key) | Subject::Endpoint(key, _) | Subject::Port(key, ..)) => {
            let weight = u16::try_from((WEIGHTS / hosts.len().max(1)).max(1)).unwrap_or(1);
            let (mut targets, mut addresses) = (BTreeSet::new(), BTreeSet::new());
            for host in hosts {
                let Some(port) = host.port else { continue };
                let Some(target) = zone.service_name(key, host.label.as_deref()) else { continue };
                if targets.insert((host.label.clone(), port)) {
                    let srv = RData::SRV(SRV::new(0, weight, port, target.clone()));
                    answer.answers.push(Record::from_rdata(name.clone(), TTL, srv));
                }
                if addresses.insert((host.label, host.address)) {
                    answer.additionals.push(address_record(target, host.address));
                }
            }
        }
        _ => {}
    }
    if answer.answers.is_empty() { zone.negative(ResponseCode::NoError) } else { answer }
}

fn address_record(name: Name, address: IpAddr) -> Record {
    let data = match address {
        IpAddr::V4(v4) => RData::A(v4.into()),
        IpAddr::V6(v6) => RData::AAAA(v6.into()),
    };
    Record::from_rdata(name, TTL, data)
}

fn server_addresses(zone: &Zone, records: &Records) -> Vec<Host> {
    match of_service(records, &zone.server, None, |_| true) {
        Held::Hosts(hosts) => hosts,
        _ => Vec::new(),
    }
}

/// The name server of the domain: its Service, with its addresses.
fn name_server(zone: &Zone, records: &Records) -> Held {
    let addresses: BTreeSet<IpAddr> = server_addresses(zone, records).iter().map(|host| host.address).collect();
    let name = if addresses.is_empty() { zone.name(&["ns", "dns"]) } else { zone.service_name(&zone.server, None) };
    let Some(name) = name else { return Held::Name };
    let additionals = addresses.into_iter().map(|address| address_record(name.clone(), address)).collect();
    Held::Records(vec![RData::NS(NS(name))], additionals)
}
