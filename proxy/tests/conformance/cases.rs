//! The cases of upstream's tests of its rules, as clusters and flows.

use serde_json::json;
use windlass_proxy::{
    Config, NodePortAddresses,
    model::{Cidr, Family},
};

use super::{Cases, Cluster, twin};

/// All cases.
pub fn all() -> Cases {
    let mut out = Cases::default();
    type Group = (&'static str, fn(&mut Cases));
    let groups: [Group; 11] = [
        ("nothing_answers_without_endpoints", nothing_answers_without_endpoints),
        ("cluster_ips_lead_to_their_endpoints", cluster_ips_lead_to_their_endpoints),
        ("source_ranges_hold_for_load_balancer_addresses_only", source_ranges_hold_for_load_balancer_addresses_only),
        ("a_load_balancer_may_have_an_address_of_the_node", a_load_balancer_may_have_an_address_of_the_node),
        ("node_ports_answer_where_they_should", node_ports_answer_where_they_should),
        ("health_checks_are_let_in", health_checks_are_let_in),
        ("external_traffic_policies", external_traffic_policies),
        ("internal_traffic_policies", internal_traffic_policies),
        ("terminating_endpoints", terminating_endpoints),
        ("the_masquerade_matrix", the_masquerade_matrix),
        ("sctp_is_a_protocol_like_others", sctp_is_a_protocol_like_others),
    ];
    for (name, add) in groups {
        out.group = name;
        add(&mut out);
    }
    out
}

fn nothing_answers_without_endpoints(out: &mut Cases) {
    Cluster::new()
        .with(
            "a",
            json!({"clusterIP": "172.30.0.41", "np": 3001, "externalIPs": ["192.168.99.11"], "type": "LoadBalancer"}),
            &["1.2.3.4"],
            &[],
        )
        .expect(
            out,
            "POD > 172.30.0.41:80 = REJECT
             X > 192.168.99.11:80 = REJECT
             POD > NODE:3001 = REJECT
             X > NODE:3001 = REJECT
             POD > 1.2.3.4:80 = REJECT
             X > 1.2.3.4:80 = REJECT",
        );
}

fn cluster_ips_lead_to_their_endpoints(out: &mut Cases) {
    let ports = json!([
        {"name": "http", "port": 80}, {"name": "https", "port": 443, "to": 8443},
        {"name": "dns-udp", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP", "to": 5353},
        {"name": "dns-sctp", "port": 53, "protocol": "SCTP"}]);
    Cluster::new()
        .with("svc1", json!({"clusterIP": "172.30.0.41"}), &[], &["1l"])
        .with("svc2", json!({"clusterIP": "172.30.0.42", "ports": ports}), &[], &["1l", "2"])
        .expect(
            out,
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

fn source_ranges_hold_for_load_balancer_addresses_only(out: &mut Cases) {
    Cluster::new()
        .with(
            "a",
            json!({"clusterIP": "172.30.0.41", "np": 3001, "type": "LoadBalancer",
                          "loadBalancerSourceRanges": [" 192.168.0.0/24", "203.0.113.0/25"]}),
            &["1.2.3.4", "5.6.7.8"],
            &["1"],
        )
        .expect(
            out,
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

/// As the controller of load balancers gives it; other ports of the address are not concerned.
fn a_load_balancer_may_have_an_address_of_the_node(out: &mut Cases) {
    let balanced = |np: u16| json!({"clusterIP": "172.30.0.41", "np": np, "type": "LoadBalancer"});
    let common = "X > NODE:80 = 1 2 masq
                  POD > NODE:80 = 1 2 masq
                  NODE > NODE:80 = 1 2 masq
                  X > NODE:22 = pass
                  X > NODE:80/udp = pass
                  X > ALT:80 = pass\n";
    let with_node_port = Cluster::new().with("a", balanced(3001), &["192.168.0.2"], &["1", "2l"]);
    with_node_port.expect(out, &format!("{common} X > NODE:3001 = 1 2 masq"));
    // `allocateLoadBalancerNodePorts: false`
    Cluster::new().with("a", balanced(0), &["192.168.0.2"], &["1", "2l"]).expect(out, common);
    Cluster::new().with("a", balanced(0), &["192.168.0.2"], &[]).expect(
        out,
        "X > NODE:80 = REJECT
         X > NODE:22 = pass",
    );
}

fn node_ports_answer_where_they_should(out: &mut Cases) {
    let cluster = || Cluster::new().with("a", json!({"clusterIP": "172.30.0.41", "np": 3001}), &[], &["1", "2l"]);
    let common = "POD > 172.30.0.41:80 = 1 2
                  X > NODE:3001 = 1 2 masq
                  NODE > NODE:3001 = 1 2 masq\n";
    let on = cluster();
    on.expect(out, &format!("{common} LO > 127.0.0.1:3001 = 1 2 masq\n X > ALT:3001 = 1 2 masq"));
    let off = cluster().set(|c| c.localhost_node_ports = false);
    off.expect(out, &format!("{common} LO > 127.0.0.1:3001 = pass\n X > ALT:3001 = 1 2 masq"));
    // Each range has its twin: a family without one would accept all sources.
    let ranges = |list: &[&str]| {
        let both = list.iter().flat_map(|r| Family::BOTH.map(|f| twin(r, f)));
        NodePortAddresses::Ranges(both.map(|r| Cidr::parse(&r).unwrap()).collect())
    };
    let narrow = cluster().set(|c| {
        c.localhost_node_ports = false;
        c.node_port_addresses = ranges(&["192.168.0.0/24", "127.0.0.1/32"]);
    });
    narrow.expect(out, &format!("{common} LO > 127.0.0.1:3001 = pass\n X > ALT:3001 = pass"));
    let actually_off = cluster().set(|c| c.node_port_addresses = ranges(&["192.168.0.0/24", "2001:db8::/64"]));
    actually_off.expect(out, &format!("{common} LO > 127.0.0.1:3001 = pass\n X > ALT:3001 = pass"));
    let primary = cluster().set(|c| c.node_port_addresses = NodePortAddresses::Primary);
    primary.expect(out, &format!("{common} X > ALT:3001 = pass"));
}

fn health_checks_are_let_in(out: &mut Cases) {
    let with = |list: &[&str]| {
        Cluster::new().with(
            "a",
            json!({"clusterIP": "172.30.0.41", "np": 3001, "type": "LoadBalancer",
            "externalTrafficPolicy": "Local", "healthCheckNodePort": 30000}),
            &["1.2.3.4"],
            list,
        )
    };
    with(&[]).expect(out, "X > NODE:30000 = ACCEPT");
    with(&["1"]).expect(out, "X > NODE:30000 = ACCEPT");
}

const OUTSIDE: [&str; 2] = ["1.2.3.4", "192.168.99.11"];

fn external(policy: &str) -> Cluster {
    let spec = json!({"clusterIP": "172.30.0.41", "np": 3001, "externalIPs": [OUTSIDE[1]], "type": "LoadBalancer",
                      "externalTrafficPolicy": policy, "healthCheckNodePort": 30000});
    Cluster::new().with("a", spec, &[OUTSIDE[0]], &["1", "2l"])
}

fn external_traffic_policies(out: &mut Cases) {
    external("Local").expect(
        out,
        "POD > 172.30.0.41:80 = 1 2
         POD > 192.168.99.11:80 = 1 2
         POD > 1.2.3.4:80 = 1 2
         POD > NODE:3001 = 1 2
         X > 192.168.99.11:80 = 2
         X > 1.2.3.4:80 = 2
         X > NODE:3001 = 2",
    );
    external("Cluster").expect(
        out,
        "POD > 172.30.0.41:80 = 1 2
         POD > 192.168.99.11:80 = 1 2 masq
         POD > 1.2.3.4:80 = 1 2 masq
         POD > NODE:3001 = 1 2 masq
         X > 192.168.99.11:80 = 1 2 masq
         X > 1.2.3.4:80 = 1 2 masq
         X > NODE:3001 = 1 2 masq",
    );
}

fn internal_traffic_policies(out: &mut Cases) {
    let with = |policy: &str, list: &[&str]| {
        Cluster::new().with("a", json!({"clusterIP": "172.30.0.41", "internalTrafficPolicy": policy}), &[], list)
    };
    with("Cluster", &["1l", "2", "3"]).expect(out, "POD > 172.30.0.41:80 = 1 2 3");
    with("Local", &["1l", "2", "3"]).expect(out, "POD > 172.30.0.41:80 = 1");
    with("Local", &["1l", "2l", "3"]).expect(out, "POD > 172.30.0.41:80 = 1 2");
    with("Local", &["1", "2"]).expect(out, "POD > 172.30.0.41:80 = DROP");
    with("Local", &[]).expect(out, "POD > 172.30.0.41:80 = REJECT");
}

fn terminating_endpoints(out: &mut Cases) {
    let with = |policy: &str, list: &[&str]| {
        Cluster::new().with(
            "a",
            json!({"clusterIP": "172.30.0.41", "type": "LoadBalancer", "externalTrafficPolicy": policy,
                                        "healthCheckNodePort": 30000}),
            &["1.2.3.4"],
            list,
        )
    };
    let mut flows = |cluster: Cluster, inside: &str, outside: &str| {
        cluster.expect(out, &format!("POD > 172.30.0.41:80 = {inside}\nX > 1.2.3.4:80 = {outside}"));
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
fn matrix(out: &mut Cases, change: impl FnOnce(&mut Config), rows: &str) {
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
    cluster.set(change).expect(out, &flows);
}

fn the_masquerade_matrix(out: &mut Cases) {
    matrix(
        out,
        |_| {},
        "POD: LR LRm LRm LR LR LR L LRm LRm
         NODE: LRm LRm LRm LRm LRm LRm Lm LRm LRm
         LO: - LRm - - LRm - - LRm -
         X: LRm LRm LRm LRm L L Lm LRm LRm",
    );
    matrix(
        out,
        |c| c.cluster_cidrs.clear(),
        "POD: LR LRm LRm LR L L L LRm LRm
         NODE: LR LRm LRm LR LRm LRm L LRm LRm
         LO: - LRm - - LRm - - LRm -
         X: LR LRm LRm LR L L L LRm LRm",
    );
    matrix(
        out,
        |c| c.masquerade_all = true,
        "POD: LRm LRm LRm LRm LR LR Lm LRm LRm
         NODE: LRm LRm LRm LRm LRm LRm Lm LRm LRm
         X: LRm LRm LRm LRm L L Lm LRm LRm",
    );
    matrix(
        out,
        |c| {
            c.cluster_cidrs.clear();
            c.masquerade_all = true;
        },
        "POD: LRm LRm LRm LRm L L Lm LRm LRm
         NODE: LRm LRm LRm LRm LRm LRm Lm LRm LRm
         X: LRm LRm LRm LRm L L Lm LRm LRm",
    );
}

/// Not among upstream's.
fn sctp_is_a_protocol_like_others(out: &mut Cases) {
    let spec = |ip: &str, node_port: u16| {
        let ports = json!([{"name": "s", "port": 53, "protocol": "SCTP", "nodePort": node_port}]);
        json!({"clusterIP": ip, "type": "LoadBalancer", "ports": ports})
    };
    Cluster::new()
        .with("a", spec("172.30.0.41", 3001), &["1.2.3.4"], &["1l", "2"])
        .with("b", spec("172.30.0.42", 3002), &["5.6.7.8"], &[])
        .expect(
            out,
            "POD > 172.30.0.41:53/sctp = @1:53 @2:53
             X > NODE:3001/sctp = @1:53 @2:53 masq
             X > 1.2.3.4:53/sctp = @1:53 @2:53 masq
             POD > 172.30.0.42:53/sctp = REJECT
             XB > NODE:3002/sctp = REJECT
             X > 5.6.7.8:53/sctp = REJECT",
        );
}
