//! The controllers together, against an API server in memory.

use std::time::Duration;

use http::Method;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Pod, ReplicationController, Service};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::{sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use super::{Config, fake_api::FakeApi, run};

mod addresses;
mod custom_types;
mod deployments;
mod faults;
mod horizontal_pod_autoscalers;
mod jobs;
mod load_balancers;
mod local_path;
mod names;
mod resource_claims;
mod stateful_and_daemon_sets;
mod steps;
mod tokens;
mod visits;
mod volumes;

async fn put<K>(api: &Api<K>, value: Value) -> K
where
    K: kube::Resource + Serialize + DeserializeOwned + Clone + std::fmt::Debug,
{
    api.create(&PostParams::default(), &serde_json::from_value(value).unwrap()).await.unwrap()
}

struct Bed {
    fake: FakeApi,
    client: Client,
    stop: CancellationToken,
    running: JoinHandle<Result<(), super::Error>>,
}

impl Bed {
    async fn new(config: Config) -> Self {
        let fake = FakeApi::new();
        let (client, stop) = (fake.user(), CancellationToken::new());
        put(&Api::<Namespace>::all(client.clone()), json!({"metadata": {"name": "default"}})).await;
        let running = tokio::spawn(run(fake.client(), config, stop.clone()));
        Self { fake, client, stop, running }
    }

    /// Ends the controllers wherever they are, and starts others.
    async fn restart(&mut self, config: Config) {
        self.running.abort();
        self.stop.cancel();
        let _ = (&mut self.running).await;
        self.stop = CancellationToken::new();
        self.running = tokio::spawn(run(self.fake.client(), config, self.stop.clone()));
    }

    fn api<K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), "default")
    }

    async fn rc(&self, replicas: i32) -> ReplicationController {
        put(
            &self.api(),
            json!({"metadata": {"name": "web"}, "spec": {"replicas": replicas, "selector": {"app": "web"},
                "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c"}]}}}}),
        )
        .await
    }

    async fn end(self) {
        self.stop.cancel();
        tokio::time::timeout(Duration::from_secs(5), self.running).await.unwrap().unwrap().unwrap();
    }
}

fn events(fake: &FakeApi, reason: &str) -> Vec<Value> {
    fake.all("events").into_iter().filter(|e| e["reason"] == reason).collect()
}

#[tokio::test]
async fn a_replication_controller_keeps_its_replicas_and_never_exceeds_them() {
    let bed = Bed::new(Config::default()).await;
    bed.rc(20).await;
    bed.fake.until("pods", "20 pods", |p| p.len() == 20).await;
    bed.fake.until("replicationcontrollers", "status", |r| r[0]["status"]["replicas"] == 20).await;
    assert_eq!(bed.fake.requests(Method::POST, "pods"), 20);
    // From the tenth on they are one event.
    let combined = |e: &[Value]| {
        let is_created = |e: &&Value| e["reason"] == "SuccessfulCreate";
        let counts = e.iter().filter(is_created).map(|e| e["count"].as_i64().unwrap_or(0));
        e.iter().filter(is_created).count() == 10 && counts.sum::<i64>() == 20
    };
    bed.fake.until("events", "events", combined).await;
    assert_eq!(events(&bed.fake, "SuccessfulCreate")[0]["source"]["component"], "replication-controller");

    // A deleted pod is replaced, a relabelled one released and replaced, an orphan adopted.
    let pods: Api<Pod> = bed.api();
    let names: Vec<String> =
        bed.fake.all("pods").iter().map(|p| p["metadata"]["name"].as_str().unwrap().to_owned()).collect();
    pods.delete(&names[0], &DeleteParams::default()).await.unwrap();
    bed.fake
        .until("pods", "a replacement", |p| p.len() == 20 && p.iter().all(|p| p["metadata"]["name"] != names[0]))
        .await;
    let patch = Patch::Merge(json!({"metadata": {"labels": {"app": "debug"}}}));
    pods.patch(&names[1], &PatchParams::default(), &patch).await.unwrap();
    let released = |p: &[Value]| {
        p.len() == 21
            && p.iter().any(|p| p["metadata"]["name"] == names[1] && p["metadata"]["ownerReferences"] == json!([]))
    };
    bed.fake.until("pods", "a release and a replacement", released).await;
    put(&pods, json!({"metadata": {"name": "orphan", "labels": {"app": "web"}}})).await;
    bed.fake.until("pods", "21 again", |p| p.len() == 21).await;
    bed.fake.until("events", "deleted", |e| e.iter().any(|e| e["reason"] == "SuccessfulDelete")).await;

    let api: Api<ReplicationController> = bed.api();
    let patch = Patch::Merge(json!({"spec": {"replicas": 3}}));
    api.patch("web", &PatchParams::default(), &patch).await.unwrap();
    bed.fake.until("pods", "3 and the released one", |p| p.len() == 4).await;
    bed.fake.until("replicationcontrollers", "status", |r| r[0]["status"]["replicas"] == 3).await;

    // The owner goes: the collector takes the pods, not the released one.
    api.delete("web", &DeleteParams::background()).await.unwrap();
    let left = bed.fake.until("pods", "the pods go", |p| p.len() == 1).await;
    assert_eq!(left[0]["metadata"]["name"], names[1]);
    bed.end().await;
}

#[tokio::test]
async fn a_refused_pod_is_created_once_and_reported() {
    let bed = Bed::new(Config::default()).await;
    bed.fake.refuse("pods", Some("exceeded quota"));
    bed.rc(50).await;
    let failed = |r: &[Value]| r[0]["status"]["conditions"][0]["reason"] == "FailedCreate";
    bed.fake.until("replicationcontrollers", "the condition", failed).await;
    bed.fake.until("events", "the event", |e| e.iter().any(|e| e["message"] == "Error creating: exceeded quota")).await;
    assert!(bed.fake.requests(Method::POST, "pods") < 15, "slow start");
    bed.fake.refuse("pods", None);
    bed.fake.until("pods", "50 pods", |p| p.len() == 50).await;
    bed.fake.until("replicationcontrollers", "no condition", |r| r[0]["status"]["conditions"].is_null()).await;
    bed.end().await;
}

#[tokio::test]
async fn foreground_and_orphan_deletion() {
    let bed = Bed::new(Config::default()).await;
    let api: Api<ReplicationController> = bed.api();
    for orphan in [false, true] {
        bed.rc(3).await;
        bed.fake.until("pods", "3 pods", |p| p.len() == 3).await;
        let params = if orphan { DeleteParams::orphan() } else { DeleteParams::foreground() };
        api.delete("web", &params).await.unwrap();
        bed.fake.until("replicationcontrollers", "it goes", <[Value]>::is_empty).await;
        let left = bed.fake.all("pods");
        assert_eq!(left.len(), if orphan { 3 } else { 0 });
        assert!(left.iter().all(|p| p["metadata"]["ownerReferences"] == json!([])));
    }
    bed.end().await;
}

/// A pod of the service `web`, on the node `n`.
fn serving(name: &str, address: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"app": "web"}}, "spec": {"nodeName": "n", "containers": []},
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
    bed.fake.until("endpointslices", "a placeholder", |s| s.len() == 1).await;
    let pods: Api<Pod> = bed.api();
    put(&pods, serving("early", "10.244.1.1")).await;
    let skipped = "Error updating Endpoint Slices for Service default/web: skipping Pod early for Service default/web: Node n Not Found";
    bed.fake.until("events", "whose node is not there", |e| e.iter().any(|e| e["message"] == skipped)).await;
    put(&Api::<Node>::all(bed.client.clone()), json!({"metadata": {"name": "n"}})).await;
    let has_one = |s: &[Value]| s[0]["endpoints"].as_array().is_some_and(|e| e.len() == 1);
    bed.fake.until("endpointslices", "its node is there", has_one).await;
    pods.delete("early", &DeleteParams::default().grace_period(0)).await.unwrap();
    for i in 0..150 {
        put(&pods, serving(&format!("p{i}"), &format!("10.244.0.{i}"))).await;
    }
    let count = |s: &[Value]| s.iter().map(|s| s["endpoints"].as_array().map_or(0, Vec::len)).sum::<usize>();
    let slices = bed.fake.until("endpointslices", "150 endpoints", |s| count(s) == 150).await;
    assert_eq!(slices.len(), 2, "packed, and never made twice");
    bed.fake
        .until("endpoints", "150 addresses", |e| {
            e.first().is_some_and(|e| e["subsets"][0]["addresses"].as_array().is_some_and(|a| a.len() == 150))
        })
        .await;
    // At rest nothing is written.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let writes = || bed.fake.requests(Method::PUT, "endpointslices") + bed.fake.requests(Method::PUT, "endpoints");
    let before = writes();
    let note = Patch::Merge(json!({"metadata": {"annotations": {"x": "y"}}}));
    pods.patch("p1", &PatchParams::default(), &note).await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(writes(), before);

    services.delete("web", &DeleteParams::default()).await.unwrap();
    bed.fake.until("endpointslices", "slices go", <[Value]>::is_empty).await;
    bed.fake.until("endpoints", "endpoints go", <[Value]>::is_empty).await;
    bed.end().await;
}

#[tokio::test]
async fn namespaces_are_furnished_and_emptied() {
    let root_ca = watch::Sender::new("PEM".to_owned());
    let bed = Bed::new(Config { root_ca: root_ca.subscribe(), ..Config::default() }).await;
    let namespaces: Api<Namespace> = Api::all(bed.client.clone());
    put(&namespaces, json!({"metadata": {"name": "shop"}})).await;
    let has = |n: &'static str| move |o: &[Value]| o.iter().any(|o| o["metadata"]["namespace"] == n);
    bed.fake.until("serviceaccounts", "the default account", has("shop")).await;
    bed.fake.until("configmaps", "the CA", |c| has("shop")(c) && c[0]["data"]["ca.crt"] == "PEM").await;
    root_ca.send_replace("NEW PEM".to_owned());
    bed.fake.until("configmaps", "the renewed CA", |c| c[0]["data"]["ca.crt"] == "NEW PEM").await;
    let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> = Api::namespaced(bed.client.clone(), "shop");
    accounts.delete("default", &DeleteParams::default()).await.unwrap();
    bed.fake.until("serviceaccounts", "it is made anew", has("shop")).await;

    let pods: Api<Pod> = Api::namespaced(bed.client.clone(), "shop");
    put(&pods, json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n", "containers": []}})).await;
    namespaces.delete("shop", &DeleteParams::default()).await.unwrap();
    let remains = |n: &[Value]| {
        n.iter().any(|n| {
            n["status"]["conditions"].as_array().is_some_and(|c| {
                c.iter().any(|c| c["message"] == "Some resources are remaining: pods. has 1 resource instances")
            })
        })
    };
    bed.fake.until("namespaces", "what remains", remains).await;
    assert!(has("shop")(&bed.fake.all("configmaps")), "what pods need stays until they are gone");
    pods.delete("p", &DeleteParams::default().grace_period(0)).await.unwrap();
    bed.fake.until("namespaces", "it goes", |n| n.len() == 1).await;
    assert!(!has("shop")(&bed.fake.all("configmaps")) && !has("shop")(&bed.fake.all("serviceaccounts")));
    bed.end().await;
}

#[tokio::test]
async fn nodes_get_pod_cidrs_and_unreachable_ones_are_tainted() {
    let grace = Duration::from_secs(1);
    let bed = Bed::new(Config { node_grace: grace, ..Config::default() }).await;
    let nodes: Api<Node> = Api::all(bed.client.clone());
    let ready = json!([{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}]);
    for name in ["n1", "n2"] {
        put(&nodes, json!({"metadata": {"name": name}, "status": {"conditions": ready}})).await;
    }
    let pods: Api<Pod> = bed.api();
    put(
        &pods,
        json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n1", "containers": []},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}),
    )
    .await;
    let ranges =
        |n: &[Value]| n.iter().map(|n| n["spec"]["podCIDR"].as_str().unwrap_or("").to_owned()).collect::<Vec<_>>();
    let both = bed.fake.until("nodes", "ranges", |n| ranges(n).iter().all(|r| !r.is_empty())).await;
    let mut both = ranges(&both);
    both.sort();
    assert_eq!(both, ["10.244.0.0/24", "10.244.1.0/24"]);

    // n2 goes on reporting, n1 falls silent: its pod is told unready, then driven out.
    let (api, stop) = (nodes.clone(), bed.stop.clone());
    let beat = tokio::spawn(async move {
        while !stop.is_cancelled() {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let condition =
                json!([{"type": "Ready", "status": "True", "lastHeartbeatTime": jiff::Timestamp::now().to_string()}]);
            let patch = Patch::Merge(json!({"status": {"conditions": condition}}));
            api.patch_status("n2", &PatchParams::default(), &patch).await.unwrap();
        }
    });
    let tainted = |n: &[Value]| {
        let taints = n[0]["spec"]["taints"].as_array().cloned().unwrap_or_default();
        taints.len() == 2 && taints.iter().all(|t| t["key"] == "node.kubernetes.io/unreachable")
    };
    let nodes_now = bed.fake.until("nodes", "taints", tainted).await;
    assert_eq!(nodes_now[0]["status"]["conditions"][0]["status"], "Unknown");
    assert!(nodes_now[1]["spec"]["taints"].is_null());
    let evicted = |p: &[Value]| {
        let conditions = p[0]["status"]["conditions"].as_array().cloned().unwrap_or_default();
        !p[0]["metadata"]["deletionTimestamp"].is_null()
            && conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "False")
            && conditions.iter().any(|c| c["reason"] == "DeletionByTaintManager")
    };
    bed.fake.until("pods", "eviction", evicted).await;

    // It is back: the taints go.
    let condition =
        json!([{"type": "Ready", "status": "True", "lastHeartbeatTime": jiff::Timestamp::now().to_string()}]);
    let patch = Patch::Merge(json!({"status": {"conditions": condition}}));
    nodes.patch_status("n1", &PatchParams::default(), &patch).await.unwrap();
    bed.fake.until("nodes", "no taints", |n| n[0]["spec"]["taints"] == json!([])).await;
    bed.end().await;
    beat.await.unwrap();
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
    bed.fake
        .until("events", "the event", |e| {
            e.iter().any(|e| e["reason"] == "OwnerRefInvalidNamespace" && e["message"] == *message)
        })
        .await;
    let owned = |c: &[Value]| c.iter().any(|c| c["metadata"]["name"] == "owned");
    bed.fake.until("configmaps", "it goes", |c| !owned(c)).await;
    bed.end().await;
}
