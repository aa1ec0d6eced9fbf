//! The proxy on a real kernel: its loop runs in a network namespace, against an API server in memory, with each iptables
//! back end, and real connections show the effect of the rules.

// Helpers outside test functions unwrap as well: this whole file is a test.
#![allow(clippy::unwrap_used, clippy::print_stdout, unreachable_pub, reason = "a test prints its seed")]

#[path = "kernel/api.rs"]
mod api;
#[path = "kernel/churn.rs"]
mod churn;
#[path = "kernel/conntrack.rs"]
mod conntrack;
#[path = "kernel/faults.rs"]
mod faults;
#[path = "kernel/harness.rs"]
mod harness;
#[path = "kernel/net.rs"]
mod net;
mod netns;
#[path = "kernel/policies.rs"]
mod policies;
#[path = "kernel/refusals.rs"]
mod refusals;
#[path = "kernel/takeover.rs"]
mod takeover;

use std::{
    io::{Read as _, Write as _},
    time::Duration,
};

use api::Api;
use harness::{
    Proxy, answers, as_intended, config, eventually, lock_is_free, node_port, periodic, refused, service, slice, tables,
};
use net::{NODE_IP, Net, OUTSIDE_IP, POD_IPS, connect};
use serde_json::json;
use windlass_proxy::{
    Config, Variant,
    apply::{Backend, Runner},
    cleanup,
    iptables_save::SavedRuleset,
    model::{Family, Model},
    plan::{BatchLimit, RulesetState},
    rules::Settings,
};

const WEB: &str = "172.30.0.41:80";

fn whole_life(variant: Variant) {
    let _free = lock_is_free(variant);
    let net = Net::new();
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(variant, &dir.path().join("before.json"));
    if variant == Variant::Legacy {
        config = periodic(config);
        // The legacy program creates tables when it lists them, and nothing removes them again.
        for program in ["iptables-legacy", "ip6tables-legacy"] {
            net.node_command(&format!("{program} -t nat -S"));
            net.node_command(&format!("{program} -t filter -S"));
        }
    } else {
        // A foreign rule keeps its place.
        net.node_command("iptables-nft -A INPUT -s 203.0.113.77 -j DROP");
    }
    let before = tables(&net, variant);
    let localnet = net.node_command("sysctl -n net.ipv4.conf.all.route_localnet");
    net.serve(0, 8080);
    net.serve(1, 8080);

    let api = Api::default();
    api.put("nodes", json!({"metadata": {"name": "n1"}}));
    api.put("services", service("web", "172.30.0.41", &node_port(30080)));
    api.put("endpointslices", slice("web", &[0, 1]));
    api.put("services", service("self", "172.30.0.42", &json!({})));
    api.put("endpointslices", slice("self", &[0]));
    api.put("services", service("none", "172.30.0.43", &json!({})));
    let proxy = Proxy::start(&net, &api, &config);

    // Pod to cluster IP: both endpoints answer, and see the address of the pod.
    let (mut seen, mut tries) = ([false; 2], 0);
    while seen != [true; 2] {
        let (pod, peer) = answers(&net.pods[1], WEB);
        seen[pod] = true;
        tries += 1;
        assert!(tries < 60, "one of two endpoints never answered");
        if pod == 0 {
            assert_eq!(peer, POD_IPS[1], "traffic between pods keeps its source");
        }
    }
    // Host to cluster IP and to its own node port at 127.0.0.1.
    answers(&net.node, WEB);
    answers(&net.node, "127.0.0.1:30080");
    answers(&net.node, &format!("{NODE_IP}:30080"));
    // From outside: masqueraded.
    let (_, peer) = answers(&net.outside, &format!("{NODE_IP}:30080"));
    assert_ne!(peer, OUTSIDE_IP, "traffic to a node port is masqueraded");
    // A pod that calls itself through its service.
    let (pod, peer) = answers(&net.pods[0], "172.30.0.42:80");
    assert_eq!(pod, 0);
    assert_ne!(peer, POD_IPS[0], "a pod cannot see itself as the source");
    refused(&net.pods[0], "172.30.0.43:80");
    as_intended(&api, &config, &net);

    // A client that keeps one UDP socket follows its service to another endpoint.
    api.put(
        "services",
        json!({"metadata": {"name": "dns", "namespace": "shop"},
        "spec": {"clusterIP": "172.30.0.44", "ports": [{"name": "dns", "port": 53, "protocol": "UDP"}]}}),
    );
    let dns = |pod: usize| {
        json!({"metadata": {"name": "dns-1", "namespace": "shop", "labels": {"kubernetes.io/service-name": "dns"}},
        "addressType": "IPv4", "ports": [{"name": "dns", "port": 5353, "protocol": "UDP"}],
        "endpoints": [{"addresses": [POD_IPS[pod]]}]})
    };
    net.serve_udp(0, 5353);
    net.serve_udp(1, 5353);
    let socket = net::udp(&net.outside);
    for pod in [0, 1, 0] {
        api.put("endpointslices", dns(pod));
        eventually("an answer over UDP", Duration::from_secs(10), || {
            socket.send_to(b"?", "172.30.0.44:53").map_err(|e| e.to_string())?;
            let mut answer = [0];
            socket.recv(&mut answer).map_err(|e| e.to_string())?;
            if usize::from(answer[0]) == pod { Ok(()) } else { Err(format!("pod {} answered", answer[0])) }
        });
    }

    // The last endpoint is removed, as a control plane does it: the slice stays, without endpoints and ports.
    let tracked = || net.node_command("conntrack -L -p udp --orig-dst 172.30.0.44");
    let ask = || {
        let _ = socket.send_to(b"?", "172.30.0.44:53");
        let mut answer = [0];
        socket.recv(&mut answer).map_err(|e| e.to_string())
    };
    eventually("an answer over UDP", Duration::from_secs(10), ask);
    assert!(tracked().contains("dport=53"), "{}", tracked());
    let mut empty = dns(0);
    (empty["ports"], empty["endpoints"]) = (json!([]), json!([]));
    api.put("endpointslices", empty);
    let none_tracked = || match tracked() {
        none if !none.contains("dport=53") => Ok(()),
        some => Err(some),
    };
    eventually("no entry towards an endpoint that is gone", Duration::from_secs(10), none_tracked);
    // The Service is deleted while a client sends.
    api.put("endpointslices", dns(1));
    eventually("an answer over UDP", Duration::from_secs(10), ask);
    assert!(tracked().contains("dport=53"), "{}", tracked());
    api.delete("services", "dns");
    eventually("no entry towards a service that is gone", Duration::from_secs(10), none_tracked);

    // Its metrics and health.
    let health = net::get(&net.node, "127.0.0.1:10256", "/healthz");
    assert!(health.contains(" 200 ") && health.contains("\"nodeEligible\":true"), "{health}");
    assert!(net::get(&net.node, "127.0.0.1:10249", "/proxyMode").ends_with("iptables"));
    let metrics = net::get(&net.node, "127.0.0.1:10249", "/metrics");
    assert!(
        metrics.contains("kubeproxy_sync_proxy_rules_iptables_total{table=\"nat\",ip_family=\"IPv4\"}"),
        "{metrics}"
    );

    // Endpoints are added and removed.
    api.put("endpointslices", slice("web", &[1]));
    as_intended(&api, &config, &net);
    assert!((0..10).all(|_| answers(&net.pods[0], WEB).0 == 1));
    api.delete("endpointslices", "web-1");
    refused(&net.pods[0], WEB);
    api.put("endpointslices", slice("web", &[0, 1]));
    answers(&net.pods[0], WEB);

    // Another program flushes the chains.
    let program = if variant == Variant::Legacy { "iptables-legacy" } else { "iptables-nft" };
    net.node_command(&format!("{program} -t nat -F"));
    as_intended(&api, &config, &net);
    answers(&net.pods[0], WEB);

    // Traffic continues after the proxy ends; an open connection survives its restart.
    let (mut open, ..) = connect(&net.outside, &format!("{NODE_IP}:30080")).unwrap();
    proxy.stop();
    answers(&net.pods[0], WEB);
    // Correct chains are not written again: their rules keep their counters.
    let counted = || {
        let text = net.node_command(&format!("{program}-save -c -t nat"));
        let rule = text.lines().find(|l| l.contains("--dport 30080") && !l.contains("127.0.0.0")).map(str::to_owned);
        rule.unwrap_or_else(|| panic!("{text}"))
    };
    let before_restart = counted();
    assert!(!before_restart.starts_with("[0:0]"), "{before_restart}");
    api.put("endpointslices", slice("self", &[1]));
    let proxy = Proxy::start(&net, &api, &config);
    as_intended(&api, &config, &net);
    assert_eq!(counted(), before_restart);
    let mut byte = [0];
    open.write_all(b"z").unwrap();
    open.read_exact(&mut byte).unwrap();
    assert_eq!(byte, *b"z");
    proxy.stop();

    // Clean-up removes everything.
    let node = net.node.clone();
    let settings = config.clone();
    std::thread::spawn(move || {
        net::enter(&node);
        cleanup(&settings).unwrap();
        cleanup(&settings).unwrap();
    })
    .join()
    .unwrap();
    assert_eq!(tables(&net, variant), before);
    assert_eq!(net.node_command("sysctl -n net.ipv4.conf.all.route_localnet"), localnet);
}

/// As in kube-proxy's nftables mode, behind a setting.
fn cluster_ips_check(variant: Variant) {
    let _free = lock_is_free(variant);
    let net = Net::new();
    let dir = tempfile::tempdir().unwrap();
    let config = Config { cluster_ips_check: true, ..config(variant, &dir.path().join("before.json")) };
    net.serve(0, 8080);
    let api = Api::default();
    api.put("nodes", json!({"metadata": {"name": "n1"}}));
    api.put("services", service("web", "172.30.0.41", &json!({})));
    api.put("endpointslices", slice("web", &[0]));
    api.put("servicecidrs", json!({"metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["172.30.0.0/24"]}}));
    let proxy = Proxy::start(&net, &api, &config);
    // A range that is added later counts, too.
    api.put("servicecidrs", json!({"metadata": {"name": "more"}, "spec": {"cidrs": ["172.30.1.0/24"]}}));
    eventually("the rule of the new range", Duration::from_secs(10), || {
        let rules = tables(&net, variant);
        if rules.contains("-d 172.30.1.0/24 ") { Ok(()) } else { Err(rules) }
    });
    for from in [&net.pods[1], &net.node] {
        answers(from, WEB);
        refused(from, "172.30.0.41:81");
        let unallocated = connect(from, "172.30.0.99:80").map(drop).map_err(|error| error.kind());
        assert!(unallocated.is_err() && unallocated != Err(std::io::ErrorKind::ConnectionRefused), "{unallocated:?}");
    }
    as_intended(&api, &config, &net);
    let program = if variant == Variant::Legacy { "iptables-legacy-save" } else { "iptables-nft-save" };
    let saved = net.node_command(&format!("{program} -c -t filter"));
    let dropped = saved.lines().find(|line| line.contains("unallocated cluster IPs")).unwrap();
    assert!(!dropped.starts_with("[0:0]"), "{dropped}");
    proxy.stop();
}

#[test]
fn what_a_cluster_ip_does_not_serve_is_refused_if_wanted_on_nf_tables() {
    cluster_ips_check(Variant::Nft);
}

#[test]
fn what_a_cluster_ip_does_not_serve_is_refused_if_wanted_on_legacy() {
    cluster_ips_check(Variant::Legacy);
}

#[test]
fn the_whole_life_of_the_proxy_on_nf_tables() {
    whole_life(Variant::Nft);
}

#[test]
fn the_whole_life_of_the_proxy_on_legacy() {
    whole_life(Variant::Legacy);
}

/// Clean-up restores the tables of a fresh host exactly, and a start after an interrupted one converges.
fn killed_half_way(variant: Variant) {
    let _free = lock_is_free(variant);
    let net = Net::new();
    let dir = tempfile::tempdir().unwrap();
    let config = config(variant, &dir.path().join("before.json"));
    let before = tables(&net, variant);
    let api = Api::default();
    api.put("nodes", json!({"metadata": {"name": "n1"}}));
    let mut model = Model::default();
    for i in 0..60u8 {
        let (name, ip) = (format!("s{i}"), format!("172.30.1.{i}"));
        let (service, slice) = (service(&name, &ip, &json!({})), slice(&name, &[0, 1]));
        model.put_service(&serde_json::from_value(service.clone()).unwrap());
        model.put_slice(&serde_json::from_value(slice.clone()).unwrap(), "n1");
        api.put("services", service);
        api.put("endpointslices", slice);
    }
    // The first half of a start, in small batches, and a leftover of an earlier version.
    let runner = Runner::new(["ip", "netns", "exec", &net.node].map(str::to_owned).into());
    let backend = Backend::find(&runner, Family::V4, variant).unwrap();
    let mut ruleset = RulesetState::new(Settings::new(Family::V4));
    ruleset.resync_from_kernel(&SavedRuleset::default());
    model.services().for_each(|(id, _)| ruleset.mark_dirty(id));
    let batches: Vec<_> = std::iter::from_fn(|| ruleset.next_batch(&model, BatchLimit::Lines(100))).collect();
    assert!(batches.len() > 4, "{} batches", batches.len());
    batches[..batches.len() / 2].iter().for_each(|s| backend.restore(s).unwrap());
    backend
        .restore_text(
            "*nat\n:KUBE-SVC-STALE - [0:0]\n:KUBE-SEP-STALE - [0:0]\n-A KUBE-SVC-STALE -j KUBE-SEP-STALE\nCOMMIT\n",
        )
        .unwrap();

    let proxy = Proxy::start(&net, &api, &config);
    as_intended(&api, &config, &net);
    assert!(!tables(&net, variant).contains("STALE"));
    proxy.stop();
    let prefixed = Config { command_prefix: ["ip", "netns", "exec", &net.node].map(str::to_owned).into(), ..config };
    cleanup(&prefixed).unwrap();
    let after = tables(&net, variant);
    if variant == Variant::Nft {
        assert_eq!(after, before);
    } else {
        assert!(!after.contains("KUBE") && !after.contains("-A "), "{after}");
    }
}

#[test]
fn a_start_that_was_killed_half_way_converges_on_nf_tables() {
    killed_half_way(Variant::Nft);
}

#[test]
fn a_start_that_was_killed_half_way_converges_on_legacy() {
    killed_half_way(Variant::Legacy);
}
