//! Runs the proxy's loop in the node's namespace, and waits for its effects.

use std::{
    io::ErrorKind,
    sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use windlass_kit::liveness::Heartbeats;
use windlass_proxy::{
    Config, Variant, inspect,
    model::{Cidr, Family},
    run,
};

use super::{
    api::Api,
    net::{self, NODE_IP, NODE_IP6, Net, POD_IPS, POD_IPS6, connect},
};

/// The legacy programs share the xtables lock of the host. A test that holds it for long locks this for writing, all
/// others that use those programs lock it for reading.
static XTABLES: RwLock<()> = RwLock::new(());

/// Excludes tests that hold the xtables lock, where this back end needs it.
pub(crate) fn lock_is_free(variant: Variant) -> Option<RwLockReadGuard<'static, ()>> {
    (variant == Variant::Legacy).then(|| XTABLES.read().unwrap_or_else(PoisonError::into_inner))
}

/// For the test that holds the xtables lock.
pub(crate) fn lock_is_mine() -> RwLockWriteGuard<'static, ()> {
    XTABLES.write().unwrap_or_else(PoisonError::into_inner)
}

/// A proxy with its own threads, all in the node's namespace.
pub(crate) struct Proxy {
    runtime: Option<tokio::runtime::Runtime>,
    shutdown: CancellationToken,
    task: tokio::task::JoinHandle<Result<(), windlass_proxy::Error>>,
}

impl Proxy {
    pub(crate) fn start(net: &Net, api: &Api, config: &Config) -> Self {
        let node = net.node.clone();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .on_thread_start(move || net::enter(&node))
            .build()
            .unwrap();
        let shutdown = CancellationToken::new();
        let (api, config, stop) = (api.clone(), config.clone().validated().unwrap(), shutdown.clone());
        let task = runtime.spawn(async move { run(api.client(), config, Heartbeats::default(), stop).await });
        Self { runtime: Some(runtime), shutdown, task }
    }

    /// Asks it to stop, and does not wait.
    pub(crate) fn ask_to_stop(&self) {
        self.shutdown.cancel();
    }

    pub(crate) fn stop(mut self) {
        self.ask_to_stop();
        let runtime = self.runtime.take().unwrap();
        let ended = runtime.block_on(self.task).unwrap();
        runtime.shutdown_timeout(Duration::from_secs(5));
        ended.unwrap();
    }
}

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
    eventually(&format!("a connection to {to}"), Duration::from_secs(10), || {
        connect(from, to).map(|(_, pod, peer)| (pod, peer.to_string())).map_err(|e| e.to_string())
    })
}

pub(crate) fn refused(from: &str, to: &str) {
    eventually(&format!("a refusal at {to}"), Duration::from_secs(10), || match connect(from, to) {
        Err(e) if e.kind() == ErrorKind::ConnectionRefused => Ok(()),
        other => Err(format!("{other:?}")),
    });
}

/// The rules of both families without comments and counters.
pub(crate) fn tables(net: &Net, variant: Variant) -> String {
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

pub(crate) fn config(variant: Variant, record: &std::path::Path) -> Config {
    Config {
        node_name: "n1".to_owned(),
        node_ips: [NODE_IP, NODE_IP6].map(|ip| ip.parse().unwrap()).into(),
        cluster_cidrs: ["10.180.0.0/16", "fd00:10:180::/64"].map(|c| Cidr::parse(c).unwrap()).into(),
        sync_period: Duration::from_secs(2),
        variant,
        table_snapshot: record.to_owned(),
        ..Config::default()
    }
}

pub(crate) fn differences(api: &Api, config: &Config, net: &Net) -> Vec<String> {
    let config =
        Config { command_prefix: ["ip", "netns", "exec", &net.node].map(str::to_owned).into(), ..config.clone() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = runtime.block_on(async { api.client() });
    let found = Family::BOTH.map(|family| runtime.block_on(inspect(&client, &config, family)).unwrap());
    found.iter().flat_map(|f| &f.differences).map(|d| format!("{d:?}")).collect()
}

pub(crate) fn as_intended(api: &Api, config: &Config, net: &Net) {
    eventually("the kernel holding what it should", Duration::from_secs(20), || match differences(api, config, net) {
        none if none.is_empty() => Ok(()),
        some => Err(some.join("\n")),
    });
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
