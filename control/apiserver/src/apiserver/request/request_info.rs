//! Request info: what a request is about, and the options of its query. Pure.

use std::{num::IntErrorKind, time::Duration};

use axum::{
    extract::Query,
    http::{Method, Uri},
};

use serde_json::{Value, json};
use windlass_apimachinery::{duration, go_quoted};
use windlass_kit::percent;

use super::attributes::{Attributes, exact};
use super::error::ApiError;
use crate::apiserver::pipeline::validation::{Cause, Errors, FieldError};

/// The segments of a path. Escapes are decoded before the path is split, as upstream does.
pub(crate) fn segments(path: &str) -> Option<Vec<String>> {
    Some(percent::decoded(path)?.trim_matches('/').split('/').map(str::to_owned).collect())
}

/// The parts of a path that is about a resource.
struct Parts<'a, 'b> {
    group: &'a str,
    version: &'a str,
    /// The verb that the path begins with instead of the method's: `api/v1/watch/pods`. Deprecated.
    verb: Option<&'a str>,
    namespace: &'a str,
    /// Whether the resource stands behind the namespace, and is not the namespace itself.
    in_namespace: bool,
    /// From the resource on.
    rest: &'b [&'a str],
}

impl<'a, 'b> Parts<'a, 'b> {
    fn of(segments: &'b [&'a str]) -> Option<Self> {
        let (group, version, parts) = match segments {
            ["api", version, parts @ ..] if !parts.is_empty() => ("", *version, parts),
            ["apis", group, version, parts @ ..] if !parts.is_empty() => (*group, *version, parts),
            _ => return None,
        };
        let (verb, parts) = match parts {
            [verb @ ("watch" | "proxy"), rest @ ..] if !rest.is_empty() => (Some(*verb), rest),
            _ => (None, parts),
        };
        let found = Self { group, version, verb, namespace: "", in_namespace: false, rest: parts };
        let ["namespaces", namespace, rest @ ..] = parts else { return Some(found) };
        // Subresources of namespaces are not resources in a namespace.
        let of_namespace = group.is_empty() && matches!(rest, ["status" | "finalize"]);
        let in_namespace = !rest.is_empty() && !of_namespace;
        Some(Self { namespace, in_namespace, rest: if in_namespace { rest } else { parts }, ..found })
    }
}

/// Whether a path is that of a `proxy` subresource, whose query is that of the backend.
pub(crate) fn is_proxied(segments: &[&str]) -> bool {
    Parts::of(segments).is_some_and(|parts| parts.verb.is_none() && parts.rest.get(2) == Some(&"proxy"))
}

/// What a request is about, by its path, method and query alone: nothing is looked up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RequestInfo {
    /// The verb; in lower case the method of a request that is about no resource.
    pub(crate) verb: String,
    /// The path, decoded.
    pub(crate) path: String,
    pub(crate) is_resource: bool,
    /// Empty for the core group.
    pub(crate) group: String,
    pub(crate) version: String,
    /// The namespace in the path, also of a resource that has none; of a Namespace its name.
    pub(crate) namespace: String,
    /// Whether the resource stands behind the namespace in the path, and is not the namespace itself.
    pub(crate) in_namespace: bool,
    /// Whether the path begins with the verb: `api/v1/watch/pods`.
    pub(crate) has_verb_prefix: bool,
    pub(crate) resource: String,
    pub(crate) subresource: String,
    /// Of a list or watch the name that its field selector requires.
    pub(crate) name: String,
    /// The name in the path.
    pub(crate) path_name: String,
    /// The segments behind the subresource.
    pub(crate) rest: Vec<String>,
}

impl RequestInfo {
    /// Reads a path such as `api/v1/namespaces/x/pods/y/status`, as upstream's `RequestInfoFactory`.
    pub(crate) fn parse(segments: &[&str], method: &Method, options: &RequestOptions) -> Self {
        let path = format!("/{}", segments.join("/"));
        let mut info = Self { verb: method.as_str().to_lowercase(), path, ..Self::default() };
        let Some(parts) = Parts::of(segments) else { return info };
        info.is_resource = true;
        info.group = parts.group.to_owned();
        info.version = parts.version.to_owned();
        info.namespace = parts.namespace.to_owned();
        (info.in_namespace, info.has_verb_prefix) = (parts.in_namespace, parts.verb.is_some());
        let text = |at: usize| parts.rest.get(at).map(|part| (*part).to_owned()).unwrap_or_default();
        (info.resource, info.path_name, info.subresource) = (text(0), text(1), text(2));
        info.rest = parts.rest.iter().skip(3).map(|part| (*part).to_owned()).collect();
        info.name.clone_from(&info.path_name);
        info.verb = parts.verb.unwrap_or_else(|| verb_of(method, !info.name.is_empty(), options.watch)).to_owned();
        if info.name.is_empty() && parts.verb.is_none() && matches!(info.verb.as_str(), "list" | "watch") {
            let name = exact(&options.fields, "metadata.name").filter(|name| is_path_segment(name));
            info.name = name.unwrap_or_default().to_owned();
        }
        info
    }

    /// The attributes to authorize of a request that leads to no [`crate::apiserver::Target`]. They are taken from the
    /// path as they are, since nothing is done.
    pub(in crate::apiserver) fn attributes<'a>(&'a self, options: &'a RequestOptions) -> Attributes<'a> {
        Attributes {
            verb: &self.verb,
            is_resource: self.is_resource,
            path: &self.path,
            group: &self.group,
            version: &self.version,
            resource: &self.resource,
            subresource: &self.subresource,
            namespace: &self.namespace,
            name: &self.name,
            field_selector: self.field_selector(options),
        }
    }

    /// Whether the request may take as long as it likes, as upstream decides it (`BuildHandlerChain`'s `longRunningFunc`).
    pub(in crate::apiserver) fn is_long_running(&self) -> bool {
        let subresource = self.subresource.as_str();
        matches!(self.verb.as_str(), "watch" | "proxy")
            || (self.is_resource && matches!(subresource, "attach" | "exec" | "proxy" | "log" | "portforward"))
    }

    /// The time that the `timeout` of the query gives the request; none for one that may take as long as it likes. Upstream's
    /// `WithRequestDeadline`.
    ///
    /// # Errors
    /// When it is no duration.
    pub(in crate::apiserver) fn timeout(&self, options: &RequestOptions) -> Result<Option<Duration>, ApiError> {
        let given = options.all.iter().find(|(key, _)| key == "timeout").map(|(_, text)| text.as_str());
        let Some(text) = given.filter(|text| !text.is_empty() && !self.is_long_running()) else { return Ok(None) };
        let nanoseconds = duration::parse(text).ok_or_else(|| {
            let why = duration::why_invalid(text);
            ApiError::bad_request(format!("invalid timeout specified in the request URL - {why}"))
        })?;
        // As upstream, none and less than none are no limit.
        Ok(u64::try_from(nanoseconds).ok().filter(|given| *given > 0).map(Duration::from_nanos))
    }

    /// The field selector that counts for rights: paths that begin with a verb do not all keep to it, as upstream.
    pub(in crate::apiserver) fn field_selector<'a>(&self, options: &'a RequestOptions) -> &'a str {
        if self.has_verb_prefix { "" } else { &options.fields }
    }
}

/// The verb of a request for a resource.
fn verb_of(method: &Method, named: bool, watch: bool) -> &'static str {
    match (method.as_str(), named) {
        ("GET" | "HEAD", true) => "get",
        ("GET" | "HEAD", false) => {
            if watch {
                "watch"
            } else {
                "list"
            }
        }
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        ("DELETE", true) => "delete",
        ("DELETE", false) => "deletecollection",
        _ => "",
    }
}

/// Whether a name is valid as a path segment.
fn is_path_segment(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(['/', '%'])
}

/// How unknown and duplicate fields are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

/// The options in a request's query.
#[derive(Debug, Clone)]
pub struct RequestOptions {
    pub(crate) watch: bool,
    pub(crate) labels: String,
    pub(crate) fields: String,
    pub(crate) resource_version: String,
    pub(crate) resource_version_match: String,
    pub(crate) send_initial_events: bool,
    pub(crate) bookmarks: bool,
    pub(crate) timeout: Option<u64>,
    pub(crate) limit: usize,
    pub(crate) continue_: String,
    pub(crate) dry_run: bool,
    pub(crate) field_validation: FieldValidation,
    pub(crate) include_object: String,
    pub(crate) all: Vec<(String, String)>,
}

/// A number in a query, as Go reads it.
///
/// # Errors
/// Go's.
pub(in crate::apiserver) fn go_int(text: &str) -> Result<i64, ApiError> {
    text.parse().map_err(|error: std::num::ParseIntError| {
        let why = match error.kind() {
            IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "value out of range",
            _ => "invalid syntax",
        };
        ApiError::bad_request(format!("strconv.ParseInt: parsing {text:?}: {why}"))
    })
}

/// A truth in a query, as Go reads it: only these words say no.
fn go_bool(text: &str) -> bool {
    text != "0" && !text.eq_ignore_ascii_case("false")
}

impl RequestOptions {
    /// The options of a query. Those that are wrong are refused by [`Self::check`], for the verbs that have them.
    pub(crate) fn parse(uri: &Uri) -> Result<Self, ApiError> {
        let Query(all) = Query::<Vec<(String, String)>>::try_from_uri(uri)
            .map_err(|e| ApiError::bad_request(format!("the query cannot be read: {e}")))?;
        let get = |key: &str| all.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str());
        let truth = |key: &str| get(key).is_some_and(go_bool);
        let number = |key: &str| get(key).and_then(|text| go_int(text).ok());
        let field_validation = match get("fieldValidation") {
            Some("Strict") => FieldValidation::Strict,
            Some("Ignore") => FieldValidation::Ignore,
            _ => FieldValidation::Warn,
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
            timeout: number("timeoutSeconds").and_then(|seconds| u64::try_from(seconds).ok()),
            // As upstream: what is no positive number of objects is no limit.
            limit: usize::try_from(number("limit").unwrap_or(0)).unwrap_or(0),
            continue_: text("continue"),
            dry_run: get("dryRun").is_some(),
            field_validation,
            include_object: text("includeObject"),
            all,
        };
        Ok(options)
    }

    /// Refuses a table with an unknown `includeObject`.
    pub(in crate::apiserver) fn check_table(&self) -> Result<(), ApiError> {
        let include = self.include_object.as_str();
        if matches!(include, "" | "Metadata" | "None" | "Object") {
            return Ok(());
        }
        let why = format!("Invalid value: {}: must be 'Metadata', 'Object', 'None', or empty", go_quoted(include));
        Err(ApiError::bad_request(format!("Unable to convert to Table as requested: includeObject: {why}")))
    }

    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.all.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    /// The options of a write, as webhooks are shown them.
    pub(in crate::apiserver) fn of_write(&self) -> Value {
        let mut options = json!({});
        if self.dry_run {
            options["dryRun"] = json!(["All"]);
        }
        for key in ["fieldManager", "fieldValidation"] {
            if let Some(text) = self.get(key).filter(|text| !text.is_empty()) {
                options[key] = json!(text);
            }
        }
        options
    }

    /// The truth of an option, if it is given.
    pub(in crate::apiserver) fn flag(&self, key: &str) -> Option<bool> {
        self.get(key).map(go_bool)
    }

    /// Validates the options that a verb has.
    ///
    /// # Errors
    /// The first that is wrong.
    pub(in crate::apiserver) fn check(&self, verb: &str) -> Result<(), ApiError> {
        if matches!(verb, "list" | "watch" | "deletecollection") {
            for key in ["limit", "timeoutSeconds"] {
                self.get(key).map(go_int).transpose()?;
            }
            self.validate_list_options()?;
        }
        let kind = match verb {
            "create" => "CreateOptions",
            "update" => "UpdateOptions",
            "patch" => "PatchOptions",
            "delete" | "deletecollection" => "DeleteOptions",
            _ => return Ok(()),
        };
        let mut errors = Errors::default();
        let stages: Vec<&str> = self.all.iter().filter(|(key, _)| key == "dryRun").map(|(_, stage)| &**stage).collect();
        if stages.iter().any(|stage| *stage != "All") {
            errors.not_supported("dryRun", &json!(stages), &["All"]);
        }
        let validation = self.get("fieldValidation").unwrap_or("");
        if kind != "DeleteOptions" && !matches!(validation, "" | "Warn" | "Strict" | "Ignore") {
            errors.not_supported("fieldValidation", &json!(validation), &["", "Ignore", "Strict", "Warn"]);
        }
        if errors.0.is_empty() { Ok(()) } else { Err(ApiError::invalid_options(kind, &errors.0)) }
    }

    /// Validates the options of a list or watch, with upstream's messages.
    ///
    /// # Errors
    /// All invalid options together.
    fn validate_list_options(&self) -> Result<(), ApiError> {
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
        if !errors.is_empty() {
            return Err(ApiError::invalid_options("ListOptions", &errors));
        }
        if !self.watch && !self.continue_.is_empty() && !matches!(self.resource_version.as_str(), "" | "0") {
            return Err(ApiError::bad_request("specifying resource version is not allowed when using continue"));
        }
        Ok(())
    }

    /// The requested revision; `None` for any, which an empty value and 0 mean.
    pub(crate) fn revision(&self) -> Result<Option<u64>, ApiError> {
        match self.resource_version.as_str() {
            "" | "0" => Ok(None),
            text => text.parse().map(Some).map_err(|_| {
                ApiError::bad_request(format!(
                    "invalid resource version: resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax"
                ))
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(method: &str, uri: &str) -> RequestInfo {
        let uri: Uri = uri.parse().unwrap();
        let segments = segments(uri.path()).unwrap();
        let options = RequestOptions::parse(&uri).unwrap();
        let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
        RequestInfo::parse(&segments, &method.parse().unwrap(), &options)
    }

    #[test]
    fn paths_of_resources() {
        for (method, uri, expected) in [
            ("GET", "/api/v1/namespaces", "list ///namespaces//"),
            ("GET", "/api/v1/namespaces/n", "get /n//namespaces/n/"),
            ("PUT", "/api/v1/namespaces/n/finalize", "update /n//namespaces/n/finalize"),
            ("GET", "/api/v1/namespaces/n/pods", "list /n//pods//"),
            ("POST", "/api/v1/namespaces/n/pods", "create /n//pods//"),
            ("DELETE", "/api/v1/namespaces/n/pods", "deletecollection /n//pods//"),
            ("PATCH", "/api/v1/namespaces/n/pods/p/status", "patch /n//pods/p/status"),
            ("GET", "/api/v1/watch/namespaces/n/pods", "watch /n//pods//"),
            ("GET", "/apis/apps.example/v1/namespaces/n/finalize", "list /n/apps.example/finalize//"),
            ("GET", "/apis/a.b/v2/things?watch=1", "watch //a.b/things//"),
            ("GET", "/api/v1/namespaces/n/pods/p?watch=1", "get /n//pods/p/"),
            ("DELETE", "/api/v1/watch/namespaces/n/pods/p", "watch /n//pods/p/"),
            ("POST", "/api/v1/proxy/namespaces/n/pods/p", "proxy /n//pods/p/"),
            ("GET", "/api/v1/namespaces/n/namespaces/n", "get /n//namespaces/n/"),
        ] {
            let info = parse(method, uri);
            let found = format!(
                "{} /{}/{}/{}/{}/{}",
                info.verb, info.namespace, info.group, info.resource, info.name, info.subresource
            );
            assert_eq!(found, expected, "{method} {uri}");
        }
        for uri in ["/api", "/api/v1", "/apis", "/apis/a.b", "/apis/a.b/v1", "/version", "/openapi/v3/api/v1"] {
            let info = parse("GET", uri);
            assert!(!info.is_resource && info.verb == "get" && info.path == uri, "{uri}");
        }
        assert_eq!(parse("GET", "/api/v1/nodes/n/proxy/a/b").rest, ["a", "b"]);
        for (path, proxied) in [
            ("api/v1/nodes/n/proxy", true),
            ("api/v1/namespaces/n/pods/p/proxy/a", true),
            ("api/v1/namespaces/n/pods/proxy", false),
            ("api/v1/namespaces/n/pods/p/log/proxy", false),
            ("api/v1/watch/namespaces/n/pods/p/proxy", false),
        ] {
            assert_eq!(is_proxied(&path.split('/').collect::<Vec<_>>()), proxied, "{path}");
        }
    }

    #[test]
    fn a_list_of_one_name_is_about_that_object() {
        let about = |path: &str, query: &str| parse("GET", &format!("/{path}?{query}")).name;
        let secrets = "api/v1/namespaces/d/secrets";
        assert_eq!(about(secrets, "fieldSelector=metadata.name%3Dx"), "x");
        assert_eq!(about(secrets, "watch=1&fieldSelector=type%3DOpaque,metadata.name%3Dx"), "x");
        for selector in [
            "metadata.name!%3Dx",
            "metadata.name%3D",
            "metadata.name%3Da%2Fb",
            "metadata.name%3D..",
            "type%3DOpaque",
            "nonsense",
        ] {
            assert_eq!(about(secrets, &format!("fieldSelector={selector}")), "", "{selector}");
        }
        assert_eq!(about("api/v1/namespaces/d/secrets/y", "fieldSelector=metadata.name%3Dx"), "y");
    }
}
