//! `create`, `update` and `patch`.

use axum::{body::Bytes, http::StatusCode};
use parking_lot::Mutex;
use serde_json::Value;
use windlass_apimachinery::group_version::GroupVersion;
use windlass_apimachinery::patch::PatchKind;

use crate::apiserver::{
    pipeline::{
        admission::{Operation, WriteOptions},
        commit::MAX_WRITE_ATTEMPTS,
        decode::{PatchBody, PatchType},
        field_manager::{self, FieldManager},
        metadata,
        preconditions::{check_identity, check_uid},
        stages::{Draft, Mutated, Mutation, Presented, Scope},
    },
    request::{
        api_request::ApiRequest,
        error::{ApiError, ApiResult},
        request_info::RequestOptions,
        target::Target,
    },
    types::Serves,
};

/// The part of the object that a target reaches.
fn scope_of(target: &Target) -> Scope<'_> {
    match target.served().map(|subresource| &subresource.serves) {
        Some(Serves::Status) => Scope::Status,
        Some(Serves::Part(part)) => Scope::Part(part.as_ref()),
        _ => Scope::Object,
    }
}

impl ApiRequest {
    pub(in crate::apiserver) async fn create(
        &self,
        target: &Target,
        options: &RequestOptions,
        body: &Bytes,
    ) -> ApiResult {
        field_manager::validate_options("CreateOptions", options, false)?;
        let value = self.read_object(&target.version, options, body)?;
        let manager = FieldManager::new(self, target, options);
        let created = self.insert(target, options, &value, Some(&manager)).await?;
        self.written(StatusCode::CREATED, target, options, created).await
    }

    /// Creates an object under the name in the path, for `update` and apply: the caller needs the right to create as
    /// well.
    async fn create_named(
        &self,
        target: &Target,
        options: &RequestOptions,
        mut value: Value,
        manager: Option<&FieldManager>,
    ) -> Result<Mutated, ApiError> {
        self.authorize_create(target)?;
        check_uid(target, &value, &Value::Null)?;
        if let Some(metadata) = value["metadata"].as_object_mut() {
            metadata.remove("resourceVersion");
        }
        self.insert(target, options, &value, manager).await
    }

    /// Creates an object.
    pub(crate) async fn insert(
        &self,
        target: &Target,
        options: &RequestOptions,
        value: &Value,
        manager: Option<&FieldManager>,
    ) -> Result<Mutated, ApiError> {
        let make = |_: Option<&Value>| Ok(Draft::Write(value.clone()));
        let mutation = Mutation {
            target,
            operation: Operation::Create,
            scope: Scope::Object,
            options: WriteOptions::Query(options),
            manager,
            presented: None,
            make: &make,
        };
        self.mutate(mutation).await
    }

    /// Updates an object, or the part of it that the target reaches.
    pub(in crate::apiserver) async fn modify(
        &self,
        target: &Target,
        options: &RequestOptions,
        manager: Option<&FieldManager>,
        make: &(dyn Fn(&Value) -> Result<Value, ApiError> + Send + Sync),
    ) -> Result<Mutated, ApiError> {
        self.modify_as(target, options, manager, None, make).await
    }

    /// The same, where admission sees another form of the object.
    pub(in crate::apiserver) async fn modify_as(
        &self,
        target: &Target,
        options: &RequestOptions,
        manager: Option<&FieldManager>,
        presented: Option<&dyn Presented>,
        make: &(dyn Fn(&Value) -> Result<Value, ApiError> + Send + Sync),
    ) -> Result<Mutated, ApiError> {
        let make = |old: Option<&Value>| make(old.unwrap_or(&Value::Null)).map(Draft::Write);
        let mutation = Mutation {
            target,
            operation: Operation::Update,
            scope: scope_of(target),
            options: WriteOptions::Query(options),
            manager,
            presented,
            make: &make,
        };
        self.mutate(mutation).await
    }

    pub(in crate::apiserver) async fn update(
        &self,
        target: &Target,
        options: &RequestOptions,
        body: &Bytes,
    ) -> ApiResult {
        let version = &target.version;
        field_manager::validate_options("UpdateOptions", options, false)?;
        let manager = FieldManager::new(self, target, options);
        let value = self.read_object(version, options, body)?;
        metadata::check_name(target, &value)?;
        let creates = version.create_on_update && target.subresource.is_none();
        let first = Mutex::new(Some(value));
        for _ in 0..MAX_WRITE_ATTEMPTS {
            if creates && self.find(target)?.is_none() {
                let value = self.read_object(version, options, body)?;
                match self.create_named(target, options, value, Some(&manager)).await {
                    // Created concurrently by another client.
                    Err(error) if error.is_already_exists() => continue,
                    created => return self.written(StatusCode::CREATED, target, options, created?).await,
                }
            }
            let make = |old: &Value| {
                // Read once more for another attempt: most writes need one, without a copy.
                let value = match first.lock().take() {
                    Some(value) => value,
                    None => self.read_object(version, options, body)?,
                };
                check_uid(target, &value, old)?;
                Ok(value)
            };
            match self.modify(target, options, Some(&manager), &make).await {
                // Deleted concurrently.
                Err(error) if creates && error.is_not_found() => {}
                object => return self.written(StatusCode::OK, target, options, object?).await,
            }
        }
        Err(ApiError::modified(version, target.name()))
    }

    pub(in crate::apiserver) async fn patch(
        &self,
        target: &Target,
        options: &RequestOptions,
        body: &Bytes,
    ) -> ApiResult {
        let version = &target.version;
        let patch = self.read_patch(options, body)?;
        if patch.kind == PatchType::Patch(PatchKind::Strategic) && !version.spec.schema.is_built_in() {
            return Err(crate::apiserver::pipeline::decode::unsupported_patch());
        }
        let manager = FieldManager::new(self, target, options);
        let of_type = (&version.gvk, &version.spec.schema);
        let applies = patch.kind == PatchType::Apply;
        if applies {
            check_applied(target, &patch)?;
        }
        let creates = applies && target.subresource.is_none();
        for _ in 0..MAX_WRITE_ATTEMPTS {
            if creates && self.find(target)?.is_none() {
                let value = patch.apply(&version.spec.schema, &manager, options, &Value::Null)?;
                let value = patch.check(of_type, options, value, &self.warnings)?;
                metadata::check_name(target, &value)?;
                match self.create_named(target, options, value, None).await {
                    Err(error) if error.is_already_exists() => continue,
                    created => return self.written(StatusCode::CREATED, target, options, created?).await,
                }
            }
            let make = |old: &Value| {
                let value = patch.apply(&version.spec.schema, &manager, options, old)?;
                let value = patch.check(of_type, options, value, &self.warnings)?;
                check_identity(target, &value, old)?;
                Ok(value)
            };
            match self.modify(target, options, Some(&manager).filter(|_| !applies), &make).await {
                Err(error) if creates && error.is_not_found() => {}
                // What others own is known by a version that a webhook makes: with its answer the patch is applied again.
                Err(_) if manager.convert_for_others().await => {}
                object => return self.written(StatusCode::OK, target, options, object?).await,
            }
        }
        Err(ApiError::modified(version, target.name()))
    }

    async fn written(
        &self,
        code: StatusCode,
        target: &Target,
        options: &RequestOptions,
        written: Mutated,
    ) -> ApiResult {
        let (version, include) = (&target.version, &options.include_object);
        match written {
            Mutated::Stored(object) => self.answer_stored(code, version, &object, include).await,
            Mutated::Drafted(object) | Mutated::Deleted(object) => {
                Ok(self.accept.object(code, version, object, include))
            }
        }
    }
}

/// An applied configuration names its type. Its object is that of the path; it names another one as any changed object may not.
fn check_applied(target: &Target, patch: &PatchBody) -> Result<(), ApiError> {
    let gvk = &target.version.gvk;
    let text = |field: &str| patch.patch[field].as_str().unwrap_or("").to_owned();
    let (kind, version) = (text("kind"), text("apiVersion"));
    if kind != gvk.kind || version != gvk.api_version() {
        let given = GroupVersion::parse(&version).with_kind(&kind);
        return Err(ApiError::bad_request(format!("invalid object type: {given}")));
    }
    Ok(())
}
