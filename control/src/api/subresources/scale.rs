//! `scale`: the replicas of a controller, as an object of its own.

use axum::{body::Bytes, http::StatusCode};
use serde_json::{Value, json};
use windlass_apimachinery::managed_fields::{FieldSet, ScaleManagers, to_parent, to_scale};

use crate::{
    api::{
        ApiRequest, ApiResult,
        commit::MAX_WRITE_ATTEMPTS,
        decode::PatchType,
        error::ApiError,
        field_manager::FieldManager,
        metadata,
        preconditions::check_preconditions,
        request_info::{RequestInfo, RequestOptions},
    },
    registry::Gvk,
    schema,
};

const SCALE: Gvk = Gvk { group: "autoscaling", version: "v1", kind: "Scale" };

impl ApiRequest {
    pub(super) fn get_scale(&self, info: &RequestInfo) -> ApiResult {
        Ok(self.accept.write(StatusCode::OK, &scale_of(info, &self.fetch(info)?.value())))
    }

    pub(super) async fn scale(&self, info: &RequestInfo, options: &RequestOptions, body: &Bytes) -> ApiResult {
        let whole = RequestInfo { subresource: None, ..info.clone() };
        let manager = FieldManager::of_type(self, options, &SCALE, "scale", FieldSet::default());
        let name = info.name.as_deref().unwrap_or("");
        let patch = if self.method == "PATCH" { Some(self.read_patch(options, body)?) } else { None };
        for _ in 0..MAX_WRITE_ATTEMPTS {
            let existing = self.fetch(info)?;
            let old = existing.value();
            let mut scale = scale_of(info, &old);
            if let Ok(Some(managers)) = to_scale(&managers_of(info), &old["metadata"]["managedFields"]) {
                scale["metadata"]["managedFields"] = managers;
            }
            let mut wanted = match &patch {
                Some(patch) => patch.check(&SCALE, options, patch.apply(&SCALE, &manager, options, &scale)?)?,
                None => self.read_object(&SCALE, options, body)?,
            };
            if patch.as_ref().is_none_or(|patch| patch.kind != PatchType::Apply) {
                manager.update(&scale, &mut wanted.value);
            }
            metadata::check_name(info, &wanted.value)?;
            check_preconditions(&whole, &wanted.value, &old)?;
            let replicas = wanted.value["spec"]["replicas"].as_i64().unwrap_or(0);
            if replicas < 0 {
                let error = schema::FieldError {
                    field: "spec.replicas".to_owned(),
                    cause: schema::Cause::Invalid,
                    detail: format!("Invalid value: {replicas}: must be greater than or equal to 0"),
                };
                return Err(ApiError::invalid(info.resource, name, &[error]));
            }
            let mut object = old.clone();
            object["spec"]["replicas"] = json!(replicas);
            let managers = &wanted.value["metadata"]["managedFields"];
            // Managed fields that cannot be read stay as they are.
            if let Ok(managers) = to_parent(&managers_of(info), &old["metadata"]["managedFields"], managers) {
                object["metadata"]["managedFields"] = managers.unwrap_or_default();
            }
            if let Some(changed) = self.apply_update(&whole, options, object, &old, existing.revision, None).await? {
                return Ok(self.accept.write(StatusCode::OK, &scale_of(info, &changed)));
            }
        }
        Err(ApiError::modified(info.resource, name))
    }
}

/// Where the resource has its replicas.
fn managers_of(info: &RequestInfo) -> ScaleManagers<'static> {
    ScaleManagers { api_version: info.resource.gvk.api_version(), replicas: &["spec", "replicas"] }
}

fn scale_of(info: &RequestInfo, object: &Value) -> Value {
    let selector = object["spec"]["selector"].as_object().into_iter().flatten();
    let selector: Vec<String> = selector.map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or(""))).collect();
    let metadata = &object["metadata"];
    json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1",
        "metadata": {"name": info.name, "namespace": info.namespace, "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"], "creationTimestamp": metadata["creationTimestamp"]},
        "spec": {"replicas": object["spec"]["replicas"].as_i64().unwrap_or(0)},
        "status": {"replicas": object["status"]["replicas"].as_i64().unwrap_or(0), "selector": selector.join(",")},
    })
}
