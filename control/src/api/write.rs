//! `create`, `update` and `patch`.

use std::sync::Arc;

use axum::{
    body::Bytes,
    http::{HeaderValue, StatusCode},
    response::Response,
};
use serde_json::Value;

use super::{
    Answer, Api, Call,
    error::ApiError,
    node_restriction::Operation,
    parts, prepare,
    target::{FieldValidation, Options, Target},
};
use crate::{
    patch::{self, PatchKind},
    registry::{Gvk, ResourceType},
    schema::{self, Cause, ContentType, FieldError},
    store::{Error, Expected, Key, Object, Write},
};

/// How often a generated name is tried.
const NAME_TRIES: usize = 8;
/// How often a change is made anew on an object that others write too: upstream's loop ends with the request alone. Each
/// try that is lost is a write that somebody else has done.
pub(super) const TRIES: usize = 1000;

/// A decoded body and what was odd about it.
pub(super) struct Read {
    pub(super) value: Value,
    warnings: Vec<String>,
}

/// A decoded patch.
pub(super) struct PatchBody {
    kind: PatchKind,
    patch: Value,
    duplicates: Vec<String>,
}

impl PatchBody {
    /// Makes of `old` what the patch makes of it, still an object of its kind.
    ///
    /// # Errors
    /// When the patch does not fit, or what it makes does not.
    pub(super) fn apply(&self, gvk: &Gvk, options: &Options, old: &Value) -> Result<Read, ApiError> {
        let mut value = patch::apply(self.kind, old, &self.patch).map_err(|e| match e.code() {
            422 => ApiError::new(422, "Invalid", e.to_string()),
            _ => ApiError::bad_request(e.to_string()),
        })?;
        if self.kind == PatchKind::Strategic {
            // Merged into the type, which has its kind of its own, whatever the patch says.
            for field in ["kind", "apiVersion"] {
                value.as_object_mut().and_then(|fields| fields.remove(field));
            }
        }
        let unfit = |why: String| {
            ApiError::new(422, "Invalid", format!("{} cannot be patched so: {why}", gvk.kind)).with_cause(
                Cause::Invalid.as_str(),
                &format!("Invalid value: {why}"),
                "patch",
            )
        };
        prepare::type_meta(gvk, &mut value).map_err(unfit)?;
        let problems = schema::unknown_fields(gvk, &value);
        if !problems.wrong.is_empty() {
            return Err(unfit(problems.wrong.join(", ")));
        }
        let warnings = judge(gvk, options, problems.unknown, &self.duplicates)?;
        Ok(Read { value, warnings })
    }
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

    /// Reads an object of a kind and judges its fields.
    pub(super) fn read_object(&self, gvk: &Gvk, options: &Options, body: &Bytes) -> Result<Read, ApiError> {
        let unrecognized = |why: String| {
            ApiError::bad_request(format!("the object provided is unrecognized (must be of type {}): {why}", gvk.kind))
        };
        let decoded = schema::decode(body, self.content_type()?).map_err(unrecognized)?;
        let mut value = decoded.value;
        if !value.is_object() {
            return Err(unrecognized("it is no JSON object".to_owned()));
        }
        prepare::type_meta(gvk, &mut value).map_err(ApiError::bad_request)?;
        let warnings = judge_object(gvk, options, &value, &decoded.duplicates)?;
        Ok(Read { value, warnings })
    }

    /// Reads a patch of any kind.
    pub(super) fn read_patch(&self, options: &Options, body: &Bytes) -> Result<PatchBody, ApiError> {
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
        if kind == PatchKind::Apply && options.get("fieldManager").is_none_or(str::is_empty) {
            return Err(ApiError::bad_request(
                "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch",
            ));
        }
        Ok(PatchBody { kind, patch: decoded.value, duplicates: decoded.duplicates })
    }

    pub(super) async fn create(&self, target: &Target, options: &Options, body: &Bytes) -> Answer {
        let Read { value, warnings } = self.read_object(&target.resource.gvk, options, body)?;
        let made = self.insert(target, options, value).await?;
        Ok(self.written(StatusCode::CREATED, target, options, made, &warnings))
    }

    /// Makes an object at the name of the path: that needs the right to create as well.
    async fn create_named(&self, target: &Target, options: &Options, mut value: Value) -> Result<Value, ApiError> {
        self.authorize("create", target, options)?;
        check_uid(target, &value, &Value::Null)?;
        if let Some(metadata) = value["metadata"].as_object_mut() {
            metadata.remove("resourceVersion");
        }
        self.insert(target, options, value).await
    }

    /// Makes an object; a generated name that is taken is thrown again.
    pub(super) async fn insert(&self, target: &Target, options: &Options, value: Value) -> Result<Value, ApiError> {
        let resource = target.resource;
        for attempt in 1.. {
            let mut object = value.clone();
            prepare::new_metadata(target, &mut object)?;
            schema::default(&resource.gvk, &mut object);
            prepare::admit_create(self.api.store(), target, &mut object)?;
            self.restrict(Operation::Create, target, &Value::Null, &object)?;
            let name = object["metadata"]["name"].as_str().unwrap_or("").to_owned();
            let errors = schema::validate_create(&resource.gvk, &object);
            if !errors.is_empty() {
                return Err(ApiError::invalid(resource, &name, &errors));
            }
            let mut key = target.key();
            key.name.clone_from(&name);
            let taken = self.api.store().get(resource.qualified(), &key);
            if taken.is_none() {
                if options.dry_run {
                    self.api.rehearse(resource, &mut object)?;
                    return Ok(object);
                }
                if let Some(made) = self.api.commit(resource, key, Expected::Absent, Some(object)).await? {
                    return Ok(made.value());
                }
            }
            let generated = value["metadata"]["name"].as_str().is_none_or(str::is_empty);
            if !generated || attempt == NAME_TRIES {
                if taken.is_some_and(|object| !object.value()["metadata"]["deletionTimestamp"].is_null()) {
                    return Err(ApiError::still_exists(resource, &name));
                }
                return Err(ApiError::already_exists(resource, &name));
            }
        }
        Err(ApiError::internal("no name was free"))
    }

    pub(super) async fn update(&self, target: &Target, options: &Options, body: &Bytes) -> Answer {
        let resource = target.resource;
        let Read { value, warnings } = self.read_object(&resource.gvk, options, body)?;
        prepare::check_name(target, &value)?;
        let asked = value["metadata"]["resourceVersion"].as_str().filter(|v| !matches!(*v, "" | "0"));
        for _ in 0..TRIES {
            let Some(existing) = self.find(target) else {
                if !resource.create_on_update || target.sub.is_some() {
                    return Err(ApiError::not_found(resource, target.name.as_deref().unwrap_or("")));
                }
                match self.create_named(target, options, value.clone()).await {
                    // Somebody else made it meanwhile.
                    Err(error) if error.is_already_exists() => continue,
                    made => return Ok(self.written(StatusCode::CREATED, target, options, made?, &warnings)),
                }
            };
            if asked.is_none() && resource.conditional_update {
                let error = FieldError {
                    field: "metadata.resourceVersion".to_owned(),
                    cause: Cause::Invalid,
                    detail: "Invalid value: 0: must be specified for an update".to_owned(),
                };
                return Err(ApiError::invalid(resource, target.name.as_deref().unwrap_or(""), &[error]));
            }
            let old = existing.value();
            check_preconditions(target, &value, &old)?;
            if let Some(object) = self.store_change(target, options, value.clone(), &old, existing.revision).await? {
                return Ok(self.written(StatusCode::OK, target, options, object, &warnings));
            }
        }
        Err(ApiError::modified(resource, target.name.as_deref().unwrap_or("")))
    }

    pub(super) async fn patch(&self, target: &Target, options: &Options, body: &Bytes) -> Answer {
        let resource = target.resource;
        let gvk = &resource.gvk;
        let patch = self.read_patch(options, body)?;
        if patch.kind == PatchKind::Apply {
            let text = |field: &str| patch.patch[field].as_str().unwrap_or("").to_owned();
            let (kind, version) = (text("kind"), text("apiVersion"));
            if kind != gvk.kind || version != gvk.api_version() {
                let (group, version) = version.split_once('/').unwrap_or(("", version.as_str()));
                return Err(ApiError::bad_request(format!("invalid object type: {group}/{version}, Kind={kind}")));
            }
            prepare::check_name(target, &patch.patch)?;
        }
        for _ in 0..TRIES {
            let Some(existing) = self.find(target) else {
                if patch.kind != PatchKind::Apply || target.sub.is_some() {
                    return Err(ApiError::not_found(resource, target.name.as_deref().unwrap_or("")));
                }
                let warnings = judge_object(gvk, options, &patch.patch, &patch.duplicates)?;
                match self.create_named(target, options, patch.patch.clone()).await {
                    Err(error) if error.is_already_exists() => continue,
                    made => return Ok(self.written(StatusCode::CREATED, target, options, made?, &warnings)),
                }
            };
            let old = existing.value();
            let Read { value, warnings } = patch.apply(gvk, options, &old)?;
            check_identity(target, &value, &old)?;
            check_version(target, &value, &old)?;
            if let Some(object) = self.store_change(target, options, value, &old, existing.revision).await? {
                return Ok(self.written(StatusCode::OK, target, options, object, &warnings));
            }
        }
        Err(ApiError::modified(resource, target.name.as_deref().unwrap_or("")))
    }

    /// Puts a changed object in the place of `old`, which has `revision`. `None` when somebody was faster.
    pub(super) async fn store_change(
        &self,
        target: &Target,
        options: &Options,
        object: Value,
        old: &Value,
        revision: u64,
    ) -> Result<Option<Value>, ApiError> {
        self.restrict(Operation::Update, target, old, &object)?;
        let object = changed(target, object, old)?;
        self.replace(target, options, object, old, revision).await
    }

    /// Stores an object that was checked in the place of `old`. `None` when somebody was faster.
    pub(super) async fn replace(
        &self,
        target: &Target,
        options: &Options,
        mut object: Value,
        old: &Value,
        revision: u64,
    ) -> Result<Option<Value>, ApiError> {
        let resource = target.resource;
        if schema::same(&resource.gvk, &object, old) {
            return Ok(Some(old.clone()));
        }
        if options.dry_run {
            self.api.rehearse(resource, &mut object)?;
            return Ok(Some(object));
        }
        // The update that takes the last finalizer away is the object's end.
        let over = super::delete::is_over(resource, &object);
        let value = if over { None } else { Some(object.clone()) };
        let written = self.api.commit(resource, target.key(), Expected::Revision(revision), value).await?;
        Ok(written.map(|written| if over { object } else { written.value() }))
    }

    fn written(
        &self,
        code: StatusCode,
        target: &Target,
        options: &Options,
        object: Value,
        warnings: &[String],
    ) -> Response {
        warned(self.accept.object(code, target.resource, object, &options.include_object), warnings)
    }
}

impl Api {
    /// The one door to the store: what goes in can be read back as its own type. `None` when `expected` does not hold.
    pub(super) async fn commit(
        &self,
        resource: &ResourceType,
        key: Key,
        expected: Expected,
        mut value: Option<Value>,
    ) -> Result<Option<Arc<Object>>, ApiError> {
        if let Some(object) = &mut value {
            let checked = prepare::type_meta(&resource.gvk, object)
                .and_then(|()| serde_json::to_vec(object).map_err(|e| e.to_string()))
                .and_then(|bytes| (resource.readable)(&bytes).map_err(|e| e.to_string()));
            // One object that cannot be read would make every list of its type fail.
            if let Err(why) = checked {
                let name = &key.name;
                tracing::error!(
                    resource = resource.qualified(),
                    name,
                    why,
                    "an object that clients could not read was not stored"
                );
                return Err(ApiError::internal(format!(
                    "{} {name:?} would not be readable: {why}",
                    resource.qualified()
                )));
            }
        }
        let name = key.name.clone();
        let write = Write { resource: resource.qualified(), key, expected, value };
        match self.store().write(write).await {
            Ok(written) => Ok(Some(written)),
            Err(Error::Conflict) => Ok(None),
            Err(error) => Err(ApiError::write(resource, &name, &error)),
        }
    }
}

/// What a change through a path makes of `old`: parts that the path does not reach are kept, the rest gets its defaults
/// and is checked.
fn changed(target: &Target, mut object: Value, old: &Value) -> Result<Value, ApiError> {
    let resource = target.resource;
    let gvk = &resource.gvk;
    let name = target.name.as_deref().unwrap_or("");
    prepare::kept_metadata(target, &mut object, old)?;
    let part = parts::take(target.sub.as_deref().unwrap_or(""), old, &object);
    let only_a_part = part.is_some();
    match part {
        Some(Ok(part)) => object = part,
        Some(Err(why)) => {
            let detail = format!("Forbidden: {why}");
            let field =
                if target.sub.as_deref() == Some("ephemeralcontainers") { "spec.ephemeralContainers" } else { "spec" };
            let error = FieldError { field: field.to_owned(), cause: Cause::Forbidden, detail };
            return Err(ApiError::invalid(resource, name, &[error]));
        }
        None => prepare::keep_parts(target, &mut object, old),
    }
    let status = target.sub.as_deref() == Some("status");
    if gvk.kind == "Service" && !status {
        keep_addresses(&mut object, old);
    }
    schema::default(gvk, &mut object);
    prepare::admit_update(target, &mut object);
    if !status {
        prepare::bump_generation(resource, &mut object, old);
    }
    let errors = match target.sub.as_deref() {
        Some("status") => schema::validate_status(gvk, &object, old),
        Some("finalize") => schema::validate_finalize(gvk, &object, old),
        _ if only_a_part => schema::validate_create(gvk, &object),
        _ => schema::validate_update(gvk, &object, old),
    };
    if !errors.is_empty() {
        return Err(ApiError::invalid(resource, name, &errors));
    }
    prepare::check_finalizers(resource, &object, old)?;
    Ok(object)
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

/// A change that names a uid or a version is meant for that object in that version only.
pub(super) fn check_preconditions(target: &Target, change: &Value, old: &Value) -> Result<(), ApiError> {
    check_uid(target, change, old)?;
    check_version(target, change, old)
}

/// A patch may not make an object another one.
fn check_identity(target: &Target, change: &Value, old: &Value) -> Result<(), ApiError> {
    let uid = &change["metadata"]["uid"];
    if uid.as_str().is_none_or(str::is_empty) || *uid == old["metadata"]["uid"] {
        return Ok(());
    }
    let detail = format!("Invalid value: {uid}: field is immutable");
    let error = FieldError { field: "metadata.uid".to_owned(), cause: Cause::Invalid, detail };
    Err(ApiError::invalid(target.resource, target.name.as_deref().unwrap_or(""), &[error]))
}

fn check_version(target: &Target, change: &Value, old: &Value) -> Result<(), ApiError> {
    let version = |object: &Value| object["metadata"]["resourceVersion"].as_str().unwrap_or("").to_owned();
    let asked = version(change);
    if matches!(asked.as_str(), "" | "0") || asked == version(old) {
        return Ok(());
    }
    if asked.parse::<u64>().is_err() {
        return Err(ApiError::bad_request(format!("Invalid value: {asked:?}: resourceVersion is not a number")));
    }
    Err(ApiError::modified(target.resource, target.name.as_deref().unwrap_or("")))
}

/// A change that names a uid is meant for that object only.
fn check_uid(target: &Target, change: &Value, old: &Value) -> Result<(), ApiError> {
    let uid = |object: &Value| object["metadata"]["uid"].as_str().unwrap_or("").to_owned();
    let (wanted, is) = (uid(change), uid(old));
    if wanted.is_empty() || wanted == is {
        return Ok(());
    }
    let why = format!("Precondition failed: UID in precondition: {wanted}, UID in object meta: {is}");
    Err(ApiError::conflict(target.resource, target.name.as_deref().unwrap_or(""), &why))
}

/// What is odd about an object's fields: refused, or told as warnings, as the client wishes.
fn judge_object(gvk: &Gvk, options: &Options, value: &Value, duplicates: &[String]) -> Result<Vec<String>, ApiError> {
    let problems = schema::unknown_fields(gvk, value);
    if !problems.wrong.is_empty() {
        let (kind, version) = (gvk.kind, gvk.version);
        let wrong = problems.wrong.join(", ");
        let why = format!("{kind} in version {version:?} cannot be handled as a {kind}: {wrong}");
        return Err(ApiError::bad_request(why));
    }
    judge(gvk, options, problems.unknown, duplicates)
}

fn judge(gvk: &Gvk, options: &Options, unknown: Vec<String>, duplicates: &[String]) -> Result<Vec<String>, ApiError> {
    let mut odd: Vec<String> = duplicates.iter().map(|path| format!("duplicate field {path:?}")).collect();
    odd.extend(unknown.into_iter().map(|path| format!("unknown field {path:?}")));
    match options.field_validation {
        FieldValidation::Strict if !odd.is_empty() => {
            let (kind, version) = (gvk.kind, gvk.version);
            let why = format!(
                "{kind} in version {version:?} cannot be handled as a {kind}: strict decoding error: {}",
                odd.join(", ")
            );
            Err(ApiError::bad_request(why))
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
