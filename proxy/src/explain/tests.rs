use super::*;

const WANTED: &str = include_str!("../../tests/golden/six-services.ipv4.save");

/// The golden rules as a kernel holds them, with the jumps of the built-in chains.
fn kernel() -> String {
    crate::rules::base_chain_jumps() + WANTED
}

#[test]
fn a_service_is_explained_with_true_shares() {
    let found = explain(WANTED, &kernel()).unwrap();
    assert_eq!(found.differences, []);
    let row = found.services.iter().find(|s| s.is_of("ns/svc5")).unwrap();
    assert_eq!((row.name.as_str(), row.protocol.as_str()), ("ns/svc5:p80", "tcp"));
    let kinds: Vec<(&str, &str, u16)> =
        row.entries.iter().map(|e| (e.kind.as_str(), e.address.as_str(), e.port)).collect();
    assert_eq!(
        kinds,
        [
            ("cluster IP", "172.30.0.45", 80),
            ("loadbalancer IP", "5.6.7.8", 80),
            ("node port", "127.0.0.0/8", 3002),
            ("node port", "", 3002)
        ]
    );
    let shares: Vec<(&str, Option<f64>)> = row.endpoints.iter().map(|e| (e.address.as_str(), e.share)).collect();
    assert_eq!(shares, [("10.180.0.4:80", Some(0.5)), ("10.180.0.5:80", Some(0.5))]);
    let tree = Branch::draw(&row.entries[0].branches, &mut std::collections::BTreeSet::new());
    assert!(
        tree.contains("masquerade unless from 10.180.0.0/16")
            && tree.contains("share 50.0 %")
            && tree.contains("to 10.180.0.5:80"),
        "{tree}"
    );
    let none = found.services.iter().find(|s| s.is_of("ns/svc6")).unwrap();
    assert!(none.entries[0].refused && none.endpoints.is_empty());
    assert!(!none.is_of("ns/svc"));
}

#[test]
fn differences_name_the_chain_and_the_rule() {
    let whole = kernel();
    let without: String = whole
        .lines()
        .filter(|l| !l.contains("--set -m tcp -p tcp -j DNAT --to-destination 10.180.0.5:80"))
        .map(|l| format!("{l}\n"))
        .collect();
    let found = explain(WANTED, &without).unwrap().differences;
    assert_eq!(found.len(), 1);
    assert!(
        found[0].chain.starts_with("KUBE-SEP-")
            && found[0].problem.to_string().starts_with("rule 2 should be")
            && found[0].problem.to_string().ends_with("is nothing"),
        "{found:?}"
    );
    let extra = whole.replacen("*nat\n", "*nat\n:KUBE-SVC-OLD - [0:0]\n", 1);
    assert_eq!(explain(WANTED, &extra).unwrap().differences[0].problem, Problem::Extra);
    assert!(explain(WANTED, "").unwrap().differences.len() > 20);
}

#[test]
fn isolated_pods_are_explained_with_what_is_allowed() {
    let text = include_str!("../../tests/golden/policies/peers-and-ports.ipv4.save");
    let rows = explain("", text).unwrap().policies;
    assert_eq!(rows.iter().map(|row| row.direction).collect::<Vec<_>>(), ["egress", "ingress"]);
    let what = |row: &PolicyRow| row.allowed.iter().map(|allowed| allowed.what.clone()).collect::<Vec<_>>();
    assert_eq!(
        what(&rows[0]),
        [
            "to anybody, udp ports 10.244.1.7,udp:5353",
            "to anybody, tcp ports 10.244.1.6,tcp:8443",
            "to anybody except 10.0.0.0/8, any protocol"
        ]
    );
    let ingress = &rows[1];
    assert_eq!(ingress.pods, ["10.244.0.5"]);
    assert_eq!(ingress.allowed[0].policy, "shop/db");
    let all = what(ingress);
    assert_eq!(all[0], "from 10.244.1.6, tcp port 5432");
    assert_eq!(all[3], "from 10.244.1.6, tcp ports 10.244.0.5,tcp:9187");
    assert_eq!(all[8], "from 192.0.2.0/24 except 192.0.2.7/32 192.0.2.128/25, tcp port 5432");
    assert_eq!(all.last().unwrap(), "from anybody, any protocol");
    assert!(ingress.dropped.ends_with("NetworkPolicy shop/db"));
}
