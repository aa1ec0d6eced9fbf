//! Field managers: records in each write which manager owns which fields, and merges what is applied.
//!
//! Who owns what is decided in `windlass_apimachinery::managed_fields`; here a request becomes its arguments. Pure, except
//! for the clock. Upstream: `apiserver/pkg/endpoints/handlers/{create,update,patch}.go`.

use std::sync::Arc;

use axum::http::header;
use serde_json::{Value, json};
use windlass_apimachinery::{
    go_quoted,
    managed_fields::{ApplyError, FieldSet, OneVersion, Request, Type, Versions, apply, update},
    schema::Schema,
};
use windlass_kit::serve::headers;

use super::{
    field_versions::FieldVersions,
    validation::{
        Cause, Errors, FieldError,
        errors::{list, text},
    },
};
use crate::apiserver::{
    generate::now,
    request::{
        api_request::ApiRequest,
        error::ApiError,
        request_info::RequestOptions,
        target::Target,
        user::{self, Credentials},
    },
    types::{Gvk, TypeSchema, Version},
};

/// Bytes of a manager's name.
const MAX_MANAGER_BYTES: usize = 128;
/// Bytes of the name of a subresource in an entry.
const MAX_SUBRESOURCE_BYTES: usize = 256;

/// The manager that a request acts as, and the path that it writes by.
#[derive(Debug)]
pub(crate) struct FieldManager {
    name: String,
    api_version: String,
    subresource: String,
    schema: Arc<Schema>,
    object_meta: Arc<Schema>,
    reset: FieldSet,
    /// Whether the object is a custom resource.
    is_custom: bool,
    /// The other versions; `None` for a single one.
    versions: Option<FieldVersions>,
    now: String,
}

impl FieldManager {
    /// The manager of a request to a resource or to one of its subresources that has the resource's type.
    pub(in crate::apiserver) fn new(request: &ApiRequest, target: &Target, options: &RequestOptions) -> Self {
        let version = &target.version;
        let reset = FieldSet::of_names(reset_fields(version, target.subresource()).iter().copied());
        let of_type = (&version.gvk, &version.spec.schema);
        let versions = FieldVersions::new(version, request.api.catalogs().current(), request.api.object_meta());
        Self { versions: Some(versions), ..Self::of_type(request, options, of_type, target.subresource(), reset) }
    }

    /// The manager of a request to a subresource with a type of its own.
    pub(in crate::apiserver) fn of_type(
        request: &ApiRequest,
        options: &RequestOptions,
        (gvk, schema): (&Gvk, &TypeSchema),
        subresource: &str,
        reset: FieldSet,
    ) -> Self {
        Self {
            name: manager_name(request, options),
            api_version: gvk.api_version(),
            subresource: subresource.to_owned(),
            schema: Arc::clone(schema.node()),
            object_meta: Arc::clone(request.api.object_meta()),
            reset,
            is_custom: !schema.is_built_in(),
            versions: None,
            now: now(),
        }
    }

    fn request(&self) -> Request<'_> {
        Request {
            ty: Type::new(&self.schema, &self.object_meta),
            api_version: &self.api_version,
            subresource: &self.subresource,
            reset: &self.reset,
            versions: self.versions.as_ref().map_or(&OneVersion, |versions| versions as &dyn Versions),
            manager: &self.name,
            now: &self.now,
        }
    }

    /// Records the owners of `new`, which is made of `old`; null before a creation. Both are canonical and have defaults.
    pub(in crate::apiserver) fn update(&self, old: &Value, new: &mut Value) {
        let empty = json!({});
        // As upstream: the metadata of a custom object has no empty list.
        if self.is_custom && new["metadata"]["managedFields"] == json!([]) {
            new["metadata"].as_object_mut().map(|metadata| metadata.remove("managedFields"));
        }
        update(&self.request(), if old.is_null() { &empty } else { old }, new);
    }

    /// The same, with the versions of others that a webhook makes.
    pub(in crate::apiserver) async fn record(&self, old: &Value, new: &mut Value) {
        if !self.versions.as_ref().is_some_and(FieldVersions::may_wait) {
            return self.update(old, new);
        }
        loop {
            let mut recorded = new.clone();
            self.update(old, &mut recorded);
            if !self.convert_for_others().await {
                *new = recorded;
                return;
            }
        }
    }

    /// Asks the webhook for what was not known when the owners were decided; whether to decide once more.
    pub(in crate::apiserver) async fn convert_for_others(&self) -> bool {
        match &self.versions {
            Some(versions) => versions.ask().await,
            None => false,
        }
    }

    /// The object that an apply makes of `old`; null before a creation.
    ///
    /// # Errors
    /// 409 for conflicts with other managers, 500 for what does not fit the type.
    pub(in crate::apiserver) fn apply(&self, old: &Value, applied: &Value, force: bool) -> Result<Value, ApiError> {
        let empty = json!({});
        let old = if old.is_null() { &empty } else { old };
        apply(&self.request(), old, applied, force).map_err(|error| match error {
            ApplyError::Conflicts(conflicts) => {
                let causes = conflicts.0.iter().map(|conflict| {
                    json!({"reason": "FieldManagerConflict", "message": conflict.message(),
                           "field": conflict.path.to_string()})
                });
                ApiError::new(409, "Conflict", conflicts.to_string()).with_causes(causes.collect())
            }
            ApplyError::ManagedFields => ApiError::bad_request(error.to_string()),
            ApplyError::Patch { .. }
            | ApplyError::Live { .. }
            | ApplyError::Conversion(_)
            | ApplyError::Managers(_) => ApiError::unknown(error.to_string()),
        })
    }
}

/// Validates `fieldManager` and `force`.
///
/// # Errors
/// All that is invalid, as of the options of the verb.
pub(in crate::apiserver) fn validate_options(
    kind: &str,
    options: &RequestOptions,
    is_apply: bool,
) -> Result<(), ApiError> {
    let manager = options.get("fieldManager").unwrap_or("");
    let mut errors = Vec::new();
    let mut refuse = |field: &str, cause, detail: String| {
        errors.push(FieldError { field: field.to_owned(), cause, detail });
    };
    if is_apply && manager.is_empty() {
        refuse("fieldManager", Cause::Required, "Required value: is required for apply patch".to_owned());
    }
    if !is_apply && options.flag("force").is_some() && kind == "PatchOptions" {
        refuse("force", Cause::Forbidden, "Forbidden: may not be specified for non-apply patch".to_owned());
    }
    for (cause, detail) in faults_of_manager(manager) {
        refuse("fieldManager", cause, detail);
    }
    if errors.is_empty() { Ok(()) } else { Err(ApiError::invalid_options(kind, &errors)) }
}

/// What is wrong with the name of a manager.
fn faults_of_manager(manager: &str) -> Vec<(Cause, String)> {
    let mut faults = Vec::new();
    if manager.len() > MAX_MANAGER_BYTES {
        faults.push((Cause::TooLong, format!("Too long: may not be more than {MAX_MANAGER_BYTES} bytes")));
    }
    if let Some((at, odd)) = manager.char_indices().find(|(_, c)| !is_printable(*c)) {
        let code = u32::from(odd);
        let detail =
            format!("Invalid value: {}: invalid character U+{code:04X} (at position {at})", go_quoted(manager));
        faults.push((Cause::Invalid, detail));
    }
    faults
}

/// Validates `metadata.managedFields` as it is to be stored. Entries that cannot be read do not come here: what a client
/// sends with such ones is ignored. Upstream: `ValidateManagedFields`.
pub(in crate::apiserver) fn validate_managed_fields(metadata: &Value, errors: &mut Errors) {
    for (at, entry) in list(metadata, "managedFields") {
        let here = format!("metadata.managedFields[{at}]");
        if !matches!(text(entry, "operation"), "Apply" | "Update") {
            errors.invalid(format!("{here}.operation"), &entry["operation"], "must be `Apply` or `Update`");
        }
        if !matches!(text(entry, "fieldsType"), "" | "FieldsV1") {
            errors.invalid(format!("{here}.fieldsType"), &entry["fieldsType"], "must be `FieldsV1`");
        }
        for (cause, detail) in faults_of_manager(text(entry, "manager")) {
            errors.push(format!("{here}.manager"), cause, detail);
        }
        if text(entry, "subresource").len() > MAX_SUBRESOURCE_BYTES {
            errors.too_long(format!("{here}.subresource"), MAX_SUBRESOURCE_BYTES);
        }
    }
}

fn is_printable(c: char) -> bool {
    c == ' ' || !(c.is_control() || c.is_whitespace())
}

/// The parameter `fieldManager`, or the first part of the User-Agent. Components of this process have the names that their
/// counterparts have upstream.
fn manager_name(request: &ApiRequest, options: &RequestOptions) -> String {
    if let Some(manager) = options.get("fieldManager").filter(|manager| !manager.is_empty()) {
        return manager.to_owned();
    }
    let agent = headers::shown(&request.headers, header::USER_AGENT.as_str());
    if agent.is_empty() && request.credentials == Credentials::InProcess {
        let user = &request.user;
        return match user.name.as_str() {
            _ if user.as_node().is_some() => "kubelet".to_owned(),
            user::API_SERVER => "kube-apiserver".to_owned(),
            name => name.rsplit(':').next().unwrap_or("").to_owned(),
        };
    }
    let mut out = String::new();
    for c in agent.split('/').next().unwrap_or("").chars().filter(|c| is_printable(*c)) {
        if out.len() + c.len_utf8() > MAX_MANAGER_BYTES {
            break;
        }
        out.push(c);
    }
    out
}

/// The fields that a path does not write; their values and owners stay.
pub(crate) fn reset_fields(version: &Version, subresource: &str) -> &'static [&'static str] {
    version.strategy.reset_fields(subresource).unwrap_or(match subresource {
        "status" => &["spec"],
        "" | "finalize" if version.has_status() => &["status"],
        _ => &[],
    })
}
