//! A rich object of every type, valid as it stands.

use super::*;
use crate::fuzzing::client_types::decode;
use crate::kinds::tests::sample;

/// The path of a type's collection; namespaced ones are in namespace `n`.
pub(crate) fn collection(resource: &Version) -> String {
    let base = if resource.gvk.group.is_empty() { "/api".to_owned() } else { format!("/apis/{}", resource.gvk.group) };
    let namespace = if resource.namespaced { "/namespaces/n" } else { "" };
    format!("{base}/{}{namespace}/{}", resource.gvk.version, resource.plural)
}

/// The name of an object: some are named after what they define.
pub(crate) fn name_of(resource: &Version, name: &str) -> String {
    match &*resource.gvk.kind {
        "CustomResourceDefinition" => format!("{name}.test.example"),
        "APIService" => format!("v1.{name}.example"),
        "IPAddress" => {
            let digits: String = name.chars().filter(char::is_ascii_digit).collect();
            format!("10.9.{}.{}", name.as_bytes()[0], digits.parse().unwrap_or(0_u8))
        }
        _ => name.to_owned(),
    }
}

/// An object of a type, under a name.
pub(crate) fn object(resource: &Version, name: &str) -> Value {
    let mut object = match &*resource.gvk.kind {
        // A custom resource of the tests.
        "Widget" => {
            let template = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"a": "b"}}});
            json!({"spec": {"size": 1}, "template": template})
        }
        kind => sample(&resource.gvk.api_version(), kind),
    };
    if resource.gvk.kind == "CustomResourceDefinition" {
        object["spec"]["names"]["plural"] = json!(name);
    }
    if resource.gvk.kind == "APIService" {
        object["spec"]["group"] = json!(format!("{name}.example"));
    }
    object["kind"] = json!(resource.gvk.kind);
    object["apiVersion"] = json!(resource.gvk.api_version());
    let name = name_of(resource, name);
    object["metadata"] = json!({"name": name, "labels": {"l": "1"}, "annotations": {"an": "1"}});
    object
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
