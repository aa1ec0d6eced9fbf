//! API errors, as `Status` objects.

use std::borrow::Cow;

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::{Map, Value, json};
use windlass_kit::serve::headers::NotText;

use crate::apiserver::{
    pipeline::validation::{Cause, FieldError},
    types::{ConversionError, Resource, Version},
};
use crate::store;

/// The response of a handler.
pub(crate) type ApiResult = Result<Response, ApiError>;

/// An API error.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    pub(crate) code: u16,
    reason: Cow<'static, str>,
    message: String,
    details: Value,
    retry_after: Option<u32>,
    /// The token with which an expired list may continue, inconsistently.
    continue_: Option<Box<str>>,
}

/// The message sent to clients under overload.
const OVERLOAD: &str = "The server has received too many requests and has asked us to try again later";

impl ApiError {
    /// The message for the client.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    pub(crate) fn new(code: u16, reason: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        let reason = reason.into();
        Self { code, reason, message: message.into(), details: Value::Null, retry_after: None, continue_: None }
    }

    pub(crate) fn about(self, resource: &Resource, name: &str) -> Self {
        self.of_resource(&resource.group, &resource.plural, name)
    }

    /// Names the resource and object that the error is about.
    pub(crate) fn of_resource(mut self, group: &str, plural: &str, name: &str) -> Self {
        self.details = json!({"name": name, "group": group, "kind": plural});
        self
    }

    pub(crate) fn with_cause(mut self, reason: &str, message: &str, field: &str) -> Self {
        if !self.details.is_object() {
            self.details = json!({});
        }
        let mut cause = json!({"reason": reason});
        for (name, text) in [("message", message), ("field", field)].into_iter().filter(|(_, text)| !text.is_empty()) {
            cause[name] = json!(text);
        }
        self.details["causes"] = json!([cause]);
        self
    }

    /// The client is to try again after this many seconds.
    pub(crate) fn with_retry_after(self, seconds: u32) -> Self {
        Self { retry_after: Some(seconds), ..self }
    }

    pub(crate) fn with_causes(mut self, causes: Vec<Value>) -> Self {
        self.details = json!({"causes": causes});
        self
    }

    /// With the details that another server has given.
    pub(crate) fn with_details(self, details: Value) -> Self {
        Self { details, ..self }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// An error without a reason of its own.
    pub(crate) fn unknown(message: impl Into<String>) -> Self {
        Self::new(500, "", message)
    }

    /// What is asked for cannot be reached now.
    pub(crate) fn service_unavailable(message: impl Into<String>) -> Self {
        Self::new(503, "ServiceUnavailable", message)
    }

    pub(crate) fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    pub(crate) fn unknown_path() -> Self {
        Self::new(404, "NotFound", "the server could not find the requested resource")
    }

    pub(crate) fn not_found(resource: &Resource, name: &str) -> Self {
        Self::new(404, "NotFound", format!("{} {name:?} not found", resource.group_resource())).about(resource, name)
    }

    /// An object of another resource than the request's is not found.
    pub(crate) fn not_found_in(group: &str, plural: &str, name: &str) -> Self {
        let resource = if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") };
        Self::new(404, "NotFound", format!("{resource} {name:?} not found")).of_resource(group, plural, name)
    }

    pub(crate) fn already_exists(resource: &Resource, name: &str) -> Self {
        Self::new(409, "AlreadyExists", format!("{} {name:?} already exists", resource.group_resource()))
            .about(resource, name)
    }

    /// The name belongs to an object that is being deleted.
    pub(crate) fn still_exists(resource: &Resource, name: &str) -> Self {
        let error = Self::already_exists(resource, name);
        Self { message: format!("object is being deleted: {}", error.message), ..error }
    }

    pub(crate) fn is_not_found(&self) -> bool {
        self.code == 404
    }

    pub(crate) fn is_conflict(&self) -> bool {
        self.reason == "Conflict"
    }

    pub(crate) fn is_already_exists(&self) -> bool {
        self.reason == "AlreadyExists"
    }

    /// A failed precondition of a deletion.
    pub(crate) fn precondition(resource: &Resource, name: &str, why: &str) -> Self {
        let kind = resource.group_kind();
        let message = format!("Operation cannot be fulfilled on {kind} {name:?}: {why}");
        let mut error = Self::new(409, "Conflict", message).about(resource, name);
        error.details["kind"] = json!(resource.kind);
        error
    }

    /// None of the accepted media types can be served; objects of a built-in type have a protobuf form too.
    pub(crate) fn not_acceptable(with_protobuf: bool) -> Self {
        let protobuf = if with_protobuf { ", application/vnd.kubernetes.protobuf" } else { "" };
        let message =
            format!("only the following media types are accepted: application/json, application/yaml{protobuf}");
        Self::new(406, "NotAcceptable", message)
    }

    /// Invalid options; `kind` is the kind of the options.
    pub(crate) fn invalid_options(kind: &str, errors: &[FieldError]) -> Self {
        let error = Self::of_fields(&format!("{kind}.meta.k8s.io"), "", errors);
        let causes = error.details["causes"].clone();
        Self { details: json!({"group": "meta.k8s.io", "kind": kind, "causes": causes}), ..error }
    }

    /// What is no resource, and is invalid.
    pub(crate) fn invalid_of(kind: &str, name: &str, errors: &[FieldError]) -> Self {
        let error = Self::of_fields(kind, name, errors);
        let causes = error.details["causes"].clone();
        Self { details: json!({"name": name, "kind": kind, "causes": causes}), ..error }
    }

    /// An invalid review. Upstream names the group alone.
    pub(crate) fn invalid_review(group: &str, errors: &[FieldError]) -> Self {
        let error = Self::of_fields(&format!(".{group}"), "", errors);
        let causes = error.details["causes"].clone();
        Self { details: json!({"group": group, "causes": causes}), ..error }
    }

    pub(crate) fn conflict(resource: &Resource, name: &str, why: &str) -> Self {
        Self::conflict_in(&resource.group, &resource.plural, name, why)
    }

    /// A conflict with an object of another resource than the request's.
    pub(crate) fn conflict_in(group: &str, plural: &str, name: &str, why: &str) -> Self {
        let resource = if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") };
        let message = format!("Operation cannot be fulfilled on {resource} {name:?}: {why}");
        Self::new(409, "Conflict", message).of_resource(group, plural, name)
    }

    /// A conflict through a subresource.
    pub(crate) fn conflict_of(resource: &Resource, subresource: &str, name: &str, why: &str) -> Self {
        let message =
            format!("Operation cannot be fulfilled on {}/{subresource} {name:?}: {why}", resource.group_resource());
        let mut error = Self::new(409, "Conflict", message).about(resource, name);
        error.details["kind"] = json!(format!("{}/{subresource}", resource.plural));
        error
    }

    pub(crate) fn modified(resource: &Resource, name: &str) -> Self {
        Self::conflict(
            resource,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    pub(crate) fn forbidden(resource: &Resource, name: &str, why: &str) -> Self {
        let subject = if name.is_empty() { String::new() } else { format!(" {name:?}") };
        Self::new(403, "Forbidden", format!("{}{subject} is forbidden: {why}", resource.group_resource()))
            .about(resource, name)
    }

    /// A method that a path which is no resource does not have.
    pub(crate) fn method_not_allowed_here() -> Self {
        Self::new(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
    }

    /// The server defends itself.
    pub(crate) fn too_many_requests() -> Self {
        Self { retry_after: Some(1), ..Self::new(429, "TooManyRequests", OVERLOAD) }
    }

    /// The time of a request is over before it is answered.
    pub(crate) fn timed_out() -> Self {
        let why = "Timeout: request did not complete within the allotted timeout";
        Self::new(504, "Timeout", why).with_details(json!({}))
    }

    /// Whether it is [`Self::too_many_requests`], and not an answer of that code about an object.
    pub(in crate::apiserver) fn is_overload(&self) -> bool {
        self.message == OVERLOAD
    }

    pub(crate) fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    /// A page of a list whose revision was compacted.
    pub(crate) fn expired_continue_token(token: String) -> Self {
        let message = "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.";
        Self { continue_: Some(token.into()), ..Self::expired(message) }
    }

    pub(crate) fn too_large_version(asked: u64, current: u64) -> Self {
        let message = format!("Too large resource version: {asked}, current: {current}");
        let mut error = Self { retry_after: Some(1), ..Self::new(504, "Timeout", message) };
        error = error.with_cause("ResourceVersionTooLarge", "Too large resource version", "");
        error.details["retryAfterSeconds"] = json!(1);
        error
    }

    /// An invalid object. As upstream its group is that of the type that is validated, which an event of `events.k8s.io`
    /// shares with those of the core group.
    pub(crate) fn invalid(resource: &Resource, name: &str, errors: &[FieldError]) -> Self {
        Self::invalid_of_kind(resource.stored_group(), &resource.kind, name, errors)
    }

    /// The same, by its group and kind.
    pub(crate) fn invalid_of_kind(group: &str, kind: &str, name: &str, errors: &[FieldError]) -> Self {
        let group_kind = if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") };
        let error = Self::of_fields(&group_kind, name, errors);
        let causes = error.details["causes"].clone();
        Self { details: json!({"name": name, "group": group, "kind": kind, "causes": causes}), ..error }
    }

    /// An update without a resource version, where one is required. Upstream names the resource here, not the kind.
    pub(crate) fn unconditional_update(version: &Version, name: &str) -> Self {
        let unset = version.unset_resource_version();
        let error = FieldError {
            field: "metadata.resourceVersion".to_owned(),
            cause: Cause::Invalid,
            detail: format!("Invalid value: {unset}: must be specified for an update"),
        };
        let error = Self::of_fields(&version.group_resource(), name, &[error]);
        let causes = error.details["causes"].clone();
        let details = json!({"name": name, "group": version.group, "kind": version.plural, "causes": causes});
        Self { details, ..error }
    }

    fn of_fields(kind: &str, name: &str, errors: &[FieldError]) -> Self {
        let line =
            |e: &FieldError| if e.field.is_empty() { e.detail.clone() } else { format!("{}: {}", e.field, e.detail) };
        // A repeated error is in the message once, and in the causes twice.
        let text = aggregate(errors.iter().map(line)).unwrap_or_default();
        let causes: Vec<Value> =
            errors.iter().map(|e| json!({"reason": e.cause.as_str(), "message": e.detail, "field": e.field})).collect();
        let error = Self::new(422, "Invalid", format!("{kind} {name:?} is invalid: {text}"));
        Self { details: json!({"causes": causes}), ..error }
    }

    pub(crate) fn internal(message: impl std::fmt::Display) -> Self {
        let message = message.to_string();
        Self::new(500, "InternalError", format!("Internal error occurred: {message}"))
            .with_causes(vec![json!({"message": message})])
    }

    /// The error of a failed write.
    pub(crate) fn write(resource: &Resource, name: &str, error: &store::Error) -> Self {
        match error {
            store::Error::Allocation(refusal) if refusal.field.is_empty() => Self::internal(&refusal.detail),
            store::Error::Allocation(refusal) => {
                let (field, detail) = (refusal.field.clone(), refusal.detail.clone());
                Self::invalid(resource, name, &[FieldError { field, cause: Cause::Invalid, detail }])
            }
            store::Error::TooLarge { .. } => {
                let what = format!("{} {name:?} is too large: {error}", resource.group_resource());
                Self::new(413, "RequestEntityTooLarge", what)
            }
            other => Self::store(other),
        }
    }

    pub(crate) fn store(error: &store::Error) -> Self {
        match error {
            store::Error::TooOld { .. } => Self::expired(error.to_string()),
            store::Error::Closed => Self::new(503, "ServiceUnavailable", error.to_string()),
            other => Self::internal(other),
        }
    }

    /// The `Status` object.
    pub(crate) fn status(&self) -> Value {
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

impl From<NotText> for ApiError {
    fn from(error: NotText) -> Self {
        Self::bad_request(error.to_string())
    }
}

impl From<ConversionError> for ApiError {
    fn from(error: ConversionError) -> Self {
        Self::new(500, "", error.to_string())
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

/// Several errors as one text, each once, in the form of upstream's `utilerrors.NewAggregate`; `None` without errors. Pure.
pub(crate) fn aggregate(errors: impl IntoIterator<Item = String>) -> Option<String> {
    let mut lines: Vec<String> = Vec::new();
    for error in errors {
        if !lines.contains(&error) {
            lines.push(error);
        }
    }
    match lines.as_slice() {
        [] => None,
        [one] => Some(one.clone()),
        many => Some(format!("[{}]", many.join(", "))),
    }
}
