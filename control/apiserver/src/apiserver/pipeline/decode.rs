//! Decodes request bodies, objects and patches, and validates their fields. Does not read the store.

use axum::body::Bytes;
use serde_json::{Value, json};
use windlass_apimachinery::{
    decode,
    patch::{self, PatchKind},
    protobuf::envelope,
};

use super::{
    field_manager::{self, FieldManager},
    metadata,
    validation::{Cause, Errors},
};
use crate::apiserver::{
    request::{
        api_request::ApiRequest,
        error::ApiError,
        request_info::{FieldValidation, RequestOptions},
        warnings::Warnings,
    },
    types::{Gvk, TypeSchema, Version},
};
use crate::schema::{self, ContentType, Decoded, Duplicates};

/// The type of a patch, by content type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::apiserver) enum PatchType {
    /// Applied to the object as it is.
    Patch(PatchKind),
    /// Server-side apply.
    Apply,
}

/// A decoded patch.
pub(in crate::apiserver) struct PatchBody {
    pub(in crate::apiserver) kind: PatchType,
    pub(in crate::apiserver) patch: Value,
    duplicates: Duplicates,
}

impl PatchBody {
    /// The object that the patch makes of `old`; server-side apply does so by `manager`, and records the owners.
    ///
    /// # Errors
    /// When the patch cannot be applied, or conflicts with other managers.
    pub(in crate::apiserver) fn apply(
        &self,
        schema: &TypeSchema,
        manager: &FieldManager,
        options: &RequestOptions,
        old: &Value,
    ) -> Result<Value, ApiError> {
        let kind = match self.kind {
            PatchType::Patch(kind) => kind,
            PatchType::Apply => return manager.apply(old, &self.patch, options.flag("force") == Some(true)),
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
    pub(in crate::apiserver) fn check(
        &self,
        (gvk, schema): (&Gvk, &TypeSchema),
        options: &RequestOptions,
        mut value: Value,
        warnings: &Warnings,
    ) -> Result<Value, ApiError> {
        if self.kind == PatchType::Patch(PatchKind::Strategic) {
            // A strategic patch is merged into the typed object, which keeps its own kind.
            for field in ["kind", "apiVersion"] {
                value.as_object_mut().and_then(|fields| fields.remove(field));
            }
        }
        if !schema.is_built_in() {
            other_type(gvk, &value, true)?;
        }
        metadata::set_type_meta(gvk, &mut value).map_err(|why| self.unfit(&why))?;
        let problems = schema.check(&value);
        if !problems.wrong.is_empty() {
            return Err(self.unfit(&problems.wrong.join(", ")));
        }
        let mut strict = StrictProblems::new(&self.duplicates, &problems.unknown);
        if self.kind == PatchType::Patch(PatchKind::Json) {
            let of_patch = strict.warnings.iter_mut().filter(|problem| problem.starts_with("duplicate"));
            of_patch.for_each(|problem| problem.insert_str(0, "json patch "));
            strict.error = strict.warnings.join(", ");
        }
        let told = strict.judge(options, |why| match self.kind {
            PatchType::Apply if !self.duplicates.is_empty() => {
                let why = self.duplicates.errors().join(", ");
                ApiError::bad_request(format!("error strict decoding YAML: error converting YAML to JSON: {why}"))
            }
            PatchType::Apply => cannot_be_handled(gvk, &format!("{STRICT}: {why}")),
            PatchType::Patch(_) => self.unfit(&format!("{STRICT}: {why}")),
        })?;
        warnings.extend(told);
        Ok(value)
    }

    /// The error of a patch whose result does not fit its type. Upstream includes the result; here it is the patch,
    /// since a user who may patch an object need not be allowed to read it.
    fn unfit(&self, why: &str) -> ApiError {
        let detail = format!("Invalid value: {}: {why}", Value::from(self.patch.to_string()));
        ApiError::new(422, "Invalid", format!("\"\" is invalid: patch: {detail}")).with_cause(
            Cause::Invalid.as_str(),
            &detail,
            "patch",
        )
    }
}

/// The prefix of upstream's errors about unknown and duplicate fields.
const STRICT: &str = "strict decoding error";

impl ApiRequest {
    /// Decodes a body as its content type says. Custom resources have no protobuf form.
    pub(in crate::apiserver) fn decode(
        &self,
        schema: &TypeSchema,
        body: &Bytes,
    ) -> Result<Result<Decoded, String>, ApiError> {
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
    pub(in crate::apiserver) fn read_object(
        &self,
        version: &Version,
        options: &RequestOptions,
        body: &Bytes,
    ) -> Result<Value, ApiError> {
        self.read_as((&version.gvk, &version.spec.schema), options, body)
    }

    /// Decodes an object of a type and validates its fields.
    pub(crate) fn read_as(
        &self,
        (gvk, schema): (&Gvk, &TypeSchema),
        options: &RequestOptions,
        body: &Bytes,
    ) -> Result<Value, ApiError> {
        let unrecognized = |why: String| {
            ApiError::bad_request(format!("the object provided is unrecognized (must be of type {}): {why}", gvk.kind))
        };
        let decoded = self.decode(schema, body)?.map_err(unrecognized)?;
        // A text of comments alone, or null, is an object without fields.
        let mut value = if decoded.value.is_null() { json!({}) } else { decoded.value };
        if !value.is_object() {
            return Err(unrecognized("it is no JSON object".to_owned()));
        }
        if !schema.is_built_in() {
            other_type(gvk, &value, false)?;
        }
        metadata::set_type_meta(gvk, &mut value).map_err(ApiError::bad_request)?;
        self.audit.request_object(&value);
        let problems = schema.check(&value);
        if !problems.wrong.is_empty() {
            return Err(cannot_be_handled(gvk, &problems.wrong.join(", ")));
        }
        let strict = StrictProblems::of_object(schema, body, &decoded.duplicates, &problems.unknown);
        self.warnings.extend(strict.judge(options, |why| cannot_be_handled(gvk, &format!("{STRICT}: {why}")))?);
        Ok(value)
    }

    /// Decodes a patch of any type.
    pub(in crate::apiserver) fn read_patch(
        &self,
        options: &RequestOptions,
        body: &Bytes,
    ) -> Result<PatchBody, ApiError> {
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

/// What strict decoding finds: unknown and duplicate fields.
struct StrictProblems {
    /// One by one.
    warnings: Vec<String>,
    /// All together.
    error: String,
}

impl StrictProblems {
    fn new(duplicates: &Duplicates, unknown: &[String]) -> Self {
        let unknown = || unknown.iter().map(|path| decode::unknown(path));
        let mut errors = duplicates.errors();
        errors.extend(unknown());
        Self { warnings: duplicates.problems().into_iter().chain(unknown()).collect(), error: errors.join(", ") }
    }

    /// The problems of an object as it was sent: for Go's types in JSON, in the order of the body.
    fn of_object(schema: &TypeSchema, body: &[u8], duplicates: &Duplicates, unknown: &[String]) -> Self {
        match duplicates {
            Duplicates::Paths(paths) if schema.is_built_in() && !(paths.is_empty() && unknown.is_empty()) => {
                let problems = decode::in_document_order(body, paths, unknown);
                Self { error: problems.join(", "), warnings: problems }
            }
            _ => Self::new(duplicates, unknown),
        }
    }

    /// The warnings, or the error that `refuse` makes of the problems, by the request's `fieldValidation`.
    fn judge(self, options: &RequestOptions, refuse: impl FnOnce(&str) -> ApiError) -> Result<Vec<String>, ApiError> {
        match options.field_validation {
            FieldValidation::Strict if !self.error.is_empty() => Err(refuse(&self.error)),
            FieldValidation::Warn => Ok(self.warnings),
            FieldValidation::Strict | FieldValidation::Ignore => Ok(Vec::new()),
        }
    }
}

/// Refuses a custom object of another kind, as upstream's validation does; and if it was `patched`, of another version.
fn other_type(gvk: &Gvk, value: &Value, patched: bool) -> Result<(), ApiError> {
    let mut errors = Errors::default();
    let mut other = |field: &str, wanted: &str| {
        let given = value[field].as_str().filter(|given| !given.is_empty() && *given != wanted);
        if let Some(given) = given {
            errors.invalid_text(field, given, &format!("must be {wanted}"));
        }
    };
    other("kind", &gvk.kind);
    if patched {
        other("apiVersion", &gvk.api_version());
    }
    if errors.0.is_empty() {
        return Ok(());
    }
    let name = value["metadata"]["name"].as_str().unwrap_or("");
    Err(ApiError::invalid_of_kind(&gvk.group, &gvk.kind, name, &errors.0))
}

fn cannot_be_handled(gvk: &Gvk, why: &str) -> ApiError {
    let (kind, version) = (&gvk.kind, &gvk.version);
    ApiError::bad_request(format!("{kind} in version {version:?} cannot be handled as a {kind}: {why}"))
}

/// The error of a strategic merge patch for a resource whose lists have no merge keys.
pub(in crate::apiserver) fn unsupported_patch() -> ApiError {
    unsupported("application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml")
}

fn unsupported(accepted: &str) -> ApiError {
    let message =
        format!("the body of the request was in an unknown format - accepted media types include: {accepted}");
    ApiError::new(415, "UnsupportedMediaType", message)
}
