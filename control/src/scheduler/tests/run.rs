//! The loop, with an API in memory.

use super::*;
use crate::scheduler::messages;

#[tokio::test]
async fn pods_are_bound_or_reported_unschedulable() {
    let fake = crate::controllers::fake_api::FakeApi::new();
    let (client, stop) = (fake.client(), tokio_util::sync::CancellationToken::new());
    let create = kube::api::PostParams::default();
    let namespace = serde_json::from_value(serde_json::json!({"metadata": {"name": "default"}})).unwrap();
    kube::Api::<k8s_openapi::api::core::v1::Namespace>::all(client.clone()).create(&create, &namespace).await.unwrap();
    let running = tokio::spawn(crate::scheduler::run(client.clone(), Registry::default(), stop.clone()));
    let pods: kube::Api<Pod> = kube::Api::namespaced(client.clone(), "default");
    pods.create(&create, &pod("early", "10m")).await.unwrap();
    fake.until("pods", "the condition", |p| p[0]["status"]["conditions"][0]["message"] == messages::NO_NODES).await;

    kube::Api::<Node>::all(client).create(&create, &node("n1", "64", "250")).await.unwrap();
    for i in 0..200 {
        pods.create(&create, &pod(&format!("p{i}"), "10m")).await.unwrap();
    }
    fake.until("pods", "all bound", |p| p.iter().all(|p| p["spec"]["nodeName"] == "n1")).await;
    fake.until("events", "the event", |e| {
        e.iter().any(|e| {
            e["message"] == "Successfully assigned default/p7 to n1" && e["source"]["component"] == "default-scheduler"
        })
    })
    .await;
    stop.cancel();
    running.await.unwrap().unwrap();
}

/// A pod that is deleted before its binding arrives is assigned to no node, and nobody is told so.
#[tokio::test]
async fn a_pod_that_is_gone_is_not_assigned() {
    let fake = crate::controllers::fake_api::FakeApi::new();
    let writer = crate::scheduler::writer::Writer::new(fake.client());
    let info = std::sync::Arc::new(PodInfo::of(&pod("gone", "10m")));
    let decision = Decision::Bind { node: "n1".to_owned() };
    let outcome = writer.execute((info, std::sync::Arc::default(), decision)).await;
    assert!(matches!(outcome, crate::scheduler::writer::Outcome::Done));
    drop(writer);
    tokio::task::yield_now().await;
    assert_eq!(fake.all("events"), Vec::<Value>::new());
}

#[tokio::test]
async fn a_pod_is_preempted_and_its_place_taken() {
    let fake = crate::controllers::fake_api::FakeApi::new();
    let (client, stop) = (fake.client(), tokio_util::sync::CancellationToken::new());
    let create = kube::api::PostParams::default();
    let namespace = serde_json::from_value(json!({"metadata": {"name": "default"}})).unwrap();
    kube::Api::<k8s_openapi::api::core::v1::Namespace>::all(client.clone()).create(&create, &namespace).await.unwrap();
    kube::Api::<Node>::all(client.clone()).create(&create, &node("n1", "1", "110")).await.unwrap();
    let running = tokio::spawn(crate::scheduler::run(client.clone(), Registry::default(), stop.clone()));
    let pods: kube::Api<Pod> = kube::Api::namespaced(client.clone(), "default");
    pods.create(&create, &pod("low", "1")).await.unwrap();
    fake.until("pods", "bound", |p| p[0]["spec"]["nodeName"] == "n1").await;
    let preemptor = pods.create(&create, &with(&pod("high", "1"), "/spec/priority", json!(1000))).await.unwrap();
    // Sorted by name: high, low.
    let all = fake.until("pods", "preempted", |p| !p[1]["metadata"]["deletionTimestamp"].is_null()).await;
    let condition = &all[1]["status"]["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["reason"], &condition["message"]),
        (
            &json!("DisruptionTarget"),
            &json!("PreemptionByScheduler"),
            &json!("default-scheduler: preempting to accommodate a higher priority pod")
        )
    );
    let all = fake.until("pods", "nominated", |p| p[0]["status"]["nominatedNodeName"] == "n1").await;
    assert_eq!(all[0]["status"]["conditions"][0]["message"], "0/1 nodes are available: 1 Insufficient cpu.");
    let text = format!("Preempted by pod {} on node n1", preemptor.metadata.uid.unwrap());
    fake.until("events", "the event", |e| {
        e.iter().any(|e| e["reason"] == "Preempted" && e["message"] == text && e["involvedObject"]["name"] == "low")
    })
    .await;
    // As the node does when the containers are gone.
    pods.delete("low", &kube::api::DeleteParams::default().grace_period(0)).await.unwrap();
    fake.until("pods", "bound", |p| p.len() == 1 && p[0]["spec"]["nodeName"] == "n1").await;
    stop.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn volumes_are_bound_before_the_pod() {
    let fake = crate::controllers::fake_api::FakeApi::new();
    let (client, stop) = (fake.client(), tokio_util::sync::CancellationToken::new());
    let create = kube::api::PostParams::default();
    let make = async |plural: &str, object: Value| {
        let (group, namespaced) = match plural {
            "storageclasses" => ("apis/storage.k8s.io/v1", false),
            "namespaces" | "nodes" | "persistentvolumes" => ("api/v1", false),
            _ => ("api/v1", true),
        };
        let scope = if namespaced { "namespaces/default/" } else { "" };
        let body = serde_json::to_vec(&object).unwrap();
        let request = http::Request::post(format!("/{group}/{scope}{plural}")).body(body).unwrap();
        client.request::<Value>(request).await.unwrap()
    };
    make("namespaces", json!({"metadata": {"name": "default"}})).await;
    make("nodes", serde_json::to_value(node("n1", "1", "110")).unwrap()).await;
    make(
        "storageclasses",
        json!({"metadata": {"name": "wait"}, "provisioner": "example.com/made",
        "volumeBindingMode": "WaitForFirstConsumer"}),
    )
    .await;
    let claim = |name: &str, size: &str| {
        json!({"metadata": {"name": name}, "spec": {"storageClassName": "wait",
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}})
    };
    let there = make("persistentvolumeclaims", claim("there", "1Gi")).await;
    make("persistentvolumeclaims", claim("made", "2Gi")).await;
    make(
        "persistentvolumes",
        json!({"metadata": {"name": "v"}, "spec": {"storageClassName": "wait", "capacity":
        {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]}, "status": {"phase": "Available"}}),
    )
    .await;
    let running = tokio::spawn(crate::scheduler::run(client.clone(), Registry::default(), stop.clone()));
    let volumes = json!([{"name": "a", "persistentVolumeClaim": {"claimName": "there"}},
        {"name": "b", "persistentVolumeClaim": {"claimName": "made"}}]);
    let pods: kube::Api<Pod> = kube::Api::namespaced(client.clone(), "default");
    pods.create(&create, &with(&pod("p", "100m"), "/spec/volumes", volumes)).await.unwrap();
    let selected = |claim: &Value| claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] == "n1";
    fake.until("persistentvolumeclaims", "the node", |claims| claims.iter().any(selected)).await;
    let given = fake.until("persistentvolumes", "the claim", |v| !v[0]["spec"]["claimRef"].is_null()).await;
    assert_eq!(given[0]["spec"]["claimRef"]["uid"], there["metadata"]["uid"]);
    assert_eq!(given[0]["metadata"]["annotations"]["pv.kubernetes.io/bound-by-controller"], "yes");
    assert!(fake.all("pods")[0]["spec"]["nodeName"].is_null());
    // As the volume controller and the provisioner do.
    let claims: kube::Api<k8s_openapi::api::core::v1::PersistentVolumeClaim> = kube::Api::namespaced(client, "default");
    for (name, volume) in [("there", "v"), ("made", "new")] {
        let bound = json!({"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
            "spec": {"volumeName": volume}, "status": {"phase": "Bound"}});
        claims.patch(name, &kube::api::PatchParams::default(), &kube::api::Patch::Merge(bound)).await.unwrap();
    }
    fake.until("pods", "bound", |p| p[0]["spec"]["nodeName"] == "n1").await;
    stop.cancel();
    running.await.unwrap().unwrap();
}
