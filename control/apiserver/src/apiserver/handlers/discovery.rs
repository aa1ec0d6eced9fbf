//! Discovery: groups, resources, version, OpenAPI documents.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
};

use axum::{
    body::{Body, Bytes},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use serde_json::{Value, json};
use windlass_kit::{build_info::field, group_version::GroupVersion, objects::storage_version, serve::headers};

use crate::apiserver::{
    request::{
        error::{ApiError, ApiResult},
        media_type::AGGREGATED_DISCOVERY,
        negotiation::{Accept, wants_aggregated_discovery},
        request_info::{RequestInfo, RequestOptions},
    },
    types::{Catalog, OpenApiV2, Published, PublishedGroup, ServedVersion, Storage, Subresource, Version},
};
use crate::schema;

/// Whether the answer of a path takes long to make: documents of all types.
pub(in crate::apiserver) fn is_heavy(path: &str) -> bool {
    path.starts_with("/openapi/")
}

/// The document of version 2.
pub(in crate::apiserver) const OPENAPI_V2: &str = "/openapi/v2";

/// Serves discovery paths, with the OpenAPI documents that others have for what they serve; `None` for all other paths.
pub(in crate::apiserver) fn answer(
    (catalog, others): (&Catalog, &[Arc<OpenApiV2>]),
    info: &RequestInfo,
    method: &Method,
    headers: &HeaderMap,
    options: &RequestOptions,
) -> Option<ApiResult> {
    if method != Method::GET {
        return None;
    }
    let accept = Accept::read(headers);
    let json = |value: &Value| Some(Ok(accept.write(StatusCode::OK, value)));
    // Upstream indents what people read.
    let indented = |value: &Value| {
        let text = serde_json::to_vec_pretty(value).unwrap_or_default();
        Some(Ok(accept.bytes(StatusCode::OK, text.into())))
    };
    let wants_aggregated = wants_aggregated_discovery(&headers::shown(headers, header::ACCEPT.as_str()));
    let segments: Vec<&str> = info.path.trim_matches('/').split('/').collect();
    match segments[..] {
        [""] => indented(
            &json!({"paths": ["/api", "/apis", "/healthz", "/livez", "/openapi/v2", "/openapi/v3", "/readyz", "/version"]}),
        ),
        ["version"] => indented(&version()),
        ["api"] if wants_aggregated => Some(aggregated(catalog, headers, true)),
        ["apis"] if wants_aggregated => Some(aggregated(catalog, headers, false)),
        ["api"] => json(&json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})),
        ["apis"] => {
            let groups: Vec<Value> = catalog.published().iter().map(group).collect();
            json(&json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
        }
        ["apis", wanted] => match catalog.published().iter().find(|group| group.name == wanted) {
            Some(found) => {
                let mut value = group(found);
                value["kind"] = json!("APIGroup");
                value["apiVersion"] = json!("v1");
                json(&value)
            }
            None => Some(Err(ApiError::unknown_path())),
        },
        ["api", version] => resources(catalog, "", version).map(|v| Ok(accept.write(StatusCode::OK, &v))),
        ["apis", group, version] => resources(catalog, group, version).map(|v| Ok(accept.write(StatusCode::OK, &v))),
        ["openapi", "v3"] => json(&schema::openapi_index(catalog)),
        ["openapi", "v3", "api", version] => Some(document(catalog, ("", version), headers, accept, options)),
        ["openapi", "v3", "apis", group, version] => {
            Some(document(catalog, (group, version), headers, accept, options))
        }
        ["openapi", "v2"] => Some(Ok(document_v2(catalog, others, headers, accept))),
        _ => None,
    }
}

fn version() -> Value {
    let (major, minor) = (field("major"), field("minor"));
    json!({
        "major": major, "minor": minor, "emulationMajor": major, "emulationMinor": minor,
        "minCompatibilityMajor": "1", "minCompatibilityMinor": "35",
        "gitVersion": field("git_version"), "gitCommit": field("git_commit"),
        "gitTreeState": field("git_tree_state"), "buildDate": field("build_date"),
        "goVersion": field("go_version"), "compiler": field("compiler"), "platform": field("platform"),
    })
}

fn group(group: &PublishedGroup<'_>) -> Value {
    let of = |v: &Published<'_>| {
        let version = v.version();
        json!({"groupVersion": GroupVersion { group: group.name, version }.to_string(), "version": version})
    };
    let versions: Vec<Value> = group.versions.iter().map(of).collect();
    json!({"name": group.name, "preferredVersion": versions.first(), "versions": versions})
}

/// The kind of a subresource's bodies.
fn response_kind(version: &Version, subresource: &Subresource) -> Value {
    let kind = subresource.kind.as_ref().unwrap_or(&version.gvk);
    json!({"group": kind.group, "version": kind.version, "kind": kind.kind})
}

fn resources(catalog: &Catalog, group: &str, version: &str) -> Option<Value> {
    let mut list = Vec::new();
    let resources = &catalog.group_version(group, version)?.resources;
    for t in resources {
        let mut entry = json!({"name": t.plural, "singularName": t.singular, "namespaced": t.namespaced, "kind": t.gvk.kind, "verbs": t.discovered_verbs()});
        if !t.short_names.is_empty() {
            entry["shortNames"] = json!(t.short_names);
        }
        if !t.categories.is_empty() {
            entry["categories"] = json!(t.categories);
        }
        if let Storage::Store { api_version, .. } = &t.storage {
            entry["storageVersionHash"] = json!(storage_version::hash(api_version, &t.gvk.kind));
        }
        list.push(entry);
        for subresource in &t.spec.subresources {
            let kind = response_kind(t, subresource);
            let mut entry = json!({"name": format!("{}/{}", t.plural, subresource.name), "singularName": "", "namespaced": t.namespaced, "kind": kind["kind"], "verbs": subresource.verbs});
            if kind["group"] != *t.gvk.group {
                entry["group"] = kind["group"].clone();
                entry["version"] = kind["version"].clone();
            }
            list.push(entry);
        }
    }
    // Subresources of custom resources have an order of their own.
    if resources.iter().all(|version| version.spec.schema.is_built_in()) {
        list.sort_by(|one: &Value, other| one["name"].as_str().cmp(&other["name"].as_str()));
    }
    let group_version = GroupVersion { group, version }.to_string();
    Some(json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": list}))
}

/// The aggregated discovery document, which clients cache by its ETag.
fn aggregated(catalog: &Catalog, headers: &HeaderMap, core: bool) -> ApiResult {
    let items: Vec<Value> = if core {
        let own = catalog.group("").map(|group| group.versions.iter().map(Published::Own).collect());
        own.map(|versions| aggregated_group(&PublishedGroup { name: "", versions })).into_iter().collect()
    } else {
        catalog.published().iter().map(aggregated_group).collect()
    };
    let list = json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items});
    let text = list.to_string();
    // Of the document itself: a restarted server gives the same tag for the same types.
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    let tag = format!("\"{:016X}\"", hasher.finish());
    if headers::shown(headers, header::IF_NONE_MATCH.as_str()) == tag {
        return Ok(tagged(StatusCode::NOT_MODIFIED.into_response(), &tag));
    }
    let mut response = (StatusCode::OK, Body::from(text)).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(AGGREGATED_DISCOVERY));
    Ok(tagged(response, &tag))
}

fn aggregated_group(group: &PublishedGroup<'_>) -> Value {
    let own = |v: &ServedVersion| {
        let resources: Vec<Value> = v.resources.iter().map(|t| aggregated_resource(t)).collect();
        json!({"version": v.version, "resources": resources, "freshness": "Current"})
    };
    let version = |v: &Published<'_>| match v {
        Published::Own(v) => own(v),
        Published::Extension(extension) => (*extension.discovery).clone(),
    };
    let versions: Vec<Value> = group.versions.iter().map(version).collect();
    json!({"metadata": {"name": group.name}, "versions": versions})
}

fn aggregated_resource(t: &Version) -> Value {
    let mut entry = json!({
        "resource": t.plural, "responseKind": {"group": t.gvk.group, "version": t.gvk.version, "kind": t.gvk.kind},
        "scope": if t.namespaced { "Namespaced" } else { "Cluster" }, "singularResource": t.singular, "verbs": t.discovered_verbs(),
    });
    for (key, list) in [("shortNames", &t.short_names), ("categories", &t.categories)] {
        if !list.is_empty() {
            entry[key] = json!(list);
        }
    }
    let subresource =
        |s: &Subresource| json!({"subresource": s.name, "responseKind": response_kind(t, s), "verbs": s.verbs});
    if !t.spec.subresources.is_empty() {
        entry["subresources"] = t.spec.subresources.iter().map(subresource).collect();
    }
    entry
}

fn tagged(mut response: Response, tag: &str) -> Response {
    if let Ok(value) = HeaderValue::from_str(tag) {
        response.headers_mut().insert(header::ETAG, value);
    }
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("Accept"));
    response
}

/// OpenAPI version 2 in protobuf: what client-go asks for, and what it is answered.
const OPENAPI_V2_PROTOBUF: [&str; 2] = [
    "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
    "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
];

fn document_v2(catalog: &Catalog, others: &[Arc<OpenApiV2>], headers: &HeaderMap, accept: Accept) -> Response {
    let asked = headers::shown(headers, header::ACCEPT.as_str());
    let as_protobuf = OPENAPI_V2_PROTOBUF.iter().any(|kind| asked.contains(kind));
    if !as_protobuf && !accept.is_acceptable {
        return StatusCode::NOT_ACCEPTABLE.into_response();
    }
    let tag = format!("\"{}\"", schema::openapi_hash_v2(catalog, others));
    if headers::shown(headers, header::IF_NONE_MATCH.as_str()) == tag {
        return tagged(StatusCode::NOT_MODIFIED.into_response(), &tag);
    }
    let response = if as_protobuf {
        accept.encoded(StatusCode::OK, OPENAPI_V2_PROTOBUF[1], schema::openapi_document_v2_protobuf(catalog, others))
    } else {
        accept.encoded(StatusCode::OK, "application/json", schema::openapi_document_v2(catalog, others))
    };
    tagged(response, &tag)
}

fn document(
    catalog: &Catalog,
    (group, version): (&str, &str),
    headers: &HeaderMap,
    accept: Accept,
    options: &RequestOptions,
) -> ApiResult {
    if catalog.group_version(group, version).is_none() {
        return Err(ApiError::unknown_path());
    }
    let (path, hash) = schema::openapi_hash(catalog, group, version);
    hashed((&path, &hash), headers, accept, options, || schema::openapi_document(catalog, group, version))
}

/// A document of version 3 at a path, which clients keep by its hash.
pub(super) fn hashed(
    (path, hash): (&str, &str),
    headers: &HeaderMap,
    accept: Accept,
    options: &RequestOptions,
    text: impl FnOnce() -> Bytes,
) -> ApiResult {
    let tag = format!("\"{hash}\"");
    if options.get("hash").is_some_and(|requested| !requested.is_empty() && requested != hash) {
        // The document of that hash is outdated; the current one must not be cached under it.
        let place = HeaderValue::from_str(&format!("/openapi/v3/{path}?hash={hash}")).map_err(ApiError::internal)?;
        return Ok((StatusCode::MOVED_PERMANENTLY, [(header::LOCATION, place)]).into_response());
    }
    let mut response = if headers::shown(headers, header::IF_NONE_MATCH.as_str()) == tag {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        accept.bytes(StatusCode::OK, text())
    };
    if options.get("hash").is_some() {
        let forever = HeaderValue::from_static("public, immutable, max-age=31536000");
        response.headers_mut().insert(header::CACHE_CONTROL, forever);
    }
    Ok(tagged(response, &tag))
}
