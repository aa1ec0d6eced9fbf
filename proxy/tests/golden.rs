//! Golden files of the rules of services, and of NetworkPolicies: `tests/golden/NAME.yaml` holds the objects, and
//! `NAME.CASE.save` the rules in the form of iptables-restore. With `UPDATE_GOLDEN=1` the files are rewritten:
//! review the difference before committing it.

#![allow(clippy::unwrap_used)]

use std::{collections::BTreeSet, path::PathBuf};

use serde_json::Value;
use windlass_proxy::{
    Config, DetectLocal, NodePortAddresses, Objects,
    model::{Cidr, Family},
    policies_from_objects, rules_from_objects,
};

fn golden_dir() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden"))
}

fn cidr(text: &str) -> Cidr {
    Cidr::parse(text).unwrap()
}

fn config() -> Config {
    Config {
        node_name: "n1".to_owned(),
        node_ips: ["192.168.0.2", "2001:db8::1"].map(|ip| ip.parse().unwrap()).into(),
        cluster_cidrs: vec![cidr("10.180.0.0/16"), cidr("fd00:10:180::/48")],
        nfacct: Some(true),
        ..Config::default()
    }
}

fn objects(name: &str) -> Objects {
    let text = std::fs::read_to_string(golden_dir().join(format!("{name}.yaml"))).unwrap();
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    fn of<T: serde::de::DeserializeOwned>(documents: &[Value], kind: &str) -> Vec<T> {
        documents.iter().filter(|d| d["kind"] == kind).map(|d| serde_json::from_value(d.clone()).unwrap()).collect()
    }
    Objects {
        services: of(&documents, "Service"),
        slices: of(&documents, "EndpointSlice"),
        nodes: of(&documents, "Node"),
        service_cidrs: of(&documents, "ServiceCIDR"),
        network_policies: of(&documents, "NetworkPolicy"),
        namespaces: of(&documents, "Namespace"),
        pods: of(&documents, "Pod"),
    }
}

fn render(name: &str, config: &Config, family: Family) -> String {
    rules_from_objects(&objects(name), config, family)
}

/// The difference from the file, if any.
fn compare(file: &str, text: &str) -> Option<String> {
    let path = golden_dir().join(format!("{file}.save"));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    (golden != text).then(|| format!("{file}:\n{text}"))
}

#[test]
fn services_have_the_rules_that_upstream_would_write() {
    let mut wrong = Vec::new();
    let names: BTreeSet<String> = std::fs::read_dir(golden_dir())
        .unwrap()
        .filter_map(|e| e.unwrap().file_name().into_string().unwrap().strip_suffix(".yaml").map(str::to_owned))
        .collect();
    for name in &names {
        wrong.extend(compare(&format!("{name}.ipv4"), &render(name, &config(), Family::V4)));
    }
    wrong.extend(compare("dual-stack.ipv6", &render("dual-stack", &config(), Family::V6)));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// `tests/golden/policies/NAME.yaml`, with sets as comments, in both families.
#[test]
fn network_policies_have_these_rules() {
    let mut wrong = Vec::new();
    for name in ["policies/default-deny", "policies/peers-and-ports"] {
        for (family, suffix) in [(Family::V4, "ipv4"), (Family::V6, "ipv6")] {
            wrong.extend(compare(&format!("{name}.{suffix}"), &policies_from_objects(&objects(name), family)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn settings_change_the_rules_as_they_do_upstream() {
    let ranges = |list: &[&str]| NodePortAddresses::Ranges(list.iter().map(|c| cidr(c)).collect());
    let cases: Vec<(&str, &str, Config)> = vec![
        ("external-policy-local", "no-local-detection", Config { cluster_cidrs: Vec::new(), ..config() }),
        ("external-policy-local", "masquerade-all", Config { masquerade_all: true, ..config() }),
        ("cluster-ip", "bridge", Config { detect_local: DetectLocal::BridgeInterface("br0".into()), ..config() }),
        ("cluster-ip", "prefix", Config { detect_local: DetectLocal::InterfaceNamePrefix("cali".into()), ..config() }),
        ("cluster-ip", "mark-bit-15", Config { masquerade_bit: 15, ..config() }),
        ("cluster-ip", "no-counters", Config { nfacct: Some(false), ..config() }),
        ("node-port", "localhost-off", Config { localhost_node_ports: false, ..config() }),
        ("node-port", "primary", Config { node_port_addresses: NodePortAddresses::Primary, ..config() }),
        ("node-port", "ranges", Config { node_port_addresses: ranges(&["192.168.0.0/24", "127.0.0.0/8"]), ..config() }),
        ("node-port", "ranges-of-ipv6", Config { node_port_addresses: ranges(&["2001:db8::/64"]), ..config() }),
        ("six-services", "cluster-ips-check", Config { cluster_ips_check: true, ..config() }),
        ("external-ips", "gate-off", Config { external_ips: false, ..config() }),
    ];
    let wrong: Vec<String> = cases
        .into_iter()
        .filter_map(|(name, case, config)| compare(&format!("{name}.{case}"), &render(name, &config, Family::V4)))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
