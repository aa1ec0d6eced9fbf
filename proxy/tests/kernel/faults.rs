//! Foreign changes to our rules, and faults that prevent writing them.

use std::{
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use serde_json::json;
use windlass_proxy::{Config, Variant};

use super::{
    api::Api,
    churn::Ending,
    harness::{
        PATIENCE, Proxy, answers, as_intended, config, eventually, fresh, holds, lock_is_free, lock_is_mine, periodic,
        refused, repairs, service, slice,
    },
    net::{self, Net, POD_IPS},
};

const WEB: &str = "172.30.0.41:80";

struct Node {
    net: Net,
    api: Api,
    config: Config,
    proxy: Proxy,
    program: &'static str,
    _dir: tempfile::TempDir,
}

fn node(variant: Variant) -> Node {
    node_with(variant, |config| if variant == Variant::Legacy { periodic(config) } else { config })
}

fn node_with(variant: Variant, setting: impl Fn(Config) -> Config) -> Node {
    let net = Net::new();
    let dir = tempfile::tempdir().unwrap();
    let config = setting(config(variant, &dir.path().join("before.json")));
    net.serve(0, 8080);
    net.serve(1, 8080);
    let api = Api::default();
    api.put("nodes", json!({"metadata": {"name": "n1"}}));
    api.put("services", service("web", "172.30.0.41", &json!({})));
    api.put("endpointslices", slice("web", &[0, 1]));
    let proxy = Proxy::start(&net, &api, &config);
    answers(&net.pods[0], WEB);
    let program = if variant == Variant::Legacy { "iptables-legacy" } else { "iptables-nft" };
    Node { net, api, config, proxy, program, _dir: dir }
}

impl Node {
    fn metric(&self, name: &str) -> f64 {
        let page = net::get(&self.net.node, "127.0.0.1:10249", "/metrics");
        let start = if name.contains('{') { name.to_owned() } else { format!("{name}{{") };
        let line = page.lines().find(|l| l.starts_with(&start) && l.contains("IPv4"));
        line.and_then(|l| l.rsplit(' ').next()?.parse().ok()).unwrap_or_else(|| panic!("{name} in {page}"))
    }
}

fn repaired(node: Node, variant: Variant) {
    let wanted = fresh(&node.api, &node.config);
    holds(&node.net.node, variant, &wanted);
    let program = node.program;
    let chain = node
        .net
        .node_command(&format!("{program} -t nat -S"))
        .lines()
        .find_map(|l| l.strip_prefix("-N ").filter(|c| c.starts_with("KUBE-SVC-")).map(str::to_owned))
        .unwrap();
    let mut harm: Vec<Vec<String>> = vec![
        vec![format!("{program} -t nat -F")],
        vec![format!("{program} -t filter -F")],
        vec![format!("{program} -t nat -F"), format!("{program} -t nat -X")],
        vec![format!("{program} -t nat -D OUTPUT 1")],
        vec![format!("{program} -t nat -F {chain}")],
        // The same number of rules, one of which is different.
        vec![format!("{program} -t nat -R {chain} 2 -d 203.0.113.200 -j RETURN")],
        vec![format!("{program} -t nat -I KUBE-SERVICES 1 -j RETURN")],
    ];
    if variant == Variant::Nft {
        harm.push(vec!["nft flush ruleset".to_owned()]);
    }
    for commands in harm {
        let before = node.metric("windlass_proxy_repairs_total");
        for command in &commands {
            node.net.node_command(command);
        }
        eventually(&format!("the repair after {commands:?}"), PATIENCE, || {
            let now = node.metric("windlass_proxy_repairs_total");
            if now > before { Ok(()) } else { Err(format!("{now} repairs")) }
        });
        holds(&node.net.node, variant, &wanted);
        answers(&node.net.pods[0], WEB);
    }
    node.proxy.stop();
}

/// By the kernel's notifications alone.
#[test]
fn rules_that_others_change_are_written_again_on_nf_tables() {
    repaired(node(Variant::Nft), Variant::Nft);
}

#[test]
fn foreign_changes_are_repaired_without_kernel_events() {
    let unmonitored = |config| Config { repairs: repairs("nft-monitor=off"), ..periodic(config) };
    repaired(node_with(Variant::Nft, unmonitored), Variant::Nft);
}

#[test]
fn rules_that_others_change_are_written_again_on_legacy() {
    let _free = lock_is_free(Variant::Legacy);
    repaired(node(Variant::Legacy), Variant::Legacy);
}

/// Ends its process when dropped.
struct Held(Child);

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_lock_that_is_held_for_long_delays_a_change_and_loses_none() {
    let _mine = lock_is_mine();
    let node = node(Variant::Legacy);
    let lock = Command::new("flock")
        .args(["--no-fork", "/run/xtables.lock", "sleep", "1000"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let held = Held(lock);
    std::thread::sleep(Duration::from_millis(300));
    let failures = node.metric("kubeproxy_sync_proxy_rules_iptables_restore_failures_total");
    node.api.put("endpointslices", slice("web", &[1]));
    // Its attempt fails after the timeout, which is reported; the old rules stay in effect.
    eventually("a write that gave up", PATIENCE, || {
        let now = node.metric("kubeproxy_sync_proxy_rules_iptables_restore_failures_total");
        if now > failures { Ok(()) } else { Err(format!("{now} failures")) }
    });
    answers(&node.net.pods[0], WEB);
    eventually("health goes bad", PATIENCE, || {
        let health = net::get(&node.net.node, "127.0.0.1:10256", "/livez");
        if health.contains(" 503 ") { Ok(()) } else { Err(health) }
    });
    drop(held);
    as_intended(&node.api, &node.config, &node.net);
    assert!((0..10).all(|_| answers(&node.net.pods[0], WEB).0 == 1));
    assert!(net::get(&node.net.node, "127.0.0.1:10256", "/livez").contains(" 200 "));
    node.proxy.stop();
}

fn refused_rule(variant: Variant) {
    let _free = lock_is_free(variant);
    let node = node_with(variant, periodic);
    let program = node.program;
    let sep = node
        .net
        .node_command(&format!("{program} -t nat -S"))
        .lines()
        .find(|l| l.contains(&format!("--to-destination {}:8080", POD_IPS[0])))
        .and_then(|l| l.split(' ').nth(1).map(str::to_owned))
        .unwrap();
    // A foreign rule jumps to a chain of ours, which cannot be deleted with its endpoint.
    node.net.node_command(&format!("{program} -t nat -N MINE"));
    node.net.node_command(&format!("{program} -t nat -A MINE -j {sep}"));
    as_intended(&node.api, &node.config, &node.net);
    node.api.put("endpointslices", slice("web", &[1]));
    node.api.put("services", service("none", "172.30.0.43", &json!({})));
    eventually("a refusal", PATIENCE, || {
        let now = node.metric("kubeproxy_sync_proxy_rules_iptables_restore_failures_total");
        if now > 0.0 { Ok(()) } else { Err(format!("{now} failures")) }
    });
    // Everything else is written.
    refused(&node.net.pods[0], "172.30.0.43:80");
    eventually("the endpoint that is gone gets no connections", PATIENCE, || {
        if (0..10).all(|_| answers(&node.net.pods[0], WEB).0 == 1) { Ok(()) } else { Err("it does".to_owned()) }
    });
    eventually("the chain is told of", PATIENCE, || {
        let stuck = node.metric("windlass_proxy_undeletable_chains");
        if (stuck - 1.0).abs() < 0.1 { Ok(()) } else { Err(format!("{stuck} chains")) }
    });
    // The services have all their rules: later changes are as small as before, and health is good.
    let full = node.metric("kubeproxy_sync_full_proxy_rules_duration_seconds_count");
    for i in 0..5 {
        node.api.put("services", service("other", &format!("172.30.0.{}", 60 + i), &json!({})));
        refused(&node.net.pods[0], &format!("172.30.0.{}:80", 60 + i));
        let lines = node.metric("kubeproxy_sync_proxy_rules_iptables_last{table=\"nat\",ip_family=\"IPv4\"}");
        assert!(lines < 10.0, "{lines} lines of nat for one service without endpoints");
    }
    let later = node.metric("kubeproxy_sync_full_proxy_rules_duration_seconds_count");
    assert!((later - full).abs() < 0.1, "{later} writes of everything, {full} before");
    assert!(net::get(&node.net.node, "127.0.0.1:10256", "/healthz").contains(" 200 "));
    node.net.node_command(&format!("{program} -t nat -F MINE"));
    as_intended(&node.api, &node.config, &node.net);
    node.proxy.stop();
}

#[test]
fn a_refused_deletion_keeps_nothing_else_out_on_nf_tables() {
    refused_rule(Variant::Nft);
}

#[test]
fn a_refused_deletion_keeps_nothing_else_out_on_legacy() {
    refused_rule(Variant::Legacy);
}

#[test]
fn a_client_stays_with_its_endpoint() {
    let node = node(Variant::Nft);
    node.api.put("services", service("web", "172.30.0.41", &json!({"sessionAffinity": "ClientIP"})));
    as_intended(&node.api, &node.config, &node.net);
    let first = answers(&node.net.pods[0], WEB).0;
    assert!((0..20).all(|_| answers(&node.net.pods[0], WEB).0 == first));
    node.api.put("services", service("other", "172.30.0.49", &json!({})));
    as_intended(&node.api, &node.config, &node.net);
    assert!((0..20).all(|_| answers(&node.net.pods[0], WEB).0 == first), "an unrelated change forgets nobody");
    node.proxy.stop();
}

#[test]
fn connections_are_spread_evenly() {
    let node = node(Variant::Nft);
    let total = 2000;
    let mut counts = [0u32; 2];
    for _ in 0..total {
        counts[answers(&node.net.outside, WEB).0] += 1;
    }
    // Chi-square with one degree of freedom: more than 20 comes by chance once in 130,000 times.
    let expected = f64::from(total) / 2.0;
    let chi: f64 = counts.iter().map(|c| (f64::from(*c) - expected).powi(2) / expected).sum();
    assert!(chi < 20.0, "{counts:?}");
    node.proxy.stop();
}

/// A flush is repaired also while changes of our own are in progress.
fn flushed_under_change(variant: Variant) {
    let _free = lock_is_free(variant);
    let node = node(variant);
    let stop = AtomicBool::new(false);
    let repairs = node.metric("windlass_proxy_repairs_total");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut pods = [&[0_usize, 1][..], &[1], &[0]].into_iter().cycle();
            while !stop.load(Ordering::Relaxed) {
                node.api.put("endpointslices", slice("busy", pods.next().unwrap()));
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        let _ending = Ending(&stop);
        node.api.put("services", service("busy", "172.30.0.50", &json!({})));
        answers(&node.net.pods[0], "172.30.0.50:80");
        std::thread::sleep(Duration::from_secs(2));
        node.net.node_command(&format!("{} -t nat -F", node.program));
        eventually("the repair beside constant changes", PATIENCE, || {
            let now = node.metric("windlass_proxy_repairs_total");
            if now > repairs { Ok(()) } else { Err(format!("{now} repairs")) }
        });
        answers(&node.net.pods[0], WEB);
    });
    as_intended(&node.api, &node.config, &node.net);
    node.proxy.stop();
}

#[test]
fn a_flush_beside_constant_changes_is_mended_on_nf_tables() {
    flushed_under_change(Variant::Nft);
}

#[test]
fn a_flush_beside_constant_changes_is_mended_on_legacy() {
    flushed_under_change(Variant::Legacy);
}

/// Changes to foreign rules cause no read, and no write of ours.
#[test]
fn rules_of_others_are_their_own_affair() {
    let node = node(Variant::Nft);
    let before = node.net.node_command("iptables-nft-save -c -t nat");
    const SYNCS: &str = "kubeproxy_sync_proxy_rules_duration_seconds_count";
    // Its rules are in the kernel before the first write is counted.
    let syncs = eventually("the first write is counted", PATIENCE, || match node.metric(SYNCS) {
        none if none < 1.0 => Err("none is".to_owned()),
        some => Ok(some),
    });
    for i in 0..20 {
        node.net.node_command(&format!("iptables-nft -t nat -N DOCKER{i}"));
        node.net.node_command(&format!("iptables-nft -t nat -A DOCKER{i} -p tcp --dport {i} -j RETURN"));
        node.net.node_command(&format!("iptables-nft -t nat -A PREROUTING -p tcp --dport {i} -j DOCKER{i}"));
    }
    std::thread::sleep(Duration::from_secs(1));
    let now = node.metric(SYNCS);
    assert!((now - syncs).abs() < 0.1, "{now} writes, {syncs} before");
    let ours = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|l| l.contains("-A KUBE-"));
        lines.map(|l| l.split_once("] ").map_or(l, |(_, rule)| rule).to_owned()).collect()
    };
    assert_eq!(ours(&before), ours(&node.net.node_command("iptables-nft-save -c -t nat")));
    node.proxy.stop();
}
