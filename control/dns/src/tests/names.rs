use hickory_proto::rr::Name;

use crate::{
    names::{Subject, subject},
    records::Key,
    tests::question,
};

fn read(name: &str) -> Subject {
    subject(&question(&format!("{name} A")).name, &Name::from_ascii("cluster.local.").unwrap())
}

#[test]
fn names_of_the_domain() {
    let key = || Key::new("default", "web");
    let cases = [
        ("cluster.local", Subject::Apex),
        ("CLUSTER.Local", Subject::Apex),
        ("svc.cluster.local", Subject::Branch),
        ("pod.cluster.local", Subject::Branch),
        ("dns.cluster.local", Subject::Branch),
        ("ns.dns.cluster.local", Subject::NameServer),
        ("dns-version.cluster.local", Subject::Version),
        ("default.svc.cluster.local", Subject::Namespace("default".into())),
        ("default.pod.cluster.local", Subject::Namespace("default".into())),
        ("WEB.Default.SVC.cluster.local", Subject::Service(key())),
        ("web-0.web.default.svc.cluster.local", Subject::Endpoint(key(), "web-0".into())),
        ("_tcp.web.default.svc.cluster.local", Subject::Protocol(key(), "tcp".into())),
        ("_http._tcp.web.default.svc.cluster.local", Subject::Port(key(), "http".into(), "tcp".into())),
        ("10-244-0-5.default.pod.cluster.local", Subject::Pod("default".into(), "10.244.0.5".parse().unwrap())),
        ("fd00--5.default.pod.cluster.local", Subject::Pod("default".into(), "fd00::5".parse().unwrap())),
        ("--1.default.pod.cluster.local", Subject::Pod("default".into(), "::1".parse().unwrap())),
        // What no name of the domain is.
        ("http.tcp.web.default.svc.cluster.local", Subject::Unknown),
        ("_http.tcp.web.default.svc.cluster.local", Subject::Unknown),
        ("a._http._tcp.web.default.svc.cluster.local", Subject::Unknown),
        ("x.10-244-0-5.default.pod.cluster.local", Subject::Unknown),
        ("1-2-3-256.default.pod.cluster.local", Subject::Unknown),
        ("web.default.pod.cluster.local", Subject::Unknown),
        ("*.default.svc.cluster.local", Subject::Unknown),
        ("web.cluster.local", Subject::Unknown),
        // Others.
        ("local", Subject::Foreign),
        ("", Subject::Foreign),
        ("notcluster.local", Subject::Foreign),
        ("cluster.local.example.com", Subject::Foreign),
        ("web.default.svc", Subject::Foreign),
    ];
    for (name, expected) in cases {
        assert_eq!(read(name), expected, "{name}");
    }
}

#[test]
fn names_of_addresses() {
    let v6 = format!("5.{}8.b.d.0.1.0.0.2.ip6.arpa", "0.".repeat(23));
    for (name, expected) in [
        ("10.0.96.10.in-addr.arpa", Some("10.96.0.10")),
        ("10.0.96.10.IN-ADDR.ARPA", Some("10.96.0.10")),
        (v6.as_str(), Some("2001:db8::5")),
        ("0.96.10.in-addr.arpa", None),
        ("1.10.0.96.10.in-addr.arpa", None),
        ("256.0.96.10.in-addr.arpa", None),
        ("8.b.d.0.1.0.0.2.ip6.arpa", None),
        ("in-addr.arpa", None),
    ] {
        let expected = expected.map_or(Subject::Foreign, |address| Subject::Reverse(address.parse().unwrap()));
        assert_eq!(read(name), expected, "{name}");
    }
    // A nibble is one digit.
    assert_eq!(read(&v6.replacen('5', "05", 1)), Subject::Foreign);
}
