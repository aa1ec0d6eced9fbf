//! `scale`: the number of replicas of any resource that has one, as an object of its own.

use axum::{body::Bytes, http::StatusCode};
use serde_json::{Value, json};
use windlass_apimachinery::{
    managed_fields::{FieldSet, ScaleManagers, to_parent, to_scale},
    selectors::label_selector_text,
};

use crate::apiserver::{
    pipeline::{
        decode::PatchType,
        field_manager::FieldManager,
        metadata,
        preconditions::check_preconditions,
        stages::Presented,
        validation::{Cause, FieldError},
    },
    request::{
        api_request::ApiRequest,
        error::{ApiError, ApiResult},
        request_info::RequestOptions,
        target::Target,
    },
    types::{Catalog, Gvk, ScalePaths, Serves},
};

const SCALE: Gvk = Gvk::of("autoscaling", "v1", "Scale");

impl ApiRequest {
    pub(in crate::apiserver) async fn get_scale(&self, target: &Target, paths: &ScalePaths) -> ApiResult {
        Ok(self.accept.write(StatusCode::OK, &scale_of(target, paths, &self.read_converted(target).await?)))
    }

    pub(in crate::apiserver) async fn scale(
        &self,
        target: &Target,
        paths: &ScalePaths,
        options: &RequestOptions,
        body: &Bytes,
    ) -> ApiResult {
        let schema = self.api.scale_schema();
        let manager = FieldManager::of_type(self, options, (&SCALE, schema), "scale", FieldSet::default());
        let patch = if self.method == "PATCH" { Some(self.read_patch(options, body)?) } else { None };
        let replicas = replicas_of(&self.api.catalogs().current(), target);
        let make = |old: &Value| {
            let mut scale = scale_of(target, paths, old);
            let owners = ScaleManagers { api_version: target.version.gvk.api_version(), replicas: &replicas };
            if let Ok(Some(managers)) = to_scale(&owners, &old["metadata"]["managedFields"]) {
                scale["metadata"]["managedFields"] = managers;
            }
            let mut wanted = match &patch {
                Some(patch) => {
                    let value = patch.apply(schema, &manager, options, &scale)?;
                    patch.check((&SCALE, schema), options, value, &self.warnings)?
                }
                None => self.read_as((&SCALE, schema), options, body)?,
            };
            if patch.as_ref().is_none_or(|patch| patch.kind != PatchType::Apply) {
                manager.update(&scale, &mut wanted);
            }
            metadata::check_name(target, &wanted)?;
            check_preconditions(target, &wanted, old)?;
            let count = wanted["spec"]["replicas"].as_i64().unwrap_or(0);
            // A custom resource says what is wrong with its own field.
            if count < 0 && target.version.spec.schema.is_built_in() {
                let error = FieldError {
                    field: "spec.replicas".to_owned(),
                    cause: Cause::Invalid,
                    detail: format!("Invalid value: {count}: must be greater than or equal to 0"),
                };
                return Err(ApiError::invalid(&target.version, target.name(), &[error]));
            }
            let mut object = old.clone();
            set(&mut object, &paths.spec_replicas, json!(count));
            let managers = &wanted["metadata"]["managedFields"];
            // Managed fields that cannot be read stay as they are.
            if let Ok(managers) = to_parent(&owners, &old["metadata"]["managedFields"], managers) {
                object["metadata"]["managedFields"] = managers.unwrap_or_default();
            }
            Ok(object)
        };
        let presented = Scaled { target, paths };
        let changed = self.modify_as(&target.whole(), options, None, Some(&presented), &make).await?;
        let changed = changed.into_object(&target.version).await?;
        Ok(self.accept.write(StatusCode::OK, &scale_of(target, paths, &changed)))
    }
}

/// Admission sees the Scale.
struct Scaled<'a> {
    target: &'a Target,
    paths: &'a ScalePaths,
}

impl Presented for Scaled<'_> {
    fn target(&self) -> &Target {
        self.target
    }

    fn show(&self, object: &Value) -> Value {
        scale_of(self.target, self.paths, object)
    }

    fn take(&self, shown: &Value, object: &mut Value) {
        set(object, &self.paths.spec_replicas, json!(shown["spec"]["replicas"].as_i64().unwrap_or(0)));
    }
}

/// The value at a path such as `.spec.replicas`.
fn at<'a>(object: &'a Value, path: &str) -> &'a Value {
    path.trim_start_matches('.').split('.').fold(object, |value, key| &value[key])
}

/// Sets the value at a path; what stands in its way and is no object is replaced.
fn set(object: &mut Value, path: &str, value: Value) {
    let mut place = object;
    for key in path.trim_start_matches('.').split('.') {
        if !place.is_object() {
            *place = json!({});
        }
        place = &mut place[key];
    }
    *place = value;
}

/// The Scale of an object. Pure.
fn scale_of(target: &Target, paths: &ScalePaths, object: &Value) -> Value {
    let selector = match paths.selector.as_deref().map_or(&Value::Null, |path| at(object, path)) {
        Value::String(text) => text.clone(),
        Value::Object(fields) if fields.values().any(|field| !field.is_string()) => {
            label_selector_text(&Value::Object(fields.clone()))
        }
        labels @ Value::Object(_) => label_selector_text(&json!({"matchLabels": labels})),
        _ => String::new(),
    };
    let metadata = &object["metadata"];
    let mut scale = json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1",
        "metadata": {"name": target.name, "namespace": target.namespace, "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"], "creationTimestamp": metadata["creationTimestamp"]},
        "spec": {},
        "status": {"replicas": at(object, &paths.status_replicas).as_i64().unwrap_or(0), "selector": selector},
    });
    // As upstream's type writes it: no replicas are not written.
    if let Some(count) = at(object, &paths.spec_replicas).as_i64().filter(|count| *count != 0) {
        scale["spec"]["replicas"] = json!(count);
    }
    scale
}

/// Where the resource has its replicas, in each version that has a scale.
fn replicas_of(catalog: &Catalog, target: &Target) -> Vec<(String, Vec<String>)> {
    let gvk = &target.version.gvk;
    let versions = catalog.of_kind(&gvk.group, &gvk.kind).iter().filter(|version| version.id() == target.version.id());
    let scaled = versions.filter_map(|version| match &version.subresource("scale")?.serves {
        Serves::Scale(paths) => Some((version.gvk.api_version(), segments(&paths.spec_replicas))),
        _ => None,
    });
    scaled.collect()
}

/// The segments of a path such as `.spec.replicas`.
fn segments(path: &str) -> Vec<String> {
    path.trim_start_matches('.').split('.').map(str::to_owned).collect()
}
