//! The proxy on a real kernel: its whole loop runs in a network namespace, against a tiny API, once
//! with each iptables back end, and real connections tell what the rules do.

// Helpers outside test functions unwrap as well: this whole file is a test.
#![allow(clippy::unwrap_used, unreachable_pub)]

#[path = "kernel/api.rs"]
mod api;
#[path = "kernel/net.rs"]
mod net;

use std::{
    io::{ErrorKind, Read as _, Write as _},
    time::{Duration, Instant},
};

use api::Api;
use net::{NODE_IP, Net, OUTSIDE_IP, POD_IPS, connect};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use windlass_proxy::{
    Config, Variant,
    apply::{Backend, Runner},
    cleanup, inspect,
    kernel::Saved,
    model::{Cidr, Family, Model},
    plan::{Ledger, Limit},
    rules::Settings,
    run,
};

const WEB: &str = "172.30.0.41:80";

fn service(name: &str, ip: &str, extra: &Value) -> Value {
    let mut object = json!({
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"type": "NodePort", "clusterIP": ip, "ports": [{"port": 80, "protocol": "TCP", "targetPort": 8080}]}
    });
    for (key, value) in extra.as_object().into_iter().flatten() {
        object["spec"][key] = value.clone();
    }
    object
}

fn slice(service: &str, pods: &[usize]) -> Value {
    let endpoints: Vec<Value> = pods
        .iter()
        .map(|p| json!({"addresses": [POD_IPS[*p]], "conditions": {"ready": true}, "nodeName": "n1"}))
        .collect();
    json!({
        "metadata": {"name": format!("{service}-1"), "namespace": "shop", "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "ports": [{"name": "", "port": 8080, "protocol": "TCP"}],
        "endpoints": endpoints
    })
}

fn node_port(port: u16) -> Value {
    json!({"ports": [{"port": 80, "protocol": "TCP", "targetPort": 8080, "nodePort": port}]})
}

/// A proxy on threads of its own, all in the node's namespace.
struct Proxy {
    runtime: Option<tokio::runtime::Runtime>,
    shutdown: CancellationToken,
    task: tokio::task::JoinHandle<Result<(), windlass_proxy::Error>>,
}

impl Proxy {
    fn start(net: &Net, api: &Api, config: &Config) -> Self {
        let node = net.node.clone();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .on_thread_start(move || net::enter(&node))
            .build()
            .unwrap();
        let shutdown = CancellationToken::new();
        let (api, config, stop) = (api.clone(), config.clone(), shutdown.clone());
        let task = runtime.spawn(async move { run(api.client(), config, stop).await });
        Self { runtime: Some(runtime), shutdown, task }
    }

    fn stop(mut self) {
        self.shutdown.cancel();
        let runtime = self.runtime.take().unwrap();
        let ended = runtime.block_on(self.task).unwrap();
        runtime.shutdown_timeout(Duration::from_secs(5));
        ended.unwrap();
    }
}

fn eventually<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Result<T, String>) -> T {
    let start = Instant::now();
    loop {
        match look() {
            Ok(value) => return value,
            Err(last) if start.elapsed() > limit => panic!("{what} did not come true in {limit:?}: {last}"),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

fn answers(from: &str, to: &str) -> (usize, String) {
    eventually(&format!("a connection to {to}"), Duration::from_secs(10), || {
        connect(from, to).map(|(_, pod, peer)| (pod, peer.to_string())).map_err(|e| e.to_string())
    })
}

fn refused(from: &str, to: &str) {
    eventually(&format!("a refusal at {to}"), Duration::from_secs(10), || match connect(from, to) {
        Err(e) if e.kind() == ErrorKind::ConnectionRefused => Ok(()),
        other => Err(format!("{other:?}")),
    });
}

/// Both families' rules without comments and counters.
fn tables(net: &Net, variant: Variant) -> String {
    let suffix = if variant == Variant::Legacy { "-legacy-save" } else { "-nft-save" };
    let mut out = String::new();
    for program in ["iptables", "ip6tables"] {
        for line in net.node_command(&format!("{program}{suffix}")).lines().filter(|l| !l.starts_with('#')) {
            out.push_str(line.split(" [").next().unwrap());
            out.push('\n');
        }
    }
    out
}

fn config(variant: Variant, record: &std::path::Path) -> Config {
    Config {
        node_name: "n1".to_owned(),
        node_ips: vec![NODE_IP.parse().unwrap()],
        cluster_cidrs: vec![Cidr::parse("10.180.0.0/16").unwrap()],
        sync_period: Duration::from_secs(2),
        variant,
        record: record.to_owned(),
        ..Config::default()
    }
}

fn differences(api: &Api, config: &Config, net: &Net) -> Vec<String> {
    let config =
        Config { command_prefix: ["ip", "netns", "exec", &net.node].map(str::to_owned).into(), ..config.clone() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = runtime.block_on(async { api.client() });
    let found = runtime.block_on(inspect(&client, &config, Family::V4)).unwrap();
    found.differences.iter().map(|d| format!("{d:?}")).collect()
}

fn as_intended(api: &Api, config: &Config, net: &Net) {
    eventually("the kernel holding what it should", Duration::from_secs(20), || match differences(api, config, net) {
        none if none.is_empty() => Ok(()),
        some => Err(some.join("\n")),
    });
}

fn whole_life(variant: Variant) {
    let net = Net::new();
    let folder = tempfile::tempdir().unwrap();
    let config = config(variant, &folder.path().join("before.json"));
    if variant == Variant::Legacy {
        // The legacy program makes tables by looking at them, and nothing removes them again.
        for program in ["iptables-legacy", "ip6tables-legacy"] {
            net.node_command(&format!("{program} -t nat -S"));
            net.node_command(&format!("{program} -t filter -S"));
        }
    } else {
        // A rule of somebody else stays where it is.
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

    // Pod to cluster IP: both answer in turn, and see the pod itself.
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

    // What it tells about itself.
    let health = net::get(&net.node, "127.0.0.1:10256", "/healthz");
    assert!(health.contains(" 200 ") && health.contains("\"nodeEligible\":true"), "{health}");
    assert!(net::get(&net.node, "127.0.0.1:10249", "/proxyMode").ends_with("iptables"));
    let metrics = net::get(&net.node, "127.0.0.1:10249", "/metrics");
    assert!(
        metrics.contains("kubeproxy_sync_proxy_rules_iptables_total{table=\"nat\",ip_family=\"IPv4\"}"),
        "{metrics}"
    );

    // Endpoints come and go.
    api.put("endpointslices", slice("web", &[1]));
    as_intended(&api, &config, &net);
    assert!((0..10).all(|_| answers(&net.pods[0], WEB).0 == 1));
    api.delete("endpointslices", "web-1");
    refused(&net.pods[0], WEB);
    api.put("endpointslices", slice("web", &[0, 1]));
    answers(&net.pods[0], WEB);

    // Somebody flushes.
    let program = if variant == Variant::Legacy { "iptables-legacy" } else { "iptables-nft" };
    net.node_command(&format!("{program} -t nat -F"));
    as_intended(&api, &config, &net);
    answers(&net.pods[0], WEB);

    // The proxy ends: traffic goes on. It comes back: an open connection lives on.
    let (mut open, ..) = connect(&net.outside, &format!("{NODE_IP}:30080")).unwrap();
    proxy.stop();
    answers(&net.pods[0], WEB);
    api.put("endpointslices", slice("self", &[1]));
    let proxy = Proxy::start(&net, &api, &config);
    as_intended(&api, &config, &net);
    let mut byte = [0];
    open.write_all(b"z").unwrap();
    open.read_exact(&mut byte).unwrap();
    assert_eq!(byte, *b"z");
    proxy.stop();

    // Nothing is left.
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

#[test]
fn the_whole_life_of_the_proxy_on_nf_tables() {
    whole_life(Variant::Nft);
}

#[test]
fn the_whole_life_of_the_proxy_on_legacy() {
    whole_life(Variant::Legacy);
}

/// A fresh machine's tables are exactly as before, and a start that was killed half way converges.
fn killed_half_way(variant: Variant) {
    let net = Net::new();
    let folder = tempfile::tempdir().unwrap();
    let config = config(variant, &folder.path().join("before.json"));
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
    // The first half of a start, in small steps, and a leftover of another time.
    let runner = Runner::new(["ip", "netns", "exec", &net.node].map(str::to_owned).into());
    let backend = Backend::find(&runner, Family::V4, variant).unwrap();
    let mut ledger = Ledger::new(Settings::new(Family::V4));
    ledger.adopt(&Saved::default());
    model.services().for_each(|(id, _)| ledger.take(&model, id));
    let steps = ledger.steps(Limit::Lines(100));
    assert!(steps.len() > 4, "{} steps", steps.len());
    steps[..steps.len() / 2].iter().for_each(|s| backend.restore(s).unwrap());
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
