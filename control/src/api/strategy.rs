//! Create and update strategies of kinds, as upstream's: which fields a write may change. Pure, except for the clock.

use serde_json::{Map, Value, json};

use super::{
    admission,
    error::ApiError,
    field_manager::FieldManager,
    generate::now,
    metadata::{check_finalizers, metadata_for_update},
    qos::qos_class,
    request_info::RequestInfo,
    subresources::{ephemeral_containers, finalize, keep_field, resize, status},
};
use crate::{
    registry::ResourceType,
    schema::{self, Cause, FieldError},
};

/// Sets the fields of a new object that only the server writes.
pub(super) fn prepare_for_create(resource: &ResourceType, object: &mut Value) {
    reset_status(resource, object);
    if resource.gvk.kind == "Namespace" {
        // The namespace controller removes this finalizer after the namespace's content: without it a deletion would
        // leave the content behind.
        let mut finalizers: Vec<Value> = object["spec"]["finalizers"].as_array().cloned().unwrap_or_default();
        if !finalizers.iter().any(|f| f == "kubernetes") {
            finalizers.push(json!("kubernetes"));
        }
        if !object["spec"].is_object() {
            object["spec"] = json!({});
        }
        object["spec"]["finalizers"] = Value::Array(finalizers);
    }
}

/// Resets the status of a new object; a Node keeps the one that it was created with.
fn reset_status(resource: &ResourceType, object: &mut Value) {
    let Some(fields) = object.as_object_mut() else { return };
    match resource.gvk.kind {
        "Node" => {}
        "Pod" => drop(fields.insert("status".to_owned(), json!({"phase": "Pending"}))),
        "PersistentVolume" | "PersistentVolumeClaim" => {
            fields.insert("status".to_owned(), json!({"phase": "Pending"}));
        }
        "Service" => drop(fields.insert("status".to_owned(), json!({"loadBalancer": {}}))),
        "ReplicationController" => drop(fields.insert("status".to_owned(), json!({"replicas": 0}))),
        _ if resource.has_status() => drop(fields.remove("status")),
        _ => {}
    }
}

/// Sets the QoS class and scheduling condition of a new pod, after admission.
pub(super) fn set_initial_status(resource: &ResourceType, object: &mut Value) {
    if resource.gvk.kind != "Pod" {
        return;
    }
    // An invalid spec is refused by validation.
    if let Ok(class) = qos_class(&object["spec"]) {
        object["status"]["qosClass"] = json!(class.name());
    }
    if object["spec"]["schedulingGates"].as_array().is_some_and(|gates| !gates.is_empty()) {
        object["status"]["conditions"] = json!([{
            "type": "PodScheduled", "status": "False", "lastTransitionTime": now(), "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
        }]);
    }
}

/// The object to store for an update through a path: fields that the path does not reach are kept, defaults are set and
/// the result is validated.
pub(super) fn prepare_for_update(
    info: &RequestInfo,
    mut object: Value,
    old: &Value,
    manager: Option<&FieldManager>,
) -> Result<Value, ApiError> {
    let resource = info.resource;
    let gvk = &resource.gvk;
    let name = info.name.as_deref().unwrap_or("");
    metadata_for_update(info, &mut object, old)?;
    // Owners are those of what the client wrote, before the strategy restores what it may not write.
    if let Some(manager) = manager {
        // An empty list has a meaning, which defaulting drops.
        let managers = object["metadata"].get("managedFields").cloned();
        schema::default(gvk, &mut object);
        if let Some(managers) = managers {
            object["metadata"]["managedFields"] = managers;
        }
        manager.update(old, &mut object);
    }
    let part = subresource_change(info.subresource.as_deref().unwrap_or(""), old, &object);
    let is_partial = part.is_some();
    match part {
        Some(Ok(mut part)) => {
            if let Some(managers) = object["metadata"].get("managedFields") {
                part["metadata"]["managedFields"] = managers.clone();
            }
            object = part;
        }
        Some(Err(why)) => {
            let detail = format!("Forbidden: {why}");
            let field = if info.subresource.as_deref() == Some("ephemeralcontainers") {
                "spec.ephemeralContainers"
            } else {
                "spec"
            };
            let error = FieldError { field: field.to_owned(), cause: Cause::Forbidden, detail };
            return Err(ApiError::invalid(resource, name, &[error]));
        }
        None => reset_fields(info, &mut object, old),
    }
    let status = info.subresource.as_deref() == Some("status");
    if gvk.kind == "Service" && !status {
        patch_allocated_values(&mut object, old);
    }
    schema::default(gvk, &mut object);
    admission::admit_update(info, &mut object);
    if !status {
        bump_generation(resource, &mut object, old);
    }
    let errors = match info.subresource.as_deref() {
        Some("status") => schema::validate_status(gvk, &object, old),
        Some("finalize") => schema::validate_finalize(gvk, &object, old),
        _ if is_partial => schema::validate_create(gvk, &object),
        _ => schema::validate_update(gvk, &object, old),
    };
    if !errors.is_empty() {
        return Err(ApiError::invalid(resource, name, &errors));
    }
    check_finalizers(resource, &object, old)?;
    Ok(object)
}

/// The pod after a request to a subresource that changes one part of it; `None` for other subresources.
fn subresource_change(subresource: &str, old: &Value, new: &Value) -> Option<Result<Value, String>> {
    match subresource {
        "resize" => Some(resize::resize_pod(old, new)),
        "ephemeralcontainers" => Some(ephemeral_containers::update_pod(old, new)),
        _ => None,
    }
}

/// Restores the fields of `old` that this path does not reach: upstream's reset fields.
fn reset_fields(info: &RequestInfo, object: &mut Value, old: &Value) {
    let resource = info.resource;
    match info.subresource.as_deref() {
        Some("status") => status::reset_fields(resource.gvk.kind, object, old),
        Some("finalize") => finalize::reset_fields(object, old),
        _ => {
            if resource.has_status() {
                keep_field(object, old, "status");
            }
            // Only /finalize changes the finalizers of a namespace.
            if resource.gvk.kind == "Namespace" {
                keep_field(object, old, "spec");
            }
        }
    }
}

/// A service keeps its cluster IP and node ports when an update leaves them out.
fn patch_allocated_values(object: &mut Value, old: &Value) {
    let both_have_addresses = object["spec"]["type"] != "ExternalName" && old["spec"]["type"] != "ExternalName";
    if both_have_addresses && object["spec"]["clusterIP"].as_str().is_none_or(str::is_empty) {
        for field in ["clusterIP", "clusterIPs"] {
            if let Some(value) = old["spec"].get(field) {
                object["spec"][field] = value.clone();
            }
        }
    }
    for field in ["ipFamilies", "ipFamilyPolicy"] {
        if object["spec"][field].is_null()
            && let Some(value) = old["spec"].get(field)
        {
            object["spec"][field] = value.clone();
        }
    }
    if !matches!(object["spec"]["type"].as_str(), Some("NodePort" | "LoadBalancer")) {
        // Node ports are released with the type that had them.
        for port in object["spec"]["ports"].as_array_mut().into_iter().flatten() {
            let unchanged =
                old["spec"]["ports"].as_array().into_iter().flatten().any(|o| o["nodePort"] == port["nodePort"]);
            if let Some(port) = port.as_object_mut().filter(|_| unchanged) {
                port.remove("nodePort");
            }
        }
        return;
    }
    let old_ports = old["spec"]["ports"].as_array().cloned().unwrap_or_default();
    for port in object["spec"]["ports"].as_array_mut().into_iter().flatten() {
        if port["nodePort"].as_i64().unwrap_or(0) == 0 {
            let same = |o: &&Value| {
                o["port"] == port["port"]
                    && o["protocol"].as_str().unwrap_or("TCP") == port["protocol"].as_str().unwrap_or("TCP")
            };
            if let Some(number) = old_ports.iter().find(same).and_then(|o| o.get("nodePort")) {
                port["nodePort"] = number.clone();
            }
        }
    }
}

/// Everything but metadata and status.
fn spec_of(object: &Value) -> Map<String, Value> {
    let fields = object.as_object().into_iter().flatten();
    fields.filter(|(k, _)| !matches!(k.as_str(), "metadata" | "status")).map(|(k, v)| (k.clone(), v.clone())).collect()
}

/// Increments the generation when the spec has changed.
fn bump_generation(resource: &ResourceType, object: &mut Value, old: &Value) {
    let spec_of = |object: &Value| spec_of(&schema::canonical(&resource.gvk, object));
    if resource.generation && spec_of(object) != spec_of(old) {
        let generation = old["metadata"]["generation"].as_i64().unwrap_or(1) + 1;
        object["metadata"]["generation"] = json!(generation);
    }
}
