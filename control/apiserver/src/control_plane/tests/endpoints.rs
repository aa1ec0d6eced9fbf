//! Endpoints that somebody makes for a service, and the slices that mirror them, over the embedded API.

use k8s_openapi::api::{
    core::v1::{Endpoints, Service},
    discovery::v1::EndpointSlice,
};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::cluster::Cluster;

fn mirrors(slices: &[Value]) -> Vec<Value> {
    let manager = "endpointslicemirroring-controller.k8s.io";
    let ours = |slice: &&Value| slice["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"] == manager;
    slices.iter().filter(ours).cloned().collect()
}

/// Waits until the one mirrored slice has this address and port.
async fn mirrored(cluster: &Cluster, address: &str, port: i32) {
    let wanted = |slices: &[Value]| {
        let slices = mirrors(slices);
        slices.len() == 1
            && slices[0]["endpoints"][0]["addresses"] == json!([address])
            && slices[0]["ports"] == json!([{"name": "", "port": port, "protocol": "TCP"}])
    };
    cluster.until::<EndpointSlice>("the mirrored slice", wanted).await;
}

/// Upstream's conformance test "should mirror a custom Endpoints resource through create update and delete".
#[tokio::test]
async fn custom_endpoints_are_mirrored_through_create_update_and_delete() {
    let cluster = Cluster::new().await;
    let port = json!([{"port": 80, "targetPort": 80, "protocol": "TCP"}]);
    cluster.create::<Service>(json!({"metadata": {"name": "db"}, "spec": {"ports": port}})).await;
    let object = |address: &str, port: i32| json!({"metadata": {"name": "db"}, "subsets": [{"ports": [{"port": port}], "addresses": [{"ip": address}]}]});
    cluster.create::<Endpoints>(object("10.1.2.3", 80)).await;
    mirrored(&cluster, "10.1.2.3", 80).await;
    let endpoints = cluster.api::<Endpoints>();
    let changed: Endpoints = serde_json::from_value(object("10.2.3.4", 81)).unwrap();
    endpoints.replace("db", &PostParams::default(), &changed).await.unwrap();
    mirrored(&cluster, "10.2.3.4", 81).await;
    endpoints.delete("db", &DeleteParams::default()).await.unwrap();
    cluster.until::<EndpointSlice>("no mirrored slice", |slices| mirrors(slices).is_empty()).await;

    // A service that gets a selector has endpoints of its own.
    cluster.create::<Endpoints>(object("10.1.2.3", 80)).await;
    mirrored(&cluster, "10.1.2.3", 80).await;
    let patch = Patch::Merge(json!({"spec": {"selector": {"app": "db"}}}));
    cluster.api::<Service>().patch("db", &PatchParams::default(), &patch).await.unwrap();
    cluster
        .until::<EndpointSlice>("no mirrored slice", |slices| !slices.is_empty() && mirrors(slices).is_empty())
        .await;
    cluster.end().await;
}
