//! The pod network's own iptables chains: forwarding of pod traffic, masquerading of what leaves the cluster, host ports,
//! and what keeps others off the host's loopback addresses and pods off the addresses of others. Service rules are the
//! proxy's.

use std::{collections::BTreeMap, fmt::Write as _, net::IpAddr, time::Duration};

use windlass_kit::{
    external_program::{Program, ProgramError},
    iptables_save::canonical,
    net::{Cidr, Family},
    pod_interface::HOST_PREFIX,
};

use super::{HostPort, NetworkError};
use crate::applied::Proof;

const FORWARD: &str = "WINDLASS-FORWARD";
const INPUT: &str = "WINDLASS-INPUT";
const POSTROUTING: &str = "WINDLASS-POSTROUTING";
const HOSTPORTS: &str = "WINDLASS-HOSTPORTS";
const RPFILTER: &str = "WINDLASS-RPFILTER";

/// All chains with their tables, in the order in which they are written: no pod is forwarded to before its source
/// addresses are checked.
const CHAINS: [(&str, &str); 5] =
    [("raw", RPFILTER), ("filter", FORWARD), ("filter", INPUT), ("nat", POSTROUTING), ("nat", HOSTPORTS)];
/// Each table is one transaction.
const TABLES: [&str; 3] = ["raw", "filter", "nat"];

/// Table, built-in chain, the jump.
const JUMPS: [(&str, &str, &str); 6] = [
    ("raw", "PREROUTING", "-i wl+ -m comment --comment windlass-pods -j WINDLASS-RPFILTER"),
    ("filter", "FORWARD", "-m comment --comment windlass-pods -j WINDLASS-FORWARD"),
    ("filter", "INPUT", "-m comment --comment windlass-loopback -j WINDLASS-INPUT"),
    ("nat", "POSTROUTING", "-m comment --comment windlass-pods -j WINDLASS-POSTROUTING"),
    ("nat", "PREROUTING", "-m addrtype --dst-type LOCAL -m comment --comment windlass-hostports -j WINDLASS-HOSTPORTS"),
    ("nat", "OUTPUT", "-m addrtype --dst-type LOCAL -m comment --comment windlass-hostports -j WINDLASS-HOSTPORTS"),
];

/// How long each command waits for the xtables lock, in seconds.
const LOCK_WAIT_SECONDS: &str = "5";
/// A program that takes longer hangs, and is killed.
const LIMIT: Duration = Duration::from_secs(30);
/// The exit status of a program that found no such chain, among others.
const NO_SUCH_CHAIN: i32 = 1;
/// And of one whose table the kernel does not have.
const NO_SUCH_TABLE: i32 = 3;

/// What the rules of one family follow from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rules {
    /// The range of this node's pods.
    pub(super) pods: Cidr,
    /// That of all pods.
    pub(super) cluster: Cidr,
    /// Host ports by their target address.
    pub(super) host_ports: BTreeMap<IpAddr, Vec<HostPort>>,
}

/// Rules of a family that are in the kernel; `None` when the node has none there. Only [`write`] makes one.
#[derive(Debug)]
pub(super) struct Written(Option<Rules>);

impl Proof<Option<Rules>> for Written {
    fn into_written(self) -> Option<Rules> {
        self.0
    }
}

/// The chains that the pod network wants in one family: table, chain, and its rules in order. Pure.
type Chains = Vec<(&'static str, &'static str, Vec<String>)>;

/// The wanted chains. Pure.
fn chains(rules: &Rules) -> Chains {
    let Rules { pods, cluster, .. } = rules;
    let family = pods.family();
    let (multicast, whole) = match family {
        Family::V4 => ("224.0.0.0/4", 32),
        Family::V6 => ("ff00::/8", 128),
    };
    let (mut host_ports, mut post_routing) = (Vec::new(), Vec::new());
    for (address, ports) in &rules.host_ports {
        for port in ports {
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
                // Two host ports may have the same target port.
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
    // Interfaces of pods with host ports route loopback addresses: a pod that may send what it likes would reach what
    // listens at 127.0.0.1 of the host. Upstream: block incoming localnet connections, of kubelet_network_linux.go.
    let foreign = "! -i lo -d 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP";
    vec![
        ("raw", RPFILTER, source_checks()),
        ("filter", FORWARD, vec![format!("-s {pods} -j ACCEPT"), format!("-d {pods} -j ACCEPT")]),
        ("filter", INPUT, (family == Family::V4).then(|| foreign.to_owned()).into_iter().collect()),
        ("nat", POSTROUTING, post_routing),
        ("nat", HOSTPORTS, host_ports),
    ]
}

/// A packet from a pod's link whose source address is not led back by that link is dropped: a pod that may open raw
/// sockets, which Docker's default capabilities allow, would send with the address of another one that a NetworkPolicy
/// allows. In raw, before conntrack, whose entries it could change otherwise. A rule in place of the sysctl rp_filter: IPv6
/// has none, and IPv4's is the largest value of `all` and of the interface, so that 2 (loose) of `all` makes every link
/// loose. Link-local and unspecified sources of IPv6 (neighbour discovery) pass the match. The links' names go on with a
/// hexadecimal digit, those of wireless interfaces (wlan0, wlp2s0, wlx…) with other letters, but for the first of them.
fn source_checks() -> Vec<String> {
    let wireless = format!("-i {HOST_PREFIX}an+ -j RETURN");
    let check = |digit: char| format!("-i {HOST_PREFIX}{digit}+ -m rpfilter --invert -j DROP");
    std::iter::once(wireless).chain("0123456789abcdef".chars().map(check)).collect()
}

/// How often each of [`JUMPS`] occurs in the base chains.
type JumpCounts = [usize; JUMPS.len()];

/// The input of iptables-restore that writes the chains, and leaves exactly one of each jump to them. Pure.
fn restore_text(chains: &Chains, jumps: JumpCounts) -> String {
    let mut out = String::new();
    for table in TABLES {
        let of_table = || chains.iter().filter(|(of, ..)| *of == table);
        let _ = writeln!(out, "*{table}");
        of_table().for_each(|(_, chain, _)| _ = writeln!(out, ":{chain} - [0:0]"));
        for (_, chain, rules) in of_table() {
            rules.iter().for_each(|rule| _ = writeln!(out, "-A {chain} {rule}"));
        }
        for ((_, base, jump), count) in JUMPS.iter().zip(jumps).filter(|((of, ..), _)| *of == table) {
            if count == 0 {
                let _ = writeln!(out, "-I {base} {jump}");
            }
            (1..count).for_each(|_| _ = writeln!(out, "-D {base} {jump}"));
        }
        out.push_str("COMMIT\n");
    }
    out
}

/// The input of iptables-restore that removes these chains and jumps. Pure.
fn removal_text(chains: &[(&str, &str)], jumps: JumpCounts) -> String {
    let mut out = String::new();
    for table in TABLES {
        let of_table = || chains.iter().filter(|(of, _)| *of == table);
        let jumps = JUMPS.iter().zip(jumps).filter(|((of, ..), count)| *of == table && *count > 0);
        let mut body = String::new();
        for ((_, base, jump), count) in jumps {
            (0..count).for_each(|_| _ = writeln!(body, "-D {base} {jump}"));
        }
        of_table().for_each(|(_, chain)| _ = writeln!(body, "-F {chain}"));
        of_table().for_each(|(_, chain)| _ = writeln!(body, "-X {chain}"));
        if !body.is_empty() {
            let _ = write!(out, "*{table}\n{body}COMMIT\n");
        }
    }
    out
}

/// The rules that `iptables -S CHAIN` lists of a chain. Pure.
fn rules_of<'a>(chain: &'a str, listed: &'a str) -> impl Iterator<Item = &'a str> {
    listed.lines().filter_map(move |line| line.strip_prefix("-A ")?.strip_prefix(chain)?.strip_prefix(' '))
}

/// Whether a chain of the kernel has exactly these rules in this order. Pure.
fn is_as_wanted(chain: &str, listed: &str, wanted: &[String]) -> bool {
    rules_of(chain, listed).map(canonical).eq(wanted.iter().map(|rule| canonical(rule)))
}

/// How often a chain of the kernel has a rule. Pure.
fn count(chain: &str, listed: &str, wanted: &str) -> usize {
    let wanted = canonical(wanted);
    rules_of(chain, listed).filter(|rule| canonical(rule) == wanted).count()
}

/// What of the rules is not as wanted in the kernel, because another program removed or changed it.
///
/// # Errors
/// When the kernel's rules cannot be listed: then it is not known.
pub(super) async fn differences(family: Family, rules: &Rules) -> Result<Vec<String>, NetworkError> {
    let compared = async {
        let mut found = Vec::new();
        for (table, chain, wanted) in &chains(rules) {
            let listed = list(family, table, chain).await?;
            if !listed.is_some_and(|listed| is_as_wanted(chain, &listed, wanted)) {
                found.push(format!("chain {chain} of {table}"));
            }
        }
        let jumps = jumps(family).await?;
        let wrong = JUMPS.iter().zip(jumps).filter(|(_, count)| *count != 1);
        found.extend(wrong.map(|((table, chain, _), _)| format!("jump from {chain} of {table}")));
        Ok(found)
    };
    compared.await.map_err(|e: Failure| NetworkError::new("the rules of the pod network could not be compared", e))
}

/// Writes chains and jumps of a family, or removes them. After an error it is not known which of both tables has been
/// written.
pub(super) async fn write(family: Family, rules: Option<Rules>) -> Result<Written, NetworkError> {
    let written = async {
        match &rules {
            Some(rules) => restore(family, &restore_text(&chains(rules), jumps(family).await?)).await,
            None => take_away(family).await,
        }
    };
    let attempt = || format!("the chains of the pod network could not be written with {}", program(family, "-restore"));
    written.await.map_err(|e: Failure| NetworkError::new(attempt(), e))?;
    Ok(Written(rules))
}

/// Removes chains and jumps; returns what could not be removed.
pub(super) async fn remove(family: Family) -> Option<String> {
    let removed = take_away(family).await.err();
    removed.map(|e| format!("the chains of the pod network, with {}: {e}", program(family, "-restore")))
}

async fn take_away(family: Family) -> Result<(), Failure> {
    let jumps = match jumps(family).await {
        Ok(jumps) => jumps,
        // A machine without the programs, or without IPv6, has nothing to remove.
        Err(Failure::Run(_, ProgramError::Start(_)) | Failure::Status(_, Some(NO_SUCH_TABLE), _)) => return Ok(()),
        Err(error) => return Err(error),
    };
    let mut there = Vec::new();
    for (table, chain) in CHAINS {
        if list(family, table, chain).await?.is_some() {
            there.push((table, chain));
        }
    }
    match removal_text(&there, jumps) {
        nothing if nothing.is_empty() => Ok(()),
        text => restore(family, &text).await,
    }
}

/// Whether rules of a family go to nf_tables, which counts its changes.
pub(super) async fn is_nf_tables(family: Family) -> Result<bool, NetworkError> {
    let version = run(&program(family, ""), &["--version"], String::new()).await;
    let failed = |e| NetworkError::new("iptables could not be run; is it installed?", e);
    version.map(|text| text.contains("nf_tables")).map_err(failed)
}

/// Why a program did not do what was asked.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0}: {1}; is the package iptables installed?")]
    Run(String, ProgramError),
    #[error("{0}: {2}")]
    Status(String, Option<i32>, String),
}

fn program(family: Family, suffix: &str) -> String {
    let stem = match family {
        Family::V4 => "iptables",
        Family::V6 => "ip6tables",
    };
    format!("{stem}{suffix}")
}

async fn run(program: &str, args: &[&str], input: String) -> Result<String, Failure> {
    let call = Program::new(program, LIMIT).args(args).envs([("LC_ALL", "C")]).input(input.into_bytes());
    let output = call.run().await.map_err(|e| Failure::Run(program.to_owned(), e))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let why = match output.stderr() {
        silent if silent.is_empty() => output.status.to_string(),
        stderr => stderr,
    };
    Err(Failure::Status(format!("{program} {}", args.join(" ")), output.status.code(), why))
}

async fn restore(family: Family, text: &str) -> Result<(), Failure> {
    let args = ["-w", LOCK_WAIT_SECONDS, "--noflush"];
    run(&program(family, "-restore"), &args, text.to_owned()).await.map(drop)
}

/// The rules of a chain, as `iptables -S` lists them; `None` when there is no such chain.
async fn list(family: Family, table: &str, chain: &str) -> Result<Option<String>, Failure> {
    match run(&program(family, ""), &["-w", LOCK_WAIT_SECONDS, "-t", table, "-S", chain], String::new()).await {
        Ok(listed) => Ok(Some(listed)),
        Err(Failure::Status(_, Some(NO_SUCH_CHAIN), _)) => Ok(None),
        Err(error) => Err(error),
    }
}

async fn jumps(family: Family) -> Result<JumpCounts, Failure> {
    let mut counts = [0; JUMPS.len()];
    for (known, (table, chain, jump)) in counts.iter_mut().zip(JUMPS) {
        *known = list(family, table, chain).await?.map_or(0, |listed| count(chain, &listed, jump));
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::{super::Protocol, *};

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn cidr(text: &str) -> Cidr {
        Cidr::parse(text).unwrap()
    }

    fn text(pods: &str, cluster: &str, host_ports: &[(&str, Vec<HostPort>)]) -> String {
        let host_ports = host_ports.iter().map(|(address, ports)| (ip(address), ports.clone())).collect();
        restore_text(&chains(&Rules { pods: cidr(pods), cluster: cidr(cluster), host_ports }), [0; JUMPS.len()])
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
        let text = text("fd00::/64", "fd00::/56", &[("fd00::2", ports)]);
        assert!(text.contains("-p tcp -m tcp --dport 80 -j DNAT --to-destination [fd00::2]:8080"), "{text}");
        assert!(text.contains("-d 2001:db8::1/128 -p tcp"), "{text}");
        assert!(!text.contains("192.0.2.1") && !text.contains("127.0.0.0"), "{text}");
        assert!(text.contains("-d ff00::/8 -j RETURN"), "{text}");
    }

    #[test]
    fn chains_of_a_node() {
        let port = HostPort { host_ip: None, host_port: 6380, container_port: 6379, protocol: Protocol::Tcp };
        let text = text("10.244.0.0/24", "10.244.0.0/16", &[("10.244.0.3", vec![port])]);
        for line in [
            "-A WINDLASS-FORWARD -s 10.244.0.0/24 -j ACCEPT",
            "-A WINDLASS-INPUT ! -i lo -d 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP",
            "-A WINDLASS-POSTROUTING -s 10.244.0.0/24 -d 10.244.0.0/16 -j RETURN",
            "-A WINDLASS-HOSTPORTS -p tcp -m tcp --dport 6380 -j DNAT --to-destination 10.244.0.3:6379",
            "-A WINDLASS-POSTROUTING -s 127.0.0.0/8 -d 10.244.0.3/32 -p tcp -m tcp --dport 6379 -j MASQUERADE",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is missing in\n{text}");
        }
        assert_eq!(text.matches("DNAT --to").count(), 1);
    }

    #[test]
    fn each_jump_is_made_one() {
        let rules = Rules { pods: cidr("10.244.0.0/24"), cluster: cidr("10.244.0.0/16"), host_ports: BTreeMap::new() };
        let text = restore_text(&chains(&rules), [1, 0, 1, 3, 1, 1]);
        let jumps: Vec<&str> = text.lines().filter(|l| l.starts_with("-I ") || l.starts_with("-D ")).collect();
        let (made, removed) = (format!("-I FORWARD {}", JUMPS[1].2), format!("-D POSTROUTING {}", JUMPS[3].2));
        assert_eq!(jumps, [made.as_str(), &removed, &removed]);
        assert_eq!(removal_text(&[], [0; JUMPS.len()]), "", "nothing is done where nothing is");
        let text = removal_text(&[("nat", HOSTPORTS)], [0, 0, 0, 0, 2, 0]);
        let jump = JUMPS[4].2;
        assert_eq!(
            text,
            format!(
                "*nat\n-D PREROUTING {jump}\n-D PREROUTING {jump}\n-F WINDLASS-HOSTPORTS\n-X WINDLASS-HOSTPORTS\nCOMMIT\n"
            )
        );
    }

    /// Each link of a pod is met by one rule, and no wireless interface by any.
    #[test]
    fn the_source_checks_are_for_links_of_pods() {
        let checks = source_checks();
        let met = |name: &str| {
            let matching = checks.iter().find(|rule| {
                let pattern = rule.split(' ').nth(1).and_then(|pattern| pattern.strip_suffix('+')).unwrap();
                name.starts_with(pattern)
            });
            matching.is_some_and(|rule| rule.ends_with("-j DROP"))
        };
        for uid in 0..100 {
            assert!(met(&windlass_kit::pod_interface::host_interface(&uid.to_string())));
        }
        for name in ["wlan0", "wlp2s0", "wlo1", "wls1", "wlx001122334455", "eth0", "docker0"] {
            assert!(!met(name), "{name}");
        }
        let (_, _, jump) = JUMPS[0];
        assert!(jump.starts_with(&format!("-i {HOST_PREFIX}+ ")));
    }

    #[test]
    fn a_chain_of_the_kernel_is_compared_in_order() {
        let wanted =
            ["-p udp -m udp --dport 53 -j DNAT --to-destination 10.244.0.3:5353", "-s 10.244.0.0/24 -j MASQUERADE"]
                .map(str::to_owned);
        // As iptables 1.8.9 lists them.
        let all = [
            "-N WINDLASS-HOSTPORTS",
            "-A WINDLASS-HOSTPORTS -p udp -m udp --dport 53 -j DNAT --to-destination 10.244.0.3:5353",
            "-A WINDLASS-HOSTPORTS -s 10.244.0.0/24 -j MASQUERADE",
        ];
        assert!(is_as_wanted(HOSTPORTS, &all.join("\n"), &wanted));
        assert!(!is_as_wanted(HOSTPORTS, &all.join("\n"), &wanted[..1]), "one too many");
        assert!(!is_as_wanted(HOSTPORTS, &all[..2].join("\n"), &wanted), "one is gone");
        assert!(!is_as_wanted(HOSTPORTS, &[all[0], all[2], all[1]].join("\n"), &wanted));
        let base = "-P OUTPUT ACCEPT\n-A OUTPUT -m comment --comment windlass-hostports -m addrtype --dst-type LOCAL -j WINDLASS-HOSTPORTS";
        assert_eq!(count("OUTPUT", base, JUMPS[5].2), 1, "in whatever order");
    }
}
