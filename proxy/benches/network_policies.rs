//! `make bench-policies`: how long a new pod waits for its rules, and what a connection costs, with many NetworkPolicies and
//! pods, compared in the same run with the programs alone and with few of them. Prints tables for docs/performance.md.
//!
//! The proxy's loop runs in a network namespace against an API server in memory, as in the tests of the kernel. `SIZES` is a
//! list of POLICIESxPODS, of which the first is the baseline of packets.

#![allow(clippy::print_stdout, clippy::unwrap_used, unreachable_pub, reason = "the figures are the output")]
#![allow(dead_code, unused_imports, reason = "the tests' helpers have more than this needs")]

#[path = "../tests/kernel/api.rs"]
mod api;
#[path = "../tests/kernel/harness.rs"]
mod harness;
#[path = "../tests/kernel/net.rs"]
mod net;
#[path = "../tests/netns/mod.rs"]
mod netns;

use std::{
    io::Write as _,
    net::{IpAddr, Ipv6Addr, UdpSocket},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use windlass_kit::announced_pod::{AnnouncedPod, Announcer};
use windlass_proxy::{
    Variant,
    model::Family,
    network_policy::{Cluster, Wanted, plan::Kernel},
};

use api::Api;
use harness::{PATIENCE, Proxy, answers, config, eventually};
use net::{Net, POD_IPS, POD_IPS6, POD_UIDS, enter};

/// Pods that start, one after the other.
const STARTS: usize = 15;
/// Packets of a batch, and batches, of which the fastest counts: whatever else runs makes the others slower.
const PACKETS: u32 = 100;
const BATCHES: usize = 1000;

fn main() {
    // cargo passes --bench.
    let sizes = std::env::var("SIZES").unwrap_or_else(|_| "10x10,1000x10,10x200,1000x200,1000x1000".to_owned());
    let mut baseline = None;
    println!(
        "| policies x pods | rules wanted in | pod of a known profile | pod of a new profile | iptables-restore of the same lines | ratio | packet of a new connection | to the first size |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for size in sizes.split(',') {
        let (policies, pods) = size.split_once('x').expect("SIZES is like 1000x200");
        measure(policies.parse().unwrap(), pods.parse().unwrap(), &mut baseline);
    }
}

fn address(pod: usize) -> [IpAddr; 2] {
    if let (Some(four), Some(six)) = (POD_IPS.get(pod), POD_IPS6.get(pod)) {
        return [four.parse().unwrap(), six.parse().unwrap()];
    }
    let [high, low] = u16::try_from(pod).unwrap().to_be_bytes();
    let six = Ipv6Addr::new(0xfd00, 0x10, 0x180, 0, 0, 0, 1, u16::try_from(pod).unwrap());
    [IpAddr::from([10, 180, high + 1, low]), six.into()]
}

fn uid(pod: usize) -> String {
    POD_UIDS.get(pod).map_or_else(|| format!("uid-{pod}"), |uid| (*uid).to_owned())
}

fn pod(number: usize) -> Value {
    let ips = address(number).map(|ip| json!({"ip": ip.to_string()}));
    json!({"metadata": {"name": format!("pod-{number}"), "namespace": "shop", "uid": uid(number),
            "labels": {"app": number.to_string(), "tier": "x"}},
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "ports": [{"name": "web", "containerPort": 8080}]}]},
        "status": {"phase": "Running", "podIPs": ips}})
}

fn policy(name: &str, app: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "shop"}, "spec": {
        "podSelector": {"matchLabels": {"app": app}}, "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"tier": "x"}}}], "ports": [{"port": "web"}, {"port": 9090, "protocol": "UDP"}]},
            {"from": [{"podSelector": {"matchLabels": {"peer": name}}}]}],
        "egress": [{"to": [{"namespaceSelector": {}}]}, {"ports": [{"port": 53, "protocol": "UDP"}]}]}})
}

fn announced(name: &str, number: usize, app: &str) -> AnnouncedPod {
    let labels = [("app", app), ("tier", "x")].map(|(key, value)| (key.to_owned(), value.to_owned()));
    AnnouncedPod {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        uid: name.to_owned(),
        labels: labels.into(),
        ports: vec![("web".to_owned(), "TCP".to_owned(), 8080)],
        addresses: address(number).into(),
    }
}

fn median(mut values: Vec<Duration>) -> Duration {
    values.sort();
    values[values.len() / 2]
}

fn ms(duration: Duration) -> String {
    format!("{:.1} ms", duration.as_secs_f64() * 1e3)
}

fn measure(policies: usize, pods: usize, baseline: &mut Option<Duration>) {
    let net = Net::new();
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(Variant::Nft, &dir.path().join("before.json"));
    // As it runs: with the monitor of rules; without the rate limit, which does not hold up a pod that waits.
    config.repairs = harness::repairs("");
    net.serve(1, 8080);
    let api = Api::default();
    let mut cluster = Cluster::new("n1");
    let put = |cluster: &mut Cluster, plural: &str, object: Value| {
        match plural {
            "pods" => cluster.put_pod(&serde_json::from_value(object.clone()).unwrap()),
            "networkpolicies" => cluster.put_policy(&serde_json::from_value(object.clone()).unwrap()),
            "namespaces" => cluster.put_namespace(&serde_json::from_value(object.clone()).unwrap()),
            _ => {}
        }
        api.put(plural, object);
    };
    put(&mut cluster, "nodes", json!({"metadata": {"name": "n1"}}));
    put(&mut cluster, "namespaces", json!({"metadata": {"name": "shop"}}));
    (0..pods).for_each(|i| put(&mut cluster, "pods", pod(i)));
    (0..policies).for_each(|i| {
        put(&mut cluster, "networkpolicies", policy(&format!("policy-{i}"), &(i % pods).to_string()));
    });
    for i in 0..=STARTS {
        put(&mut cluster, "networkpolicies", policy(&format!("new-{i}"), &format!("new-{i}")));
    }
    let (proxy, announcer) = Proxy::start_enforcing(&net, &api, &config);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut number = pods;
    let mut start = |cluster: &mut Cluster, name: String, app: String| {
        number += 1;
        let pod = announced(&name, number, &app);
        cluster.announce(&pod);
        let begun = Instant::now();
        assert_eq!(runtime.block_on(announcer.starts(pod)), Ok(()));
        // What follows from it is not part of the next one.
        let took = begun.elapsed();
        std::thread::sleep(Duration::from_millis(200));
        (took, number)
    };
    let _ = start(&mut cluster, "first".to_owned(), "0".to_owned());
    answers(&net.pods[0], &format!("{}:8080", POD_IPS[1]));
    let known = (0..STARTS).map(|i| start(&mut cluster, format!("known-{i}"), "0".to_owned()).0).collect();
    let new = (0..STARTS).map(|i| start(&mut cluster, format!("new-{i}"), format!("new-{i}")).0).collect();

    // The lower bound: the programs with the lines of one more new profile, in both families at once.
    let before = cluster.wanted(&Family::BOTH);
    let begun = Instant::now();
    let again = cluster.wanted(&Family::BOTH);
    let wanted_in = begun.elapsed();
    assert_eq!(before, again);
    let (_, number) = start(&mut cluster, "last".to_owned(), format!("new-{STARTS}"));
    cluster.announce(&announced("last", number, &format!("new-{STARTS}")));
    let after = cluster.wanted(&Family::BOTH);
    let texts: Vec<String> = before
        .iter()
        .zip(&after)
        .map(|(before, after): (&Wanted, &Wanted)| Kernel::of(before).steps_to(after).texts.concat())
        .collect();
    let bare = (0..STARTS).map(|_| restore(&net.node, &texts)).collect();
    let (known, new, bare) = (median(known), median(new), median(bare));
    let packet = packet(&net, &format!("{}:9090", POD_IPS[1]));
    let first = *baseline.get_or_insert(packet);
    println!(
        "| {policies} x {pods} | {} | {} | {} | {} ({} lines) | {:.2} | {} ns | {:.2} |",
        ms(wanted_in),
        ms(known),
        ms(new),
        ms(bare),
        texts.iter().map(|text| text.lines().count()).sum::<usize>(),
        new.as_secs_f64() / bare.as_secs_f64(),
        packet.as_nanos(),
        packet.as_secs_f64() / first.as_secs_f64(),
    );
    proxy.stop();
}

/// Runs both programs at once in the node's namespace.
fn restore(node: &str, texts: &[String]) -> Duration {
    let begun = Instant::now();
    let children: Vec<_> = ["iptables-nft-restore", "ip6tables-nft-restore"]
        .into_iter()
        .zip(texts)
        .map(|(program, text)| {
            let mut command = Command::new("nsenter");
            command.arg(format!("--net=/var/run/netns/{node}")).args([program, "--noflush", "-w", "5"]);
            let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
            child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
            child
        })
        .collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    begun.elapsed()
}

/// The time of a datagram that nobody answers: conntrack keeps it new, so that it is judged like the first one.
fn packet(net: &Net, to: &str) -> Duration {
    let (from, at, to) = (net.pods[0].clone(), net.pods[1].clone(), to.to_owned());
    let port = to.rsplit(':').next().unwrap().parse::<u16>().unwrap();
    std::thread::spawn(move || {
        enter(&at);
        let silent = UdpSocket::bind(("0.0.0.0", port)).unwrap();
        while silent.recv(&mut [0; 1]).is_ok() {}
    });
    let thread = std::thread::spawn(move || {
        enter(&from);
        std::thread::sleep(Duration::from_millis(200));
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.connect(to).unwrap();
        let batch = |_| {
            let begun = Instant::now();
            // What finds nobody at first is reported with the next one.
            (0..PACKETS).for_each(|_| _ = socket.send(b"x"));
            begun.elapsed()
        };
        (0..BATCHES).map(batch).min().unwrap() / PACKETS
    });
    thread.join().unwrap()
}
