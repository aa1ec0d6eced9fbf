//! `create`, `update` and `patch`.

use axum::{body::Bytes, http::StatusCode, response::Response};
use serde_json::Value;
use windlass_apimachinery::managed_fields::keep_times;

use super::{
    ApiRequest, ApiResult,
    admission::{self, node_restriction::Operation},
    commit::MAX_WRITE_ATTEMPTS,
    decode::{PatchType, Read, with_warnings},
    delete::is_finalized,
    error::ApiError,
    field_manager::{self, FieldManager},
    metadata,
    preconditions::{check_identity, check_preconditions, check_uid, check_version},
    request_info::{RequestInfo, RequestOptions},
    strategy,
};
use crate::{
    schema::{self, Cause, FieldError},
    store::Expected,
};

/// Attempts to find a free generated name.
const MAX_NAME_ATTEMPTS: usize = 8;

impl ApiRequest {
    pub(super) async fn create(&self, info: &RequestInfo, options: &RequestOptions, body: &Bytes) -> ApiResult {
        field_manager::validate_options("CreateOptions", options, false)?;
        let Read { value, warnings } = self.read_object(&info.resource.gvk, options, body)?;
        let manager = FieldManager::new(self, info, options);
        let created = self.insert(info, options, value, Some(&manager)).await?;
        Ok(self.written(StatusCode::CREATED, info, options, created, &warnings))
    }

    /// Creates an object under the name in the path, for `update` and apply: the caller needs the right to create as
    /// well.
    async fn create_named(
        &self,
        info: &RequestInfo,
        options: &RequestOptions,
        mut value: Value,
        manager: Option<&FieldManager>,
    ) -> Result<Value, ApiError> {
        self.authorize("create", info, options)?;
        check_uid(info, &value, &Value::Null)?;
        if let Some(metadata) = value["metadata"].as_object_mut() {
            metadata.remove("resourceVersion");
        }
        self.insert(info, options, value, manager).await
    }

    /// Creates an object. A generated name that is taken is generated again. Without a `manager` the object has its owners
    /// already.
    pub(super) async fn insert(
        &self,
        info: &RequestInfo,
        options: &RequestOptions,
        value: Value,
        manager: Option<&FieldManager>,
    ) -> Result<Value, ApiError> {
        let resource = info.resource;
        for attempt in 1.. {
            let mut object = value.clone();
            metadata::metadata_for_create(info, &mut object)?;
            schema::default(&resource.gvk, &mut object);
            if let Some(manager) = manager {
                manager.update(&Value::Null, &mut object);
            }
            strategy::prepare_for_create(resource, &mut object);
            schema::default(&resource.gvk, &mut object);
            admission::admit_create(self.api.store(), info, &mut object)?;
            strategy::set_initial_status(resource, &mut object);
            self.check_node_restriction(Operation::Create, info, &Value::Null, &object)?;
            let name = object["metadata"]["name"].as_str().unwrap_or("").to_owned();
            let errors = schema::validate_create(&resource.gvk, &object);
            if !errors.is_empty() {
                return Err(ApiError::invalid(resource, &name, &errors));
            }
            let mut key = info.key();
            key.name.clone_from(&name);
            let existing = self.api.store().get(self.api.resource_id(resource), &key);
            if existing.is_none() {
                if options.dry_run {
                    self.api.dry_run(resource, &mut object)?;
                    return Ok(object);
                }
                if let Some(created) = self.api.commit(resource, key, Expected::Absent, Some(object)).await? {
                    return Ok(created.value());
                }
            }
            let generated = value["metadata"]["name"].as_str().is_none_or(str::is_empty);
            if !generated || attempt == MAX_NAME_ATTEMPTS {
                if existing.is_some_and(|object| !object.value()["metadata"]["deletionTimestamp"].is_null()) {
                    return Err(ApiError::still_exists(resource, &name));
                }
                return Err(ApiError::already_exists(resource, &name));
            }
        }
        Err(ApiError::internal("no name was free"))
    }

    pub(super) async fn update(&self, info: &RequestInfo, options: &RequestOptions, body: &Bytes) -> ApiResult {
        let resource = info.resource;
        field_manager::validate_options("UpdateOptions", options, false)?;
        let Read { value, warnings } = self.read_object(&resource.gvk, options, body)?;
        let manager = FieldManager::new(self, info, options);
        metadata::check_name(info, &value)?;
        let requested = value["metadata"]["resourceVersion"].as_str().filter(|v| !matches!(*v, "" | "0"));
        for _ in 0..MAX_WRITE_ATTEMPTS {
            let Some(existing) = self.find(info) else {
                if !resource.create_on_update || info.subresource.is_some() {
                    return Err(ApiError::not_found(resource, info.name.as_deref().unwrap_or("")));
                }
                match self.create_named(info, options, value.clone(), Some(&manager)).await {
                    // Created concurrently by another client.
                    Err(error) if error.is_already_exists() => continue,
                    created => return Ok(self.written(StatusCode::CREATED, info, options, created?, &warnings)),
                }
            };
            if requested.is_none() && !resource.allow_unconditional_update {
                let error = FieldError {
                    field: "metadata.resourceVersion".to_owned(),
                    cause: Cause::Invalid,
                    detail: "Invalid value: 0: must be specified for an update".to_owned(),
                };
                return Err(ApiError::invalid(resource, info.name.as_deref().unwrap_or(""), &[error]));
            }
            let old = existing.value();
            check_preconditions(info, &value, &old)?;
            if let Some(object) =
                self.apply_update(info, options, value.clone(), &old, existing.revision, Some(&manager)).await?
            {
                return Ok(self.written(StatusCode::OK, info, options, object, &warnings));
            }
        }
        Err(ApiError::modified(resource, info.name.as_deref().unwrap_or("")))
    }

    pub(super) async fn patch(&self, info: &RequestInfo, options: &RequestOptions, body: &Bytes) -> ApiResult {
        let resource = info.resource;
        let gvk = &resource.gvk;
        let patch = self.read_patch(options, body)?;
        let manager = FieldManager::new(self, info, options);
        let is_apply = patch.kind == PatchType::Apply;
        if is_apply {
            let text = |field: &str| patch.patch[field].as_str().unwrap_or("").to_owned();
            let (kind, version) = (text("kind"), text("apiVersion"));
            if kind != gvk.kind || version != gvk.api_version() {
                let (group, version) = version.split_once('/').unwrap_or(("", version.as_str()));
                return Err(ApiError::bad_request(format!("invalid object type: {group}/{version}, Kind={kind}")));
            }
            metadata::check_name(info, &patch.patch)?;
        }
        for _ in 0..MAX_WRITE_ATTEMPTS {
            let Some(existing) = self.find(info) else {
                if !is_apply || info.subresource.is_some() {
                    return Err(ApiError::not_found(resource, info.name.as_deref().unwrap_or("")));
                }
                let value = patch.apply(gvk, &manager, options, &Value::Null)?;
                let Read { value, warnings } = patch.check(gvk, options, value)?;
                match self.create_named(info, options, value, None).await {
                    Err(error) if error.is_already_exists() => continue,
                    created => return Ok(self.written(StatusCode::CREATED, info, options, created?, &warnings)),
                }
            };
            let old = existing.value();
            let Read { value, warnings } = patch.check(gvk, options, patch.apply(gvk, &manager, options, &old)?)?;
            check_identity(info, &value, &old)?;
            check_version(info, &value, &old)?;
            if let Some(object) = self
                .apply_update(info, options, value, &old, existing.revision, Some(&manager).filter(|_| !is_apply))
                .await?
            {
                return Ok(self.written(StatusCode::OK, info, options, object, &warnings));
            }
        }
        Err(ApiError::modified(resource, info.name.as_deref().unwrap_or("")))
    }

    /// Validates and stores an update of `old`, which has `revision`. `None` on a conflict with another write. Without a
    /// `manager` the object has its owners already.
    pub(super) async fn apply_update(
        &self,
        info: &RequestInfo,
        options: &RequestOptions,
        object: Value,
        old: &Value,
        revision: u64,
        manager: Option<&FieldManager>,
    ) -> Result<Option<Value>, ApiError> {
        self.check_node_restriction(Operation::Update, info, old, &object)?;
        let object = strategy::prepare_for_update(info, object, old, manager)?;
        self.replace_stored(info, options, object, old, revision).await
    }

    /// Stores a validated object in place of `old`. `None` on a conflict with another write.
    pub(super) async fn replace_stored(
        &self,
        info: &RequestInfo,
        options: &RequestOptions,
        mut object: Value,
        old: &Value,
        revision: u64,
    ) -> Result<Option<Value>, ApiError> {
        let resource = info.resource;
        keep_times(old, &mut object);
        if schema::same(&resource.gvk, &object, old) {
            return Ok(Some(old.clone()));
        }
        if options.dry_run {
            self.api.dry_run(resource, &mut object)?;
            return Ok(Some(object));
        }
        // An update that removes the last finalizer of a terminating object deletes it.
        let finalized = is_finalized(resource, &object);
        let value = if finalized { None } else { Some(object.clone()) };
        let written = self.api.commit(resource, info.key(), Expected::Revision(revision), value).await?;
        Ok(written.map(|written| if finalized { object } else { written.value() }))
    }

    fn written(
        &self,
        code: StatusCode,
        info: &RequestInfo,
        options: &RequestOptions,
        object: Value,
        warnings: &[String],
    ) -> Response {
        with_warnings(self.accept.object(code, info.resource, object, &options.include_object), warnings)
    }
}
