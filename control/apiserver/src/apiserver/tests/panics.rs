//! Handlers that fail by a bug.

use futures::stream;

use super::*;
use crate::{
    apiserver::{
        request::audit::AuditEvent,
        types::{Definition, Resource, TypeSchema, VersionSpec},
    },
    kinds::types,
    store::Memory,
};

/// A resource with a bug.
#[derive(Debug)]
struct Buggy;

impl Strategy for Buggy {
    fn validate(&self, object: &Value, _: &mut Errors) {
        assert!(object["metadata"]["labels"].is_null(), "labels were not expected");
    }
}

#[derive(Debug, Default)]
struct Recorder(parking_lot::Mutex<Vec<AuditEvent>>);

impl AuditSink for Recorder {
    fn rule(&self, _: &User, _: &Attributes<'_>) -> AuditRule {
        let omit_stages = vec![AuditStage::RequestReceived];
        AuditRule { level: AuditLevel::Metadata, omit_stages, omit_managed_fields: false }
    }

    fn record(&self, event: AuditEvent) {
        self.0.lock().push(event);
    }
}

#[tokio::test]
async fn a_handler_that_panics_costs_one_request() {
    let store = kinds::open_store(Box::new(Memory::default())).unwrap();
    let recorder = Arc::new(Recorder::default());
    let api = Api::new(&store, &ApiConfig { audit: Some(Arc::clone(&recorder) as _), ..config() }, None, None);
    let schema = TypeSchema::custom("Bug".into(), &json!({"type": "object"}), &types::schema("meta/v1.ObjectMeta"));
    let mut resource = Resource::new("example.com", "bugs", "Bug", Buggy);
    resource.namespaced = false;
    api.catalogs().put("bugs.example.com", Definition::single(resource, VersionSpec::new("v1", schema)));
    let path = "/apis/example.com/v1/bugs";
    let bug = |name: &str, labels: Value| json!({"apiVersion": "example.com/v1", "kind": "Bug", "metadata": {"name": name, "labels": labels}});
    for name in ["a", "b"] {
        let failed = call(&api, "POST", path, bug(name, json!({"a": "b"}))).await;
        assert_eq!(
            (failed.code, &failed.body["kind"], &failed.body["reason"]),
            (500, &json!("Status"), &json!("InternalError"))
        );
        assert!(failed.body["message"].as_str().unwrap().contains("panic"), "{}", failed.body);
    }
    // Nothing is held by those that failed, and what comes after is served.
    let made = call(&api, "POST", path, bug("c", Value::Null)).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let metrics = Request::builder().uri("/metrics").extension(User::internal("test")).body(Body::empty()).unwrap();
    let page = api.router().oneshot(metrics).await.unwrap().into_body().collect().await.unwrap().to_bytes();
    let page = String::from_utf8(page.to_vec()).unwrap();
    let counted = page.lines().find(|line| {
        line.starts_with("apiserver_request_total{")
            && line.contains("resource=\"bugs\"")
            && line.contains("code=\"500\"")
    });
    assert!(counted.is_some_and(|line| line.ends_with(" 2")), "{counted:?}");
    let events = recorder.0.lock();
    let bugs = events.iter().filter(|event| event.object.as_ref().is_some_and(|object| object.resource == "bugs"));
    let stages: Vec<(AuditStage, Option<u16>)> = bugs.map(|event| (event.stage, event.code)).collect();
    let panic = (AuditStage::Panic, Some(500));
    assert_eq!(stages, [panic, panic, (AuditStage::ResponseComplete, Some(201))]);
    assert_eq!(events[0].status.as_ref().unwrap()["message"], "APIServer panic'd: labels were not expected");
}

/// An answer that lasts breaks off where it cannot be made: its client must not take it for whole.
#[tokio::test]
async fn an_answer_that_panics_breaks_off() {
    let pieces = stream::iter([1, 0]).map(|one| axum::body::Bytes::from((6 / one).to_string()));
    let body = crate::apiserver::filters::panics::body(pieces);
    let mut stream = body.into_data_stream();
    assert_eq!(stream.next().await.unwrap().unwrap(), "6");
    assert!(stream.next().await.unwrap().is_err());
}
