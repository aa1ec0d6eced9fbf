use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn made<'a>(chain: DispatchChain, lines: impl Iterator<Item = &'a String>, tree: bool) -> DispatchTree {
    let mut rules = DispatchRules::new(chain);
    for (at, line) in lines.enumerate() {
        assert!(rules.put(&at, &format!("{line}\n")));
    }
    rules.render(tree)
}

fn lines(addresses: &[u32]) -> Vec<String> {
    let sorted: std::collections::BTreeSet<&u32> = addresses.iter().collect();
    sorted
        .into_iter()
        .map(|a| format!("-A KUBE-SERVICES -m tcp -p tcp -d {} --dport 80 -j X{a}", std::net::Ipv4Addr::from_bits(*a)))
        .collect()
}

/// The target of a packet, and how many rules and chains it traverses.
fn walk(tree: &DispatchTree, to: u32) -> (Option<String>, usize, usize) {
    let chains: BTreeMap<&str, &str> = tree.subchains.iter().map(|(n, b)| (n.as_str(), b.as_str())).collect();
    let (mut body, mut rules, mut depth) = (tree.root.as_str(), 0, 0);
    'chain: loop {
        for line in body.lines() {
            rules += 1;
            let words: Vec<&str> = line.split(' ').collect();
            let d = words.iter().position(|w| *w == "-d").unwrap();
            let range = Cidr::parse(words[d + 1]).unwrap_or_else(|| Cidr::host(parse_ip(words[d + 1]).unwrap()));
            if range.contains(&IpAddr::from(to.to_be_bytes())) {
                let target = *words.last().unwrap();
                let Some(next) = chains.get(target) else { return (Some(target.to_owned()), rules, depth) };
                depth += 1;
                body = next;
                continue 'chain;
            }
        }
        return (None, rules, depth);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// However rules come and go, and whatever is forgotten in between, the chains are those of a tree that is made at
    /// once, and a change renders the way to its leaves alone.
    #[test]
    fn changes_of_a_tree_end_in_the_tree_of_a_fresh_start(
        chain in prop::sample::select(&[DispatchChain::Services, DispatchChain::External, DispatchChain::NodePorts][..]),
        v6 in any::<bool>(),
        changes in prop::collection::vec(
            (0u8..60, prop::collection::vec((any::<bool>(), 0u32..200, 0u16..40), 0..25), 0u8..8), 1..60),
    ) {
        let mut rules = DispatchRules::new(chain);
        let mut chains: BTreeMap<String, String> = BTreeMap::new();
        for (port, lines, what) in changes {
            let text: String = lines.iter().map(|(udp, address, number)| {
                let (p, near) = (if *udp { "udp" } else { "tcp" }, address % 3 == 0);
                let at = match v6 {
                    true => format!("fd00:172::{:x}", if near { 7 } else { *address }),
                    false => format!("172.30.{}.{}", if near { 0 } else { address % 7 }, if near { 7 } else { *address }),
                };
                let to = if chain == DispatchChain::NodePorts || address % 5 == 1 && chain == DispatchChain::External {
                    String::new()
                } else {
                    format!(" -d {at}")
                };
                format!("-A {} -m {p} -p {p}{to} --dport {} -j X{port}\n", chain.static_chain().name(), 30_000 + number * 9)
            }).collect();
            rules.put(&port, &text);
            let tree = what > 1;
            if what == 2 {
                rules.forget();
            }
            let rendered = rules.render(tree);
            for name in &rendered.gone {
                chains.remove(name);
            }
            chains.extend(rendered.subchains);
            let mut fresh = DispatchRules::new(chain);
            for (port, text) in rules.texts() {
                fresh.put(port, text);
            }
            let fresh = fresh.render(tree);
            prop_assert_eq!(&rendered.root, &fresh.root);
            prop_assert_eq!(&chains, &fresh.subchains.into_iter().collect());
        }
        rules.render(true);
        prop_assert_eq!(rules.render(true).subchains, vec![]);
    }

    /// A tree leads where the flat chain leads, and the order in which lines came makes no difference.
    #[test]
    fn trees_lead_where_flat_chains_lead(
        near in prop::collection::vec(0x0a60_0000u32..0x0a60_ffff, 1..400),
        far in prop::collection::vec(any::<u32>(), 0..30),
        others in prop::collection::vec(any::<u32>(), 20),
    ) {
        let all: Vec<u32> = near.iter().chain(&far).copied().collect();
        let lines = lines(&all);
        let tree = made(DispatchChain::Services, lines.iter(), true);
        for to in all.iter().chain(&others) {
            let (target, _, depth) = walk(&tree, *to);
            prop_assert_eq!(target, all.contains(to).then(|| format!("X{to}")));
            prop_assert!(depth <= 4);
        }
        let reversed = made(DispatchChain::Services, lines.iter().rev(), true);
        prop_assert_eq!(&tree, &reversed);
        for (name, _) in &tree.subchains {
            prop_assert!(name.len() <= 28 && is_tree_chain(name), "{}", name);
        }
    }
}

#[test]
fn a_packet_meets_few_rules() {
    let all: Vec<u32> = (0..10_000).map(|i| 0x0a60_0001 + i * 6).collect();
    let lines = lines(&all);
    let tree = made(DispatchChain::Services, lines.iter(), true);
    for to in [all[0], all[5000], all[9999], 0x0808_0808] {
        let (_, rules, _) = walk(&tree, to);
        assert!(rules <= 64, "{rules} rules");
    }
    // One service more: a leaf, and little else.
    let mut more = all.clone();
    more.push(0x0a60_0004);
    let other = self::lines(&more);
    let grown = made(DispatchChain::Services, other.iter(), true);
    let changed = grown.subchains.iter().filter(|chain| !tree.subchains.contains(chain)).count();
    assert!(changed <= 2 && grown.root == tree.root, "{changed} chains changed");
    // And no other chain is rendered than those on the way to it.
    let mut rules = DispatchRules::new(DispatchChain::Services);
    for (at, line) in lines.iter().enumerate() {
        rules.put(&at, &format!("{line}\n"));
    }
    assert_eq!(rules.render(true), tree);
    rules.put(&lines.len(), &format!("{}\n", self::lines(&[0x0a60_0004])[0]));
    let rendered = rules.render(true);
    assert!(rendered.subchains.len() <= 4, "{} chains rendered", rendered.subchains.len());
    assert_eq!((rendered.root, rendered.gone), (tree.root, BTreeSet::new()));
    assert_eq!(rules.render(true).subchains, []);
}

#[test]
fn node_ports_are_told_apart_by_ranges_and_protocol() {
    let line =
        |p: &str, port: u32| format!("-A KUBE-NODEPORTS -m comment --comment a/b -m {p} -p {p} --dport {port} -j X");
    let all: Vec<String> = (0..100).map(|i| line("tcp", 30_000 + i)).chain([line("udp", 30_000)]).collect();
    let tree = made(DispatchChain::NodePorts, all.iter(), true);
    assert!(
        tree.root.contains("-A KUBE-NODEPORTS -p tcp -m tcp --dport 29952:30207 -j KUBE-SVC-DPT7500-8\n")
            || tree.root.contains("--dport 30000:30015 -j KUBE-SVC-DPT7530-12\n"),
        "{}",
        tree.root
    );
    assert!(tree.root.contains("-p udp -m udp"), "{}", tree.root);
    let flat = made(DispatchChain::NodePorts, all.iter(), false);
    assert_eq!(flat.root.lines().count(), 101);
}

/// The chains of a tree by name, their longest, and where a packet for a port ends that starts at the root.
fn reach(tree: &DispatchTree, protocol: &str, to: u16) -> (usize, Option<String>) {
    let chains: BTreeMap<&str, &str> = tree.subchains.iter().map(|(n, b)| (n.as_str(), b.as_str())).collect();
    let longest = chains.values().chain([&tree.root.as_str()]).map(|b| b.lines().count()).max().unwrap();
    let (mut body, mut depth) = (tree.root.as_str(), 0);
    'chain: loop {
        for line in body.lines() {
            let of = |option| after(line, option);
            let (low, high) = of(" --dport ").map_or((0, u16::MAX), |ports| {
                let (low, high) = ports.split_once(':').unwrap_or((ports, ports));
                (low.parse().unwrap(), high.parse().unwrap())
            });
            if of(" -p ").is_none_or(|p| p == protocol) && (low..=high).contains(&to) {
                let target = line.rsplit(' ').next().unwrap();
                let Some(next) = chains.get(target) else { return (longest, Some(target.to_owned())) };
                depth += 1;
                assert!(depth <= 5, "{target}");
                body = next;
                continue 'chain;
            }
        }
        return (longest, None);
    }
}

#[test]
fn a_service_of_very_many_ports_is_told_apart_by_port() {
    let line = |p: &str, port: u32| format!("-A KUBE-SERVICES -m {p} -p {p} -d 10.96.0.9 --dport {port} -j {p}{port}");
    let other = "-A KUBE-SERVICES -m tcp -p tcp -d 10.97.0.9 --dport 80 -j X".to_owned();
    let ports = (20_000..21_000).flat_map(|port| [line("tcp", port), line("udp", port)]);
    let all: Vec<String> = ports.chain([other]).collect();
    let tree = made(DispatchChain::Services, all.iter(), true);
    for (protocol, port) in [("tcp", 20_000), ("udp", 20_999), ("udp", 20_500), ("tcp", 20_511)] {
        let (longest, target) = reach(&tree, protocol, port);
        assert_eq!((target, longest <= 17), (Some(format!("{protocol}{port}")), true), "{longest}");
    }
    assert_eq!(reach(&tree, "sctp", 20_000).1, None);
    let reversed = made(DispatchChain::Services, all.iter().rev(), true);
    assert_eq!(tree, reversed);
    assert!(tree.subchains.iter().all(|(name, _)| name.len() <= 28 && is_tree_chain(name)));
}

#[test]
fn refused_node_ports_are_told_apart_by_port() {
    let line = |port: u32| {
        format!(
            "-A KUBE-EXTERNAL-SERVICES -m comment --comment \"a/b has no local endpoints\" \
             -m addrtype --dst-type LOCAL -m tcp -p tcp --dport {port} -j DROP{port}"
        )
    };
    let all: Vec<String> = (30_000..31_000).map(line).collect();
    let tree = made(DispatchChain::External, all.iter(), true);
    assert!(tree.root.lines().all(|l| l.contains(" -m addrtype --dst-type LOCAL -j ")), "{}", tree.root);
    for port in [30_000, 30_500, 30_999] {
        let (longest, target) = reach(&tree, "tcp", port);
        assert_eq!((target, longest <= 16), (Some(format!("DROP{port}")), true), "{longest}");
    }
}

#[test]
fn service_chains_are_no_dispatch_chains() {
    assert!(!is_tree_chain("KUBE-SVC-DAAAAAAAAAAAAAAA") && !is_tree_chain("KUBE-SVC-XPGD46QRK7WJZT7O"));
}
