use serde_json::{Value, json};

use super::*;
use crate::apiserver::tests::api;

fn parsed(document: &[u8]) -> Value {
    serde_json::from_slice(document).unwrap()
}

#[test]
fn openapi_documents_have_what_kubectl_needs() {
    let catalog = api().catalogs().current();
    let document = parsed(&openapi_document(&catalog, "", "v1"));
    let patch = &document["paths"]["/api/v1/namespaces/{namespace}/pods/{name}"]["patch"];
    assert_eq!(patch["x-kubernetes-group-version-kind"]["kind"], "Pod");
    assert!(patch["parameters"].as_array().unwrap().iter().any(|p| p["name"] == "fieldValidation"));
    let schemas = &document["components"]["schemas"];
    assert_eq!(
        schemas["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"]["x-kubernetes-patch-merge-key"],
        "name"
    );
    assert_eq!(
        schemas["io.k8s.api.core.v1.Container"]["properties"]["ports"]["x-kubernetes-patch-merge-key"],
        "containerPort"
    );
    assert_eq!(
        schemas["io.k8s.api.core.v1.ServiceSpec"]["properties"]["ports"]["x-kubernetes-patch-merge-key"],
        "port"
    );
    assert_eq!(schemas["io.k8s.api.core.v1.Pod"]["x-kubernetes-group-version-kind"][0]["kind"], "Pod");
    for (name, field, key, strategy, keys) in [
        ("api.core.v1.PodSpec", "volumes", "name", "merge,retainKeys", json!(["name"])),
        ("api.core.v1.PodSpec", "tolerations", "", "", Value::Null),
        (
            "api.core.v1.PodSpec",
            "topologySpreadConstraints",
            "topologyKey",
            "merge",
            json!(["topologyKey", "whenUnsatisfiable"]),
        ),
        ("api.core.v1.Container", "ports", "containerPort", "merge", json!(["containerPort", "protocol"])),
        ("api.core.v1.Container", "env", "name", "merge", json!(["name"])),
        ("api.core.v1.Container", "args", "", "", Value::Null),
        ("api.core.v1.ServiceSpec", "ports", "port", "merge", json!(["port", "protocol"])),
        ("api.core.v1.NodeStatus", "addresses", "type", "merge", json!(["type"])),
        ("api.core.v1.NodeSpec", "podCIDRs", "", "merge", Value::Null),
        ("api.core.v1.ServiceAccount", "secrets", "name", "merge", json!(["name"])),
        ("api.core.v1.ServiceAccount", "imagePullSecrets", "", "", Value::Null),
        ("api.core.v1.EndpointSubset", "addresses", "", "", Value::Null),
        ("apimachinery.pkg.apis.meta.v1.ObjectMeta", "ownerReferences", "uid", "merge", json!(["uid"])),
        ("apimachinery.pkg.apis.meta.v1.ObjectMeta", "finalizers", "", "merge", Value::Null),
    ] {
        let property = &schemas[format!("io.k8s.{name}")]["properties"][field];
        assert_eq!(property["type"], "array", "{name}.{field}");
        let text = |key: &str| property[format!("x-kubernetes-{key}")].as_str().unwrap_or_default().to_owned();
        assert_eq!(
            (text("patch-merge-key").as_str(), text("patch-strategy").as_str()),
            (key, strategy),
            "{name}.{field}"
        );
        assert_eq!(property["x-kubernetes-list-map-keys"], keys, "{name}.{field}");
    }
    let index = openapi_index(&catalog);
    assert!(index["paths"]["api/v1"]["serverRelativeURL"].as_str().unwrap().starts_with("/openapi/v3/api/v1?hash="));
    assert_eq!(index, openapi_index(&catalog));
    assert!(
        parsed(&openapi_document(&catalog, "discovery.k8s.io", "v1"))["paths"]["/apis/discovery.k8s.io/v1/endpointslices"]["get"]
            .is_object()
    );
}

#[test]
fn every_reference_of_a_document_is_in_it() {
    fn references(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                found.extend(fields.get("$ref").and_then(Value::as_str).map(str::to_owned));
                fields.values().for_each(|v| references(v, found));
            }
            Value::Array(items) => items.iter().for_each(|v| references(v, found)),
            _ => {}
        }
    }
    let catalog = api().catalogs().current();
    let versions = catalog.groups.iter().flat_map(|g| g.versions.iter().map(|v| (&g.name, &v.version)));
    for (group, version) in versions {
        let document = parsed(&openapi_document(&catalog, group, version));
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(!found.is_empty());
        for reference in found {
            let name = reference.strip_prefix("#/components/schemas/").unwrap();
            assert!(document["components"]["schemas"][name].is_object(), "{reference}");
        }
    }
}
