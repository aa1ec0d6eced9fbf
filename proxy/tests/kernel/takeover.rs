//! Rules that another proxy, or this one earlier, left in the kernel.

use serde_json::json;
use windlass_proxy::{
    Config, Objects, Variant, cleanup, explain::explain, model::Family, rules::with_base_chains, rules_from_objects,
};

use super::{
    api::Api,
    harness::{Proxy, answers, as_intended, config, eventually, lock_is_free, service, slice, slice6, tables},
    net::{self, Net},
};

const WEB: &str = "172.30.0.41:80";

fn api() -> Api {
    let api = Api::default();
    api.put("nodes", json!({"metadata": {"name": "n1"}}));
    api.put("services", service("web", "172.30.0.41", &json!({})));
    api.put("endpointslices", slice("web", &[0, 1]));
    api
}

/// Tables of kube-proxy's nftables mode: its chains were registered after those of iptables.
fn leave_nftables_mode(net: &Net) {
    net.node_command("iptables-nft -t nat -A PREROUTING -s 203.0.113.1 -j RETURN");
    for family in ["ip", "ip6"] {
        net.node_command(&format!("nft add table {family} kube-proxy"));
        net.node_command(&format!(
            "nft add chain {family} kube-proxy nat-prerouting {{ type nat hook prerouting priority -100 ; }}"
        ));
    }
    net.node_command(
        "nft add rule ip kube-proxy nat-prerouting ip daddr 172.30.0.41 tcp dport 80 dnat to 10.180.0.99:80",
    );
    net.node_command("nft add table ip somebody");
}

#[test]
fn rules_of_nftables_mode_go_at_the_start_and_in_clean_up() {
    let net = Net::new();
    let dir = tempfile::tempdir().unwrap();
    let config = config(Variant::Nft, &dir.path().join("before.json"));
    net.serve(0, 8080);
    net.serve(1, 8080);
    leave_nftables_mode(&net);
    let api = api();
    let proxy = Proxy::start(&net, &api, &config);
    answers(&net.pods[0], WEB);
    let listed = || net.node_command("nft list tables");
    eventually("the old tables are gone", std::time::Duration::from_secs(10), || {
        let tables = listed();
        if tables.contains("kube-proxy") { Err(tables) } else { Ok(()) }
    });
    assert!(listed().contains("somebody"), "{}", listed());
    as_intended(&api, &config, &net);

    // Clean-up alongside a running proxy would be undone at once.
    let clean = || {
        let (node, config) = (net.node.clone(), config.clone());
        std::thread::spawn(move || {
            net::enter(&node);
            cleanup(&config)
        })
        .join()
        .unwrap()
    };
    let refused = clean().unwrap_err();
    let process = format!("process {}", std::process::id());
    assert!(refused.len() == 1 && refused[0].to_string().contains(&process), "{refused:?}");
    assert!(dir.path().join("before.json").exists() && tables(&net, Variant::Nft).contains("KUBE-SERVICES"));
    proxy.stop();
    for family in ["ip", "ip6"] {
        net.node_command(&format!("nft add table {family} kube-proxy"));
    }
    net.node_command("iptables-nft -t mangle -N KUBE-PROXY-CANARY");
    clean().unwrap();
    assert!(!listed().contains("kube-proxy") && listed().contains("somebody"), "{}", listed());
    assert!(!tables(&net, Variant::Nft).contains("KUBE"), "{}", tables(&net, Variant::Nft));
}

fn other_back_end(first: Variant, second: Variant) {
    let _free = lock_is_free(Variant::Legacy);
    let net = Net::new();
    let dir = tempfile::tempdir().unwrap();
    let config = |variant| config(variant, &dir.path().join("before.json"));
    net.serve(0, 8080);
    net.serve(1, 8080);
    let api = api();
    let proxy = Proxy::start(&net, &api, &config(first));
    answers(&net.pods[0], WEB);
    proxy.stop();
    // Unchanged rules would lead to a removed endpoint.
    api.put("endpointslices", slice("web", &[1]));
    let proxy = Proxy::start(&net, &api, &config(second));
    as_intended(&api, &config(second), &net);
    eventually("the first back end is empty", std::time::Duration::from_secs(10), || {
        let left = tables(&net, first);
        if left.contains("KUBE") { Err(left) } else { Ok(()) }
    });
    assert!((0..10).all(|_| answers(&net.pods[0], WEB).0 == 1));
    proxy.stop();
}

#[test]
fn rules_of_an_earlier_run_on_legacy_go_when_the_back_end_changes() {
    other_back_end(Variant::Legacy, Variant::Nft);
}

#[test]
fn rules_of_an_earlier_run_on_nf_tables_go_when_the_back_end_changes() {
    other_back_end(Variant::Nft, Variant::Legacy);
}

/// A rule set that is rendered without a kernel works when it is restored unchanged, whatever the kernel had before.
fn restored(variant: Variant) {
    let _free = lock_is_free(variant);
    let net = Net::new();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rules");
    net.serve(0, 8080);
    net.serve(1, 8080);
    let config = Config { nfacct: Some(false), ..config(variant, &dir.path().join("before.json")) };
    let web = service("web", "172.30.0.41", &json!({"clusterIPs": ["172.30.0.41", "fd00:172:30::41"]}));
    let slices = [slice("web", &[0, 1]), slice6("web", &[0, 1])].map(|s| serde_json::from_value(s).unwrap());
    let objects =
        Objects { services: vec![serde_json::from_value(web).unwrap()], slices: slices.into(), ..Objects::default() };
    let suffix = if variant == Variant::Legacy { "legacy" } else { "nft" };
    for (family, stem, to) in [(Family::V4, "iptables", WEB), (Family::V6, "ip6tables", "[fd00:172:30::41]:80")] {
        let text = rules_from_objects(&objects, &config, family);
        std::fs::write(&file, with_base_chains(&text)).unwrap();
        for _ in 0..2 {
            net.node_command(&format!("{stem}-{suffix}-restore {}", file.display()));
        }
        let kernel = net.node_command(&format!("{stem}-{suffix}-save"));
        assert_eq!(explain(&text, &kernel).unwrap().differences, [], "{kernel}");
        assert_eq!(kernel.matches("-A PREROUTING").count(), 1, "{kernel}");
        answers(&net.pods[0], to);
        answers(&net.node, to);
    }
}

#[test]
fn a_rendered_rule_set_can_be_restored_on_nf_tables() {
    restored(Variant::Nft);
}

#[test]
fn a_rendered_rule_set_can_be_restored_on_legacy() {
    restored(Variant::Legacy);
}
