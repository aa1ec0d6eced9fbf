//! What of an extension API server's answers becomes of discovery: the documents of version 2 and 2beta1 with all its groups,
//! or the list of the resources of one group version. Only what is known is taken. Pure.
//!
//! Upstream: `k8s.io/kube-aggregator/pkg/apiserver/handler_discovery.go`, and `ConvertGroupVersionIntoToDiscovery` of
//! `k8s.io/apiserver/pkg/endpoints`.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

/// Group versions by group and version.
pub(super) type Versions = BTreeMap<(String, String), VersionDiscovery>;

/// A list that has nothing is `null` in Go.
fn nullable<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(value: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(value)?.unwrap_or_default())
}

#[derive(Debug, Deserialize)]
struct GroupList {
    #[serde(default, deserialize_with = "nullable")]
    items: Vec<GroupDiscovery>,
}

#[derive(Debug, Deserialize)]
struct GroupDiscovery {
    metadata: Named,
    #[serde(default, deserialize_with = "nullable")]
    versions: Vec<VersionDiscovery>,
}

#[derive(Debug, Deserialize)]
struct Named {
    #[serde(default)]
    name: String,
}

/// A group version.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct VersionDiscovery {
    version: String,
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    resources: Vec<ResourceDiscovery>,
    #[serde(default)]
    freshness: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct ResourceDiscovery {
    resource: String,
    /// Clients of 0.26 need one.
    #[serde(default, deserialize_with = "nullable")]
    response_kind: Kind,
    scope: String,
    #[serde(default)]
    singular_resource: String,
    #[serde(default, deserialize_with = "nullable")]
    verbs: Vec<String>,
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    short_names: Vec<String>,
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    categories: Vec<String>,
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    subresources: Vec<SubresourceDiscovery>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct SubresourceDiscovery {
    subresource: String,
    #[serde(default, deserialize_with = "nullable")]
    response_kind: Kind,
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    accepted_types: Vec<Kind>,
    #[serde(default, deserialize_with = "nullable")]
    verbs: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
struct Kind {
    group: String,
    version: String,
    kind: String,
}

/// A resource of the list of one group version.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ApiResource {
    name: String,
    singular_name: String,
    namespaced: bool,
    group: String,
    version: String,
    kind: String,
    #[serde(deserialize_with = "nullable")]
    verbs: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    short_names: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    categories: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct ResourceList {
    #[serde(default, deserialize_with = "nullable")]
    resources: Vec<ApiResource>,
}

/// The group versions of a document with all groups.
///
/// # Errors
/// When it cannot be read.
pub(super) fn read_aggregated(body: &[u8]) -> Result<Versions, String> {
    let list: GroupList = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    let groups = list.items.into_iter().flat_map(|group| {
        let name = group.metadata.name;
        group.versions.into_iter().map(move |version| ((name.clone(), version.version.clone()), version))
    });
    Ok(groups.collect())
}

/// The group version of a list of resources.
///
/// # Errors
/// When it cannot be read, or says of a resource that it is in namespaces and that it is not.
pub(super) fn read_legacy(version: &str, body: &[u8]) -> Result<VersionDiscovery, String> {
    let list: ResourceList = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    let scope = |of: &ApiResource| if of.namespaced { "Namespaced" } else { "Cluster" }.to_owned();
    let kind = |of: &ApiResource| Kind { group: of.group.clone(), version: of.version.clone(), kind: of.kind.clone() };
    let (below, whole): (Vec<_>, Vec<_>) = list.resources.into_iter().partition(|of| of.name.contains('/'));
    let mut resources: Vec<ResourceDiscovery> = whole
        .into_iter()
        .map(|of| ResourceDiscovery {
            response_kind: kind(&of),
            scope: scope(&of),
            resource: of.name,
            singular_resource: of.singular_name,
            verbs: of.verbs,
            short_names: of.short_names,
            categories: of.categories,
            subresources: Vec::new(),
        })
        .collect();
    for of in below {
        let (parent, name) = of.name.split_once('/').unwrap_or((&of.name, ""));
        let scope = scope(&of);
        let at = resources.iter().position(|known| known.resource == parent).unwrap_or_else(|| {
            let (resource, scope) = (parent.to_owned(), scope.clone());
            resources.push(ResourceDiscovery { resource, scope, ..ResourceDiscovery::default() });
            resources.len() - 1
        });
        let known = &mut resources[at];
        if known.scope != scope {
            return Err(format!(
                "Error: Parent {parent} (scope: {}) and subresource {name} (scope: {scope}) scope do not match",
                known.scope
            ));
        }
        known.subresources.push(SubresourceDiscovery {
            subresource: name.to_owned(),
            response_kind: if of.kind.is_empty() { Kind::default() } else { kind(&of) },
            accepted_types: Vec::new(),
            verbs: of.verbs,
        });
    }
    Ok(VersionDiscovery { version: version.to_owned(), resources, freshness: String::new() })
}

/// What is published of a group version: what was last known of it, and whether that is current.
pub(super) fn published(version: &str, known: Option<&VersionDiscovery>, is_current: bool) -> Value {
    let freshness = if is_current { "Current" } else { "Stale" };
    match known {
        Some(known) => {
            let known = VersionDiscovery { freshness: freshness.to_owned(), ..known.clone() };
            serde_json::to_value(known).unwrap_or_else(|_| json!({"version": version, "freshness": "Stale"}))
        }
        None => json!({"version": version, "freshness": freshness}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_known_is_taken_of_a_document() {
        let body = json!({"kind": "APIGroupDiscoveryList", "metadata": {"x": 1}, "items": [{
            "metadata": {"name": "g", "creationTimestamp": null}, "versions": [{
                "version": "v1", "freshness": "Current", "unknown": {"a": 1}, "resources": [{
                    "resource": "xs", "scope": "Namespaced", "verbs": ["get"], "singularResource": "x",
                    "responseKind": {"group": "g", "version": "v1", "kind": "X"}, "shortNames": ["y"], "unknown": 1,
                    "subresources": [{"subresource": "status", "verbs": null, "responseKind": null}],
                }],
            }, {"version": "v2"}],
        }]});
        let all = read_aggregated(body.to_string().as_bytes()).unwrap();
        let of = |version: &str| all.get(&("g".to_owned(), version.to_owned()));
        let none = json!({"group": "", "version": "", "kind": ""});
        assert_eq!(
            published("v1", of("v1"), true),
            json!({"version": "v1", "freshness": "Current", "resources": [{
                "resource": "xs", "scope": "Namespaced", "verbs": ["get"], "singularResource": "x", "shortNames": ["y"],
                "responseKind": {"group": "g", "version": "v1", "kind": "X"},
                "subresources": [{"subresource": "status", "verbs": [], "responseKind": none}],
            }]})
        );
        assert_eq!(published("v2", of("v2"), false), json!({"version": "v2", "freshness": "Stale"}));
        assert_eq!(published("v3", of("v3"), true), json!({"version": "v3", "freshness": "Current"}));
        for broken in ["", "{\"items\": 1}", "{\"items\": [{}]}"] {
            assert!(read_aggregated(broken.as_bytes()).is_err(), "{broken}");
        }
    }

    /// Upstream's table (`TestConvertAPIResourceToDiscovery`).
    #[test]
    fn lists_of_resources_are_converted() {
        let read = |resources: Value| {
            let body = json!({"kind": "APIResourceList", "groupVersion": "g/v1", "resources": resources});
            read_legacy("v1", body.to_string().as_bytes()).map(|found| published("v1", Some(&found), true))
        };
        let kind = |kind: &str| json!({"group": "", "version": "", "kind": kind});
        let found = read(json!([
            {"name": "cronjobs", "singularName": "cronjob", "namespaced": true, "kind": "CronJob", "verbs": ["get"],
                "shortNames": ["cj"], "storageVersionHash": "x"},
            {"name": "cronjobs/status", "singularName": "", "namespaced": true, "kind": "CronJob", "verbs": ["patch"]},
            {"name": "cronjobs/subresource", "namespaced": true, "verbs": ["get"]},
            {"name": "orphans/scale", "namespaced": false, "kind": "Scale", "group": "autoscaling", "version": "v1",
                "verbs": ["get"]},
        ]));
        assert_eq!(
            found.unwrap(),
            json!({"version": "v1", "freshness": "Current", "resources": [
                {"resource": "cronjobs", "scope": "Namespaced", "singularResource": "cronjob", "verbs": ["get"],
                    "shortNames": ["cj"], "responseKind": kind("CronJob"), "subresources": [
                        {"subresource": "status", "responseKind": kind("CronJob"), "verbs": ["patch"]},
                        {"subresource": "subresource", "responseKind": kind(""), "verbs": ["get"]},
                    ]},
                {"resource": "orphans", "scope": "Cluster", "singularResource": "", "verbs": [], "responseKind": kind(""),
                    "subresources": [{"subresource": "scale", "verbs": ["get"],
                        "responseKind": {"group": "autoscaling", "version": "v1", "kind": "Scale"}}]},
            ]})
        );
        let error = read(json!([
            {"name": "a", "namespaced": true, "kind": "A", "verbs": []},
            {"name": "a/status", "namespaced": false, "kind": "A", "verbs": []},
        ]));
        let why = "Error: Parent a (scope: Namespaced) and subresource status (scope: Cluster) scope do not match";
        assert_eq!(error, Err(why.to_owned()));
    }
}
