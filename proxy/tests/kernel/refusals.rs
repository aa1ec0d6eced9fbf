//! Rules that the kernel rejects: only their owner is without rules.

use std::{path::Path, time::Duration};

use serde_json::json;
use windlass_proxy::{Config, Variant};

use super::{
    api::Api,
    harness::{Proxy, answers, config, eventually, lock_is_free, refused, service, slice, slice6},
    net::{self, Net},
};

/// The programs in the node's namespace, behind a script that rejects configured rules as the program does: what comes
/// before the table of such a rule is committed by then.
struct Refusing {
    net: Net,
    dir: tempfile::TempDir,
    config: Config,
    api: Api,
}

impl Refusing {
    fn new(variant: Variant) -> Self {
        let net = Net::new();
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("run");
        let at = dir.path().display();
        // `words` contains what restore input must not contain, `commit` whether the error names the last line, and
        // `programs` those that always fail.
        let text = format!(
            "case \"$1\" in *-restore) ;; *) exec ip netns exec {node} \"$@\";; esac\n\
             if grep -qx -- \"$1\" {at}/programs 2>/dev/null; then echo 'it does not work' >&2; exit 1; fi\n\
             echo \"$1\" >> {at}/runs\n\
             if grep -qx -- \"$1\" {at}/hangs 2>/dev/null; then while [ -e {at}/hangs ]; do sleep 0.1; done; fi\n\
             text=$(mktemp -p {at}); cat > $text\n\
             line=$(grep -nF -f {at}/words $text | grep -v ':-X\\|::' | head -1 | cut -d: -f1)\n\
             if [ -n \"$line\" ] && [ -e {at}/commit ]; then line=$(grep -n COMMIT $text | tail -1 | cut -d: -f1); fi\n\
             if [ -n \"$line\" ]; then\n\
               done=$(head -n $((line - 1)) $text | grep -nx COMMIT | tail -1 | cut -d: -f1)\n\
               if [ -n \"$done\" ]; then head -n $done $text | ip netns exec {node} \"$@\"; fi\n\
               rm $text; echo \"iptables-restore: line $line failed\" >&2; exit 1\n\
             fi\n\
             ip netns exec {node} \"$@\" < $text; status=$?; rm $text; exit $status\n",
            node = net.node
        );
        std::fs::write(&script, text).unwrap();
        let config = Config {
            command_prefix: vec!["sh".to_owned(), script.display().to_string()],
            ..config(variant, &dir.path().join("before.json"))
        };
        net.serve(0, 8080);
        net.serve(1, 8080);
        let api = Api::default();
        api.put("nodes", json!({"metadata": {"name": "n1"}}));
        Self { net, dir, config, api }
    }

    fn set(&self, file: &str, text: &str) {
        std::fs::write(self.path(file), text).unwrap();
    }

    fn path(&self, file: &str) -> std::path::PathBuf {
        Path::new(self.dir.path()).join(file)
    }

    fn service(&self, i: usize, name: &str, more: &serde_json::Value) -> String {
        let ip = format!("172.30.0.{i}");
        self.api.put("services", service(name, &ip, more));
        self.api.put("endpointslices", slice(name, &[0, 1]));
        format!("{ip}:80")
    }

    /// No rule of a base chain is there twice.
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
    node.set("words", "-m recent\n");
    let sticky = node.service(41, "sticky", &json!({"sessionAffinity": "ClientIP"}));
    let others: Vec<String> = (42..46).map(|i| node.service(i, &format!("other{i}"), &json!({}))).collect();
    let proxy = Proxy::start(&node.net, &node.api, &node.config);
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
    let node = Refusing::new(variant);
    if unnamed {
        node.set("commit", "");
    }
    node.set("words", "shop/bad cluster IP\n");
    let bad = node.service(40, "bad", &json!({}));
    let others: Vec<String> = (41..51).map(|i| node.service(i, &format!("other{i}"), &json!({}))).collect();
    let proxy = Proxy::start(&node.net, &node.api, &node.config);
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
    std::fs::remove_file(node.path("words")).unwrap();
    node.set("words", "nothing of the kind\n");
    eventually("the rules are tried again", Duration::from_secs(30), || {
        let held = node.metric(ports);
        if held < 0.1 { Ok(()) } else { Err(format!("{held} refused")) }
    });
    answers(&node.net.pods[0], &bad);
    node.nothing_is_repeated(variant);
    proxy.stop();
}

#[test]
fn a_refused_rule_stops_its_service_and_no_other_on_nf_tables() {
    one_among_many(Variant::Nft, false);
}

#[test]
fn a_refused_rule_that_is_not_named_stops_its_service_and_no_other_on_legacy() {
    one_among_many(Variant::Legacy, true);
}

/// A program of one family hangs: the other family is written as ever, and is no less healthy.
#[test]
fn a_family_whose_program_hangs_holds_up_nothing_of_the_other() {
    let node = Refusing::new(Variant::Nft);
    node.set("words", "nothing of the kind\n");
    node.set("hangs", "ip6tables-nft-restore\n");
    let both = json!({"clusterIPs": ["172.30.0.41", "fd00:172:30::41"]});
    let web = node.service(41, "web", &both);
    node.api.put("endpointslices", slice6("web", &[0, 1]));
    let proxy = Proxy::start(&node.net, &node.api, &node.config);
    answers(&node.net.pods[0], &web);
    for pod in [0, 1, 0] {
        node.api.put("endpointslices", slice("web", &[pod]));
        eventually("IPv4 is written", Duration::from_secs(10), || {
            let all: Vec<usize> = (0..10).map(|_| answers(&node.net.pods[1 - pod], &web).0).collect();
            if all.iter().all(|one| *one == pod) { Ok(()) } else { Err(format!("{all:?}")) }
        });
    }
    // Twice the sync period of the tests.
    std::thread::sleep(Duration::from_secs(5));
    let health = net::get(&node.net.node, "127.0.0.1:10256", "/healthz");
    let body: serde_json::Value = serde_json::from_str(health.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    assert_eq!((&body["status"]["IPv4"]["healthy"], &body["status"]["IPv6"]["healthy"]), (&json!(true), &json!(false)));
    std::fs::remove_file(node.path("hangs")).unwrap();
    answers(&node.net.pods[1], "[fd00:172:30::41]:80");
    proxy.stop();
}

/// A stop is heard between two transactions of a write: the first of a start is held, and none follows it.
#[test]
fn a_stop_is_heard_between_two_transactions() {
    let node = Refusing::new(Variant::Nft);
    node.set("words", "nothing of the kind\n");
    node.set("hangs", "iptables-nft-restore\n");
    let web = node.service(41, "web", &json!({}));
    let runs = || {
        let text = std::fs::read_to_string(node.path("runs")).unwrap_or_default();
        text.lines().filter(|program| *program == "iptables-nft-restore").count()
    };
    let proxy = Proxy::start(&node.net, &node.api, &node.config);
    eventually("a transaction begins", Duration::from_secs(20), || match runs() {
        0 => Err("none".to_owned()),
        _ => Ok(()),
    });
    proxy.ask_to_stop();
    std::fs::remove_file(node.path("hangs")).unwrap();
    proxy.stop();
    assert_eq!(runs(), 1);
    // The next start ends what was begun.
    let proxy = Proxy::start(&node.net, &node.api, &node.config);
    answers(&node.net.pods[0], &web);
    node.nothing_is_repeated(Variant::Nft);
    proxy.stop();
}

/// The programs of one family fail permanently: the other family is synced undelayed, and the failure is reported.
#[test]
fn a_family_that_fails_holds_up_nothing_of_the_other() {
    let node = Refusing::new(Variant::Nft);
    node.set("words", "nothing of the kind\n");
    node.set("programs", "ip6tables-nft-restore\n");
    let both = json!({"clusterIPs": ["172.30.0.41", "fd00:172:30::41"]});
    let web = node.service(41, "web", &both);
    node.api.put("endpointslices", slice6("web", &[0, 1]));
    let proxy = Proxy::start(&node.net, &node.api, &node.config);
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
    eventually("IPv4 is written", Duration::from_secs(10), || {
        let count = node.metric(programmed);
        if count > 28.0 { Ok(()) } else { Err(format!("{count} changes")) }
    });
    assert!((0..10).all(|_| answers(&node.net.pods[0], &web).0 == 0));
    let tried = node.metric(failures) - before;
    assert!(tried < 8.0, "{tried} attempts in three seconds");
    let health = net::get(&node.net.node, "127.0.0.1:10256", "/healthz");
    let body: serde_json::Value = serde_json::from_str(health.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    assert_eq!(body["status"]["IPv4"]["healthy"], true, "{body}");
    std::fs::remove_file(node.path("programs")).unwrap();
    answers(&node.net.pods[1], "[fd00:172:30::41]:80");
    proxy.stop();
}
