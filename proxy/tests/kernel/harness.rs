//! Runs the proxy's loop in the node's namespace, and waits for its effects.

use std::{
    io::ErrorKind,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use windlass_kit::{
    announced_pod::{self, Announcements, Announcer},
    liveness::Heartbeats,
    repairs::Repairs,
};
use windlass_proxy::{Config, NetworkPolicies, Variant, model::Cidr, run};
use windlass_tests::FaultyIptables;

use super::{
    api::Api,
    net::{self, Bare, NODE_IP, NODE_IP6, Net, POD_IPS, POD_IPS6, connect},
};

/// The legacy programs share the xtables lock of the host. A test that holds it for long locks this for writing, all
/// others that use those programs lock it for reading.
static XTABLES: RwLock<()> = RwLock::new(());

/// Excludes tests that hold the xtables lock, where this back end needs it.
pub(crate) fn lock_is_free(variant: Variant) -> Option<RwLockReadGuard<'static, ()>> {
    (variant == Variant::Legacy).then(|| XTABLES.read())
}

/// For the test that holds the xtables lock.
pub(crate) fn lock_is_mine() -> RwLockWriteGuard<'static, ()> {
    XTABLES.write()
}

/// A proxy with its own threads, all in the node's namespace.
pub(crate) struct Proxy {
    runtime: Option<tokio::runtime::Runtime>,
    shutdown: CancellationToken,
    task: tokio::task::JoinHandle<Result<(), windlass_proxy::Error>>,
}

impl Proxy {
    pub(crate) fn start(net: &Net, api: &Api, config: &Config) -> Self {
        Self::start_with(&net.node, None, api, config)
    }

    /// One that enforces NetworkPolicies, and whom pods are announced to.
    pub(crate) fn start_enforcing(net: &Net, api: &Api, config: &Config) -> (Self, Announcer) {
        let (announcer, announcements) = announced_pod::channel();
        (Self::launch(&net.node, None, api, config, Some(announcements)), announcer)
    }

    /// In this namespace, with programs that may fail.
    pub(crate) fn start_with(node: &str, programs: Option<&Arc<FaultyIptables>>, api: &Api, config: &Config) -> Self {
        Self::launch(node, programs, api, config, None)
    }

    fn launch(
        node: &str,
        programs: Option<&Arc<FaultyIptables>>,
        api: &Api,
        config: &Config,
        announcements: Option<Announcements>,
    ) -> Self {
        let (node, programs) = (node.to_owned(), programs.cloned());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .on_thread_start(move || {
                net::enter(&node);
                programs.iter().for_each(|programs| programs.enter());
            })
            .build()
            .unwrap();
        let shutdown = CancellationToken::new();
        let (api, config, stop) = (api.clone(), config.clone().validated().unwrap(), shutdown.clone());
        let task = runtime.spawn(async move {
            let policies = announcements.map(|announcements| NetworkPolicies { client: api.client(), announcements });
            run(api.client(), config, policies, Heartbeats::default(), stop).await
        });
        Self { runtime: Some(runtime), shutdown, task }
    }

    /// Asks it to stop, and does not wait.
    pub(crate) fn ask_to_stop(&self) {
        self.shutdown.cancel();
    }

    pub(crate) fn stop(mut self) {
        self.ask_to_stop();
        let runtime = self.runtime.take().unwrap();
        let ended = runtime.block_on(&mut self.task).unwrap();
        runtime.shutdown_timeout(Duration::from_secs(5));
        ended.unwrap();
    }
}

/// Of a test that has failed: a program that hangs is not waited for.
impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Longer than anything takes, on however busy a machine: a limit says that something never comes, not how fast it does.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) fn eventually<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Result<T, String>) -> T {
    let start = Instant::now();
    loop {
        match look() {
            Ok(value) => return value,
            Err(last) if start.elapsed() > limit => panic!("{what} did not come true in {limit:?}: {last}"),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

pub(crate) fn answers(from: &str, to: &str) -> (usize, String) {
    eventually(&format!("a connection to {to}"), PATIENCE, || {
        connect(from, to).map(|(_, pod, peer)| (pod, peer.to_string())).map_err(|e| e.to_string())
    })
}

pub(crate) fn refused(from: &str, to: &str) {
    eventually(&format!("a refusal at {to}"), PATIENCE, || match connect(from, to) {
        Err(e) if e.kind() == ErrorKind::ConnectionRefused => Ok(()),
        other => Err(format!("{other:?}")),
    });
}

/// The rules of a family without comments and counters.
fn saved(node: &str, stem: &str, variant: Variant) -> String {
    let suffix = if variant == Variant::Legacy { "-legacy-save" } else { "-nft-save" };
    let text = net::command(node, &format!("{stem}{suffix}"));
    let lines = text.lines().filter(|l| !l.starts_with('#'));
    lines.map(|line| line.split(" [").next().unwrap().to_owned() + "\n").collect()
}

/// Those of both.
pub(crate) fn tables(net: &Net, variant: Variant) -> String {
    ["iptables", "ip6tables"].map(|stem| saved(&net.node, stem, variant)).concat()
}

/// The proxy's chains and jumps among them. `iptables-save` lists chains in order of creation, and the order of jumps
/// in base chains is irrelevant; the rules of our own chains are in order.
pub(crate) fn ours(node: &str, variant: Variant) -> Vec<String> {
    let mut out = Vec::new();
    for stem in ["iptables", "ip6tables"] {
        let (text, mut table) = (saved(node, stem, variant), String::new());
        for line in text.lines() {
            if let Some(name) = line.strip_prefix('*') {
                name.clone_into(&mut table);
                continue;
            }
            let rule = line.strip_prefix("-A ");
            let chain = rule.unwrap_or(line).split(' ').next().unwrap().to_owned();
            let jump = ["INPUT", "OUTPUT", "FORWARD", "PREROUTING", "POSTROUTING"].contains(&chain.as_str());
            if chain.trim_start_matches(':').starts_with("KUBE-") || (jump && line.contains("KUBE-")) {
                let key =
                    (stem, table.clone(), rule.is_some(), chain, if jump { line.to_owned() } else { String::new() });
                out.push((key, format!("{stem} {table} {line}")));
            }
        }
    }
    out.sort_by(|(a, _), (b, _)| a.cmp(b));
    out.into_iter().map(|(_, line)| line).collect()
}

/// Only the repair under test runs during a test, so that omissions of the main path are noticed.
const NEVER: Duration = Duration::from_secs(3600);

pub(crate) fn config(variant: Variant, record: &std::path::Path) -> Config {
    Config {
        node_name: "n1".to_owned(),
        node_ips: [NODE_IP, NODE_IP6].map(|ip| ip.parse().unwrap()).into(),
        cluster_cidrs: ["10.180.0.0/16", "fd00:10:180::/64"].map(|c| Cidr::parse(c).unwrap()).into(),
        sync_period: NEVER,
        repairs: repairs("nft-check=off"),
        variant,
        table_snapshot: record.to_owned(),
        ..Config::default()
    }
}

/// These periodic repairs, with main paths that are off.
pub(crate) fn repairs(words: &str) -> Repairs {
    Repairs::parse(words).unwrap()
}

/// With a periodic sync: for tests of retries and of health, and on legacy, where nothing else sees changes of others.
pub(crate) fn periodic(config: Config) -> Config {
    Config { sync_period: Duration::from_secs(2), ..config }
}

/// The rules of a fresh start with these objects, in a namespace that has seen nothing else.
pub(crate) fn fresh(api: &Api, config: &Config) -> Vec<String> {
    let node = Bare::new();
    let dir = tempfile::tempdir().unwrap();
    let config = Config { table_snapshot: dir.path().join("before.json"), ..config.clone() };
    let proxy = Proxy::start_with(&node.0, None, api, &config);
    eventually("a fresh start", PATIENCE, || {
        let page = net::try_get(&node.0, "127.0.0.1:10249", "/metrics").map_err(|e| e.to_string())?;
        let synced = |family: &str| {
            let start = format!("kubeproxy_sync_full_proxy_rules_duration_seconds_count{{ip_family=\"{family}\"}} ");
            page.lines().any(|line| line.strip_prefix(&start).is_some_and(|count| count != "0"))
        };
        if synced("IPv4") && synced("IPv6") { Ok(()) } else { Err("it has not written all".to_owned()) }
    });
    let rules = ours(&node.0, config.variant);
    proxy.stop();
    rules
}

/// The first lines that only one of both has.
fn first_differences(is: &[String], wanted: &[String]) -> String {
    let count = |lines: &[String], one: &String| lines.iter().filter(|line| *line == one).count();
    let only = |these: &[String], others: &[String], sign: &str| -> Vec<String> {
        let more = these.iter().filter(|line| count(these, line) > count(others, line));
        more.take(5).map(|line| format!("{sign} {line}")).collect()
    };
    let mut lines = only(is, wanted, "+");
    lines.extend(only(wanted, is, "-"));
    if lines.is_empty() {
        format!("other order or copies: {} lines, {}", is.len(), wanted.len())
    } else {
        lines.join("\n")
    }
}

/// The kernel has the rules of a fresh start, whatever the proxy thinks.
pub(crate) fn holds(node: &str, variant: Variant, wanted: &[String]) {
    eventually("the rules of a fresh start", PATIENCE, || match ours(node, variant) {
        same if same == wanted => Ok(()),
        other => Err(first_differences(&other, wanted)),
    });
}

pub(crate) fn as_intended(api: &Api, config: &Config, net: &Net) {
    holds(&net.node, config.variant, &fresh(api, config));
}

pub(crate) fn service(name: &str, ip: &str, extra: &Value) -> Value {
    let mut object = json!({
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"type": "NodePort", "clusterIP": ip, "ports": [{"port": 80, "protocol": "TCP", "targetPort": 8080}]}
    });
    for (key, value) in extra.as_object().into_iter().flatten() {
        object["spec"][key] = value.clone();
    }
    object
}

pub(crate) fn slice(service: &str, pods: &[usize]) -> Value {
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

/// The slice's twin for a service with addresses of both families.
pub(crate) fn slice6(service: &str, pods: &[usize]) -> Value {
    let mut object = slice(service, pods);
    object["metadata"]["name"] = json!(format!("{service}-6"));
    object["addressType"] = json!("IPv6");
    for (endpoint, pod) in object["endpoints"].as_array_mut().unwrap().iter_mut().zip(pods) {
        endpoint["addresses"] = json!([POD_IPS6[*pod]]);
    }
    object
}

pub(crate) fn node_port(port: u16) -> Value {
    json!({"ports": [{"port": 80, "protocol": "TCP", "targetPort": 8080, "nodePort": port}]})
}
