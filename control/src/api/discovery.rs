//! Discovery: groups, resources, version, OpenAPI documents.

use axum::{
    body::Body,
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use serde_json::{Value, json};

use super::{ApiResult, VERSION, error::ApiError, header_text, negotiation::Accept, request_info::RequestOptions};
use crate::{
    registry::{self, ResourceType, group_versions},
    schema,
};

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// Serves discovery paths; `None` for all others.
pub(super) fn answer(path: &str, method: &Method, headers: &HeaderMap, options: &RequestOptions) -> Option<ApiResult> {
    if method != Method::GET {
        return None;
    }
    let accept = Accept::read(headers);
    let json = |value: &Value| Some(Ok(accept.write(StatusCode::OK, value)));
    let wants_aggregated = header_text(headers, header::ACCEPT).contains("as=APIGroupDiscoveryList");
    let segments: Vec<&str> = path.split('/').collect();
    match segments[..] {
        [""] => json(&json!({"paths": ["/api", "/apis", "/healthz", "/livez", "/openapi/v3", "/readyz", "/version"]})),
        ["version"] => json(&version()),
        ["api"] if wants_aggregated => Some(aggregated(headers, true)),
        ["apis"] if wants_aggregated => Some(aggregated(headers, false)),
        ["api"] => json(&json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})),
        ["apis"] => {
            let groups: Vec<Value> =
                group_versions().into_iter().filter(|(g, _)| !g.is_empty()).map(|(g, v)| group(g, v)).collect();
            json(&json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
        }
        ["apis", wanted] => {
            let found = group_versions().into_iter().find(|(g, _)| *g == wanted && !g.is_empty());
            match found {
                Some((g, v)) => {
                    let mut value = group(g, v);
                    value["kind"] = json!("APIGroup");
                    value["apiVersion"] = json!("v1");
                    json(&value)
                }
                None => Some(Err(ApiError::unknown_path())),
            }
        }
        ["api", version] => resources("", version).map(|v| Ok(accept.write(StatusCode::OK, &v))),
        ["apis", group, version] => resources(group, version).map(|v| Ok(accept.write(StatusCode::OK, &v))),
        ["openapi", "v3"] => {
            let paths: Vec<String> = group_versions()
                .iter()
                .map(|(g, v)| if g.is_empty() { format!("api/{v}") } else { format!("apis/{g}/{v}") })
                .collect();
            json(&schema::openapi_index(&paths))
        }
        ["openapi", "v3", "api", version] => Some(document("", version, accept, options)),
        ["openapi", "v3", "apis", group, version] => Some(document(group, version, accept, options)),
        ["openapi", "v2"] if header_text(headers, header::ACCEPT).contains("protobuf") => Some(Ok(empty_v2())),
        ["openapi", "v2"] => {
            let empty = json!({"swagger": "2.0", "info": {"title": "Kubernetes", "version": VERSION}, "paths": {}});
            json(&empty)
        }
        _ => None,
    }
}

fn version() -> Value {
    json!({
        "major": "1", "minor": "36", "gitVersion": VERSION, "gitCommit": "", "gitTreeState": "clean", "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "none", "compiler": "rustc", "platform": format!("{}/{}", std::env::consts::OS, go_arch()),
    })
}

/// Go's names of architectures.
fn go_arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn group(name: &str, version: &str) -> Value {
    let version = json!({"groupVersion": format!("{name}/{version}"), "version": version});
    json!({"name": name, "versions": [version], "preferredVersion": version})
}

fn types(group: &str, version: &str) -> Vec<&'static ResourceType> {
    registry::all().filter(|t| t.gvk.group == group && t.gvk.version == version).collect()
}

/// Kind and verbs of a subresource.
fn subresource_kind(resource: &ResourceType, name: &str) -> (Value, Vec<&'static str>) {
    let own = json!({"group": resource.gvk.group, "version": resource.gvk.version, "kind": resource.gvk.kind});
    let options = |kind: &str| json!({"group": "", "version": "v1", "kind": kind});
    match name {
        "scale" => (json!({"group": "autoscaling", "version": "v1", "kind": "Scale"}), vec!["get", "patch", "update"]),
        "binding" => (json!({"group": "", "version": "v1", "kind": "Binding"}), vec!["create"]),
        "eviction" => (json!({"group": "policy", "version": "v1", "kind": "Eviction"}), vec!["create"]),
        "token" => (json!({"group": "authentication.k8s.io", "version": "v1", "kind": "TokenRequest"}), vec!["create"]),
        "log" => (own, vec!["get"]),
        "attach" => (options("PodAttachOptions"), vec!["create", "get"]),
        "exec" => (options("PodExecOptions"), vec!["create", "get"]),
        "portforward" => (options("PodPortForwardOptions"), vec!["create", "get"]),
        "finalize" => (own, vec!["update"]),
        _ => (own, vec!["get", "patch", "update"]),
    }
}

fn resources(group: &str, version: &str) -> Option<Value> {
    let all = types(group, version);
    if all.is_empty() {
        return None;
    }
    let mut list = Vec::new();
    for t in all {
        let mut entry = json!({"name": t.plural, "singularName": t.singular, "namespaced": t.namespaced, "kind": t.gvk.kind, "verbs": t.verbs});
        if !t.short_names.is_empty() {
            entry["shortNames"] = json!(t.short_names);
        }
        if !t.categories.is_empty() {
            entry["categories"] = json!(t.categories);
        }
        list.push(entry);
        for subresource in t.subresources {
            let (kind, verbs) = subresource_kind(t, subresource);
            let mut entry = json!({"name": format!("{}/{subresource}", t.plural), "singularName": "", "namespaced": t.namespaced, "kind": kind["kind"], "verbs": verbs});
            if kind["group"] != t.gvk.group {
                entry["group"] = kind["group"].clone();
                entry["version"] = kind["version"].clone();
            }
            list.push(entry);
        }
    }
    let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    Some(json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": list}))
}

/// The aggregated discovery document, which clients cache by its ETag.
fn aggregated(headers: &HeaderMap, core: bool) -> ApiResult {
    let tag = format!("\"{VERSION}-{core}-{}\"", registry::all().count());
    if header_text(headers, header::IF_NONE_MATCH) == tag {
        return Ok(tagged(StatusCode::NOT_MODIFIED.into_response(), &tag));
    }
    let items: Vec<Value> = group_versions()
        .into_iter()
        .filter(|(g, _)| g.is_empty() == core)
        .map(|(g, v)| {
            let resources: Vec<Value> = types(g, v)
                .into_iter()
                .map(|t| {
                    let subs: Vec<Value> = t
                        .subresources
                        .iter()
                        .map(|s| {
                            let (kind, verbs) = subresource_kind(t, s);
                            json!({"subresource": s, "responseKind": kind, "verbs": verbs})
                        })
                        .collect();
                    let mut entry = json!({
                        "resource": t.plural, "responseKind": {"group": g, "version": v, "kind": t.gvk.kind},
                        "scope": if t.namespaced { "Namespaced" } else { "Cluster" }, "singularResource": t.singular, "verbs": t.verbs,
                    });
                    for (key, list) in [("shortNames", t.short_names), ("categories", t.categories)] {
                        if !list.is_empty() {
                            entry[key] = json!(list);
                        }
                    }
                    if !subs.is_empty() {
                        entry["subresources"] = json!(subs);
                    }
                    entry
                })
                .collect();
            json!({"metadata": {"name": g, "creationTimestamp": null}, "versions": [{"version": v, "resources": resources, "freshness": "Current"}]})
        })
        .collect();
    let list = json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items});
    let mut response = (StatusCode::OK, Body::from(list.to_string())).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(AGGREGATED));
    Ok(tagged(response, &tag))
}

fn tagged(mut response: Response, tag: &str) -> Response {
    if let Ok(value) = HeaderValue::from_str(tag) {
        response.headers_mut().insert(header::ETAG, value);
    }
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("Accept"));
    response
}

/// OpenAPI v2 without any definition: clients look here for kinds that v3 does not have, and must find none.
fn empty_v2() -> Response {
    const KIND: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
    // Field 1, the version of the format.
    let body: &'static [u8] = b"\x0a\x032.0";
    let mut response = (StatusCode::OK, Body::from(body)).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(KIND));
    response
}

fn document(group: &str, version: &str, accept: Accept, options: &RequestOptions) -> ApiResult {
    if types(group, version).is_empty() {
        return Err(ApiError::unknown_path());
    }
    if let Some(requested) = options.get("hash").filter(|hash| !hash.is_empty()) {
        let (path, hash) = schema::openapi_hash(group, version);
        if requested != hash {
            // The document of that hash is outdated; the current one must not be cached under it.
            let place = HeaderValue::from_str(&format!("/openapi/v3/{path}?hash={hash}"));
            let place = place.map_err(ApiError::internal)?;
            return Ok((StatusCode::MOVED_PERMANENTLY, [(header::LOCATION, place)]).into_response());
        }
    }
    let mut response = accept.write(StatusCode::OK, &schema::openapi_document(group, version));
    if options.get("hash").is_some() {
        let forever = HeaderValue::from_static("public, immutable, max-age=31536000");
        response.headers_mut().insert(header::CACHE_CONTROL, forever);
    }
    Ok(response)
}
