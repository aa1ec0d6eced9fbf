//! Request info: the resource, subresource and verb of a path, and the options of a query. Pure.

use axum::{
    extract::Query,
    http::{Method, Uri},
};

use windlass_kit::percent;

use super::error::ApiError;
use crate::{
    registry::{self, ResourceType},
    schema::{Cause, FieldError},
};

/// The segments of a path, and whether it is a deprecated watch path: `api/v1/watch/pods`. Escapes are decoded before
/// the path is split, as upstream does.
pub(super) fn segments(path: &str) -> Option<(Vec<String>, bool)> {
    let path = percent::decoded(path)?;
    let mut segments: Vec<String> = path.trim_matches('/').split('/').map(str::to_owned).collect();
    let at = match segments.first().map(String::as_str) {
        Some("api") => 2,
        Some("apis") => 3,
        _ => return Some((segments, false)),
    };
    let watch = segments.get(at).is_some_and(|segment| segment == "watch") && segments.len() > at + 1;
    if watch {
        segments.remove(at);
    }
    Some((segments, watch))
}

/// The resource, object or subresource that a request is about.
#[derive(Debug, Clone)]
pub(super) struct RequestInfo {
    pub(super) resource: &'static ResourceType,
    /// `None` for cluster-scoped objects and for lists of all namespaces.
    pub(super) namespace: Option<String>,
    pub(super) name: Option<String>,
    pub(super) subresource: Option<String>,
}

impl RequestInfo {
    /// Reads `api/v1/namespaces/x/pods/y/status` and its kin.
    pub(super) fn parse(segments: &[&str]) -> Option<Self> {
        let (group, version, rest) = match segments {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return None,
        };
        let find = |plural: &str| registry::find(group, version, plural);
        let text = |s: &&str| (*s).to_owned();
        let (resource, namespace, rest) = match rest {
            // A namespace or a subresource of it, unless the segment names a type.
            ["namespaces", namespace, plural, rest @ ..] if find(plural).is_some_and(|r| r.namespaced) => {
                (find(plural)?, Some(text(namespace)), rest)
            }
            [plural, rest @ ..] => (find(plural)?, None, rest),
            [] => return None,
        };
        let (name, subresource) = match rest {
            [] => (None, None),
            [name] => (Some(text(name)), None),
            [name, subresource] if resource.subresources.contains(subresource) => {
                (Some(text(name)), Some(text(subresource)))
            }
            _ => return None,
        };
        if resource.namespaced && namespace.is_none() && name.is_some() {
            return None;
        }
        Some(Self { resource, namespace, name, subresource })
    }

    /// The verb for authorization and errors.
    pub(super) fn verb(&self, method: &Method, options: &RequestOptions) -> Option<&'static str> {
        Some(match (method.as_str(), self.name.is_some()) {
            ("GET", _) if options.watch => "watch",
            ("GET", true) => "get",
            ("GET", false) => "list",
            ("POST", named) if named == self.subresource.is_some() => "create",
            ("PUT", true) => "update",
            ("PATCH", true) => "patch",
            ("DELETE", true) if self.subresource.is_none() => "delete",
            ("DELETE", false) => "deletecollection",
            _ => return None,
        })
    }

    pub(super) fn method_not_allowed(&self, method: &Method) -> ApiError {
        let verb = method.as_str().to_lowercase();
        let message = format!("{verb} is not supported on resources of kind {:?}", self.resource.group_resource());
        ApiError::new(405, "MethodNotAllowed", message)
    }

    /// The object's key in the store; for requests with a name.
    pub(super) fn key(&self) -> crate::store::Key {
        crate::store::Key {
            namespace: self.namespace.clone().unwrap_or_default(),
            name: self.name.clone().unwrap_or_default(),
        }
    }
}

/// How unknown and duplicate fields are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

/// The options in a request's query.
#[derive(Debug, Clone)]
pub(super) struct RequestOptions {
    pub(super) watch: bool,
    pub(super) labels: String,
    pub(super) fields: String,
    pub(super) resource_version: String,
    pub(super) resource_version_match: String,
    pub(super) send_initial_events: bool,
    pub(super) bookmarks: bool,
    pub(super) timeout: Option<u64>,
    pub(super) limit: usize,
    pub(super) continue_: String,
    pub(super) dry_run: bool,
    pub(super) field_validation: FieldValidation,
    pub(super) include_object: String,
    pub(super) all: Vec<(String, String)>,
}

impl RequestOptions {
    pub(super) fn parse(uri: &Uri) -> Result<Self, ApiError> {
        let Query(all) = Query::<Vec<(String, String)>>::try_from_uri(uri)
            .map_err(|e| ApiError::bad_request(format!("the query cannot be read: {e}")))?;
        let get = |key: &str| all.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str());
        let truth = |key: &str| matches!(get(key), Some("true" | "1"));
        let number = |key: &str| -> Result<Option<u64>, ApiError> {
            get(key)
                .filter(|v| !v.is_empty())
                .map(|v| v.parse().map_err(|_| ApiError::bad_request(format!("{key} must be a number, not {v:?}"))))
                .transpose()
        };
        let dry_run = match get("dryRun") {
            None | Some("") => false,
            Some("All") => true,
            Some(other) => {
                return Err(ApiError::new(
                    422,
                    "Invalid",
                    format!("dryRun: Unsupported value: {other:?}: supported values: \"All\""),
                ));
            }
        };
        let field_validation = match get("fieldValidation") {
            None | Some("" | "Warn") => FieldValidation::Warn,
            Some("Strict") => FieldValidation::Strict,
            Some("Ignore") => FieldValidation::Ignore,
            Some(other) => {
                return Err(ApiError::new(
                    422,
                    "Invalid",
                    format!(
                        "fieldValidation: Unsupported value: {other:?}: supported values: \"Ignore\", \"Strict\", \"Warn\""
                    ),
                ));
            }
        };
        let text = |key: &str| get(key).unwrap_or("").to_owned();
        let options = Self {
            watch: truth("watch"),
            labels: text("labelSelector"),
            fields: text("fieldSelector"),
            resource_version: text("resourceVersion"),
            resource_version_match: text("resourceVersionMatch"),
            send_initial_events: truth("sendInitialEvents"),
            bookmarks: truth("allowWatchBookmarks"),
            timeout: number("timeoutSeconds")?,
            limit: number("limit")?.and_then(|n| usize::try_from(n).ok()).unwrap_or(0),
            continue_: text("continue"),
            dry_run,
            field_validation,
            include_object: text("includeObject"),
            all,
        };
        Ok(options)
    }

    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.all.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    /// Validates the options of a list or watch, with upstream's messages.
    ///
    /// # Errors
    /// All invalid options together.
    pub(super) fn validate_list_options(&self) -> Result<(), ApiError> {
        const FIELD: &str = "resourceVersionMatch";
        let (wanted, initial) = (self.resource_version_match.as_str(), self.get("sendInitialEvents").is_some());
        let mut errors = Vec::new();
        let mut forbid = |field: &str, why: &str| {
            let (cause, detail) = (Cause::Forbidden, format!("Forbidden: {why}"));
            errors.push(FieldError { field: field.to_owned(), cause, detail });
        };
        if self.watch {
            if initial && wanted != "NotOlderThan" {
                forbid(FIELD, "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan");
            }
            if !wanted.is_empty() && !initial {
                forbid(FIELD, "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided");
            }
        } else {
            if !wanted.is_empty() && self.resource_version.is_empty() {
                forbid(FIELD, "resourceVersionMatch is forbidden unless resourceVersion is provided");
            }
            if wanted == "Exact" && self.resource_version == "0" {
                forbid(FIELD, "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"");
            }
            if initial {
                forbid("sendInitialEvents", "sendInitialEvents is forbidden for list");
            }
        }
        if !wanted.is_empty() && !self.continue_.is_empty() {
            forbid(FIELD, "resourceVersionMatch is forbidden when continue is provided");
        }
        let supported = if self.watch { "\"NotOlderThan\"" } else { "\"Exact\", \"NotOlderThan\", \"\"" };
        if !(wanted.is_empty() || wanted == "NotOlderThan" || (wanted == "Exact" && !self.watch)) {
            let detail = format!("Unsupported value: {wanted:?}: supported values: {supported}");
            errors.push(FieldError { field: FIELD.to_owned(), cause: Cause::NotSupported, detail });
        }
        if errors.is_empty() { Ok(()) } else { Err(ApiError::invalid_options("ListOptions", &errors)) }
    }

    /// The requested revision; `None` for any, which an empty value and 0 mean.
    pub(super) fn revision(&self) -> Result<Option<u64>, ApiError> {
        match self.resource_version.as_str() {
            "" | "0" => Ok(None),
            text => text.parse().map(Some).map_err(|_| {
                ApiError::bad_request(format!("Invalid value: {text:?}: resourceVersion is not a number"))
            }),
        }
    }
}
