//! Rules that the kernel rejects, and programs that fail: only their owner is without rules. The proxy runs them as in
//! production, with the lock, the generations of nf_tables and their monitor.

use std::{sync::Arc, time::Duration};

use serde_json::json;
use windlass_proxy::{Config, Variant};
use windlass_tests::{FaultyIptables, RestoreFault as Fault};

use super::{
    api::Api,
    harness::{
        PATIENCE, Proxy, answers, config, eventually, fresh, holds, lock_is_free, ours, periodic, refused, service,
        slice, slice6,
    },
    net::{self, Bare, Net},
};

/// A node whose iptables programs fail on demand.
struct Refusing {
    net: Net,
    programs: Arc<FaultyIptables>,
    config: Config,
    api: Api,
    _dir: tempfile::TempDir,
}

impl Refusing {
    fn new(variant: Variant) -> Self {
        let net = Net::new();
        let dir = tempfile::tempdir().unwrap();
        let config = config(variant, &dir.path().join("before.json"));
        net.serve(0, 8080);
        net.serve(1, 8080);
        let api = Api::default();
        api.put("nodes", json!({"metadata": {"name": "n1"}}));
        Self { net, programs: Arc::default(), config, api, _dir: dir }
    }

    /// One whose proxy retries what was refused, and reports its status.
    fn periodic(variant: Variant) -> Self {
        let node = Self::new(variant);
        Self { config: periodic(node.config), ..node }
    }

    fn start(&self) -> Proxy {
        Proxy::start_with(&self.net.node, Some(&self.programs), &self.api, &self.config)
    }

    fn service(&self, i: usize, name: &str, more: &serde_json::Value) -> String {
        let ip = format!("172.30.0.{i}");
        self.api.put("services", service(name, &ip, more));
        self.api.put("endpointslices", slice(name, &[0, 1]));
        format!("{ip}:80")
    }

    /// No rule occurs twice in a base chain.
    fn nothing_is_repeated(&self, variant: Variant) {
        let program = if variant == Variant::Legacy { "iptables-legacy" } else { "iptables-nft" };
        for table in ["filter", "nat"] {
            let mut rules: Vec<String> =
                self.net.node_command(&format!("{program} -t {table} -S")).lines().map(str::to_owned).collect();
            rules.sort();
            let twice: Vec<&[String]> = rules.windows(2).filter(|pair| pair[0] == pair[1]).collect();
            assert!(twice.is_empty(), "{twice:?}");
        }
    }

    fn metric(&self, line: &str) -> f64 {
        let page = net::get(&self.net.node, "127.0.0.1:10249", "/metrics");
        let found = page.lines().find_map(|l| l.strip_prefix(line)).unwrap_or_else(|| panic!("{line} in {page}"));
        found.trim().parse().unwrap()
    }
}

#[test]
fn a_kernel_without_the_match_recent_serves_without_affinity() {
    let node = Refusing::new(Variant::Nft);
    node.programs.refuse(&["-m recent"]);
    let sticky = node.service(41, "sticky", &json!({"sessionAffinity": "ClientIP"}));
    let others: Vec<String> = (42..46).map(|i| node.service(i, &format!("other{i}"), &json!({}))).collect();
    let proxy = node.start();
    for to in others.iter().chain([&sticky]) {
        answers(&node.net.pods[0], to);
    }
    let pods: std::collections::BTreeSet<usize> = (0..40).map(|_| answers(&node.net.pods[0], &sticky).0).collect();
    assert_eq!(pods.len(), 2, "it is known to have no affinity");
    node.nothing_is_repeated(Variant::Nft);
    assert!(net::get(&node.net.node, "127.0.0.1:10256", "/livez").contains(" 200 "));
    proxy.stop();
}

fn one_among_many(variant: Variant, unnamed: bool) {
    let _free = lock_is_free(variant);
    let node = Refusing::periodic(variant);
    if unnamed {
        node.programs.do_not_name();
    }
    node.programs.refuse(&["shop/bad cluster IP"]);
    let bad = node.service(40, "bad", &json!({}));
    let others: Vec<String> = (41..51).map(|i| node.service(i, &format!("other{i}"), &json!({}))).collect();
    let proxy = node.start();
    for to in &others {
        answers(&node.net.pods[0], to);
    }
    refused(&node.net.pods[0], &bad);
    let ports = "windlass_proxy_refused_service_ports{ip_family=\"IPv4\"}";
    assert!((node.metric(ports) - 1.0).abs() < 0.1, "{}", node.metric(ports));
    assert!(net::get(&node.net.node, "127.0.0.1:10256", "/livez").contains(" 200 "));
    node.nothing_is_repeated(variant);
    // Later changes are written.
    answers(&node.net.pods[0], &node.service(60, "later", &json!({})));
    // The kernel accepts it later.
    node.programs.refuse(&[]);
    eventually("the rules are tried again", PATIENCE, || {
        let held = node.metric(ports);
        if held < 0.1 { Ok(()) } else { Err(format!("{held} refused")) }
    });
    answers(&node.net.pods[0], &bad);
    holds(&node.net.node, variant, &fresh(&node.api, &node.config));
    proxy.stop();
}

#[test]
fn a_refused_rule_stops_its_service_and_no_other_on_nf_tables() {
    one_among_many(Variant::Nft, false);
}

#[test]
fn an_unnamed_refused_rule_stops_only_its_service_on_legacy() {
    one_among_many(Variant::Legacy, true);
}

/// A program of one family hangs: the other family is written as ever, and is no less healthy.
#[test]
fn a_family_whose_program_hangs_holds_up_nothing_of_the_other() {
    let node = Refusing::periodic(Variant::Nft);
    node.programs.hang(&["ip6tables-nft-restore"]);
    let both = json!({"clusterIPs": ["172.30.0.41", "fd00:172:30::41"]});
    let web = node.service(41, "web", &both);
    node.api.put("endpointslices", slice6("web", &[0, 1]));
    let proxy = node.start();
    answers(&node.net.pods[0], &web);
    for pod in [0, 1, 0] {
        node.api.put("endpointslices", slice("web", &[pod]));
        eventually("IPv4 is written", PATIENCE, || {
            let all: Vec<usize> = (0..10).map(|_| answers(&node.net.pods[1 - pod], &web).0).collect();
            if all.iter().all(|one| *one == pod) { Ok(()) } else { Err(format!("{all:?}")) }
        });
    }
    // Twice the sync period of the tests.
    std::thread::sleep(Duration::from_secs(5));
    let health = net::get(&node.net.node, "127.0.0.1:10256", "/healthz");
    let body: serde_json::Value = serde_json::from_str(health.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    assert_eq!((&body["status"]["IPv4"]["healthy"], &body["status"]["IPv6"]["healthy"]), (&json!(true), &json!(false)));
    node.programs.hang(&[]);
    answers(&node.net.pods[1], "[fd00:172:30::41]:80");
    proxy.stop();
}

/// A stop is heard between two transactions of a write: the first of a start is held, and none follows it.
#[test]
fn a_stop_is_heard_between_two_transactions() {
    let node = Refusing::new(Variant::Nft);
    node.programs.hang(&["iptables-nft-restore"]);
    let web = node.service(41, "web", &json!({}));
    let runs = || node.programs.runs("iptables-nft-restore");
    let proxy = node.start();
    eventually("a transaction begins", PATIENCE, || match runs() {
        0 => Err("none".to_owned()),
        _ => Ok(()),
    });
    proxy.ask_to_stop();
    node.programs.hang(&[]);
    proxy.stop();
    assert_eq!(runs(), 1);
    // The next start ends what was begun.
    let proxy = node.start();
    answers(&node.net.pods[0], &web);
    node.nothing_is_repeated(Variant::Nft);
    proxy.stop();
}

/// The programs of one family fail permanently: the other family is synced undelayed, and the failure is reported.
#[test]
fn a_family_that_fails_holds_up_nothing_of_the_other() {
    let node = Refusing::new(Variant::Nft);
    node.programs.break_programs(&["ip6tables-nft-restore"]);
    let both = json!({"clusterIPs": ["172.30.0.41", "fd00:172:30::41"]});
    let web = node.service(41, "web", &both);
    node.api.put("endpointslices", slice6("web", &[0, 1]));
    let proxy = node.start();
    answers(&node.net.pods[0], &web);
    let programmed = "kubeproxy_network_programming_duration_seconds_count{ip_family=\"IPv4\"}";
    let failures = "kubeproxy_sync_proxy_rules_iptables_restore_failures_total{ip_family=\"IPv6\"}";
    let before = node.metric(failures);
    for i in 0..30_usize {
        let pods = [&[0, 1][..], &[0]][i % 2];
        let now = jiff::Timestamp::now().to_string();
        for mut object in [slice("web", pods), slice6("web", pods)] {
            object["metadata"]["annotations"] = json!({"endpoints.kubernetes.io/last-change-trigger-time": now});
            node.api.put("endpointslices", object);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    eventually("IPv4 is written", PATIENCE, || {
        let count = node.metric(programmed);
        if count > 28.0 { Ok(()) } else { Err(format!("{count} changes")) }
    });
    assert!((0..10).all(|_| answers(&node.net.pods[0], &web).0 == 0));
    let tried = node.metric(failures) - before;
    assert!(tried < 8.0, "{tried} attempts in three seconds");
    let health = net::get(&node.net.node, "127.0.0.1:10256", "/healthz");
    let body: serde_json::Value = serde_json::from_str(health.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    assert_eq!(body["status"]["IPv4"]["healthy"], true, "{body}");
    node.programs.break_programs(&[]);
    answers(&node.net.pods[1], "[fd00:172:30::41]:80");
    proxy.stop();
}

/// What the fault layer runs over: a start, and a change that writes and deletes chains.
fn objects(changed: bool) -> Api {
    let api = Api::default();
    api.put("nodes", json!({"metadata": {"name": "n1"}}));
    begin(&api);
    if changed {
        change(&api);
    }
    api
}

fn begin(api: &Api) {
    for (i, name) in [(41, "web"), (42, "gone"), (43, "sticky")] {
        let sticky = if name == "sticky" { "ClientIP" } else { "None" };
        let ips = json!([format!("172.30.0.{i}"), format!("fd00:172:30::{i}")]);
        api.put(
            "services",
            service(name, &format!("172.30.0.{i}"), &json!({"clusterIPs": ips, "sessionAffinity": sticky})),
        );
        api.put("endpointslices", slice(name, &[0, 1]));
        api.put("endpointslices", slice6(name, &[0, 1]));
    }
}

fn change(api: &Api) {
    api.delete("services", "gone");
    api.put("endpointslices", slice("web", &[1]));
    api.put("endpointslices", slice6("sticky", &[0]));
    api.put("services", service("new", "172.30.0.44", &json!({})));
}

/// Both tables of both families at the start, and some at the change, which may be written at once or not.
const MIN_RESTORES: usize = 5;

/// Runs a start and a change with one fault at one restore, and returns how many restores there were. Nothing is repeated
/// by time alone: the next sync would mend what a failure leaves.
fn life(variant: Variant, fault: Option<(usize, Fault, usize)>, wanted: &[Vec<String>; 2]) -> usize {
    println!("{fault:?}");
    let (node, dir, programs) = (Bare::new(), tempfile::tempdir().unwrap(), Arc::new(FaultyIptables::new()));
    let mut config = Config { nfacct: Some(false), ..config(variant, &dir.path().join("before.json")) };
    if let Some((number, fault, tables)) = fault {
        programs.fail(number, fault, tables);
        // A deletion that was refused is retried with the periodic sync.
        if fault == Fault::Refused {
            config = periodic(config);
        }
    }
    let api = objects(false);
    let proxy = Proxy::start_with(&node.0, Some(&programs), &api, &config);
    holds(&node.0, variant, &wanted[0]);
    change(&api);
    holds(&node.0, variant, &wanted[1]);
    proxy.stop();
    assert_eq!(ours(&node.0, variant), wanted[1]);
    assert!(programs.struck() || fault.is_none_or(|(number, ..)| number >= MIN_RESTORES), "{fault:?}");
    let suffix = if variant == Variant::Legacy { "legacy" } else { "nft" };
    ["iptables", "ip6tables"].map(|stem| programs.runs(&format!("{stem}-{suffix}-restore"))).iter().sum()
}

/// Every restore of a start and of a change, each fault at each point of it, ends in the rules of a fresh start.
fn a_fault_at_any_restore(variant: Variant) {
    let _free = lock_is_free(variant);
    let dir = tempfile::tempdir().unwrap();
    let config = Config { nfacct: Some(false), ..config(variant, &dir.path().join("before.json")) };
    let wanted = [false, true].map(|changed| fresh(&objects(changed), &config));
    let restores = life(variant, None, &wanted);
    assert!(restores >= MIN_RESTORES, "{restores}");
    let faults = [(Fault::Refused, 0), (Fault::Locked, 0), (Fault::Killed, 0), (Fault::Killed, 1)];
    let pairs: Vec<_> = (0..restores).flat_map(|at| faults.map(|(fault, tables)| (at, fault, tables))).collect();
    let next = std::sync::atomic::AtomicUsize::new(0);
    // They wait more than they work.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(pair) = pairs.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
                    life(variant, Some(*pair), &wanted);
                }
            });
        }
    });
    println!("{} pairs of a restore and a fault", pairs.len());
}

#[test]
fn a_fault_at_any_restore_ends_as_a_fresh_start_on_nf_tables() {
    a_fault_at_any_restore(Variant::Nft);
}

#[test]
fn a_fault_at_any_restore_ends_as_a_fresh_start_on_legacy() {
    a_fault_at_any_restore(Variant::Legacy);
}

/// A lock that is held while the kernel is asked what it can says nothing of what it can.
#[test]
fn a_probe_that_fails_is_no_answer() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(Variant::Nft, &dir.path().join("before.json"));
    let (api, node) = (objects(false), Bare::new());
    let wanted = fresh(&api, &config);
    for fault in [Fault::Locked, Fault::Killed] {
        let programs = Arc::new(FaultyIptables::new());
        programs.fail(0, fault, 0);
        let proxy = Proxy::start_with(&node.0, Some(&programs), &api, &config);
        holds(&node.0, Variant::Nft, &wanted);
        proxy.stop();
        assert!(programs.struck());
        net::command(&node.0, "nft flush ruleset");
    }
}
