//! StatefulSets and DaemonSets through the API itself, which defaults and validates what their controllers write.

use std::time::Duration;

use k8s_openapi::api::{
    apps::v1::{ControllerRevision, DaemonSet, StatefulSet},
    core::v1::{Event, Node, PersistentVolumeClaim, Pod},
};
use kube::{
    Api as KubeApi,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use super::cluster::Cluster;

fn names(all: &[Value]) -> Vec<&str> {
    all.iter().map(|one| one["metadata"]["name"].as_str().unwrap()).collect()
}

/// What a node says of pods that run.
async fn run(cluster: &Cluster, pods: &[Value]) {
    for name in names(pods) {
        let conditions = json!([{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        let patch = json!({"status": {"phase": "Running", "conditions": conditions}});
        let pods = cluster.api::<Pod>();
        // It may be replaced by now.
        let _ = pods.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await;
    }
}

fn is_at_rest(before: &[Value], after: &[Value]) -> bool {
    let versions = |all: &[Value]| all.iter().map(|one| one["metadata"]["resourceVersion"].clone()).collect::<Vec<_>>();
    versions(before) == versions(after)
}

async fn until_ready(cluster: &Cluster, image: &str, replicas: i64) {
    let of_image = |pods: &[Value]| pods.iter().filter(|pod| pod["spec"]["containers"][0]["image"] == image).count();
    for _ in 0..100 {
        let pods = cluster.until::<Pod>("a pod", |pods| !pods.is_empty()).await;
        run(cluster, &pods).await;
        let sets = cluster.until::<StatefulSet>("the set", |sets| sets.len() == 1).await;
        let status = &sets[0]["status"];
        if of_image(&pods) == usize::try_from(replicas).unwrap()
            && status["readyReplicas"] == replicas
            && status["updatedReplicas"] == replicas
            && status["currentRevision"] == status["updateRevision"]
            && status["observedGeneration"] == sets[0]["metadata"]["generation"]
        {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("never ready: {:#?}", cluster.until::<StatefulSet>("the set", |_| true).await);
}

#[tokio::test]
async fn a_stateful_set_survives_the_end_of_its_controller() {
    let mut cluster = Cluster::new().await;
    let template = |image: &str| json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": image}]}});
    let claim = json!({"metadata": {"name": "www"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}}}});
    cluster
        .create::<StatefulSet>(json!({"metadata": {"name": "web"}, "spec": {"replicas": 3, "serviceName": "nginx",
            "selector": {"matchLabels": {"app": "web"}}, "template": template("a"), "volumeClaimTemplates": [claim]}}))
        .await;
    cluster.until::<Pod>("the first pod", |pods| pods.len() == 1).await;
    cluster.restart();
    until_ready(&cluster, "a", 3).await;
    let pods = cluster.until::<Pod>("three pods", |pods| pods.len() == 3).await;
    assert_eq!(names(&pods), ["web-0", "web-1", "web-2"]);
    assert_eq!(pods[2]["metadata"]["labels"]["apps.kubernetes.io/pod-index"], "2");
    assert_eq!(pods[2]["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"], "www-web-2");
    let claims = cluster.until::<PersistentVolumeClaim>("claims", |claims| claims.len() == 3).await;
    assert_eq!(claims[0]["metadata"]["labels"], json!({"app": "web"}));

    let sets = cluster.api::<StatefulSet>();
    let patch = Patch::Merge(json!({"spec": {"template": template("b")}}));
    sets.patch("web", &PatchParams::default(), &patch).await.unwrap();
    cluster.until::<ControllerRevision>("its revision", |revisions| revisions.len() == 2).await;
    cluster.restart();
    until_ready(&cluster, "b", 3).await;
    assert_eq!(cluster.until::<ControllerRevision>("revisions", |_| true).await.len(), 2);

    // At rest nothing is written.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let before = cluster.until::<StatefulSet>("the set", |_| true).await;
    let revisions = cluster.until::<ControllerRevision>("revisions", |_| true).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(is_at_rest(&before, &cluster.until::<StatefulSet>("the set", |_| true).await));
    assert!(is_at_rest(&revisions, &cluster.until::<ControllerRevision>("revisions", |_| true).await));
    let text = "Create Pod web-2 in StatefulSet web successful";
    cluster.until::<Event>(text, |events| events.iter().any(|event| event["message"] == text)).await;
    cluster.end().await;
}

#[tokio::test]
async fn a_daemon_set_follows_its_nodes() {
    let mut cluster = Cluster::new().await;
    let nodes: KubeApi<Node> = KubeApi::all(cluster.client.clone());
    let add = |name: &'static str| {
        let nodes = nodes.clone();
        async move {
            let node = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
            nodes.create(&PostParams::default(), &node).await.unwrap();
            let ready = Patch::Merge(json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}));
            nodes.patch_status(name, &PatchParams::default(), &ready).await.unwrap();
        }
    };
    add("n1").await;
    cluster
        .create::<DaemonSet>(json!({"metadata": {"name": "log"}, "spec": {
            "selector": {"matchLabels": {"app": "log"}}, "template": {"metadata": {"labels": {"app": "log"}},
                "spec": {"containers": [{"name": "c", "image": "a"}]}}}}))
        .await;
    // As soon as its node is ready.
    cluster.until::<Pod>("a pod", |pods| pods.len() == 1).await;
    add("n2").await;
    let pods = cluster.until::<Pod>("two pods", |pods| pods.len() == 2).await;
    assert_eq!(pods[0]["metadata"]["labels"]["pod-template-generation"], "1");
    run(&cluster, &pods).await;
    let available = |sets: &[Value]| sets[0]["status"]["numberAvailable"] == 2;
    cluster.until::<DaemonSet>("two available", available).await;
    cluster.restart();
    let patch = Patch::Merge(json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "b"}]}}}}));
    cluster.api::<DaemonSet>().patch("log", &PatchParams::default(), &patch).await.unwrap();
    for count in 1..=2 {
        let new = |pods: &[Value]| {
            pods.len() == 2 && pods.iter().filter(|p| p["spec"]["containers"][0]["image"] == "b").count() == count
        };
        let pods = cluster.until::<Pod>("new pods", new).await;
        run(&cluster, &pods).await;
    }
    cluster.until::<DaemonSet>("two available", available).await;
    nodes.delete("n1", &kube::api::DeleteParams::default()).await.unwrap();
    cluster.until::<Pod>("one pod", |pods| pods.len() == 1).await;
    cluster.until::<DaemonSet>("one node", |sets| sets[0]["status"]["desiredNumberScheduled"] == 1).await;
    cluster.end().await;
}
