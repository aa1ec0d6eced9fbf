//! Cluster IPs as objects, which users may damage.

use k8s_openapi::api::{
    core::v1::Service,
    networking::v1::{IPAddress, ServiceCIDR},
};
use kube::{Api, api::DeleteParams};
use serde_json::{Value, json};

use super::{Bed, put};
use crate::Config;

const FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";

#[tokio::test]
async fn a_lost_address_is_put_back_and_a_range_waits_for_its_addresses() {
    let bed = Bed::new(Config::default()).await;
    let cidrs: Api<ServiceCIDR> = Api::all(bed.client.clone());
    put(&cidrs, json!({"metadata": {"name": "more"}, "spec": {"cidrs": ["10.97.0.0/24"]}})).await;
    let more = |c: &[Value]| c.iter().find(|c| c["metadata"]["name"] == "more").cloned().unwrap_or_default();
    let is_ready = |c: &[Value]| {
        more(c)["status"]["conditions"][0]["status"] == "True" && more(c)["metadata"]["finalizers"][0] == FINALIZER
    };
    bed.server.until("servicecidrs", "ready", is_ready).await;

    let spec = json!({"type": "ClusterIP", "clusterIP": "10.97.0.9", "clusterIPs": ["10.97.0.9"],
        "ports": [{"port": 80}]});
    put(&bed.api::<Service>(), json!({"metadata": {"name": "s"}, "spec": spec})).await;
    let addresses: Api<IPAddress> = Api::all(bed.client.clone());
    let is_there = |a: &[Value]| a.len() == 1 && a[0]["spec"]["parentRef"]["name"] == "s";
    bed.server.until("ipaddresses", "the address", is_there).await;
    addresses.delete("10.97.0.9", &DeleteParams::default()).await.unwrap();
    bed.server.until("events", "the loss", |e| e.iter().any(|e| e["reason"] == "ClusterIPNotAllocated")).await;
    bed.server.until("ipaddresses", "the address again", is_there).await;

    cidrs.delete("more", &DeleteParams::default()).await.unwrap();
    let waits = |c: &[Value]| more(c)["status"]["conditions"][0]["reason"] == "Terminating";
    bed.server.until("servicecidrs", "held by its address", waits).await;
    bed.end().await;
}
