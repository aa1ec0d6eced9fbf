//! The pages of metrics, compared with those of upstream.

use http::Request;
use k8s_openapi::{
    api::core::v1::{Node, Pod},
    kube_aggregator::pkg::apis::apiregistration::v1::APIService,
};
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use windlass_tests::metrics_table::differences;

use super::*;

async fn page(client: &Client, path: &str) -> String {
    client.request_text(Request::get(path).body(Vec::new()).unwrap()).await.unwrap()
}

#[tokio::test]
async fn the_api_serves_what_dashboards_and_alerts_ask_for() {
    let dir = tempfile::tempdir().unwrap();
    let served = Served::new(dir.path(), Lifetimes::default()).await;
    let client = served.plane.client(User::internal("t"));
    let stop = CancellationToken::new();
    let scheduler = windlass_scheduler::run(client.clone(), served.plane.metrics(), stop.clone());
    let scheduler = tokio::spawn(scheduler);
    let aggregating = tokio::spawn(served.plane.clone().aggregate(stop.clone()));
    // A request with a certificate, one that lasts, and the making of a node and of a pod for it.
    works(&served.kubeconfig()).await;
    let watch = Request::get("/api/v1/pods?watch=true").body(Vec::new()).unwrap();
    let watch = client.send(watch.map(kube::client::Body::from)).await.unwrap();
    let nodes: KubeApi<Node> = KubeApi::all(client.clone());
    let node: Node = serde_json::from_value(json!({"metadata": {"name": "n1"}})).unwrap();
    nodes.create(&PostParams::default(), &node).await.unwrap();
    let room = json!({"status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"}}});
    nodes.patch_status("n1", &PatchParams::default(), &Patch::Merge(room)).await.unwrap();
    let untaint = json!({"spec": {"taints": null}});
    nodes.patch("n1", &PatchParams::default(), &Patch::Merge(untaint)).await.unwrap();
    let pods: KubeApi<Pod> = KubeApi::namespaced(client.clone(), "kube-system");
    let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": {
        "automountServiceAccountToken": false, "containers": [{"name": "c", "image": "i"}]}}))
    .unwrap();
    let account: Value = json!({"metadata": {"name": "default"}});
    let accounts: KubeApi<k8s_openapi::api::core::v1::ServiceAccount> =
        KubeApi::namespaced(client.clone(), "kube-system");
    let account = serde_json::from_value(account).unwrap();
    // The controller that makes it does not run here.
    let _ = accounts.create(&PostParams::default(), &account).await;
    pods.create(&PostParams::default(), &pod).await.unwrap();
    let services: KubeApi<APIService> = KubeApi::all(client.clone());
    let local: APIService = serde_json::from_value(json!({"metadata": {"name": "v1.x.example"}, "spec": {
        "group": "x.example", "version": "v1", "groupPriorityMinimum": 1000, "versionPriority": 10}}))
    .unwrap();
    services.create(&PostParams::default(), &local).await.unwrap();
    let aggregated = json!({"spec": {"insecureSkipTLSVerify": true, "service": {"namespace": "n", "name": "s"}}});
    services.patch("v1.x.example", &PatchParams::default(), &Patch::Merge(aggregated)).await.unwrap();
    let unavailable = "aggregator_unavailable_apiservice_total{name=\"v1.x.example\",reason=\"ServiceNotFound\"} 1";
    let mut text = String::new();
    for _ in 0..3000 {
        text = page(&client, "/metrics").await;
        let scheduled = "scheduler_pod_scheduling_sli_duration_seconds_count{attempts=\"1\"}";
        if text.contains(scheduled) && text.contains(unavailable) {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(differences("api", &text, &["apiserver_request_terminations_total"]), [""; 0], "{text}");
    assert!(text.contains("aggregator_unavailable_apiservice{name=\"v1.apps\"} 0"), "{text}");
    assert!(text.contains("aggregator_unavailable_apiservice{name=\"v1.x.example\"} 1"), "{text}");
    assert!(text.contains(unavailable), "{text}");
    let slis = page(&client, "/metrics/slis").await;
    assert_eq!(differences("api/slis", &slis, &[]), [""; 0], "{slis}");
    assert!(slis.contains("kubernetes_healthcheck{name=\"store\",type=\"readyz\"} 1"), "{slis}");
    drop(watch);
    stop.cancel();
    scheduler.await.unwrap().unwrap();
    aggregating.await.unwrap();
    served.end().await;
}
