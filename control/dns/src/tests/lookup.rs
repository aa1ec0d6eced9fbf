//! Questions and answers, as CoreDNS gives them with kubeadm's Corefile.

use hickory_proto::rr::Record;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{question, zone};
use crate::{
    lookup::{Found, lookup},
    records::{
        Records,
        tests::{records, service, slice},
    },
};

fn cluster() -> Records {
    let http = json!([{"name": "http", "port": 80, "protocol": "TCP"}]);
    let two = json!([
        {"name": "http", "port": 80, "protocol": "TCP"},
        {"name": "metrics", "port": 9100, "protocol": "TCP"},
        {"name": "dns", "port": 53, "protocol": "UDP"},
    ]);
    let alias = |to: &str| json!({"type": "ExternalName", "externalName": to});
    records(
        &["default", "kube-system", "empty"],
        vec![
            service(
                "kube-system",
                "kube-dns",
                json!({"clusterIPs": ["10.96.0.10"], "ports": [{"name": "dns", "port": 53, "protocol": "UDP"}]}),
            ),
            service("default", "web", json!({"clusterIPs": ["10.96.0.7", "fd00::7"], "ports": two})),
            service("default", "nginx", json!({"clusterIP": "None", "clusterIPs": ["None"], "ports": http})),
            service("default", "portless", json!({"clusterIPs": ["None"]})),
            service("default", "idle", json!({"clusterIPs": ["None"], "ports": http})),
            service("default", "pending", json!({"clusterIPs": [], "ports": http})),
            service("default", "outside", alias("www.Example.com")),
            service("default", "dotted", alias("www.example.com.")),
            service("default", "inside", alias("web.default.svc.cluster.local")),
            service("default", "nowhere", alias("none.default.svc.cluster.local")),
            service("default", "address", alias("192.0.2.1")),
            service("default", "one", alias("two.default.svc.cluster.local")),
            service("default", "two", alias("one.default.svc.cluster.local")),
        ],
        vec![
            slice(("default", "nginx"), "nginx-1", &[("10.244.0.5", "web-0"), ("10.244.0.6", "web-1")], http.clone()),
            slice(("default", "nginx"), "nginx-2", &[("10.244.0.7", "")], http.clone()),
            slice(("default", "nginx"), "nginx-3", &[("fd00::9", ""), ("fd00::", "")], http.clone()),
            slice(("default", "portless"), "portless-1", &[("10.244.0.8", "")], Value::Null),
            slice(("default", "web"), "web-1", &[("10.244.0.9", "Named")], http.clone()),
        ],
    )
}

/// A line for each record; first the code, and the sections of other records.
fn asked(records: &Records, text: &str) -> Vec<String> {
    let line = |section: &str, record: &Record| {
        let shown = record.to_string().replace(" IN ", " ").replace(".cluster.local.", ".~");
        format!("{section}{shown}")
    };
    match lookup(&zone(), records, &question(text), 0) {
        Found::Foreign => vec!["foreign".to_owned()],
        Found::Alias(aliases, target) => {
            let aliases = aliases.iter().map(|record| line("", record));
            aliases.chain([format!("then {target}")]).collect()
        }
        Found::Answer(answer) => {
            assert!(answer.authoritative);
            let code = format!("{:?}", answer.code);
            let answers = answer.answers.iter().map(|record| line("", record));
            let others = answer.authorities.iter().map(|record| line("authority: ", record));
            let more = answer.additionals.iter().map(|record| line("additional: ", record));
            std::iter::once(code).chain(answers).chain(others).chain(more).collect()
        }
    }
}

#[track_caller]
fn check(cases: &[(&str, &[&str])]) {
    let records = cluster();
    for (text, expected) in cases {
        assert_eq!(asked(&records, text), *expected, "{text}");
    }
}

const SOA: &str = "authority: cluster.local. 5 SOA ns.dns.~ hostmaster.~ 7 7200 1800 86400 5";
const NO_DATA: &[&str] = &["NoError", SOA];
const NO_NAME: &[&str] = &["NXDomain", SOA];

#[test]
fn addresses_of_services() {
    check(&[
        ("web.default.svc.cluster.local A", &["NoError", "web.default.svc.~ 5 A 10.96.0.7"]),
        ("web.default.svc.cluster.local AAAA", &["NoError", "web.default.svc.~ 5 AAAA fd00::7"]),
        // In the letters of the question.
        ("wEb.Default.SVC.cluster.local A", &["NoError", "wEb.Default.SVC.~ 5 A 10.96.0.7"]),
        ("kube-dns.kube-system.svc.cluster.local AAAA", NO_DATA),
        ("_http._tcp.web.default.svc.cluster.local A", &["NoError", "_http._tcp.web.default.svc.~ 5 A 10.96.0.7"]),
        ("pending.default.svc.cluster.local A", NO_DATA),
        ("none.default.svc.cluster.local A", NO_NAME),
        ("web.none.svc.cluster.local A", NO_NAME),
        ("web.default.svc.cluster.local MX", NO_DATA),
        ("web.default.svc.cluster.local TXT", NO_DATA),
        ("web.default.svc.cluster.local HTTPS", NO_DATA),
        ("web.default.svc.cluster.local CNAME", NO_DATA),
        ("web.default.svc.cluster.local PTR", NO_DATA),
        ("none.default.svc.cluster.local HTTPS", NO_NAME),
    ]);
}

#[test]
fn addresses_of_endpoints() {
    check(&[
        (
            "nginx.default.svc.cluster.local A",
            &[
                "NoError",
                "nginx.default.svc.~ 5 A 10.244.0.5",
                "nginx.default.svc.~ 5 A 10.244.0.6",
                "nginx.default.svc.~ 5 A 10.244.0.7",
            ],
        ),
        ("web-0.nginx.default.svc.cluster.local A", &["NoError", "web-0.nginx.default.svc.~ 5 A 10.244.0.5"]),
        ("web-0.nginx.default.svc.cluster.local AAAA", NO_DATA),
        ("10-244-0-7.nginx.default.svc.cluster.local A", &["NoError", "10-244-0-7.nginx.default.svc.~ 5 A 10.244.0.7"]),
        // One that has a host name has no other.
        ("10-244-0-5.nginx.default.svc.cluster.local A", NO_NAME),
        ("fd00--9.nginx.default.svc.cluster.local AAAA", &["NoError", "fd00--9.nginx.default.svc.~ 5 AAAA fd00::9"]),
        // No label ends with a dash.
        ("fd00--0.nginx.default.svc.cluster.local AAAA", &["NoError", "fd00--0.nginx.default.svc.~ 5 AAAA fd00::"]),
        ("web-2.nginx.default.svc.cluster.local A", NO_NAME),
        // Also of a Service with a cluster IP, in letters of either case.
        ("named.web.default.svc.cluster.local A", &["NoError", "named.web.default.svc.~ 5 A 10.244.0.9"]),
        ("portless.default.svc.cluster.local A", &["NoError", "portless.default.svc.~ 5 A 10.244.0.8"]),
        // Without ready endpoints a headless Service does not exist.
        ("idle.default.svc.cluster.local A", NO_NAME),
    ]);
}

#[test]
fn services_and_their_ports() {
    check(&[
        (
            "_http._tcp.web.default.svc.cluster.local SRV",
            &[
                "NoError",
                "_http._tcp.web.default.svc.~ 5 SRV 0 50 80 web.default.svc.~",
                "additional: web.default.svc.~ 5 A 10.96.0.7",
                "additional: web.default.svc.~ 5 AAAA fd00::7",
            ],
        ),
        (
            "_dns._udp.kube-dns.kube-system.svc.cluster.local SRV",
            &[
                "NoError",
                "_dns._udp.kube-dns.kube-system.svc.~ 5 SRV 0 100 53 kube-dns.kube-system.svc.~",
                "additional: kube-dns.kube-system.svc.~ 5 A 10.96.0.10",
            ],
        ),
        ("_dns._tcp.web.default.svc.cluster.local SRV", NO_NAME),
        ("_none._tcp.web.default.svc.cluster.local SRV", NO_NAME),
        // Ports are below it.
        ("_tcp.web.default.svc.cluster.local SRV", NO_DATA),
        ("_sctp.web.default.svc.cluster.local SRV", NO_NAME),
        ("_tcp.none.default.svc.cluster.local SRV", NO_NAME),
        ("portless.default.svc.cluster.local SRV", NO_DATA),
        (
            "web-0.nginx.default.svc.cluster.local SRV",
            &[
                "NoError",
                "web-0.nginx.default.svc.~ 5 SRV 0 100 80 web-0.nginx.default.svc.~",
                "additional: web-0.nginx.default.svc.~ 5 A 10.244.0.5",
            ],
        ),
    ]);
    let found = asked(&cluster(), "_http._tcp.nginx.default.svc.cluster.local SRV");
    assert_eq!(
        found[1..=3],
        [
            "_http._tcp.nginx.default.svc.~ 5 SRV 0 20 80 web-0.nginx.default.svc.~",
            "_http._tcp.nginx.default.svc.~ 5 SRV 0 20 80 web-1.nginx.default.svc.~",
            "_http._tcp.nginx.default.svc.~ 5 SRV 0 20 80 10-244-0-7.nginx.default.svc.~",
        ]
    );
    assert_eq!(found.iter().filter(|line| line.starts_with("additional: ")).count(), 5);
    // All ports of a Service, by its own name.
    let all = asked(&cluster(), "web.default.svc.cluster.local SRV");
    assert_eq!(all.iter().filter(|line| line.contains(" SRV 0 16 ")).count(), 3, "{all:?}");
}

#[test]
fn names_of_addresses() {
    check(&[
        ("7.0.96.10.in-addr.arpa PTR", &["NoError", "7.0.96.10.in-addr.arpa. 5 PTR web.default.svc.~"]),
        ("5.0.244.10.in-addr.arpa PTR", &["NoError", "5.0.244.10.in-addr.arpa. 5 PTR web-0.nginx.default.svc.~"]),
        // Without a host name it has none, and others are asked.
        ("7.0.244.10.in-addr.arpa PTR", &["foreign"]),
        ("1.2.0.192.in-addr.arpa PTR", &["foreign"]),
        ("7.0.96.10.in-addr.arpa A", &["foreign"]),
    ]);
}

#[test]
fn aliases() {
    let outside = "outside.default.svc.~ 5 CNAME www.Example.com.";
    check(&[
        ("outside.default.svc.cluster.local A", &[outside, "then www.Example.com."]),
        ("outside.default.svc.cluster.local TXT", &[outside, "then www.Example.com."]),
        ("outside.default.svc.cluster.local CNAME", &["NoError", outside]),
        ("outside.default.svc.cluster.local SRV", NO_DATA),
        ("dotted.default.svc.cluster.local CNAME", &["NoError", "dotted.default.svc.~ 5 CNAME www.example.com."]),
        ("web-0.outside.default.svc.cluster.local A", NO_NAME),
        ("_http._tcp.outside.default.svc.cluster.local SRV", NO_NAME),
        (
            "inside.default.svc.cluster.local A",
            &["NoError", "inside.default.svc.~ 5 CNAME web.default.svc.~", "web.default.svc.~ 5 A 10.96.0.7"],
        ),
        ("nowhere.default.svc.cluster.local A", &["NXDomain", "nowhere.default.svc.~ 5 CNAME none.default.svc.~", SOA]),
        // An address is no name.
        ("address.default.svc.cluster.local A", NO_NAME),
        ("one.default.svc.cluster.local A", &["ServFail"]),
    ]);
}

#[test]
fn the_domain_itself() {
    check(&[
        ("cluster.local SOA", &["NoError", &SOA["authority: ".len()..]]),
        (
            "cluster.local NS",
            &[
                "NoError",
                "cluster.local. 5 NS kube-dns.kube-system.svc.~",
                "additional: kube-dns.kube-system.svc.~ 5 A 10.96.0.10",
            ],
        ),
        ("cluster.local A", NO_DATA),
        ("ns.dns.cluster.local A", &["NoError", "ns.dns.~ 5 A 10.96.0.10"]),
        ("dns-version.cluster.local TXT", &["NoError", "dns-version.~ 5 TXT 1.1.0"]),
        ("dns-version.cluster.local A", NO_DATA),
        ("svc.cluster.local A", NO_DATA),
        ("pod.cluster.local SOA", NO_DATA),
        ("default.svc.cluster.local A", NO_DATA),
        ("empty.pod.cluster.local A", NO_DATA),
        ("none.svc.cluster.local A", NO_NAME),
        ("none.cluster.local A", NO_NAME),
        ("example.com A", &["foreign"]),
        ("kubernetes A", &["foreign"]),
    ]);
    // Without its Service the name server has a name of its own.
    let none = records(&[], vec![], vec![]);
    assert_eq!(asked(&none, "cluster.local NS"), ["NoError", "cluster.local. 5 NS ns.dns.~"]);
    assert_eq!(asked(&none, "ns.dns.cluster.local A"), NO_DATA);
}

#[test]
fn pods_by_their_addresses() {
    check(&[
        ("10-244-0-5.default.pod.cluster.local A", &["NoError", "10-244-0-5.default.pod.~ 5 A 10.244.0.5"]),
        ("10-244-0-5.default.pod.cluster.local AAAA", NO_DATA),
        ("fd00--5.default.pod.cluster.local AAAA", &["NoError", "fd00--5.default.pod.~ 5 AAAA fd00::5"]),
        ("10-244-0-5.none.pod.cluster.local A", NO_NAME),
        ("web.default.pod.cluster.local A", NO_NAME),
    ]);
}

#[test]
fn each_address_takes_its_turn_to_be_first() {
    let records = cluster();
    let first = |turn: u16| match lookup(&zone(), &records, &question("nginx.default.svc.cluster.local A"), turn) {
        Found::Answer(answer) => answer.answers[0].data.to_string(),
        other => panic!("{other:?}"),
    };
    assert_eq!((0..4).map(first).collect::<Vec<_>>(), ["10.244.0.5", "10.244.0.6", "10.244.0.7", "10.244.0.5"]);
}

proptest! {
    /// A name that has records exists for every type, and one that does not has none for any.
    #[test]
    fn whether_a_name_exists_does_not_depend_on_the_type(
        labels in proptest::collection::vec(
            prop_oneof!["svc", "pod", "default", "none", "web", "nginx", "outside", "inside", "web-0", "_tcp", "_http", "dns", "ns", "10-244-0-5", "[a-z]{1,3}"],
            0..6,
        ),
    ) {
        let records = cluster();
        let name = labels.iter().map(String::as_str).chain(["cluster", "local"]).collect::<Vec<_>>().join(".");
        let codes: Vec<_> = ["A", "AAAA", "SRV", "TXT", "NS", "SOA", "HTTPS", "ANY", "PTR", "CNAME"]
            .iter()
            .filter_map(|kind| match lookup(&zone(), &records, &question(&format!("{name} {kind}")), 0) {
                Found::Answer(answer) => Some(answer.code),
                // It exists, as an alias.
                Found::Alias(..) => Some(hickory_proto::op::ResponseCode::NoError),
                Found::Foreign => None,
            })
            .collect();
        prop_assert_eq!(codes.len(), 10, "{} is the cluster's", name);
        prop_assert!(codes.windows(2).all(|pair| pair[0] == pair[1]), "{name} {codes:?}");
    }
}
