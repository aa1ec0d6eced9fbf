//! Decodes request bodies, objects and patches, and validates their fields. Does not read the store.

use axum::{body::Bytes, http::HeaderValue, response::Response};
use serde_json::Value;
use windlass_apimachinery::{
    patch::{self, PatchKind},
    protobuf::envelope,
};

use super::{
    chain::ApiRequest,
    error::ApiError,
    field_manager::{self, FieldManager},
    metadata,
    request_info::{FieldValidation, RequestOptions},
    types::{Gvk, TypeSchema, Version},
    validation::Cause,
};
use crate::schema::{self, ContentType, Decoded};

/// A decoded object and the warnings about its fields.
pub(crate) struct Read {
    pub(crate) value: Value,
    pub(crate) warnings: Vec<String>,
}

/// The type of a patch, by content type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PatchType {
    /// Applied to the object as it is.
    Patch(PatchKind),
    /// Server-side apply.
    Apply,
}

/// A decoded patch.
pub(super) struct PatchBody {
    pub(super) kind: PatchType,
    pub(super) patch: Value,
    pub(super) duplicates: Vec<String>,
}

impl PatchBody {
    /// The object that the patch makes of `old`; server-side apply does so by `manager`, and records the owners.
    ///
    /// # Errors
    /// When the patch cannot be applied, or conflicts with other managers.
    pub(super) fn apply(
        &self,
        schema: &TypeSchema,
        manager: &FieldManager,
        options: &RequestOptions,
        old: &Value,
    ) -> Result<Value, ApiError> {
        let kind = match self.kind {
            PatchType::Patch(kind) => kind,
            PatchType::Apply => return manager.apply(old, &self.patch, options.get("force") == Some("true")),
        };
        patch::apply(kind, schema.node(), old, &self.patch).map_err(|e| match e.code() {
            422 => ApiError::new(422, "Invalid", e.to_string()),
            500 => ApiError::unknown(e.to_string()),
            _ => ApiError::bad_request(e.to_string()),
        })
    }

    /// Validates what a patch made of an object: it is of the same kind.
    ///
    /// # Errors
    /// When the result is invalid.
    pub(super) fn check(
        &self,
        (gvk, schema): (&Gvk, &TypeSchema),
        options: &RequestOptions,
        mut value: Value,
    ) -> Result<Read, ApiError> {
        if self.kind == PatchType::Patch(PatchKind::Strategic) {
            // A strategic patch is merged into the typed object, which keeps its own kind.
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
        metadata::set_type_meta(gvk, &mut value).map_err(unfit)?;
        let problems = schema.check(&value);
        if !problems.wrong.is_empty() {
            return Err(unfit(problems.wrong.join(", ")));
        }
        let warnings = validate_fields(gvk, options, problems.unknown, &self.duplicates)?;
        Ok(Read { value, warnings })
    }
}

impl ApiRequest {
    /// Decodes a body as its content type says. Custom resources have no protobuf form.
    fn decode(&self, schema: &TypeSchema, body: &Bytes) -> Result<Result<Decoded, String>, ApiError> {
        match self.content_type.split(';').next().unwrap_or("").trim() {
            "" | "application/json" => Ok(schema::decode(body, ContentType::Json)),
            "application/yaml" => Ok(schema::decode(body, ContentType::Yaml)),
            envelope::MEDIA_TYPE if schema.is_built_in() => Ok(schema::decode_protobuf(body)),
            _ if schema.is_built_in() => {
                Err(unsupported("application/json, application/yaml, application/vnd.kubernetes.protobuf"))
            }
            _ => Err(unsupported("application/json, application/yaml")),
        }
    }

    /// Decodes an object of a kind and validates its fields.
    pub(super) fn read_object(
        &self,
        version: &Version,
        options: &RequestOptions,
        body: &Bytes,
    ) -> Result<Read, ApiError> {
        self.read_as((&version.gvk, &version.spec.schema), options, body)
    }

    /// Decodes an object of a type and validates its fields.
    pub(crate) fn read_as(
        &self,
        (gvk, schema): (&Gvk, &TypeSchema),
        options: &RequestOptions,
        body: &Bytes,
    ) -> Result<Read, ApiError> {
        let unrecognized = |why: String| {
            ApiError::bad_request(format!("the object provided is unrecognized (must be of type {}): {why}", gvk.kind))
        };
        let decoded = self.decode(schema, body)?.map_err(unrecognized)?;
        let mut value = decoded.value;
        if !value.is_object() {
            return Err(unrecognized("it is no JSON object".to_owned()));
        }
        metadata::set_type_meta(gvk, &mut value).map_err(ApiError::bad_request)?;
        self.audit.request_object(&value);
        let warnings = validate_fields_of((gvk, schema), options, &value, &decoded.duplicates)?;
        Ok(Read { value, warnings })
    }

    /// Decodes a patch of any type.
    pub(super) fn read_patch(&self, options: &RequestOptions, body: &Bytes) -> Result<PatchBody, ApiError> {
        let (kind, format) = match self.content_type.split(';').next().unwrap_or("").trim() {
            "application/json-patch+json" => (PatchType::Patch(PatchKind::Json), ContentType::Json),
            "application/merge-patch+json" => (PatchType::Patch(PatchKind::Merge), ContentType::Json),
            "application/strategic-merge-patch+json" => (PatchType::Patch(PatchKind::Strategic), ContentType::Json),
            "application/apply-patch+yaml" => (PatchType::Apply, ContentType::Yaml),
            _ => {
                return Err(unsupported(
                    "application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json, application/apply-patch+yaml",
                ));
            }
        };
        let decoded = schema::decode(body, format)
            .map_err(|why| ApiError::bad_request(format!("the patch cannot be read: {why}")))?;
        self.audit.request_body(&decoded.value);
        field_manager::validate_options("PatchOptions", options, kind == PatchType::Apply)?;
        Ok(PatchBody { kind, patch: decoded.value, duplicates: decoded.duplicates })
    }
}

/// Refuses fields of the wrong type; unknown and duplicate fields are refused, returned as warnings or ignored, by the
/// request's `fieldValidation`.
fn validate_fields_of(
    (gvk, schema): (&Gvk, &TypeSchema),
    options: &RequestOptions,
    value: &Value,
    duplicates: &[String],
) -> Result<Vec<String>, ApiError> {
    let problems = schema.check(value);
    if !problems.wrong.is_empty() {
        let (kind, version) = (&gvk.kind, &gvk.version);
        let wrong = problems.wrong.join(", ");
        let why = format!("{kind} in version {version:?} cannot be handled as a {kind}: {wrong}");
        return Err(ApiError::bad_request(why));
    }
    validate_fields(gvk, options, problems.unknown, duplicates)
}

fn validate_fields(
    gvk: &Gvk,
    options: &RequestOptions,
    unknown: Vec<String>,
    duplicates: &[String],
) -> Result<Vec<String>, ApiError> {
    let mut problems: Vec<String> = duplicates.iter().map(|path| format!("duplicate field {path:?}")).collect();
    problems.extend(unknown.into_iter().map(|path| format!("unknown field {path:?}")));
    match options.field_validation {
        FieldValidation::Strict if !problems.is_empty() => {
            let (kind, version) = (&gvk.kind, &gvk.version);
            let why = format!(
                "{kind} in version {version:?} cannot be handled as a {kind}: strict decoding error: {}",
                problems.join(", ")
            );
            Err(ApiError::bad_request(why))
        }
        FieldValidation::Warn => Ok(problems),
        FieldValidation::Strict | FieldValidation::Ignore => Ok(Vec::new()),
    }
}

pub(super) fn with_warnings(mut response: Response, warnings: &[String]) -> Response {
    warnings.iter().for_each(|warning| warn(&mut response, warning));
    response
}

/// Adds a warning to a response.
pub(super) fn warn(response: &mut Response, warning: &str) {
    let text = format!("299 - \"{}\"", warning.replace('\\', "\\\\").replace('"', "\\\""));
    if let Ok(value) = HeaderValue::from_str(&text) {
        response.headers_mut().append("warning", value);
    }
}

/// The error of a strategic merge patch for a resource whose lists have no merge keys.
pub(super) fn unsupported_patch() -> ApiError {
    unsupported("application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml")
}

fn unsupported(accepted: &str) -> ApiError {
    let message =
        format!("the body of the request was in an unknown format - accepted media types include: {accepted}");
    ApiError::new(415, "UnsupportedMediaType", message)
}
