//! The pod network's own iptables chains: forwarding of pod traffic, masquerading of what leaves the cluster, and host
//! ports. Service rules are the proxy's.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    io::Write as _,
    net::IpAddr,
    process::{Command, Stdio},
};

use windlass_kit::{
    iptables_save::canonical,
    net::{Cidr, Family},
};

use super::{NetworkError, ipam::Allocation};

const FORWARD: &str = "WINDLASS-FORWARD";
const POSTROUTING: &str = "WINDLASS-POSTROUTING";
const HOSTPORTS: &str = "WINDLASS-HOSTPORTS";

/// Table, built-in chain, the jump.
const JUMPS: [(&str, &str, &str); 4] = [
    ("filter", "FORWARD", "-m comment --comment windlass-pods -j WINDLASS-FORWARD"),
    ("nat", "POSTROUTING", "-m comment --comment windlass-pods -j WINDLASS-POSTROUTING"),
    ("nat", "PREROUTING", "-m addrtype --dst-type LOCAL -m comment --comment windlass-hostports -j WINDLASS-HOSTPORTS"),
    ("nat", "OUTPUT", "-m addrtype --dst-type LOCAL -m comment --comment windlass-hostports -j WINDLASS-HOSTPORTS"),
];

/// The chains that the pod network wants in one family: table, chain, and its rules in order. Pure.
pub(super) type Chains = Vec<(&'static str, &'static str, Vec<String>)>;

/// The wanted chains. Pure.
pub(super) fn chains(pods: Cidr, cluster: Cidr, allocations: &BTreeMap<IpAddr, Allocation>) -> Chains {
    let family = pods.family();
    let (multicast, whole) = match family {
        Family::V4 => ("224.0.0.0/4", 32),
        Family::V6 => ("ff00::/8", 128),
    };
    let (mut host_ports, mut post_routing) = (Vec::new(), Vec::new());
    for (address, allocation) in allocations {
        for port in &allocation.host_ports {
            let protocol = port.protocol.name();
            let wanted = port.host_ip.filter(|ip| !ip.is_unspecified());
            if wanted.is_some_and(|ip| Family::of(&ip) != family) {
                continue;
            }
            let at = wanted.map(|ip| format!("-d {ip}/{whole} ")).unwrap_or_default();
            let to = std::net::SocketAddr::new(*address, port.container_port);
            host_ports.push(format!(
                "{at}-p {protocol} -m {protocol} --dport {} -j DNAT --to-destination {to}",
                port.host_port
            ));
            // Replies to connections from the host's loopback address and from the pod itself must return through the
            // host. These stand before the rule that exempts traffic inside the cluster. IPv6 does not route loopback
            // addresses.
            let own = format!("{address}/{whole}");
            let loopback = (family == Family::V4).then(|| "127.0.0.0/8".to_owned());
            for source in loopback.into_iter().chain([own]) {
                let rule = format!(
                    "-s {source} -d {address}/{whole} -p {protocol} -m {protocol} --dport {} -j MASQUERADE",
                    port.container_port
                );
                // Two host ports may lead to one port.
                if !post_routing.contains(&rule) {
                    post_routing.push(rule);
                }
            }
        }
    }
    post_routing.extend([
        format!("-s {pods} -d {cluster} -j RETURN"),
        format!("-s {pods} -d {multicast} -j RETURN"),
        format!("-s {pods} -j MASQUERADE"),
    ]);
    vec![
        ("filter", FORWARD, vec![format!("-s {pods} -j ACCEPT"), format!("-d {pods} -j ACCEPT")]),
        ("nat", POSTROUTING, post_routing),
        ("nat", HOSTPORTS, host_ports),
    ]
}

/// The input of iptables-restore that renders the chains. Pure.
fn restore_text(chains: &Chains) -> String {
    let mut out = String::new();
    for table in ["filter", "nat"] {
        let of_table = || chains.iter().filter(|(of, ..)| *of == table);
        let _ = writeln!(out, "*{table}");
        of_table().for_each(|(_, chain, _)| _ = writeln!(out, ":{chain} - [0:0]"));
        for (_, chain, rules) in of_table() {
            rules.iter().for_each(|rule| _ = writeln!(out, "-A {chain} {rule}"));
        }
        out.push_str("COMMIT\n");
    }
    out
}

/// Whether a chain of the kernel, as `iptables -S` lists it, has exactly these rules in this order. Pure.
fn is_as_wanted(chain: &str, listed: &[String], wanted: &[String]) -> bool {
    let rules = listed.iter().filter_map(|line| line.strip_prefix("-A ")?.strip_prefix(chain)?.strip_prefix(' '));
    rules.map(canonical).eq(wanted.iter().map(|rule| canonical(rule)))
}

/// What of the chains and jumps is not as wanted in the kernel, because another program removed or changed it.
pub(super) async fn differences(family: Family, chains: Chains) -> Result<Vec<String>, NetworkError> {
    blocking(move || {
        let tables = tables(family)?;
        let mut found = Vec::new();
        for (table, chain, wanted) in &chains {
            let listed = tables.list(table, chain);
            if !listed.is_ok_and(|listed| is_as_wanted(chain, &listed, wanted)) {
                found.push(format!("chain {chain} of {table}"));
            }
        }
        let there = |table: &str, chain: &str, rule: &str| tables.exists(table, chain, rule).unwrap_or(false);
        let missing = JUMPS.iter().filter(|(table, chain, rule)| !there(table, chain, rule));
        found.extend(missing.map(|(table, chain, _)| format!("jump from {chain} of {table}")));
        Ok(found)
    })
    .await
}

/// Restores the chains and ensures the jumps to them.
pub(super) async fn apply(family: Family, chains: Chains) -> Result<(), NetworkError> {
    blocking(move || {
        restore(family, &restore_text(&chains))?;
        let tables = tables(family)?;
        for (table, chain, rule) in JUMPS {
            if !tables.exists(table, chain, rule).unwrap_or(false) {
                tables
                    .insert(table, chain, rule, 1)
                    .map_err(|e| NetworkError::new(format!("the jump from {chain} of {table} could not be made"), e))?;
            }
        }
        Ok(())
    })
    .await
}

/// Removes chains and jumps; returns what could not be removed.
pub(super) async fn remove(family: Family) -> Vec<String> {
    let removed = blocking(move || {
        // A machine without IPv6 has nothing to remove.
        let Ok(tables) = tables(family) else { return Ok(Vec::new()) };
        let mut problems = Vec::new();
        for (table, chain, rule) in JUMPS {
            while tables.exists(table, chain, rule).unwrap_or(false) {
                if let Err(error) = tables.delete(table, chain, rule) {
                    problems.push(format!("the jump from {chain} of {table}: {error}"));
                    break;
                }
            }
        }
        for (table, chain) in [("filter", FORWARD), ("nat", POSTROUTING), ("nat", HOSTPORTS)] {
            let there = tables.list_chains(table).is_ok_and(|all| all.iter().any(|c| c == chain));
            if there {
                let removed = tables.flush_chain(table, chain).and_then(|()| tables.delete_chain(table, chain));
                if let Err(error) = removed {
                    problems.push(format!("the chain {chain} of {table}: {error}"));
                }
            }
        }
        Ok(problems)
    });
    removed.await.unwrap_or_else(|e| vec![e.to_string()])
}

fn tables(family: Family) -> Result<iptables::IPTables, NetworkError> {
    iptables::new(family == Family::V6).map_err(|e| NetworkError::new("iptables could not be run; is it installed?", e))
}

fn restore(family: Family, text: &str) -> Result<(), NetworkError> {
    let program = match family {
        Family::V4 => "iptables-restore",
        Family::V6 => "ip6tables-restore",
    };
    let failed = |why: &dyn std::fmt::Display| {
        NetworkError::new(format!("the chains of the pod network could not be written with {program}"), why)
    };
    let mut child = Command::new(program)
        .args(["-w", "5", "--noflush"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| failed(&e))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(text.as_bytes()).map_err(|e| failed(&e))?;
    }
    let output = child.wait_with_output().map_err(|e| failed(&e))?;
    if output.status.success() { Ok(()) } else { Err(failed(&String::from_utf8_lossy(&output.stderr).trim())) }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, NetworkError> + Send + 'static,
) -> Result<T, NetworkError> {
    windlass_kit::blocking::NETWORK.run(work, |error| NetworkError::new("iptables could not be run", error)).await
}

#[cfg(test)]
mod tests {
    use super::{
        super::{HostPort, Protocol},
        *,
    };

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn cidr(text: &str) -> Cidr {
        Cidr::parse(text).unwrap()
    }

    #[test]
    fn ports_of_either_family() {
        let port = |host_ip: Option<&str>| HostPort {
            host_ip: host_ip.map(ip),
            host_port: 80,
            container_port: 8080,
            protocol: Protocol::Tcp,
        };
        let ports = vec![port(None), port(Some("192.0.2.1")), port(Some("2001:db8::1"))];
        let allocations = BTreeMap::from([(ip("fd00::2"), Allocation { pod_uid: "a".into(), host_ports: ports })]);
        let text = restore_text(&chains(cidr("fd00::/64"), cidr("fd00::/56"), &allocations));
        assert!(text.contains("-p tcp -m tcp --dport 80 -j DNAT --to-destination [fd00::2]:8080"), "{text}");
        assert!(text.contains("-d 2001:db8::1/128 -p tcp"), "{text}");
        assert!(!text.contains("192.0.2.1") && !text.contains("127.0.0.0"), "{text}");
        assert!(text.contains("-d ff00::/8 -j RETURN"), "{text}");
    }

    #[test]
    fn chains_of_a_node() {
        let port = HostPort { host_ip: None, host_port: 6380, container_port: 6379, protocol: Protocol::Tcp };
        let allocations = BTreeMap::from([
            (ip("10.244.0.2"), Allocation { pod_uid: "a".into(), host_ports: vec![] }),
            (ip("10.244.0.3"), Allocation { pod_uid: "b".into(), host_ports: vec![port] }),
        ]);
        let text = restore_text(&chains(cidr("10.244.0.0/24"), cidr("10.244.0.0/16"), &allocations));
        for line in [
            "-A WINDLASS-FORWARD -s 10.244.0.0/24 -j ACCEPT",
            "-A WINDLASS-POSTROUTING -s 10.244.0.0/24 -d 10.244.0.0/16 -j RETURN",
            "-A WINDLASS-HOSTPORTS -p tcp -m tcp --dport 6380 -j DNAT --to-destination 10.244.0.3:6379",
            "-A WINDLASS-POSTROUTING -s 127.0.0.0/8 -d 10.244.0.3/32 -p tcp -m tcp --dport 6379 -j MASQUERADE",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is missing in\n{text}");
        }
        assert_eq!(text.matches("DNAT").count(), 1);
    }

    #[test]
    fn a_chain_of_the_kernel_is_compared_in_order() {
        let wanted =
            ["-p udp -m udp --dport 53 -j DNAT --to-destination 10.244.0.3:5353", "-s 10.244.0.0/24 -j MASQUERADE"]
                .map(str::to_owned);
        // As iptables 1.8.9 lists them.
        let listed = |rules: [&str; 3]| rules.map(str::to_owned).to_vec();
        let all = listed([
            "-N WINDLASS-HOSTPORTS",
            "-A WINDLASS-HOSTPORTS -p udp -m udp --dport 53 -j DNAT --to-destination 10.244.0.3:5353",
            "-A WINDLASS-HOSTPORTS -s 10.244.0.0/24 -j MASQUERADE",
        ]);
        assert!(is_as_wanted(HOSTPORTS, &all, &wanted));
        assert!(!is_as_wanted(HOSTPORTS, &all, &wanted[..1]), "one too many");
        assert!(!is_as_wanted(HOSTPORTS, &all[..2], &wanted), "one is gone");
        let turned = listed([&all[0], &all[2], &all[1]]);
        assert!(!is_as_wanted(HOSTPORTS, &turned, &wanted));
    }
}
