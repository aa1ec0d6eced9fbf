//! Upstream's conformance tables: clusters and the flows through them. `conformance.rs` traces the flows by the model
//! of netfilter, `packets.rs` sends them through a kernel.
//!
//! Addresses are written for IPv4 and have a twin in IPv6.

#![allow(clippy::unwrap_used, unreachable_pub)]

pub mod cases;

use std::net::IpAddr;

use serde_json::{Value, json};
use windlass_proxy::{
    Config, Objects,
    model::{Cidr, Family, parse_ip},
    rules_from_objects,
};

/// The node's addresses.
pub const NODE: [&str; 3] = ["192.168.0.2", "192.168.1.2", "192.168.99.11"];

/// The twin of an address or range of the tables.
pub fn twin(text: &str, family: Family) -> String {
    if family == Family::V4 {
        return text.to_owned();
    }
    let text = text.trim();
    let octet = |rest: &str| rest.parse::<u8>().unwrap_or_else(|_| panic!("{text} has a twin"));
    for (prefix, six) in [("10.180.0.", "fd00:10:180::"), ("172.30.0.", "fd00:172:30::"), ("10.0.0.", "fd00:10::")] {
        if let Some(rest) = text.strip_prefix(prefix).filter(|r| !r.contains('/')) {
            return format!("{six}{:x}", octet(rest));
        }
    }
    match text {
        "10.0.0.0/8" => "fd00:10::/31",
        "192.168.0.2" => "2001:db8::2",
        "192.168.1.2" => "2001:db8:1::2",
        "192.168.99.11" => "2001:db8:99::11",
        "192.168.0.0/24" => "2001:db8::/64",
        "203.0.113.2" => "2001:db8:203::2",
        "203.0.113.130" => "2001:db8:203::8002",
        "203.0.113.0/25" => "2001:db8:203::/113",
        "1.2.3.4" => "2001:db8:f::1",
        "5.6.7.8" => "2001:db8:f::5",
        "9.10.11.12" => "2001:db8:f::9",
        "127.0.0.1" => "::1",
        "127.0.0.1/32" => "::1/128",
        other => return other.to_owned(),
    }
    .to_owned()
}

/// A packet and its possible ends.
#[derive(Debug, Clone)]
pub struct Flow {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub port: u16,
    pub protocol: String,
    /// `ADDRESS:PORT` of endpoints, or one of REJECT, DROP, ACCEPT, pass.
    pub ends: Vec<String>,
    pub masqueraded: bool,
    /// The line of the table.
    pub line: String,
}

/// A cluster with flows through it.
#[derive(Debug)]
pub struct Case {
    pub name: String,
    pub cluster: Cluster,
    lines: Vec<String>,
}

impl Case {
    /// The flows of one family; those at 127.0.0.1 exist in IPv4 only.
    pub fn flows(&self, family: Family) -> Vec<Flow> {
        let wanted = |line: &&String| family == Family::V4 || !line.contains("127.0.0.1");
        self.lines.iter().filter(wanted).map(|line| flow(line, family)).collect()
    }
}

/// Parses `source > destination:port[/protocol] = ends`, ends separated by blanks, perhaps with `masq` last.
fn flow(line: &str, family: Family) -> Flow {
    let (from, rest) = line.split_once(" > ").unwrap();
    let (to, wanted) = rest.split_once(" = ").unwrap();
    let (to, protocol) = to.split_once('/').unwrap_or((to, "tcp"));
    let (destination, port) = to.split_once(':').unwrap();
    let address = |name: &str| {
        let four = match name {
            "POD" => "10.0.0.2",
            "NODE" => NODE[0],
            "ALT" => NODE[1],
            "LO" => "127.0.0.1",
            "X" => "203.0.113.2",
            "XB" => "203.0.113.130",
            other => other,
        };
        parse_ip(&twin(four, family)).unwrap()
    };
    let (list, masqueraded) = wanted.strip_suffix(" masq").map_or((wanted, false), |l| (l, true));
    let end = |word: &str| {
        let endpoint = |octet: &str, port: &str| {
            let ip = parse_ip(&twin(&format!("10.180.0.{octet}"), family)).unwrap();
            std::net::SocketAddr::new(ip, port.parse().unwrap()).to_string()
        };
        match (word.parse::<u8>(), word.strip_prefix('@')) {
            (Ok(_), _) => endpoint(word, "80"),
            (_, Some(at)) => at.split_once(':').map(|(octet, port)| endpoint(octet, port)).unwrap(),
            _ => word.to_owned(),
        }
    };
    Flow {
        source: address(from),
        destination: address(destination),
        port: port.parse().unwrap(),
        protocol: protocol.to_owned(),
        ends: list.split(' ').map(end).collect(),
        masqueraded,
        line: line.to_owned(),
    }
}

/// All cases, in groups named after what they are about.
#[derive(Debug, Default)]
pub struct Cases {
    group: &'static str,
    pub list: Vec<Case>,
}

/// An endpoint: last octet and letters: `l` local, `t` terminating and serving, `d` terminating.
fn endpoints(list: &[&str], family: Family) -> Value {
    list.iter()
        .map(|e| {
            let (octet, flags) = e.split_at(e.find(|c: char| !c.is_ascii_digit()).unwrap_or(e.len()));
            let leaving = flags.contains('t') || flags.contains('d');
            json!({"addresses": [twin(&format!("10.180.0.{octet}"), family)],
                   "nodeName": if flags.contains('l') { "test-node" } else { "other" },
                   "conditions": {"ready": !leaving, "serving": !flags.contains('d'), "terminating": leaving}})
        })
        .collect()
}

/// Objects and settings.
#[derive(Debug, Clone)]
pub struct Cluster {
    services: Vec<Value>,
    pub slices: Vec<Value>,
    pub config: Config,
}

impl Cluster {
    pub fn new() -> Self {
        let both = |text: &str| Family::BOTH.map(|f| twin(text, f));
        let config = Config {
            node_name: "test-node".to_owned(),
            node_ips: NODE.iter().flat_map(|ip| both(ip)).map(|ip| parse_ip(&ip).unwrap()).collect(),
            cluster_cidrs: both("10.0.0.0/8").iter().map(|c| Cidr::parse(c).unwrap()).collect(),
            nfacct: Some(false),
            ..Config::default()
        };
        Self { services: Vec::new(), slices: Vec::new(), config }
    }

    /// A service on port 80 with more spec, in both families; its endpoints on 80.
    pub fn with(mut self, name: &str, spec: Value, lb_ips: &[&str], list: &[&str]) -> Self {
        let mut spec = spec;
        if spec.get("ports").is_none() {
            spec["ports"] = json!([{"name": "p80", "port": 80, "nodePort": spec["np"].as_i64().unwrap_or(0)}]);
        }
        let both = |text: &str| Family::BOTH.map(|f| twin(text, f));
        let cluster_ip = spec["clusterIP"].as_str().unwrap().to_owned();
        spec["clusterIPs"] = both(&cluster_ip).into_iter().map(Value::from).collect();
        for field in ["externalIPs", "loadBalancerSourceRanges"] {
            if let Some(list) = spec[field].as_array() {
                spec[field] = list.iter().flat_map(|v| both(v.as_str().unwrap())).map(Value::from).collect();
            }
        }
        let ingress: Vec<Value> = lb_ips.iter().flat_map(|ip| both(ip)).map(|ip| json!({"ip": ip})).collect();
        self.services.push(json!({"metadata": {"name": name, "namespace": "ns"}, "spec": spec,
                                  "status": {"loadBalancer": {"ingress": ingress}}}));
        let ports: Vec<Value> = spec["ports"].as_array().unwrap().iter().map(|p| {
            json!({"name": p["name"], "port": p.get("to").unwrap_or(&p["port"]), "protocol": p.get("protocol").unwrap_or(&json!("TCP"))})
        }).collect();
        for family in Family::BOTH {
            self.slices.push(json!({
                "metadata": {"name": format!("{name}-{}", family.name().to_lowercase()), "namespace": "ns", "labels": {"kubernetes.io/service-name": name}},
                "addressType": family.name(), "ports": ports, "endpoints": endpoints(list, family)}));
        }
        self
    }

    pub fn set(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(&mut self.config);
        self
    }

    /// The rules.
    pub fn text(&self, family: Family) -> String {
        let services = self.services.iter().map(|s| serde_json::from_value(s.clone()).unwrap()).collect();
        let slices = self.slices.iter().map(|s| serde_json::from_value(s.clone()).unwrap()).collect();
        rules_from_objects(&Objects { services, slices, ..Objects::default() }, &self.config, family)
    }

    /// Builds the case.
    pub fn expect(&self, out: &mut Cases, flows: &str) {
        let lines: Vec<String> = flows.lines().map(|l| l.trim().to_owned()).filter(|l| !l.is_empty()).collect();
        let name = format!("{} {}", out.group, out.list.len());
        out.list.push(Case { name, cluster: self.clone(), lines });
    }
}
