//! Load balancers with the addresses of nodes.

use k8s_openapi::api::core::v1::{Node, Pod, Service};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{Bed, put};
use crate::Config;

fn balanced(name: &str, port: u16) -> Value {
    json!({"metadata": {"name": name}, "spec": {"type": "LoadBalancer", "ports": [{"port": port}]}})
}

fn has(name: &'static str, wanted: Value) -> impl Fn(&[Value]) -> bool {
    move |all| all.iter().any(|s| s["metadata"]["name"] == name && s["status"]["loadBalancer"]["ingress"] == wanted)
}

#[tokio::test]
async fn services_get_the_addresses_of_nodes_and_give_ports_back() {
    let bed = Bed::new(Config { service_load_balancer: Some(vec![6443]), ..Config::default() }).await;
    let nodes: Api<Node> = Api::all(bed.client.clone());
    let ready = json!({"conditions": [{"type": "Ready", "status": "True"}],
        "addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]});
    let first = json!([{"ip": "192.0.2.1", "ipMode": "VIP"}]);
    put(&bed.api::<Service>(), balanced("a", 80)).await;
    bed.server.until("events", "no node", |e| e.iter().any(|e| e["reason"] == "UnAvailableLoadBalancer")).await;
    put(&nodes, json!({"metadata": {"name": "n1"}, "status": ready})).await;
    bed.server.until("services", "an address", has("a", first.clone())).await;
    bed.server.until("events", "told", |e| e.iter().any(|e| e["reason"] == "EnsuredLoadBalancer")).await;

    put(&bed.api::<Service>(), balanced("b", 80)).await;
    bed.server.until("events", "taken", |e| e.iter().any(|e| e["reason"] == "SyncLoadBalancerFailed")).await;
    let services = bed.api::<Service>();
    let plain = Patch::Merge(json!({"spec": {"type": "ClusterIP"}}));
    services.patch("a", &PatchParams::default(), &plain).await.unwrap();
    bed.server.until("services", "cleared", has("a", Value::Null)).await;
    bed.server.until("services", "its turn", has("b", first.clone())).await;

    let host_port = json!([{"name": "c", "image": "v1", "ports": [{"containerPort": 90, "hostPort": 90}]}]);
    put(&bed.api::<Pod>(), json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n1", "containers": host_port}}))
        .await;
    // The controller has seen the pod before the service.
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    put(&services, balanced("c", 90)).await;
    let told =
        "Error syncing load balancer: failed to ensure load balancer: port 90/TCP is a host port of pod default/p";
    bed.server.until("events", "a host port", |e| e.iter().any(|e| e["message"] == told)).await;
    bed.api::<Pod>().delete("p", &DeleteParams::default().grace_period(0)).await.unwrap();
    bed.server.until("services", "its turn", has("c", first)).await;

    let other = json!({"metadata": {"name": "n2"}, "status": {"conditions": [{"type": "Ready", "status": "True"}],
        "addresses": [{"type": "InternalIP", "address": "192.0.2.2"}]}});
    put(&nodes, other).await;
    let both = json!([{"ip": "192.0.2.1", "ipMode": "VIP"}, {"ip": "192.0.2.2", "ipMode": "VIP"}]);
    bed.server.until("services", "both nodes", has("c", both)).await;
    bed.end().await;
}
