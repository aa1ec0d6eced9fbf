//! What policies note in the audit log.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;

use super::*;
use crate::{
    apiserver::{Attributes, AuditEvent, AuditLevel, AuditRule, AuditSink, AuditStage, User, tests::config},
    control_plane::instance::ApiConfig,
    kinds,
    store::Memory,
};

/// Keeps the annotations of the last request.
#[derive(Debug, Default)]
struct Recorder(Mutex<BTreeMap<String, String>>);

impl AuditSink for Recorder {
    fn rule(&self, _: &User, _: &Attributes<'_>) -> AuditRule {
        let omit_stages = vec![AuditStage::RequestReceived];
        AuditRule { level: AuditLevel::Metadata, omit_stages, omit_managed_fields: false }
    }

    fn record(&self, event: AuditEvent) {
        *self.0.lock() = event.annotations;
    }
}

#[tokio::test]
async fn violations_and_annotations_are_noted() {
    let recorder: Arc<Recorder> = Arc::default();
    let store = kinds::open_store(Box::new(Memory::default())).unwrap();
    let api = Instance::new(&store, &ApiConfig { audit: Some(Arc::clone(&recorder) as _), ..config() }, None, None);
    made(&api, "/api/v1/namespaces", json!({"metadata": {"name": "n"}})).await;
    let spec = json!({
        "validations": [{"expression": "true"}, {"expression": "false", "message": "no"}],
        "auditAnnotations": [
            {"key": "name", "valueExpression": "'it is ' + object.metadata.name"},
            {"key": "none", "valueExpression": "null"},
        ],
    });
    validates(&api, "p", &spec, &json!({"validationActions": ["Audit"]})).await;
    made(&api, MAPS, map("m")).await;
    let noted = recorder.0.lock().clone();
    let failure =
        r#"[{"message":"no","policy":"p","binding":"p-b","expressionIndex":1,"validationActions":["Audit"]}]"#;
    assert_eq!(noted["validation.policy.admission.k8s.io/validation_failure"], failure);
    assert_eq!(noted["p/name"], "it is m");
    assert!(!noted.contains_key("p/none"));
}
