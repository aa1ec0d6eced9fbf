//! Nodes and what is known of them.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use super::*;
use crate::WriteStalls;

#[tokio::test(start_paused = true)]
async fn a_node_is_not_silent_while_the_api_can_write_nothing() {
    let stalled = Arc::new(AtomicU64::new(0));
    let told = Arc::clone(&stalled);
    let write_stalls = WriteStalls::new(move || Duration::from_secs(told.load(Ordering::Relaxed)));
    let bed = Bed::new(Config { write_stalls, node_grace: Duration::from_secs(45), ..Config::default() }).await;
    let ready = json!([{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}]);
    let nodes: Api<Node> = Api::all(bed.client.clone());
    put(&nodes, json!({"metadata": {"name": "n1"}, "status": {"conditions": ready}})).await;
    bed.server.until("nodes", "its range", |nodes| !nodes[0]["spec"]["podCIDR"].is_null()).await;
    // Its heartbeats have waited for 40 s, and then it was silent for half a minute.
    stalled.store(40, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(70)).await;
    bed.server.rest().await;
    let node = bed.server.all("nodes").remove(0);
    assert_eq!(node["status"]["conditions"][0]["status"], "True", "{node}");
    assert!(node["spec"]["taints"].is_null(), "{node}");
    let tainted = |nodes: &[Value]| !nodes[0]["spec"]["taints"].is_null();
    bed.server.until("nodes", "its silence goes on", tainted).await;
    bed.end().await;
}
