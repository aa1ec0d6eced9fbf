//! A rollout against the real API: what it validates, counts and leaves out is what the controllers expect.

use std::time::Duration;

use k8s_openapi::api::{
    apps::v1::{Deployment, ReplicaSet},
    core::v1::{Event, Pod},
};
use kube::{
    ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

use super::*;

/// Gives pods that have none a status as of a node, until it is aborted.
fn kubelet(pods: KubeApi<Pod>) -> JoinHandle<()> {
    let ready = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True",
        "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
    tokio::spawn(async move {
        loop {
            let all = pods.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default();
            for pod in all.iter().filter(|p| p.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Pending")) {
                let _ = pods.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(&ready)).await;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
}

/// Waits for the end of a rollout.
async fn rolled_out(deployments: &KubeApi<Deployment>, image: &str, replicas: i32) -> Deployment {
    for _ in 0..1000 {
        let found = deployments.get("web").await.unwrap();
        let (spec, status) = (found.spec.as_ref().unwrap(), found.status.clone().unwrap_or_default());
        let has_image = spec.template.spec.as_ref().unwrap().containers[0].image.as_deref() == Some(image);
        let counts = [status.replicas, status.updated_replicas, status.available_replicas];
        if has_image
            && status.observed_generation == found.metadata.generation
            && counts.iter().all(|count| *count == Some(replicas))
            && status.conditions.iter().flatten().any(|c| c.reason.as_deref() == Some("NewReplicaSetAvailable"))
        {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("no rollout of {image}: {:#?}", deployments.get("web").await.unwrap().status);
}

#[tokio::test]
async fn a_deployment_is_rolled_out_forth_and_back() {
    let dir = tempfile::tempdir().unwrap();
    let plane = ControlPlane::open(config(dir.path())).await.unwrap();
    let stop = CancellationToken::new();
    let client = plane.client(User::internal("system:kube-controller-manager"));
    let running =
        tokio::spawn(windlass_controllers::run(client, windlass_controllers::Config::default(), stop.clone()));
    let client = plane.client(User::internal("t"));
    let deployments: KubeApi<Deployment> = KubeApi::namespaced(client.clone(), "default");
    let sets: KubeApi<ReplicaSet> = KubeApi::namespaced(client.clone(), "default");
    let pods: KubeApi<Pod> = KubeApi::namespaced(client.clone(), "default");
    let kubelet = kubelet(pods.clone());

    let web = json!({
        "metadata": {"name": "web", "annotations": {"kubernetes.io/change-cause": "first"}},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "v1"}]}},
        },
    });
    deployments.create(&PostParams::default(), &serde_json::from_value(web).unwrap()).await.unwrap();
    let first = rolled_out(&deployments, "v1", 3).await;
    assert_eq!(first.annotations()["deployment.kubernetes.io/revision"], "1");
    let set = sets.list(&ListParams::default()).await.unwrap().items.remove(0);
    let image = |image: &str| {
        Patch::Strategic(json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": image}]}}}}))
    };
    deployments.patch("web", &PatchParams::default(), &image("v2")).await.unwrap();
    rolled_out(&deployments, "v2", 3).await;
    deployments.patch("web", &PatchParams::default(), &image("v1")).await.unwrap();
    let back = rolled_out(&deployments, "v1", 3).await;
    assert_eq!(back.annotations()["deployment.kubernetes.io/revision"], "3");
    let newest = sets.get(&set.name_any()).await.unwrap();
    assert_eq!(newest.annotations()["deployment.kubernetes.io/revision-history"], "1");
    assert_eq!(newest.annotations()["kubernetes.io/change-cause"], "first");
    let status = newest.status.unwrap();
    assert_eq!((status.available_replicas, status.terminating_replicas), (Some(3), Some(0)));
    assert_eq!(sets.list(&ListParams::default()).await.unwrap().items.len(), 2, "one for each template");

    let scaled = Patch::Merge(json!({"spec": {"replicas": 1}}));
    deployments.patch_scale("web", &PatchParams::default(), &scaled).await.unwrap();
    rolled_out(&deployments, "v1", 1).await;
    let events: KubeApi<Event> = KubeApi::namespaced(client.clone(), "default");
    let wanted = format!("Scaled down replica set {} from 3 to 1", set.name_any());
    // After this number of scalings their events are combined.
    let is_wanted = |event: &Event| event.message.as_deref().is_some_and(|message| message.ends_with(&*wanted));
    for _ in 0..500 {
        let all = events.list(&ListParams::default()).await.unwrap().items;
        if all.iter().any(is_wanted) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let all = events.list(&ListParams::default()).await.unwrap().items;
    let told = all.iter().find(|event| is_wanted(event)).expect("an event about the scaling");
    assert_eq!(told.source.as_ref().unwrap().component.as_deref(), Some("deployment-controller"));

    // At rest, nothing is written.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let versions = async || {
        let mut all: Vec<Option<String>> = vec![deployments.get("web").await.unwrap().resource_version()];
        all.extend(sets.list(&ListParams::default()).await.unwrap().items.iter().map(|set| set.resource_version()));
        all
    };
    let before = versions().await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(before, versions().await);

    deployments.delete("web", &DeleteParams::foreground()).await.unwrap();
    for _ in 0..500 {
        if deployments.get_opt("web").await.unwrap().is_none() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(deployments.get_opt("web").await.unwrap().is_none(), "it ends after its pods");
    assert!(pods.list(&ListParams::default()).await.unwrap().items.is_empty());
    kubelet.abort();
    stop.cancel();
    running.await.unwrap().unwrap();
}

/// The API accepts a controller's concurrent writes: none is refused, and no failure is reported to users.
#[tokio::test]
async fn hundreds_of_pods_come_and_go_without_a_refusal() {
    const REPLICAS: usize = 300;
    let dir = tempfile::tempdir().unwrap();
    let plane = ControlPlane::open(config(dir.path())).await.unwrap();
    let stop = CancellationToken::new();
    let client = plane.client(User::internal("system:kube-controller-manager"));
    let running =
        tokio::spawn(windlass_controllers::run(client, windlass_controllers::Config::default(), stop.clone()));
    let client = plane.client(User::internal("t"));
    let deployments: KubeApi<Deployment> = KubeApi::namespaced(client.clone(), "default");
    let pods: KubeApi<Pod> = KubeApi::namespaced(client.clone(), "default");
    let web = json!({
        "metadata": {"name": "web"},
        "spec": {"replicas": REPLICAS, "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "v1"}]}}},
    });
    deployments.create(&PostParams::default(), &serde_json::from_value(web).unwrap()).await.unwrap();
    for replicas in [REPLICAS, 0] {
        let scale = Patch::Merge(json!({"spec": {"replicas": replicas}}));
        deployments.patch("web", &PatchParams::default(), &scale).await.unwrap();
        let mut left = 3000;
        while pods.list_metadata(&ListParams::default()).await.unwrap().items.len() != replicas {
            left -= 1;
            assert!(left > 0, "there are never {replicas} pods");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    let events: KubeApi<Event> = KubeApi::namespaced(client, "default");
    let told = events.list(&ListParams::default()).await.unwrap().items;
    let reasons: Vec<_> = told.iter().filter_map(|event| event.reason.as_deref()).collect();
    assert!(
        reasons.contains(&"SuccessfulCreate") && !reasons.iter().any(|why| why.starts_with("Failed")),
        "{reasons:?}"
    );
    let page = plane.metrics().page(windlass_kit::prometheus::Format::Plain);
    // Of this server: what clients count is of the whole process, with its other tests.
    let answers = page.lines().filter(|line| line.starts_with("apiserver_request_total{"));
    let refused: Vec<&str> = answers.filter(|line| line.contains("code=\"429\"")).collect();
    assert!(refused.is_empty(), "{refused:#?}");
    stop.cancel();
    running.await.unwrap().unwrap();
}
