//! API errors, as `Status` objects.

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::{Map, Value, json};

use crate::{
    registry::ResourceType,
    schema::{Cause, FieldError},
    store,
};

/// An API error.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    pub(super) code: u16,
    reason: &'static str,
    message: String,
    details: Value,
    retry_after: Option<u32>,
    /// The token with which an expired list may continue, inconsistently.
    continue_: Option<String>,
}

impl ApiError {
    pub(super) fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: Value::Null, retry_after: None, continue_: None }
    }

    pub(super) fn about(mut self, resource: &ResourceType, name: &str) -> Self {
        self.details = json!({"name": name, "group": resource.gvk.group, "kind": resource.plural});
        self
    }

    pub(super) fn with_cause(mut self, reason: &str, message: &str, field: &str) -> Self {
        if !self.details.is_object() {
            self.details = json!({});
        }
        self.details["causes"] = json!([{"reason": reason, "message": message, "field": field}]);
        self
    }

    pub(super) fn with_causes(mut self, causes: Vec<Value>) -> Self {
        self.details = json!({"causes": causes});
        self
    }

    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    pub(super) fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    pub(super) fn unknown_path() -> Self {
        Self::new(404, "NotFound", "the server could not find the requested resource")
    }

    pub(super) fn not_found(resource: &ResourceType, name: &str) -> Self {
        Self::new(404, "NotFound", format!("{} {name:?} not found", resource.group_resource())).about(resource, name)
    }

    pub(super) fn already_exists(resource: &ResourceType, name: &str) -> Self {
        Self::new(409, "AlreadyExists", format!("{} {name:?} already exists", resource.group_resource()))
            .about(resource, name)
    }

    /// The name belongs to an object that is being deleted.
    pub(super) fn still_exists(resource: &ResourceType, name: &str) -> Self {
        let error = Self::already_exists(resource, name);
        Self { message: format!("object is being deleted: {}", error.message), ..error }
    }

    pub(super) fn is_already_exists(&self) -> bool {
        self.reason == "AlreadyExists"
    }

    /// A failed precondition of a deletion.
    pub(super) fn precondition(resource: &ResourceType, name: &str, why: &str) -> Self {
        let kind = resource.group_kind();
        let message = format!("Operation cannot be fulfilled on {kind} {name:?}: {why}");
        let mut error = Self::new(409, "Conflict", message).about(resource, name);
        error.details["kind"] = json!(resource.gvk.kind);
        error
    }

    pub(super) fn not_acceptable() -> Self {
        Self::new(406, "NotAcceptable", "only the following media types are accepted: application/json")
    }

    /// Invalid options; `kind` is the kind of the options.
    pub(super) fn invalid_options(kind: &str, errors: &[FieldError]) -> Self {
        let error = Self::of_fields(&format!("{kind}.meta.k8s.io"), "", errors);
        let causes = error.details["causes"].clone();
        Self { details: json!({"group": "meta.k8s.io", "kind": kind, "causes": causes}), ..error }
    }

    pub(super) fn conflict(resource: &ResourceType, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} {name:?}: {why}", resource.group_resource());
        Self::new(409, "Conflict", message).about(resource, name)
    }

    /// A conflict through a subresource.
    pub(super) fn conflict_of(resource: &ResourceType, subresource: &str, name: &str, why: &str) -> Self {
        let message =
            format!("Operation cannot be fulfilled on {}/{subresource} {name:?}: {why}", resource.group_resource());
        let mut error = Self::new(409, "Conflict", message).about(resource, name);
        error.details["kind"] = json!(format!("{}/{subresource}", resource.plural));
        error
    }

    pub(super) fn modified(resource: &ResourceType, name: &str) -> Self {
        Self::conflict(
            resource,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    pub(super) fn forbidden(resource: &ResourceType, name: &str, why: &str) -> Self {
        Self::new(403, "Forbidden", format!("{} {name:?} is forbidden: {why}", resource.group_resource()))
            .about(resource, name)
    }

    pub(super) fn too_many_requests() -> Self {
        let message = "The server has received too many requests and has asked us to try again later";
        Self { retry_after: Some(1), ..Self::new(429, "TooManyRequests", message) }
    }

    pub(super) fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    /// A page of a list whose revision was compacted.
    pub(super) fn expired_continue_token(token: String) -> Self {
        let message = "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.";
        Self { continue_: Some(token), ..Self::expired(message) }
    }

    pub(super) fn too_large_version(asked: u64, current: u64) -> Self {
        let message = format!("Too large resource version: {asked}, current: {current}");
        let mut error = Self { retry_after: Some(1), ..Self::new(504, "Timeout", message) };
        error = error.with_cause("ResourceVersionTooLarge", "Too large resource version", "");
        error.details["retryAfterSeconds"] = json!(1);
        error
    }

    pub(super) fn invalid(resource: &ResourceType, name: &str, errors: &[FieldError]) -> Self {
        let error = Self::of_fields(&resource.group_kind(), name, errors);
        let causes = error.details["causes"].clone();
        let details = json!({"name": name, "group": resource.gvk.group, "kind": resource.gvk.kind, "causes": causes});
        Self { details, ..error }
    }

    fn of_fields(kind: &str, name: &str, errors: &[FieldError]) -> Self {
        let line =
            |e: &FieldError| if e.field.is_empty() { e.detail.clone() } else { format!("{}: {}", e.field, e.detail) };
        let text = match errors {
            [one] => line(one),
            many => format!("[{}]", many.iter().map(line).collect::<Vec<_>>().join(", ")),
        };
        let causes: Vec<Value> =
            errors.iter().map(|e| json!({"reason": e.cause.as_str(), "message": e.detail, "field": e.field})).collect();
        let error = Self::new(422, "Invalid", format!("{kind} {name:?} is invalid: {text}"));
        Self { details: json!({"causes": causes}), ..error }
    }

    pub(super) fn internal(message: impl std::fmt::Display) -> Self {
        Self::new(500, "InternalError", format!("Internal error occurred: {message}"))
    }

    /// The error of a failed write.
    pub(super) fn write(resource: &ResourceType, name: &str, error: &store::Error) -> Self {
        match error {
            store::Error::Allocation(refusal) => {
                let (field, detail) = (refusal.field.clone(), refusal.detail.clone());
                Self::invalid(resource, name, &[FieldError { field, cause: Cause::Invalid, detail }])
            }
            other => Self::store(other),
        }
    }

    pub(super) fn store(error: &store::Error) -> Self {
        match error {
            store::Error::TooOld { .. } => Self::expired(error.to_string()),
            store::Error::Closed => Self::new(503, "ServiceUnavailable", error.to_string()),
            other => Self::internal(other),
        }
    }

    /// The `Status` object.
    pub(super) fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        });
        if let Some(fields) = status.as_object_mut().filter(|_| self.reason.is_empty()) {
            fields.remove("reason");
        }
        if let Some(details) = self.details.as_object() {
            // Upstream omits empty fields: the core group's name, and the name of a collection.
            let present = details.iter().filter(|(_, value)| *value != "");
            status["details"] = present.map(|(key, value)| (key.clone(), value.clone())).collect::<Map<_, _>>().into();
        }
        if let Some(token) = &self.continue_ {
            status["metadata"]["continue"] = json!(token);
        }
        if let Some(seconds) = self.retry_after {
            status["details"]["retryAfterSeconds"] = json!(seconds);
        }
        status
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let code = StatusCode::from_u16(self.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response =
            (code, [(header::CONTENT_TYPE, "application/json")], self.status().to_string()).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
