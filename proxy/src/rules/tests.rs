use serde_json::json;

use super::*;
use crate::{
    config::Config,
    model::{Cidr, Family, Protocol},
    plan::{Objects, rules_from_objects},
};

#[test]
fn names_are_those_of_upstream() {
    let tcp = Protocol::Tcp;
    for (kind, prefix) in [
        (ChainKind::Service, "KUBE-SVC-"),
        (ChainKind::External, "KUBE-EXT-"),
        (ChainKind::Firewall, "KUBE-FW-"),
        (ChainKind::ServiceLocal, "KUBE-SVL-"),
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
        let id = ChainId::of_port(ChainKind::Service, name, protocol);
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
    for bad in ["KUBE-SVC-", "KUBE-SVC-xPGD46QRK7WJZT7O", "KUBE-XLB-XPGD46QRK7WJZT7O", "KUBE-SVC-XPGD46QRK7WJZT7Oa"] {
        assert_eq!(ChainId::parse(bad), None);
    }
    assert!(
        is_service_chain("KUBE-SVC-D0A-8") && !is_service_chain("KUBE-XLB-A") && !is_service_chain("KUBE-SERVICES")
    );
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

#[test]
fn settings_shape_the_constant_rules() {
    let base = Settings::new(Family::V4);
    let has = |s: &Settings, chain, text: &str| constant_rules(s, chain).contains(text);
    assert!(has(&base, StaticChain::NatPostrouting, "-j MASQUERADE --random-fully\n"));
    assert!(has(&Settings { random_fully: false, ..base.clone() }, StaticChain::NatPostrouting, "-j MASQUERADE\n"));
    assert!(has(&base, StaticChain::FilterForward, "INVALID -j DROP"));
    assert!(has(
        &Settings { counters: true, ..base.clone() },
        StaticChain::FilterForward,
        "ct_state_invalid_dropped_pkts -j DROP"
    ));
    let liberal = constant_rules(&Settings { drop_invalid: false, ..base.clone() }, StaticChain::FilterForward);
    assert_eq!((liberal.contains("INVALID"), liberal.lines().count()), (false, 2));
    assert!(has(
        &Settings { masquerade_mark: 1 << 31, ..base.clone() },
        StaticChain::NatMarkMasq,
        "--or-mark 0x80000000"
    ));
    assert!(has(&Settings::new(Family::V6), StaticChain::NatServices, "--dst-type LOCAL ! -d ::1/128 -j"));
    assert!(!writes_kubelet_firewall(&Settings::new(Family::V6)));
}

#[test]
fn ipv6_has_rules_of_its_own() {
    let service = json!({"metadata": {"name": "a", "namespace": "ns"}, "spec": {"clusterIP": "172.30.0.1",
        "clusterIPs": ["172.30.0.1", "fd00:172::1"], "ports": [{"port": 80, "nodePort": 3001}]}});
    let slice = json!({"metadata": {"name": "a-6", "namespace": "ns", "labels": {"kubernetes.io/service-name": "a"}},
        "addressType": "IPv6", "ports": [{"name": "", "port": 80}], "endpoints": [{"addresses": ["fd00:10::1"]}]});
    let (services, slices) =
        (vec![serde_json::from_value(service).unwrap()], vec![serde_json::from_value(slice).unwrap()]);
    let objects = Objects { services, slices, ..Objects::default() };
    let config = Config { cluster_cidrs: vec![Cidr::parse("fd00:10::/64").unwrap()], ..Config::default() };
    let six = rules_from_objects(&objects, &config, Family::V6);
    assert!(six.contains("-d fd00:172::1 --dport 80 ! -s fd00:10::/64 -j KUBE-MARK-MASQ"), "{six}");
    assert!(six.contains("-j DNAT --to-destination [fd00:10::1]:80"), "{six}");
    let four = rules_from_objects(&objects, &config, Family::V4);
    assert!(four.contains("-d 172.30.0.1 --dport 80 -j REJECT"), "{four}");
}

proptest::proptest! {
    #[test]
    fn names_fit_and_shares_are_equal(n in 1usize..200, name in "[a-z]{1,60}/[a-z]{1,60}") {
        let id = ChainId::of_port(ChainKind::Service, &name, Protocol::Sctp);
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
