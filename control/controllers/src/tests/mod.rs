//! The controllers together, with the real API server over a store in memory.

use std::time::Duration;

use http::Method;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Pod, ReplicationController, Service};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio::{sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;
use windlass_kit::metrics::Registry;
use windlass_test_api::{TestApi, put};

use super::{Config, run};

mod addresses;
mod custom_types;
mod deployments;
mod faults;
mod horizontal_pod_autoscalers;
mod jobs;
mod load_balancers;
mod local_path;
mod names;
mod nodes;
mod resource_claims;
mod stateful_and_daemon_sets;
mod steps;
mod tokens;
mod visits;
mod volumes;

struct Bed {
    server: TestApi,
    client: Client,
    stop: CancellationToken,
    running: Vec<JoinHandle<Result<(), super::Error>>>,
}

/// Nobody reports for the nodes of these tests, which may take long: they fall silent only where that is the test.
fn with_quiet_nodes(config: Config) -> Config {
    const HOUR: Duration = Duration::from_secs(3600);
    let usual = Config::default();
    let longer = |given: Duration, usual: Duration| if given == usual { HOUR } else { given };
    Config {
        node_grace: longer(config.node_grace, usual.node_grace),
        node_startup_grace: longer(config.node_startup_grace, usual.node_startup_grace),
        ..config
    }
}

impl Bed {
    async fn new(config: Config) -> Self {
        let mut bed = Self::stopped().await;
        bed.start(config);
        bed
    }

    /// An API without controllers.
    async fn stopped() -> Self {
        let server = TestApi::new().await;
        let client = server.user();
        Self { server, client, stop: CancellationToken::new(), running: Vec::new() }
    }

    fn start(&mut self, config: Config) {
        self.running.push(tokio::spawn(run(self.server.client(), with_quiet_nodes(config), self.stop.clone())));
    }

    /// Starts controllers, and a scheduler. Where a fault ends them, all at once and wherever they are, others start.
    fn start_mortal(&mut self, config: impl Fn() -> Config + Send + Sync + 'static, schedules: bool) {
        let (server, stop) = (self.server.clone(), self.stop.clone());
        self.running.push(tokio::spawn(async move {
            loop {
                let (life, stop) = (server.reborn(), stop.child_token());
                let both = async {
                    let scheduler = windlass_scheduler::run(life.client(), Registry::default(), stop.clone());
                    let scheduler = async {
                        if schedules {
                            scheduler.await.unwrap()
                        }
                    };
                    tokio::join!(run(life.client(), with_quiet_nodes(config()), stop.clone()), scheduler).0
                };
                tokio::select! {
                    ended = both => return ended,
                    () = life.faults.ended() => stop.cancel(),
                }
            }
        }));
    }

    /// Ends the controllers wherever they are, and starts others.
    async fn restart(&mut self, config: Config) {
        self.stop.cancel();
        for running in self.running.drain(..) {
            running.abort();
            let _ = running.await;
        }
        self.stop = CancellationToken::new();
        self.start(config);
    }

    fn api<K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), "default")
    }

    async fn rc(&self, replicas: i32) -> ReplicationController {
        put(
            &self.api(),
            json!({"metadata": {"name": "web"}, "spec": {"replicas": replicas, "selector": {"app": "web"},
                "template": {"metadata": {"labels": {"app": "web"}},
                    "spec": {"containers": [{"name": "c", "image": "v1"}]}}}}),
        )
        .await
    }

    async fn end(self) {
        self.stop.cancel();
        for running in self.running {
            tokio::time::timeout(Duration::from_secs(5), running).await.unwrap().unwrap().unwrap();
        }
    }
}

fn events(api: &TestApi, reason: &str) -> Vec<Value> {
    api.all("events").into_iter().filter(|e| e["reason"] == reason).collect()
}

#[tokio::test]
async fn a_replication_controller_keeps_its_replicas_and_never_exceeds_them() {
    let bed = Bed::new(Config::default()).await;
    bed.rc(20).await;
    bed.server.until("pods", "20 pods", |p| p.len() == 20).await;
    bed.server.until("replicationcontrollers", "status", |r| r[0]["status"]["replicas"] == 20).await;
    assert_eq!(bed.server.requests(Method::POST, "pods"), 20);
    // From the tenth on they are one event.
    let combined = |e: &[Value]| {
        let is_created = |e: &&Value| e["reason"] == "SuccessfulCreate";
        let counts = e.iter().filter(is_created).map(|e| e["count"].as_i64().unwrap_or(0));
        e.iter().filter(is_created).count() == 10 && counts.sum::<i64>() == 20
    };
    bed.server.until("events", "events", combined).await;
    assert_eq!(events(&bed.server, "SuccessfulCreate")[0]["source"]["component"], "replication-controller");

    // A deleted pod is replaced, a relabelled one released and replaced, an orphan adopted.
    let pods: Api<Pod> = bed.api();
    let names: Vec<String> =
        bed.server.all("pods").iter().map(|p| p["metadata"]["name"].as_str().unwrap().to_owned()).collect();
    pods.delete(&names[0], &DeleteParams::default()).await.unwrap();
    bed.server
        .until("pods", "a replacement", |p| p.len() == 20 && p.iter().all(|p| p["metadata"]["name"] != names[0]))
        .await;
    let patch = Patch::Merge(json!({"metadata": {"labels": {"app": "debug"}}}));
    pods.patch(&names[1], &PatchParams::default(), &patch).await.unwrap();
    let released = |p: &[Value]| {
        p.len() == 21
            && p.iter().any(|p| p["metadata"]["name"] == names[1] && p["metadata"]["ownerReferences"].is_null())
    };
    bed.server.until("pods", "a release and a replacement", released).await;
    let containers = json!([{"name": "c", "image": "v1"}]);
    put(&pods, json!({"metadata": {"name": "orphan", "labels": {"app": "web"}}, "spec": {"containers": containers}}))
        .await;
    bed.server.until("pods", "21 again", |p| p.len() == 21).await;
    bed.server.until("events", "deleted", |e| e.iter().any(|e| e["reason"] == "SuccessfulDelete")).await;

    let api: Api<ReplicationController> = bed.api();
    let patch = Patch::Merge(json!({"spec": {"replicas": 3}}));
    api.patch("web", &PatchParams::default(), &patch).await.unwrap();
    bed.server.until("pods", "3 and the released one", |p| p.len() == 4).await;
    bed.server.until("replicationcontrollers", "status", |r| r[0]["status"]["replicas"] == 3).await;

    // The owner goes: the collector takes the pods, not the released one.
    api.delete("web", &DeleteParams::background()).await.unwrap();
    let left = bed.server.until("pods", "the pods go", |p| p.len() == 1).await;
    assert_eq!(left[0]["metadata"]["name"], names[1]);
    bed.end().await;
}

#[tokio::test]
async fn a_refused_pod_is_created_once_and_reported() {
    let bed = Bed::new(Config::default()).await;
    bed.server.refuse("pods", Some("exceeded quota"));
    bed.rc(50).await;
    let failed = |r: &[Value]| r[0]["status"]["conditions"][0]["reason"] == "FailedCreate";
    bed.server.until("replicationcontrollers", "the condition", failed).await;
    bed.server
        .until("events", "the event", |e| e.iter().any(|e| e["message"] == "Error creating: exceeded quota"))
        .await;
    assert!(bed.server.requests(Method::POST, "pods") < 15, "slow start");
    bed.server.refuse("pods", None);
    bed.server.until("pods", "50 pods", |p| p.len() == 50).await;
    bed.server.until("replicationcontrollers", "no condition", |r| r[0]["status"]["conditions"].is_null()).await;
    bed.end().await;
}

#[tokio::test]
async fn foreground_and_orphan_deletion() {
    let bed = Bed::new(Config::default()).await;
    let api: Api<ReplicationController> = bed.api();
    for orphan in [false, true] {
        bed.rc(3).await;
        bed.server.until("pods", "3 pods", |p| p.len() == 3).await;
        let params = if orphan { DeleteParams::orphan() } else { DeleteParams::foreground() };
        api.delete("web", &params).await.unwrap();
        bed.server.until("replicationcontrollers", "it goes", <[Value]>::is_empty).await;
        let left = bed.server.all("pods");
        assert_eq!(left.len(), if orphan { 3 } else { 0 });
        assert!(left.iter().all(|p| p["metadata"]["ownerReferences"].is_null()));
    }
    bed.end().await;
}

/// A pod of the service `web`, on the node `n`.
fn serving(name: &str, address: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"app": "web"}}, "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "v1"}]},
        "status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
            "conditions": [{"type": "Ready", "status": "True"}]}})
}

#[tokio::test]
async fn services_get_slices_and_endpoints() {
    let bed = Bed::new(Config::default()).await;
    let services: Api<Service> = bed.api();
    put(
        &services,
        json!({"metadata": {"name": "web"}, "spec": {"clusterIP": "10.96.0.9", "selector": {"app": "web"}, "ports": [{"port": 80}]}}),
    )
    .await;
    bed.server.until("endpointslices", "a placeholder", |s| s.len() == 1).await;
    let pods: Api<Pod> = bed.api();
    put(&pods, serving("early", "10.244.1.1")).await;
    let skipped = "Error updating Endpoint Slices for Service default/web: skipping Pod early for Service default/web: Node n Not Found";
    bed.server.until("events", "whose node is not there", |e| e.iter().any(|e| e["message"] == skipped)).await;
    put(&Api::<Node>::all(bed.client.clone()), json!({"metadata": {"name": "n"}})).await;
    let has_one = |s: &[Value]| s[0]["endpoints"].as_array().is_some_and(|e| e.len() == 1);
    bed.server.until("endpointslices", "its node is there", has_one).await;
    pods.delete("early", &DeleteParams::default().grace_period(0)).await.unwrap();
    for i in 0..150 {
        put(&pods, serving(&format!("p{i}"), &format!("10.244.0.{i}"))).await;
    }
    let count = |s: &[Value]| s.iter().map(|s| s["endpoints"].as_array().map_or(0, Vec::len)).sum::<usize>();
    let slices = bed.server.until("endpointslices", "150 endpoints", |s| count(s) == 150).await;
    assert_eq!(slices.len(), 2, "packed, and never made twice");
    bed.server
        .until("endpoints", "150 addresses", |e| {
            e.first().is_some_and(|e| e["subsets"][0]["addresses"].as_array().is_some_and(|a| a.len() == 150))
        })
        .await;
    // At rest nothing is written.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let writes = || bed.server.requests(Method::PUT, "endpointslices") + bed.server.requests(Method::PUT, "endpoints");
    let before = writes();
    let note = Patch::Merge(json!({"metadata": {"annotations": {"x": "y"}}}));
    pods.patch("p1", &PatchParams::default(), &note).await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(writes(), before);

    services.delete("web", &DeleteParams::default()).await.unwrap();
    bed.server.until("endpointslices", "slices go", <[Value]>::is_empty).await;
    bed.server.until("endpoints", "endpoints go", <[Value]>::is_empty).await;
    bed.end().await;
}

#[tokio::test]
async fn namespaces_are_furnished_and_emptied() {
    let root_ca = watch::Sender::new("PEM".to_owned());
    let bed = Bed::new(Config { root_ca: root_ca.subscribe(), ..Config::default() }).await;
    let namespaces: Api<Namespace> = Api::all(bed.client.clone());
    put(&namespaces, json!({"metadata": {"name": "shop"}})).await;
    let has = |n: &'static str| move |o: &[Value]| o.iter().any(|o| o["metadata"]["namespace"] == n);
    bed.server.until("serviceaccounts", "the default account", has("shop")).await;
    bed.server.until("configmaps", "the CA", |c| has("shop")(c) && c[0]["data"]["ca.crt"] == "PEM").await;
    root_ca.send_replace("NEW PEM".to_owned());
    bed.server.until("configmaps", "the renewed CA", |c| c[0]["data"]["ca.crt"] == "NEW PEM").await;
    let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> = Api::namespaced(bed.client.clone(), "shop");
    accounts.delete("default", &DeleteParams::default()).await.unwrap();
    bed.server.until("serviceaccounts", "it is made again", has("shop")).await;

    let pods: Api<Pod> = Api::namespaced(bed.client.clone(), "shop");
    put(
        &pods,
        json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "v1"}]}}),
    )
    .await;
    namespaces.delete("shop", &DeleteParams::default()).await.unwrap();
    let remains = |n: &[Value]| {
        n.iter().any(|n| {
            n["status"]["conditions"].as_array().is_some_and(|c| {
                c.iter().any(|c| c["message"] == "Some resources are remaining: pods. has 1 resource instances")
            })
        })
    };
    bed.server.until("namespaces", "what remains", remains).await;
    assert!(has("shop")(&bed.server.all("configmaps")), "what pods need stays until they are gone");
    pods.delete("p", &DeleteParams::default().grace_period(0)).await.unwrap();
    bed.server.until("namespaces", "it goes", |n| n.iter().all(|n| n["metadata"]["name"] != "shop")).await;
    assert!(!has("shop")(&bed.server.all("configmaps")) && !has("shop")(&bed.server.all("serviceaccounts")));
    bed.end().await;
}

#[tokio::test]
async fn nodes_get_pod_cidrs_and_unreachable_ones_are_tainted() {
    let grace = Duration::from_secs(1);
    let bed = Bed::new(Config { node_grace: grace, ..Config::default() }).await;
    let nodes: Api<Node> = Api::all(bed.client.clone());
    let ready = json!([{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}]);
    let pods: Api<Pod> = bed.api();
    // It is complete before its node can be silent. The usual tolerations are for five minutes.
    let at_once = |key: &str| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0});
    let tolerations = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"].map(at_once);
    put(
        &pods,
        json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n1", "tolerations": tolerations,
            "containers": [{"name": "c", "image": "v1"}]},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}),
    )
    .await;
    for name in ["n1", "n2"] {
        put(&nodes, json!({"metadata": {"name": name}, "status": {"conditions": ready}})).await;
    }
    let ranges =
        |n: &[Value]| n.iter().map(|n| n["spec"]["podCIDR"].as_str().unwrap_or("").to_owned()).collect::<Vec<_>>();
    let both = bed.server.until("nodes", "ranges", |n| ranges(n).iter().all(|r| !r.is_empty())).await;
    let mut both = ranges(&both);
    both.sort();
    assert_eq!(both, ["10.244.0.0/24", "10.244.1.0/24"]);

    let report = |name: &'static str| {
        let (api, stop) = (nodes.clone(), bed.stop.clone());
        tokio::spawn(async move {
            while !stop.is_cancelled() {
                tokio::time::sleep(Duration::from_millis(50)).await;
                let now = jiff::Timestamp::now().to_string();
                let condition = json!([{"type": "Ready", "status": "True", "lastHeartbeatTime": now}]);
                let patch = Patch::Merge(json!({"status": {"conditions": condition}}));
                api.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
            }
        })
    };
    // n2 reports, n1 is silent: its pod is marked unready, then evicted.
    let second = report("n2");
    let tainted = |n: &[Value]| {
        let taints = n[0]["spec"]["taints"].as_array().cloned().unwrap_or_default();
        let is_silent = taints.len() == 2 && taints.iter().all(|t| t["key"] == "node.kubernetes.io/unreachable");
        // On a busy machine the other one may seem silent, too, until it reports again.
        is_silent && n[1]["spec"]["taints"].is_null()
    };
    let nodes_now = bed.server.until("nodes", "taints", tainted).await;
    assert_eq!(nodes_now[0]["status"]["conditions"][0]["status"], "Unknown");
    let evicted = |p: &[Value]| {
        let conditions = p[0]["status"]["conditions"].as_array().cloned().unwrap_or_default();
        !p[0]["metadata"]["deletionTimestamp"].is_null()
            && conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "False")
            && conditions.iter().any(|c| c["reason"] == "DeletionByTaintManager")
    };
    bed.server.until("pods", "eviction", evicted).await;

    // It is back: the taints go.
    let first = report("n1");
    bed.server.until("nodes", "no taints", |n| n[0]["spec"]["taints"].is_null()).await;
    bed.end().await;
    first.await.unwrap();
    second.await.unwrap();
}

#[tokio::test]
async fn an_owner_in_another_namespace_is_none() {
    let bed = Bed::new(Config::default()).await;
    let namespaces: Api<Namespace> = Api::all(bed.client.clone());
    put(&namespaces, json!({"metadata": {"name": "shop"}})).await;
    let owner: ConfigMap = put(&bed.api(), json!({"metadata": {"name": "owner"}})).await;
    let uid = owner.metadata.uid.unwrap();
    let reference = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid}]);
    let elsewhere: Api<ConfigMap> = Api::namespaced(bed.client.clone(), "shop");
    put(&elsewhere, json!({"metadata": {"name": "owned", "ownerReferences": reference}})).await;
    let message = format!(
        "ownerRef [v1/ConfigMap, namespace: shop, name: owner, uid: {uid}] does not exist in namespace \"shop\""
    );
    bed.server
        .until("events", "the event", |e| {
            e.iter().any(|e| e["reason"] == "OwnerRefInvalidNamespace" && e["message"] == *message)
        })
        .await;
    let owned = |c: &[Value]| c.iter().any(|c| c["metadata"]["name"] == "owned");
    bed.server.until("configmaps", "it goes", |c| !owned(c)).await;
    bed.end().await;
}
