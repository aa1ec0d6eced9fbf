//! A rich object of every type, valid as it stands.

use super::*;
use crate::fuzzing::client_types::decode;
use crate::kinds::tests::recorded;

/// The path of a type's collection; namespaced ones are in namespace `n`.
pub(crate) fn collection(resource: &Version) -> String {
    let base = if resource.gvk.group.is_empty() { "/api".to_owned() } else { format!("/apis/{}", resource.gvk.group) };
    let namespace = if resource.namespaced { "/namespaces/n" } else { "" };
    format!("{base}/{}{namespace}/{}", resource.gvk.version, resource.plural)
}

/// The name of an object: some are named after what they define.
pub(crate) fn name_of(resource: &Version, name: &str) -> String {
    recorded::name_of(&resource.gvk.kind, name)
}

/// An object of a type, under a name.
pub(crate) fn object(resource: &Version, name: &str) -> Value {
    let api_version = resource.gvk.api_version();
    if resource.gvk.kind == "Widget" {
        // A custom resource of the tests.
        let template = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"a": "b"}}});
        let metadata = json!({"name": name, "labels": {"l": "1"}, "annotations": {"an": "1"}});
        return json!({"apiVersion": api_version, "kind": "Widget", "metadata": metadata, "spec": {"size": 1},
            "template": template});
    }
    recorded::object(&api_version, &resource.gvk.kind, name)
}

#[tokio::test]
async fn every_type_can_be_created_and_read() {
    let api = with_namespace().await;
    for (at, resource) in stored_versions(&api).iter().enumerate() {
        // Two resources may share their objects.
        let name = format!("x{at}");
        let made = call(&api, "POST", &collection(resource), object(resource, &name)).await;
        let deprecated: Vec<String> = resource.spec.deprecation_warning.iter().cloned().collect();
        assert_eq!(made.code, 201, "{}: {}", resource.gvk.kind, made.body);
        assert!(
            deprecated.iter().zip(&made.warnings).all(|(wanted, found)| found.contains(wanted)),
            "{:?}",
            made.warnings
        );
        let told = made.warnings.iter().filter(|warning| !warning.contains("is stored, but")).count();
        assert_eq!(told, deprecated.len(), "{}: {:?}", resource.gvk.kind, made.warnings);
        let path = format!("{}/{}", collection(resource), made.body["metadata"]["name"].as_str().unwrap());
        let got = call(&api, "GET", &path, Value::Null).await;
        assert_eq!(got.body, made.body);
        decode(&resource.gvk.api_version(), &resource.gvk.kind, got.body.to_string().as_bytes()).unwrap();
    }
}
