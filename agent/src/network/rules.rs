//! The network's own iptables chains: pods may be forwarded, their traffic to the outside carries the
//! node's address, ports of the host lead to them. Services are not here: they are the proxy's.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    io::Write as _,
    net::Ipv4Addr,
    process::{Command, Stdio},
};

use super::{NetworkError, addresses::Holder};

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

/// Restore input that makes the chains exactly what they should be. Pure.
pub(super) fn chains(pods: (Ipv4Addr, u8), cluster: (Ipv4Addr, u8), holders: &BTreeMap<Ipv4Addr, Holder>) -> String {
    let (pods, cluster) = (format!("{}/{}", pods.0, pods.1), format!("{}/{}", cluster.0, cluster.1));
    let mut out = format!(
        "*filter\n:{FORWARD} - [0:0]\n-A {FORWARD} -s {pods} -j ACCEPT\n-A {FORWARD} -d {pods} -j ACCEPT\nCOMMIT\n\
         *nat\n:{POSTROUTING} - [0:0]\n:{HOSTPORTS} - [0:0]\n"
    );
    let _ = writeln!(out, "-A {POSTROUTING} -s {pods} -d {cluster} -j RETURN");
    let _ = writeln!(out, "-A {POSTROUTING} -s {pods} -d 224.0.0.0/4 -j RETURN");
    let _ = writeln!(out, "-A {POSTROUTING} -s {pods} -j MASQUERADE");
    for (address, holder) in holders {
        for port in &holder.host_ports {
            let protocol = port.protocol.name();
            let at =
                port.host_ip.filter(|ip| !ip.is_unspecified()).map(|ip| format!("-d {ip}/32 ")).unwrap_or_default();
            let _ = writeln!(
                out,
                "-A {HOSTPORTS} {at}-p {protocol} -m {protocol} --dport {} -j DNAT --to-destination {address}:{}",
                port.host_port, port.container_port
            );
            // Replies to the host's loopback address, and to the pod itself, must come back through the host. They stand
            // before the rule that lets traffic inside the cluster go as it is.
            for source in ["127.0.0.0/8".to_owned(), format!("{address}/32")] {
                let _ = writeln!(
                    out,
                    "-I {POSTROUTING} -s {source} -d {address}/32 -p {protocol} -m {protocol} --dport {} -j MASQUERADE",
                    port.container_port
                );
            }
        }
    }
    out.push_str("COMMIT\n");
    out
}

/// Writes the chains and makes sure of the jumps to them.
pub(super) async fn apply(text: String) -> Result<(), NetworkError> {
    blocking(move || {
        restore(&text)?;
        let tables = tables()?;
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

/// Takes chains and jumps away; gives what stayed.
pub(super) async fn remove() -> Vec<String> {
    let removed = blocking(|| {
        let tables = tables()?;
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
                let gone = tables.flush_chain(table, chain).and_then(|()| tables.delete_chain(table, chain));
                if let Err(error) = gone {
                    problems.push(format!("the chain {chain} of {table}: {error}"));
                }
            }
        }
        Ok(problems)
    });
    removed.await.unwrap_or_else(|e| vec![e.to_string()])
}

fn tables() -> Result<iptables::IPTables, NetworkError> {
    iptables::new(false).map_err(|e| NetworkError::new("iptables could not be run; is it installed?", e))
}

fn restore(text: &str) -> Result<(), NetworkError> {
    let failed = |why: &dyn std::fmt::Display| {
        NetworkError::new("the chains of the pod network could not be written with iptables-restore", why)
    };
    let mut child = Command::new("iptables-restore")
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
    tokio::task::spawn_blocking(work).await.map_err(|e| NetworkError::new("iptables could not be run", e))?
}

#[cfg(test)]
mod tests {
    use super::{
        super::{HostPort, Protocol},
        *,
    };

    #[test]
    fn chains_of_a_node() {
        let port = HostPort { host_ip: None, host_port: 6380, container_port: 6379, protocol: Protocol::Tcp };
        let holders = BTreeMap::from([
            (Ipv4Addr::new(10, 244, 0, 2), Holder { pod_uid: "a".into(), host_ports: vec![] }),
            (Ipv4Addr::new(10, 244, 0, 3), Holder { pod_uid: "b".into(), host_ports: vec![port] }),
        ]);
        let text = chains((Ipv4Addr::new(10, 244, 0, 0), 24), (Ipv4Addr::new(10, 244, 0, 0), 16), &holders);
        for line in [
            "-A WINDLASS-FORWARD -s 10.244.0.0/24 -j ACCEPT",
            "-A WINDLASS-POSTROUTING -s 10.244.0.0/24 -d 10.244.0.0/16 -j RETURN",
            "-A WINDLASS-HOSTPORTS -p tcp -m tcp --dport 6380 -j DNAT --to-destination 10.244.0.3:6379",
            "-I WINDLASS-POSTROUTING -s 127.0.0.0/8 -d 10.244.0.3/32 -p tcp -m tcp --dport 6379 -j MASQUERADE",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is missing in\n{text}");
        }
        assert_eq!(text.matches("DNAT").count(), 1);
    }
}
