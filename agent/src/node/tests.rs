//! The loop that reports the status, against an API that takes everything.

use axum::{Json, Router, routing::patch};
use serde_json::json;

use super::{
    status::{StatusInputs, tests as samples},
    *,
};

fn ready_node(version: &str) -> Node {
    let condition = json!({"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z"});
    let metadata = json!({"name": "n", "uid": "u", "resourceVersion": version});
    serde_json::from_value(json!({"metadata": metadata, "status": {"conditions": [condition]}})).unwrap()
}

/// A Node that was Ready when an earlier process ended is no word of this one.
#[tokio::test]
async fn what_an_earlier_process_reported_is_not_ours() {
    let answer = json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n", "uid": "u", "resourceVersion": "9"},
        "status": {"conditions": [{"type": "Ready", "status": "False"}]}});
    let api = Router::new().route("/api/v1/nodes/n/status", patch(|| async { Json(answer) }));
    let client = Client::new(api, "default");
    let metrics = Arc::new(Metrics::default());
    let (reported, told) = watch::channel(None);
    let mut reporter = StatusReporter {
        api: Api::all(client.clone()),
        schedule: ReportSchedule::new(Duration::from_secs(300)),
        observed: ready_node("3"),
        last_report: None,
        owner: watch::Sender::new(None),
        reported,
        watched: false,
        deleted: false,
        recorder: metrics.recorder(client, "n"),
        metrics,
    };
    reporter.on_watch(Some(Arc::new(ready_node("4"))));
    assert_eq!(*told.borrow(), None);
    let down = Health::Down { reason: "Docker is stopped".to_owned() };
    let inputs = StatusInputs::default();
    reporter.sync(&samples::config(), &samples::machine(), &down, &inputs, Timestamp::now()).await.unwrap();
    let version = |told: &watch::Receiver<Option<Arc<Node>>>| told.borrow().as_ref()?.metadata.resource_version.clone();
    assert_eq!(version(&told).as_deref(), Some("9"));
    // From now on, writes by others are published, too.
    reporter.on_watch(Some(Arc::new(ready_node("10"))));
    assert_eq!(version(&told).as_deref(), Some("10"));
    reporter.on_watch(None);
    assert_eq!(*told.borrow(), None);
}
