//! The loop, with the real API server over a store in memory.

use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    scheduling::v1::PriorityClass,
    storage::v1::StorageClass,
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use tokio_util::sync::CancellationToken;
use windlass_test_api::{TestApi, put};

use super::*;
use crate::messages;

fn wants(name: &str, cpu: &str) -> Value {
    let container = json!({"name": "c", "image": "v1", "resources": {"requests": {"cpu": cpu}}});
    json!({"metadata": {"name": name}, "spec": {"containers": [container]}})
}

async fn has_node(server: &TestApi, cpu: &str, pods: &str) {
    let status = json!({"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": pods}});
    let nodes: Api<Node> = Api::all(server.user());
    put(&nodes, json!({"metadata": {"name": "n1"}, "status": status})).await;
    // As the node lifecycle controller does when it is ready.
    let ready = Patch::Merge(json!({"spec": {"taints": null}}));
    nodes.patch("n1", &PatchParams::default(), &ready).await.unwrap();
}

fn condition<'a>(pod: &'a Value, kind: &str) -> &'a Value {
    pod["status"]["conditions"]
        .as_array()
        .and_then(|all| all.iter().find(|condition| condition["type"] == kind))
        .unwrap_or(&Value::Null)
}

#[tokio::test]
async fn pods_are_bound_or_reported_unschedulable() {
    let (server, stop) = (TestApi::new().await, CancellationToken::new());
    let running = tokio::spawn(crate::run(server.client(), Registry::default(), stop.clone()));
    let pods: Api<Pod> = Api::namespaced(server.user(), "default");
    put(&pods, wants("early", "10m")).await;
    let reported = |p: &[Value]| condition(&p[0], "PodScheduled")["message"] == messages::NO_NODES;
    server.until("pods", "the condition", reported).await;

    has_node(&server, "64", "250").await;
    for i in 0..200 {
        put(&pods, wants(&format!("p{i}"), "10m")).await;
    }
    server.until("pods", "all bound", |p| p.iter().all(|p| p["spec"]["nodeName"] == "n1")).await;
    let told = |e: &[Value]| {
        e.iter().any(|e| {
            e["message"] == "Successfully assigned default/p7 to n1" && e["source"]["component"] == "default-scheduler"
        })
    };
    server.until("events", "the event", told).await;
    stop.cancel();
    running.await.unwrap().unwrap();
}

/// A pod that is deleted before its binding arrives is assigned to no node, and nobody is told so.
#[tokio::test]
async fn a_pod_that_is_gone_is_not_assigned() {
    let server = TestApi::new().await;
    let writer = crate::writer::Writer::new(server.client());
    let info = std::sync::Arc::new(PodInfo::of(&pod("gone", "10m")));
    let decision = Decision::Bind { node: "n1".to_owned() };
    let outcome = writer.execute((info, std::sync::Arc::default(), decision)).await;
    assert!(matches!(outcome, crate::writer::Outcome::Done));
    drop(writer);
    tokio::task::yield_now().await;
    assert_eq!(server.all("events"), Vec::<Value>::new());
}

/// The answer to a binding is lost: the pod keeps its place, and nobody says that it has none.
#[tokio::test]
async fn a_pod_that_is_bound_keeps_its_place() {
    let (server, stop) = (TestApi::new().await, CancellationToken::new());
    has_node(&server, "1", "110").await;
    server.lose_answer(http::Method::POST, "podsbinding");
    let running = tokio::spawn(crate::run(server.client(), Registry::default(), stop.clone()));
    let pods: Api<Pod> = Api::namespaced(server.user(), "default");
    put(&pods, wants("first", "1")).await;
    server.until("pods", "bound", |p| p[0]["spec"]["nodeName"] == "n1").await;
    put(&pods, wants("second", "1")).await;
    let all = server.until("pods", "no room", |p| condition(&p[1], "PodScheduled")["reason"] == "Unschedulable").await;
    assert_eq!(condition(&all[0], "PodScheduled")["status"], "True");
    let failed = |e: &Value| e["reason"] == "FailedScheduling" && e["involvedObject"]["name"] == "first";
    assert!(!server.all("events").iter().any(failed));
    stop.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_pod_is_preempted_and_its_place_taken() {
    let (server, stop) = (TestApi::new().await, CancellationToken::new());
    has_node(&server, "1", "110").await;
    put(&Api::<PriorityClass>::all(server.user()), json!({"metadata": {"name": "high"}, "value": 1000})).await;
    let running = tokio::spawn(crate::run(server.client(), Registry::default(), stop.clone()));
    let pods: Api<Pod> = Api::namespaced(server.user(), "default");
    put(&pods, wants("low", "1")).await;
    server.until("pods", "bound", |p| p[0]["spec"]["nodeName"] == "n1").await;
    let mut preemptor = wants("high", "1");
    preemptor["spec"]["priorityClassName"] = json!("high");
    let preemptor = put(&pods, preemptor).await;
    // Sorted by name: high, low.
    let all = server.until("pods", "preempted", |p| !p[1]["metadata"]["deletionTimestamp"].is_null()).await;
    let target = condition(&all[1], "DisruptionTarget");
    assert_eq!(
        (&target["reason"], &target["message"]),
        (&json!("PreemptionByScheduler"), &json!("default-scheduler: preempting to accommodate a higher priority pod"))
    );
    let all = server.until("pods", "nominated", |p| p[0]["status"]["nominatedNodeName"] == "n1").await;
    assert_eq!(condition(&all[0], "PodScheduled")["message"], "0/1 nodes are available: 1 Insufficient cpu.");
    let text = format!("Preempted by pod {} on node n1", preemptor.metadata.uid.unwrap());
    let told = |e: &[Value]| {
        e.iter().any(|e| e["reason"] == "Preempted" && e["message"] == text && e["involvedObject"]["name"] == "low")
    };
    server.until("events", "the event", told).await;
    // As the node does when the containers are gone.
    pods.delete("low", &DeleteParams::default().grace_period(0)).await.unwrap();
    server.until("pods", "bound", |p| p.len() == 1 && p[0]["spec"]["nodeName"] == "n1").await;
    stop.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn volumes_are_bound_before_the_pod() {
    let (server, stop) = (TestApi::new().await, CancellationToken::new());
    let client = server.user();
    has_node(&server, "1", "110").await;
    let class = json!({"metadata": {"name": "wait"}, "provisioner": "example.com/made",
        "volumeBindingMode": "WaitForFirstConsumer"});
    put(&Api::<StorageClass>::all(client.clone()), class).await;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), "default");
    let claim = |name: &str, size: &str| {
        json!({"metadata": {"name": name}, "spec": {"storageClassName": "wait",
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}})
    };
    let there = put(&claims, claim("there", "1Gi")).await;
    put(&claims, claim("made", "2Gi")).await;
    let spec = json!({"storageClassName": "wait", "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
        "hostPath": {"path": "/tmp/v"}});
    let volume = json!({"metadata": {"name": "v"}, "spec": spec, "status": {"phase": "Available"}});
    put(&Api::<PersistentVolume>::all(client.clone()), volume).await;
    let running = tokio::spawn(crate::run(server.client(), Registry::default(), stop.clone()));
    let mut pod = wants("p", "100m");
    pod["spec"]["volumes"] = json!([{"name": "a", "persistentVolumeClaim": {"claimName": "there"}},
        {"name": "b", "persistentVolumeClaim": {"claimName": "made"}}]);
    put(&Api::<Pod>::namespaced(client.clone(), "default"), pod).await;
    let selected = |claim: &Value| claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] == "n1";
    server.until("persistentvolumeclaims", "the node", |claims| claims.iter().any(selected)).await;
    let given = server.until("persistentvolumes", "the claim", |v| !v[0]["spec"]["claimRef"].is_null()).await;
    assert_eq!(given[0]["spec"]["claimRef"]["uid"], json!(there.metadata.uid));
    assert_eq!(given[0]["metadata"]["annotations"]["pv.kubernetes.io/bound-by-controller"], "yes");
    assert!(server.all("pods")[0]["spec"]["nodeName"].is_null());
    // As the volume controller and the provisioner do.
    for (name, volume) in [("there", "v"), ("made", "new")] {
        let given = json!({"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
            "spec": {"volumeName": volume}});
        claims.patch(name, &PatchParams::default(), &Patch::Merge(given)).await.unwrap();
        let bound = Patch::Merge(json!({"status": {"phase": "Bound"}}));
        claims.patch_status(name, &PatchParams::default(), &bound).await.unwrap();
    }
    server.until("pods", "bound", |p| p[0]["spec"]["nodeName"] == "n1").await;
    stop.cancel();
    running.await.unwrap().unwrap();
}
