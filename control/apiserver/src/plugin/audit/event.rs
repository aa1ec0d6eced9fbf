//! An event as `audit.k8s.io/v1` has it. Pure.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::apiserver::{AuditEvent, AuditLevel, AuditStage, ObjectReference};

/// The event as one JSON object.
pub(super) fn to_json(event: &AuditEvent) -> Value {
    let mut json = json!({
        "kind": "Event",
        "apiVersion": "audit.k8s.io/v1",
        "level": level(event.level),
        "auditID": event.id,
        "stage": stage(event.stage),
        "requestURI": event.uri,
        "verb": event.verb,
        "user": event.user.user_info(),
        "sourceIPs": event.source_ips,
        "userAgent": event.user_agent,
        "requestReceivedTimestamp": micro_time(event.received),
        "stageTimestamp": micro_time(event.at),
    });
    if let Some(user) = &event.impersonated {
        json["impersonatedUser"] = user.user_info();
    }
    if let Some(object) = &event.object {
        json["objectRef"] = reference(object);
    }
    if let Some(code) = event.code {
        let mut status = json!({"metadata": {}, "code": code});
        for field in ["status", "message", "reason", "details"] {
            if let Some(value) = event.status.as_ref().and_then(|of| of.get(field)).filter(|value| !value.is_null()) {
                status[field] = value.clone();
            }
        }
        json["responseStatus"] = status;
    }
    let body = |mut body: Value| {
        if event.omit_managed_fields {
            omit_managed_fields(&mut body);
        }
        body
    };
    if let Some(object) = &event.request_object {
        json["requestObject"] = body(Value::clone(object));
    }
    if let Some(object) = event.response_object.as_ref().and_then(|bytes| serde_json::from_slice(bytes).ok()) {
        json["responseObject"] = body(object);
    }
    if !event.annotations.is_empty() {
        json["annotations"] = json!(event.annotations);
    }
    json
}

fn level(level: AuditLevel) -> &'static str {
    match level {
        AuditLevel::None => "None",
        AuditLevel::Metadata => "Metadata",
        AuditLevel::Request => "Request",
        AuditLevel::RequestResponse => "RequestResponse",
    }
}

fn stage(stage: AuditStage) -> &'static str {
    match stage {
        AuditStage::RequestReceived => "RequestReceived",
        AuditStage::ResponseStarted => "ResponseStarted",
        AuditStage::ResponseComplete => "ResponseComplete",
        AuditStage::Panic => "Panic",
    }
}

fn reference(object: &ObjectReference) -> Value {
    let fields = [
        ("resource", &object.resource),
        ("namespace", &object.namespace),
        ("name", &object.name),
        ("uid", &object.uid),
        ("apiGroup", &object.group),
        ("apiVersion", &object.version),
        ("resourceVersion", &object.resource_version),
        ("subresource", &object.subresource),
    ];
    let set = fields.into_iter().filter(|(_, text)| !text.is_empty());
    Value::Object(set.map(|(field, text)| (field.to_owned(), json!(text))).collect::<Map<_, _>>())
}

fn micro_time(at: Timestamp) -> String {
    format!("{at:.6}")
}

fn omit_managed_fields(body: &mut Value) {
    for item in body.get_mut("items").and_then(Value::as_array_mut).into_iter().flatten() {
        omit_managed_fields(item);
    }
    if let Some(metadata) = body.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
}
