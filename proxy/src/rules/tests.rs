use serde_json::{Value, json};

use super::{
    tracer::{ends, loose_ends},
    *,
};
use crate::{
    config::{Config, DetectLocal, NodePortAddresses, rules_from_objects},
    explain::Packet,
    model::{Cidr, Family, Protocol, parse_ip},
};

#[test]
fn names_are_those_of_upstream() {
    let tcp = Protocol::Tcp;
    for (kind, prefix) in [
        (Kind::Service, "KUBE-SVC-"),
        (Kind::External, "KUBE-EXT-"),
        (Kind::Firewall, "KUBE-FW-"),
        (Kind::ServiceLocal, "KUBE-SVL-"),
    ] {
        assert_eq!(ChainId::of_port(kind, "ns1/svc1:p80", tcp).to_string(), format!("{prefix}XPGD46QRK7WJZT7O"));
    }
    for (name, protocol, tail) in [
        ("ns2/svc2:p80", tcp, "GNZBNJ2PO5MGZ6GT"),
        ("kube-system/kube-dns:dns", Protocol::Udp, "TCOU7JCQXEZGVUNU"),
        ("kube-system/kube-dns:dns-tcp", tcp, "ERIFXISQEP7F7OF4"),
        ("default/kubernetes:https", tcp, "NPX46M4PTMTKRN6Y"),
        ("sock-shop/payment", tcp, "YPMKE2SU3KTCWTCV"),
        ("sock-shop/front-end", tcp, "NNLTN4FUSGD444WY"),
        ("sock-shop/payment:", tcp, "T7TCZ5NWHRXELJYN"),
        ("sock-shop/front-end:", tcp, "LFMD53S3EZEAOUSJ"),
    ] {
        let id = ChainId::of_port(Kind::Service, name, protocol);
        assert_eq!(id.to_string(), format!("KUBE-SVC-{tail}"));
        assert_eq!(ChainId::parse(&id.to_string()), Some(id));
    }
    for (name, endpoint, tail) in [
        ("ns1/svc1:p80", "10.180.0.1:80", "SXIVWICOYRO3J4NJ"),
        ("ns1/svc1:p80", "[fd00:10:180::1]:80", "OGYCNMB4EMRUSJ6N"),
        ("sock-shop/payment", "10.244.1.13:80", "3LSM3QK5KTX6SVSN"),
        ("sock-shop/payment", "10.244.3.2:80", "OTBEGYZVA5GNOMAQ"),
    ] {
        assert_eq!(ChainId::of_endpoint(name, tcp, endpoint).to_string(), format!("KUBE-SEP-{tail}"));
    }
    for bad in ["KUBE-SVC-", "KUBE-SVC-xPGD46QRK7WJZT7O", "KUBE-XLB-XPGD46QRK7WJZT7O", "KUBE-SVC-XPGD46QRK7WJZT7OA"] {
        assert_eq!(ChainId::parse(bad), None);
    }
    assert!(is_owned("KUBE-SVC-D0A-8") && !is_owned("KUBE-XLB-A") && !is_owned("KUBE-SERVICES"));
}

#[test]
fn probabilities_have_ten_decimals_and_fall() {
    for (n, text) in [
        (1, "1.0000000000"),
        (2, "0.5000000000"),
        (3, "0.3333333333"),
        (10, "0.1000000000"),
        (100_000, "0.0000100000"),
        (100_001, "0.0000099999"),
    ] {
        assert_eq!(probability(n), text);
    }
    let mut last = probability(1);
    for n in 2..=100_000 {
        let next = probability(n);
        assert!(next < last, "{n}");
        last = next;
    }
}

/// An endpoint: last octet and letters: `l` local, `t` terminating and serving, `d` terminating.
fn endpoints(list: &[&str]) -> Value {
    list.iter()
        .map(|e| {
            let (octet, flags) = e.split_at(e.find(|c: char| !c.is_ascii_digit()).unwrap_or(e.len()));
            let leaving = flags.contains('t') || flags.contains('d');
            json!({"addresses": [format!("10.180.0.{octet}")], "nodeName": if flags.contains('l') { "test-node" } else { "other" },
                   "conditions": {"ready": !leaving, "serving": !flags.contains('d'), "terminating": leaving}})
        })
        .collect()
}

struct Cluster {
    services: Vec<Value>,
    slices: Vec<Value>,
    config: Config,
}

impl Cluster {
    fn new() -> Self {
        let config = Config {
            node_name: "test-node".to_owned(),
            node_ips: vec![parse_ip("192.168.0.2").unwrap()],
            cluster_cidrs: vec![Cidr::parse("10.0.0.0/8").unwrap()],
            ..Config::default()
        };
        Self { services: Vec::new(), slices: Vec::new(), config }
    }

    /// A service on port 80 with more spec; its endpoints on 80.
    fn with(mut self, name: &str, spec: Value, lb_ips: &[&str], list: &[&str]) -> Self {
        let mut spec = spec;
        if spec.get("ports").is_none() {
            spec["ports"] = json!([{"name": "p80", "port": 80, "nodePort": spec["np"].as_i64().unwrap_or(0)}]);
        }
        let ingress: Vec<Value> = lb_ips.iter().map(|ip| json!({"ip": ip})).collect();
        self.services.push(json!({"metadata": {"name": name, "namespace": "ns"}, "spec": spec,
                                  "status": {"loadBalancer": {"ingress": ingress}}}));
        let ports: Vec<Value> = spec["ports"].as_array().unwrap().iter().map(|p| {
            json!({"name": p["name"], "port": p.get("to").unwrap_or(&p["port"]), "protocol": p.get("protocol").unwrap_or(&json!("TCP"))})
        }).collect();
        self.slices.push(json!({"metadata": {"name": format!("{name}-1"), "namespace": "ns", "labels": {"kubernetes.io/service-name": name}},
                                "addressType": "IPv4", "ports": ports, "endpoints": endpoints(list)}));
        self
    }

    fn set(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(&mut self.config);
        self
    }

    fn text(&self) -> String {
        let services: Vec<_> = self.services.iter().map(|s| serde_json::from_value(s.clone()).unwrap()).collect();
        let slices: Vec<_> = self.slices.iter().map(|s| serde_json::from_value(s.clone()).unwrap()).collect();
        rules_from_objects(&services, &slices, &[], &self.config, Family::V4)
    }

    /// Checks lines of `source > destination:port[/protocol] = ends`, ends separated by commas.
    fn expect(&self, flows: &str) {
        let text = self.text();
        assert_eq!(loose_ends(&text), [] as [String; 0], "{text}");
        let local = ["192.168.0.2", "192.168.1.2", "192.168.99.11"].map(|ip| parse_ip(ip).unwrap()).to_vec();
        for flow in flows.lines().map(str::trim).filter(|l| !l.is_empty()) {
            let (from, rest) = flow.split_once(" > ").unwrap();
            let (to, wanted) = rest.split_once(" = ").unwrap();
            let (to, protocol) = to.split_once('/').unwrap_or((to, "tcp"));
            let (destination, port) = to.split_once(':').unwrap();
            let name = |n: &str| {
                parse_ip(match n {
                    "POD" => "10.0.0.2",
                    "NODE" => "192.168.0.2",
                    "ALT" => "192.168.1.2",
                    "LO" => "127.0.0.1",
                    "X" => "203.0.113.2",
                    "XB" => "203.0.113.130",
                    other => other,
                })
                .unwrap()
            };
            let packet = Packet {
                source: name(from),
                destination: name(destination),
                protocol: protocol.to_owned(),
                port: port.parse().unwrap(),
                interface: None,
            };
            let (list, masq) = wanted.strip_suffix(" masq").map_or((wanted, ""), |l| (l, " masq"));
            let expected: std::collections::BTreeSet<String> = list
                .split(' ')
                .map(|e| match e.parse::<u8>() {
                    Ok(octet) => format!("10.180.0.{octet}:80{masq}"),
                    Err(_) => e.strip_prefix('@').map_or_else(|| e.to_owned(), |a| format!("10.180.0.{a}{masq}")),
                })
                .collect();
            assert_eq!(ends(&text, &local, &packet), expected, "{flow}\n{text}");
        }
    }
}

#[test]
fn nothing_answers_without_endpoints() {
    Cluster::new()
        .with(
            "a",
            json!({"clusterIP": "172.30.0.41", "np": 3001, "externalIPs": ["192.168.99.11"], "type": "LoadBalancer"}),
            &["1.2.3.4"],
            &[],
        )
        .expect(
            "POD > 172.30.0.41:80 = REJECT
             X > 192.168.99.11:80 = REJECT
             POD > NODE:3001 = REJECT
             X > NODE:3001 = REJECT
             POD > 1.2.3.4:80 = REJECT
             X > 1.2.3.4:80 = REJECT",
        );
}

#[test]
fn cluster_ips_lead_to_their_endpoints() {
    let ports = json!([
        {"name": "http", "port": 80}, {"name": "https", "port": 443, "to": 8443},
        {"name": "dns-udp", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP", "to": 5353},
        {"name": "dns-sctp", "port": 53, "protocol": "SCTP"}]);
    Cluster::new()
        .with("svc1", json!({"clusterIP": "172.30.0.41"}), &[], &["1l"])
        .with("svc2", json!({"clusterIP": "172.30.0.42", "ports": ports}), &[], &["1l", "2"])
        .expect(
            "10.180.0.2 > 172.30.0.41:80 = 1
             10.180.0.1 > 172.30.0.41:80 = 1 masq
             POD > 172.30.0.42:80 = 1 2
             POD > 172.30.0.42:443 = @1:8443 @2:8443
             POD > 172.30.0.42:53/tcp = @1:5353 @2:5353
             POD > 172.30.0.42:53/udp = @1:53 @2:53
             POD > 172.30.0.42:53/sctp = @1:53 @2:53
             POD > 172.30.0.42:80/udp = pass
             POD > 172.30.0.41:443 = pass",
        );
}

#[test]
fn source_ranges_hold_for_load_balancer_addresses_only() {
    Cluster::new()
        .with(
            "a",
            json!({"clusterIP": "172.30.0.41", "np": 3001, "type": "LoadBalancer",
                          "loadBalancerSourceRanges": [" 192.168.0.0/24", "203.0.113.0/25"]}),
            &["1.2.3.4", "5.6.7.8"],
            &["1"],
        )
        .expect(
            "POD > 172.30.0.41:80 = 1
             X > NODE:3001 = 1 masq
             XB > NODE:3001 = 1 masq
             X > 1.2.3.4:80 = 1 masq
             X > 5.6.7.8:80 = 1 masq
             XB > 1.2.3.4:80 = DROP
             XB > 5.6.7.8:80 = DROP
             POD > 1.2.3.4:80 = DROP
             NODE > 1.2.3.4:80 = 1 masq
             NODE > 5.6.7.8:80 = 1 masq
             1.2.3.4 > 1.2.3.4:80 = 1 masq
             5.6.7.8 > 5.6.7.8:80 = 1 masq",
        );
}

#[test]
fn node_ports_answer_where_they_should() {
    let cluster = || Cluster::new().with("a", json!({"clusterIP": "172.30.0.41", "np": 3001}), &[], &["1", "2l"]);
    let common = "POD > 172.30.0.41:80 = 1 2
                  X > NODE:3001 = 1 2 masq
                  NODE > NODE:3001 = 1 2 masq\n";
    let guard = "block incoming localnet";
    let on = cluster();
    on.expect(&format!("{common} LO > 127.0.0.1:3001 = 1 2 masq\n X > ALT:3001 = 1 2 masq"));
    assert!(on.text().contains(guard));
    let off = cluster().set(|c| c.localhost_node_ports = false);
    off.expect(&format!("{common} LO > 127.0.0.1:3001 = pass\n X > ALT:3001 = 1 2 masq"));
    assert!(!off.text().contains("KUBE-FIREWALL"));
    let ranges = |list: &[&str]| NodePortAddresses::Ranges(list.iter().map(|r| Cidr::parse(r).unwrap()).collect());
    let narrow = cluster().set(|c| {
        c.localhost_node_ports = false;
        c.node_port_addresses = ranges(&["192.168.0.0/24", "127.0.0.1/32"]);
    });
    narrow.expect(&format!("{common} LO > 127.0.0.1:3001 = pass\n X > ALT:3001 = pass"));
    let actually_off = cluster().set(|c| c.node_port_addresses = ranges(&["192.168.0.0/24", "2001:db8::/64"]));
    actually_off.expect(&format!("{common} LO > 127.0.0.1:3001 = pass\n X > ALT:3001 = pass"));
    assert!(!actually_off.text().contains(guard));
    let primary = cluster().set(|c| c.node_port_addresses = NodePortAddresses::Primary);
    primary.expect(&format!("{common} X > ALT:3001 = pass"));
}

#[test]
fn health_checks_are_let_in() {
    let with = |list: &[&str]| {
        Cluster::new().with(
            "a",
            json!({"clusterIP": "172.30.0.41", "np": 3001, "type": "LoadBalancer",
            "externalTrafficPolicy": "Local", "healthCheckNodePort": 30000}),
            &["1.2.3.4"],
            list,
        )
    };
    with(&[]).expect("X > NODE:30000 = ACCEPT");
    with(&["1"]).expect("X > NODE:30000 = ACCEPT");
}

const OUTSIDE: [&str; 2] = ["1.2.3.4", "192.168.99.11"];

fn external(policy: &str) -> Cluster {
    let spec = json!({"clusterIP": "172.30.0.41", "np": 3001, "externalIPs": [OUTSIDE[1]], "type": "LoadBalancer",
                      "externalTrafficPolicy": policy, "healthCheckNodePort": 30000});
    Cluster::new().with("a", spec, &[OUTSIDE[0]], &["1", "2l"])
}

#[test]
fn external_traffic_policies() {
    external("Local").expect(
        "POD > 172.30.0.41:80 = 1 2
         POD > 192.168.99.11:80 = 1 2
         POD > 1.2.3.4:80 = 1 2
         POD > NODE:3001 = 1 2
         X > 192.168.99.11:80 = 2
         X > 1.2.3.4:80 = 2
         X > NODE:3001 = 2",
    );
    external("Cluster").expect(
        "POD > 172.30.0.41:80 = 1 2
         POD > 192.168.99.11:80 = 1 2 masq
         POD > 1.2.3.4:80 = 1 2 masq
         POD > NODE:3001 = 1 2 masq
         X > 192.168.99.11:80 = 1 2 masq
         X > 1.2.3.4:80 = 1 2 masq
         X > NODE:3001 = 1 2 masq",
    );
}

#[test]
fn internal_traffic_policies() {
    let with = |policy: &str, list: &[&str]| {
        Cluster::new().with("a", json!({"clusterIP": "172.30.0.41", "internalTrafficPolicy": policy}), &[], list)
    };
    with("Cluster", &["1l", "2", "3"]).expect("POD > 172.30.0.41:80 = 1 2 3");
    with("Local", &["1l", "2", "3"]).expect("POD > 172.30.0.41:80 = 1");
    with("Local", &["1l", "2l", "3"]).expect("POD > 172.30.0.41:80 = 1 2");
    with("Local", &["1", "2"]).expect("POD > 172.30.0.41:80 = DROP");
    with("Local", &[]).expect("POD > 172.30.0.41:80 = REJECT");
}

#[test]
fn terminating_endpoints() {
    let with = |policy: &str, list: &[&str]| {
        Cluster::new().with(
            "a",
            json!({"clusterIP": "172.30.0.41", "type": "LoadBalancer", "externalTrafficPolicy": policy,
                                        "healthCheckNodePort": 30000}),
            &["1.2.3.4"],
            list,
        )
    };
    let flows = |cluster: Cluster, inside: &str, outside: &str| {
        cluster.expect(&format!("POD > 172.30.0.41:80 = {inside}\nX > 1.2.3.4:80 = {outside}"));
    };
    flows(with("Local", &["1l", "2l", "3lt", "4ld", "5"]), "1 2 5", "1 2");
    flows(with("Local", &["2lt", "3lt", "4ld", "5"]), "5", "2 3");
    flows(with("Local", &["5t"]), "5", "DROP");
    flows(with("Local", &["4ld", "5d"]), "REJECT", "REJECT");
    flows(with("Cluster", &["1l", "2l", "3lt", "4ld", "5"]), "1 2 5", "1 2 5 masq");
    flows(with("Cluster", &["2lt", "3lt", "4ld", "5t"]), "2 3 5", "2 3 5 masq");
    flows(with("Cluster", &["5t"]), "5", "5 masq");
    flows(with("Cluster", &["4ld", "5d"]), "REJECT", "REJECT");
}

/// Endpoint 1 is local, 2 remote; `LR` means both.
fn matrix(change: impl FnOnce(&mut Config), rows: &str) {
    let cluster = ["Cluster,Cluster", "Local,Cluster", "Cluster,Local"].iter().enumerate().fold(Cluster::new(), |c, (i, policies)| {
        let (external, internal) = policies.split_once(',').unwrap();
        let spec = json!({"clusterIP": format!("172.30.0.4{}", i + 1), "np": 3001 + i, "type": "LoadBalancer",
                          "externalTrafficPolicy": external, "internalTrafficPolicy": internal, "healthCheckNodePort": 30000});
        c.with(&format!("svc{i}"), spec, &[["1.2.3.4", "5.6.7.8", "9.10.11.12"][i]], &["1l", "2"])
    });
    let targets = [
        "172.30.0.41:80",
        "NODE:3001",
        "1.2.3.4:80",
        "172.30.0.42:80",
        "NODE:3002",
        "5.6.7.8:80",
        "172.30.0.43:80",
        "NODE:3003",
        "9.10.11.12:80",
    ];
    let mut flows = String::new();
    for row in rows.lines().map(str::trim).filter(|r| !r.is_empty()) {
        let (from, cells) = row.split_once(": ").unwrap();
        for (cell, target) in cells.split_whitespace().zip(targets).filter(|(c, _)| *c != "-") {
            let target = if from == "LO" { target.replace("NODE", "127.0.0.1") } else { target.to_owned() };
            let (ends, masq) = cell.strip_suffix('m').map_or((cell, ""), |c| (c, " masq"));
            let ends = if ends == "LR" { "1 2" } else { "1" };
            flows.push_str(&format!("{from} > {target} = {ends}{masq}\n"));
        }
    }
    cluster.set(change).expect(&flows);
}

#[test]
fn the_masquerade_matrix() {
    matrix(
        |_| {},
        "POD: LR LRm LRm LR LR LR L LRm LRm
         NODE: LRm LRm LRm LRm LRm LRm Lm LRm LRm
         LO: - LRm - - LRm - - LRm -
         X: LRm LRm LRm LRm L L Lm LRm LRm",
    );
    matrix(
        |c| c.cluster_cidrs.clear(),
        "POD: LR LRm LRm LR L L L LRm LRm
         NODE: LR LRm LRm LR LRm LRm L LRm LRm
         LO: - LRm - - LRm - - LRm -
         X: LR LRm LRm LR L L L LRm LRm",
    );
    matrix(
        |c| c.masquerade_all = true,
        "POD: LRm LRm LRm LRm LR LR Lm LRm LRm
         NODE: LRm LRm LRm LRm LRm LRm Lm LRm LRm
         X: LRm LRm LRm LRm L L Lm LRm LRm",
    );
    matrix(
        |c| {
            c.cluster_cidrs.clear();
            c.masquerade_all = true;
        },
        "POD: LRm LRm LRm LRm L L Lm LRm LRm
         NODE: LRm LRm LRm LRm LRm LRm Lm LRm LRm
         X: LRm LRm LRm LRm L L Lm LRm LRm",
    );
}

fn count(text: &str, table: &str) -> usize {
    let section = text.split(&format!("*{table}\n")).nth(1).unwrap().split("COMMIT").next().unwrap();
    section.lines().filter(|l| l.starts_with("-A")).count()
}

#[test]
fn numbers_of_rules_are_those_of_upstream() {
    for services in [0, 1, 10] {
        for n in [0, 1, 2, 10] {
            let list: Vec<String> = (1..=n).map(|e: usize| e.to_string()).collect();
            let list: Vec<&str> = list.iter().map(String::as_str).collect();
            let build = |spec: &dyn Fn(usize) -> Value, lb: bool| {
                (0..services).fold(Cluster::new(), |c, i| {
                    let ip = format!("1.2.3.{i}");
                    c.with(&format!("s{i}"), spec(i), if lb { vec![ip.as_str()] } else { vec![] }.as_slice(), &list)
                })
            };
            let text = build(&|i| json!({"clusterIP": format!("172.30.0.{i}")}), false).text();
            let (filter, nat) = if n == 0 { (1, 0) } else { (0, 2 + 3 * n) };
            assert_eq!(
                (count(&text, "filter"), count(&text, "nat")),
                (4 + services * filter, 5 + services * nat),
                "{text}"
            );
            let spec = |i: usize| {
                json!({"clusterIP": format!("172.30.0.{i}"), "np": 3001 + i, "type": "LoadBalancer",
                                         "externalIPs": [format!("4.3.2.{i}")], "loadBalancerSourceRanges": ["203.0.113.0/25"]})
            };
            let text = build(&spec, true).text();
            // One less than with a kernel that counts packets to 127.0.0.1.
            let (filter, nat) = if n == 0 { (4, 0) } else { (1, 9 + 3 * n) };
            assert_eq!(
                (count(&text, "filter"), count(&text, "nat")),
                (4 + services * filter, 5 + services * nat),
                "{text}"
            );
        }
    }
}

#[test]
fn the_whole_layout() {
    let cluster = Cluster::new()
        .with("svc1", json!({"clusterIP": "172.30.0.041"}), &[], &["1"])
        .with(
            "svc2",
            json!({"clusterIP": "172.30.0.42", "np": 3001, "type": "LoadBalancer", "externalTrafficPolicy": "Local",
                             "healthCheckNodePort": 30000, "externalIPs": ["192.168.99.022"]}),
            &["1.2.3.004"],
            &["2"],
        )
        .with(
            "svc5",
            json!({"clusterIP": "172.30.0.45", "np": 3002, "type": "LoadBalancer", "sessionAffinity": "ClientIP",
                             "loadBalancerSourceRanges": [" 203.0.113.000/025"]}),
            &["5.6.7.8"],
            &["4", "5"],
        )
        .with("svc6", json!({"clusterIP": "172.30.0.46"}), &[], &[]);
    let text = cluster.text();
    let golden = include_str!("golden.txt");
    if std::env::var_os("WINDLASS_GOLDEN").is_some() {
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/src/rules/golden.txt"), &text).unwrap();
        return;
    }
    assert_eq!(text, golden);
}

#[test]
fn settings_shape_the_constant_rules() {
    let base = Settings::new(Family::V4);
    let has = |s: &Settings, chain, text: &str| constant_rules(s, chain).contains(text);
    assert!(has(&base, Fixed::NatPostrouting, "-j MASQUERADE --random-fully\n"));
    assert!(has(&Settings { random_fully: false, ..base.clone() }, Fixed::NatPostrouting, "-j MASQUERADE\n"));
    assert!(has(&base, Fixed::FilterForward, "INVALID -j DROP"));
    assert!(has(
        &Settings { counters: true, ..base.clone() },
        Fixed::FilterForward,
        "ct_state_invalid_dropped_pkts -j DROP"
    ));
    let liberal = constant_rules(&Settings { drop_invalid: false, ..base.clone() }, Fixed::FilterForward);
    assert_eq!((liberal.contains("INVALID"), liberal.lines().count()), (false, 2));
    assert!(has(&Settings { masquerade_mark: 1 << 31, ..base.clone() }, Fixed::NatMarkMasq, "--or-mark 0x80000000"));
    assert!(has(&Settings::new(Family::V6), Fixed::NatServices, "--dst-type LOCAL ! -d ::1/128 -j"));
    assert!(!writes_firewall(&Settings::new(Family::V6)));
    let bridge = Cluster::new()
        .with("a", json!({"clusterIP": "172.30.0.41"}), &[], &["1"])
        .set(|c| c.detect_local = DetectLocal::InterfaceNamePrefix("veth".to_owned()));
    assert!(bridge.text().contains("--dport 80 ! -i veth+ -j KUBE-MARK-MASQ"));
}

#[test]
fn ipv6_has_rules_of_its_own() {
    let service = json!({"metadata": {"name": "a", "namespace": "ns"}, "spec": {"clusterIP": "172.30.0.1",
        "clusterIPs": ["172.30.0.1", "fd00:172::1"], "ports": [{"port": 80, "nodePort": 3001}]}});
    let slice = json!({"metadata": {"name": "a-6", "namespace": "ns", "labels": {"kubernetes.io/service-name": "a"}},
        "addressType": "IPv6", "ports": [{"name": "", "port": 80}], "endpoints": [{"addresses": ["fd00:10::1"]}]});
    let (services, slices) = ([serde_json::from_value(service).unwrap()], [serde_json::from_value(slice).unwrap()]);
    let config = Config { cluster_cidrs: vec![Cidr::parse("fd00:10::/64").unwrap()], ..Config::default() };
    let six = rules_from_objects(&services, &slices, &[], &config, Family::V6);
    assert!(six.contains("-d fd00:172::1 --dport 80 ! -s fd00:10::/64 -j KUBE-MARK-MASQ"), "{six}");
    assert!(six.contains("-j DNAT --to-destination [fd00:10::1]:80"), "{six}");
    let four = rules_from_objects(&services, &slices, &[], &config, Family::V4);
    assert!(four.contains("-d 172.30.0.1 --dport 80 -j REJECT"), "{four}");
}

proptest::proptest! {
    #[test]
    fn names_fit_and_shares_are_equal(n in 1usize..200, name in "[a-z]{1,60}/[a-z]{1,60}") {
        let id = ChainId::of_port(Kind::Service, &name, Protocol::Sctp);
        assert!(id.to_string().len() <= 28);
        let mut left = 1.0;
        for i in 0..n {
            let p: f64 = probability(n - i).parse().unwrap();
            let share = left * p;
            left -= share;
            assert!((share * n as f64 - 1.0).abs() < 1e-6, "{i} of {n} gets {share}");
        }
        assert!(left.abs() < 1e-9);
    }
}
