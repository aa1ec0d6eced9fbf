//! `create`, `update` and `patch`.

use axum::{
    body::Bytes,
    http::{HeaderValue, StatusCode},
    response::Response,
};
use serde_json::{Value, json};

use super::{
    Answer, Call,
    error::ApiError,
    parts, prepare,
    target::{FieldValidation, Options, Target},
};
use crate::{
    patch::{self, PatchKind},
    registry::ResourceType,
    schema::{self, ContentType},
    store::{Error, Expected, Write},
};

/// How often a generated name is tried, and a patch on an object that others write too.
const NAME_TRIES: usize = 8;
const PATCH_TRIES: usize = 8;

/// A decoded body and what was odd about it.
struct Read {
    value: Value,
    warnings: Vec<String>,
}

impl Call {
    fn content_type(&self) -> Result<ContentType, ApiError> {
        match self.content_type.split(';').next().unwrap_or("").trim() {
            // What kubectl sends for the kinds that it makes itself; the bytes say so.
            "" | "application/json" | "application/vnd.kubernetes.protobuf" => Ok(ContentType::Json),
            "application/yaml" => Ok(ContentType::Yaml),
            _ => Err(unsupported("application/json, application/yaml")),
        }
    }

    /// Reads an object of the target's kind and judges its fields.
    fn read_object(&self, resource: &ResourceType, options: &Options, body: &Bytes) -> Result<Read, ApiError> {
        let decoded = schema::decode(body, self.content_type()?).map_err(|why| {
            ApiError::bad_request(format!(
                "the object provided is unrecognized (must be of type {}): {why}",
                resource.gvk.kind
            ))
        })?;
        let mut value = decoded.value;
        let gvk = &resource.gvk;
        let Some(fields) = value.as_object_mut() else {
            return Err(ApiError::bad_request(format!(
                "the object provided is unrecognized (must be of type {}): it is no JSON object",
                gvk.kind
            )));
        };
        for (field, wanted) in [("kind", gvk.kind.to_owned()), ("apiVersion", gvk.api_version())] {
            let given = fields.get(field).and_then(Value::as_str).unwrap_or("").to_owned();
            if given.is_empty() {
                fields.insert(field.to_owned(), json!(wanted));
            } else if given != wanted {
                return Err(ApiError::bad_request(format!(
                    "the {field} in the data ({given}) does not match the expected {field} ({wanted})"
                )));
            }
        }
        let duplicates = decoded.duplicates.into_iter().map(|path| format!("duplicate field {path:?}")).collect();
        let warnings = judge(resource, options, &value, duplicates)?;
        Ok(Read { value, warnings })
    }

    pub(super) async fn create(&self, target: &Target, options: &Options, body: &Bytes) -> Answer {
        let Read { value, warnings } = self.read_object(target.resource, options, body)?;
        let made = self.insert(target, options, value).await?;
        Ok(warned(self.accept.object(StatusCode::CREATED, target.resource, made, &options.include_object), &warnings))
    }

    /// Makes an object; a generated name that is taken is thrown again.
    pub(super) async fn insert(&self, target: &Target, options: &Options, value: Value) -> Result<Value, ApiError> {
        let resource = target.resource;
        for attempt in 1.. {
            let mut object = value.clone();
            prepare::new_metadata(target, &mut object)?;
            schema::default(&resource.gvk, &mut object);
            prepare::admit_create(self.api.store(), target, &mut object)?;
            let name = object["metadata"]["name"].as_str().unwrap_or("").to_owned();
            let errors = schema::validate_create(&resource.gvk, &object);
            if !errors.is_empty() {
                return Err(ApiError::invalid(resource, &name, &errors));
            }
            let mut key = target.key();
            key.name.clone_from(&name);
            if self.api.store().get(resource.qualified(), &key).is_none() {
                if options.dry_run {
                    self.api.rehearse(resource, &mut object)?;
                    return Ok(object);
                }
                let write =
                    Write { resource: resource.qualified(), key, expected: Expected::Absent, value: Some(object) };
                match self.api.store().write(write).await {
                    Ok(made) => return Ok(made.value()),
                    Err(Error::Conflict) => {}
                    Err(error) => return Err(ApiError::write(resource, &name, &error)),
                }
            }
            let generated = value["metadata"]["name"].as_str().is_none_or(str::is_empty);
            if !generated || attempt == NAME_TRIES {
                return Err(ApiError::already_exists(resource, &name));
            }
        }
        Err(ApiError::internal("no name was free"))
    }

    pub(super) async fn update(&self, target: &Target, options: &Options, body: &Bytes) -> Answer {
        let resource = target.resource;
        let Read { value, warnings } = self.read_object(resource, options, body)?;
        let existing = match self.fetch(target) {
            Ok(existing) => existing,
            Err(_) if resource.create_on_update && target.sub.is_none() => {
                let mut value = value;
                if let Some(metadata) = value["metadata"].as_object_mut() {
                    metadata.remove("resourceVersion");
                }
                let whole = Target { name: None, ..target.clone() };
                let made = self.insert(&whole, options, value).await?;
                return Ok(warned(
                    self.accept.object(StatusCode::CREATED, resource, made, &options.include_object),
                    &warnings,
                ));
            }
            Err(error) => return Err(error),
        };
        let name = target.name.as_deref().unwrap_or("");
        let asked = value["metadata"]["resourceVersion"].as_str().unwrap_or("").to_owned();
        if asked.is_empty() && resource.conditional_update {
            let error = schema::FieldError {
                field: "metadata.resourceVersion".to_owned(),
                cause: schema::Cause::Invalid,
                detail: "Invalid value: 0: must be specified for an update".to_owned(),
            };
            return Err(ApiError::invalid(resource, name, &[error]));
        }
        if !asked.is_empty() && asked != existing.revision.to_string() {
            return Err(ApiError::modified(resource, name));
        }
        let old = existing.value();
        check_uid(resource, name, &value, &old)?;
        let changed = self.store_change(target, options, value, &old, existing.revision).await?;
        match changed {
            Some(object) => {
                Ok(warned(self.accept.object(StatusCode::OK, resource, object, &options.include_object), &warnings))
            }
            None => Err(ApiError::modified(resource, name)),
        }
    }

    pub(super) async fn patch(&self, target: &Target, options: &Options, body: &Bytes) -> Answer {
        let resource = target.resource;
        let (kind, format) = match self.content_type.split(';').next().unwrap_or("").trim() {
            "application/json-patch+json" => (PatchKind::Json, ContentType::Json),
            "application/merge-patch+json" => (PatchKind::Merge, ContentType::Json),
            "application/strategic-merge-patch+json" => (PatchKind::Strategic, ContentType::Json),
            "application/apply-patch+yaml" => (PatchKind::Apply, ContentType::Yaml),
            _ => {
                return Err(unsupported(
                    "application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json, application/apply-patch+yaml",
                ));
            }
        };
        let decoded = schema::decode(body, format)
            .map_err(|why| ApiError::bad_request(format!("the patch cannot be read: {why}")))?;
        let patch = decoded.value;
        if kind == PatchKind::Apply && options.get("fieldManager").is_none_or(str::is_empty) {
            return Err(ApiError::bad_request(
                "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch",
            ));
        }
        let duplicates: Vec<String> =
            decoded.duplicates.into_iter().map(|path| format!("duplicate field {path:?}")).collect();
        let name = target.name.as_deref().unwrap_or("");
        for _ in 0..PATCH_TRIES {
            let existing = match self.fetch(target) {
                Ok(existing) => existing,
                Err(_) if kind == PatchKind::Apply && target.sub.is_none() => {
                    let whole = Target { name: None, ..target.clone() };
                    judge(resource, options, &patch, duplicates.clone())?;
                    let made = self.insert(&whole, options, patch).await?;
                    return Ok(self.accept.object(StatusCode::CREATED, resource, made, &options.include_object));
                }
                Err(error) => return Err(error),
            };
            let old = existing.value();
            let pinned = patch["metadata"]["resourceVersion"].as_str().filter(|v| !v.is_empty());
            if pinned.is_some_and(|v| v != existing.revision.to_string()) {
                return Err(ApiError::modified(resource, name));
            }
            check_uid(resource, name, &patch, &old)?;
            let patched = patch::apply(kind, &old, &patch).map_err(|e| match e.code() {
                422 => ApiError::new(422, "Invalid", e.to_string()),
                _ => ApiError::bad_request(e.to_string()),
            })?;
            let warnings = judge(resource, options, &patched, duplicates.clone())?;
            if let Some(object) = self.store_change(target, options, patched, &old, existing.revision).await? {
                return Ok(warned(
                    self.accept.object(StatusCode::OK, resource, object, &options.include_object),
                    &warnings,
                ));
            }
            if pinned.is_some() {
                break;
            }
        }
        Err(ApiError::modified(resource, name))
    }

    /// Puts a changed object in the place of `old`, which has `revision`. `None` when somebody was faster.
    pub(super) async fn store_change(
        &self,
        target: &Target,
        options: &Options,
        mut object: Value,
        old: &Value,
        revision: u64,
    ) -> Result<Option<Value>, ApiError> {
        let resource = target.resource;
        prepare::kept_metadata(target, &mut object, old)?;
        if target.sub.as_deref() == Some("status") {
            // Only the status is taken; the rest is as it was.
            let status = object["status"].take();
            let (labels, annotations) =
                (object["metadata"]["labels"].clone(), object["metadata"]["annotations"].clone());
            object = old.clone();
            object["status"] = status;
            if resource.gvk.kind == "Node" {
                for (field, value) in [("labels", labels), ("annotations", annotations)] {
                    if !value.is_null() {
                        object["metadata"][field] = value;
                    }
                }
            }
        } else {
            let sub = target.sub.as_deref().unwrap_or("");
            let part = parts::take(sub, old, &object);
            let only_a_part = part.is_some();
            if let Some(part) = part {
                object = part.map_err(|why| {
                    let detail = format!("Forbidden: {why}");
                    let error =
                        schema::FieldError { field: "spec".to_owned(), cause: schema::Cause::Forbidden, detail };
                    ApiError::invalid(resource, target.name.as_deref().unwrap_or(""), &[error])
                })?;
            }
            if resource.has_status() && old["status"] != object["status"] {
                match old.get("status") {
                    Some(status) => object["status"] = status.clone(),
                    None => drop(object.as_object_mut().and_then(|o| o.remove("status"))),
                }
            }
            if resource.gvk.kind == "Service" {
                keep_addresses(&mut object, old);
            }
            schema::default(&resource.gvk, &mut object);
            prepare::bump_generation(resource, &mut object, old);
            let errors = if only_a_part {
                schema::validate_create(&resource.gvk, &object)
            } else {
                schema::validate_update(&resource.gvk, &object, old)
            };
            if !errors.is_empty() {
                return Err(ApiError::invalid(resource, target.name.as_deref().unwrap_or(""), &errors));
            }
        }
        prepare::check_finalizers(resource, &object, old)?;
        if object == *old {
            return Ok(Some(object));
        }
        let key = target.key();
        if options.dry_run {
            self.api.rehearse(resource, &mut object)?;
            return Ok(Some(object));
        }
        // The update that takes the last finalizer away is the object's end.
        let over = super::delete::is_over(resource, &object);
        let value = if over { None } else { Some(object.clone()) };
        let write =
            Write { resource: resource.qualified(), key: key.clone(), expected: Expected::Revision(revision), value };
        match self.api.store().write(write).await {
            Ok(_) if over => Ok(Some(object)),
            Ok(written) => Ok(Some(written.value())),
            Err(Error::Conflict) => Ok(None),
            Err(error) => Err(ApiError::write(resource, &key.name, &error)),
        }
    }
}

/// A service keeps its address and node ports when an update does not speak of them.
fn keep_addresses(object: &mut Value, old: &Value) {
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
        // Ports of the node go with the type that had them.
        for port in object["spec"]["ports"].as_array_mut().into_iter().flatten() {
            let kept = old["spec"]["ports"].as_array().into_iter().flatten().any(|o| o["nodePort"] == port["nodePort"]);
            if let Some(port) = port.as_object_mut().filter(|_| kept) {
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

/// A change that names a uid is meant for that object only.
fn check_uid(resource: &ResourceType, name: &str, change: &Value, old: &Value) -> Result<(), ApiError> {
    match (change["metadata"]["uid"].as_str(), old["metadata"]["uid"].as_str()) {
        (Some(wanted), Some(is)) if !wanted.is_empty() && wanted != is => {
            let why = format!("Precondition failed: UID in precondition: {wanted}, UID in object meta: {is}");
            Err(ApiError::conflict(resource, name, &why))
        }
        _ => Ok(()),
    }
}

/// What is odd about an object's fields: refused, or told as warnings, as the client wishes.
fn judge(
    resource: &ResourceType,
    options: &Options,
    value: &Value,
    mut odd: Vec<String>,
) -> Result<Vec<String>, ApiError> {
    let problems = schema::unknown_fields(&resource.gvk, value);
    let kind = resource.gvk.kind;
    let cannot = format!("{kind} in version {:?} cannot be handled as a {kind}", resource.gvk.version);
    if !problems.wrong.is_empty() {
        return Err(ApiError::bad_request(format!("{cannot}: {}", problems.wrong.join(", "))));
    }
    odd.extend(problems.unknown.into_iter().map(|path| format!("unknown field {path:?}")));
    match options.field_validation {
        FieldValidation::Strict if !odd.is_empty() => {
            Err(ApiError::bad_request(format!("{cannot}: strict decoding error: {}", odd.join(", "))))
        }
        FieldValidation::Warn => Ok(odd),
        FieldValidation::Strict | FieldValidation::Ignore => Ok(Vec::new()),
    }
}

fn warned(mut response: Response, warnings: &[String]) -> Response {
    for warning in warnings {
        let text = format!("299 - \"{}\"", warning.replace('\\', "\\\\").replace('"', "\\\""));
        if let Ok(value) = HeaderValue::from_str(&text) {
            response.headers_mut().append("warning", value);
        }
    }
    response
}

fn unsupported(accepted: &str) -> ApiError {
    let message =
        format!("the body of the request was in an unknown format - accepted media types include: {accepted}");
    ApiError::new(415, "UnsupportedMediaType", message)
}
