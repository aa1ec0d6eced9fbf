//! Documents of a kube-apiserver 1.36 without their descriptions, in `tests/openapi/`.

use std::{fs, path::Path};

use serde_json::{Value, json};

use super::{built_in, custom, group_version};
use crate::{
    openapi::{Descriptions, Documents, GroupVersionResources},
    testing::TYPES,
};

fn recorded(name: &str) -> Value {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/openapi").join(name);
    serde_json::from_slice(&fs::read(file).unwrap()).unwrap()
}

/// Our document, as the recorded ones are: a reference next to which a description stood is one of `allOf`.
fn ours(group_version: &GroupVersionResources) -> Value {
    let descriptions = Descriptions::default();
    Documents { types: &TYPES, descriptions: &descriptions, version: "1.36" }.v3(group_version)
}

/// Without descriptions, and with what has no order sorted.
fn normal(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut fields: serde_json::Map<_, _> = fields
                .iter()
                .filter(|(name, value)| !(*name == "description" && value.is_string()))
                .map(|(name, value)| (name.clone(), normal(value)))
                .collect();
            // Of properties, a reference alone and one next to a description are the same without descriptions.
            if let [one] = fields.get("allOf").and_then(Value::as_array).map_or(&[][..], Vec::as_slice) {
                let one = one.clone();
                fields.remove("allOf");
                fields.extend(one.as_object().unwrap().clone());
            }
            for name in ["required", "x-kubernetes-group-version-kind"] {
                if let Some(Value::Array(words)) = fields.get_mut(name) {
                    words.sort_by_key(Value::to_string);
                }
            }
            Value::Object(fields)
        }
        Value::Array(items) => items.iter().map(normal).collect(),
        other => other.clone(),
    }
}

/// Fails with the first difference of two documents.
fn assert_same(at: &str, real: &Value, ours: &Value) {
    match (real, ours) {
        (Value::Object(real), Value::Object(ours)) => {
            let names: Vec<&String> = real.keys().chain(ours.keys()).collect();
            for name in names {
                let (real, ours) = (real.get(name).unwrap_or(&Value::Null), ours.get(name).unwrap_or(&Value::Null));
                assert_same(&format!("{at}/{name}"), real, ours);
            }
        }
        _ => assert_eq!(format!("{real:#}"), format!("{ours:#}"), "{at}"),
    }
}

#[test]
fn a_group_version_is_described_as_upstream_does() {
    let budgets = built_in("poddisruptionbudgets", "PodDisruptionBudget", "policy/v1.PodDisruptionBudget");
    let document = ours(&group_version("policy", vec![budgets]));
    assert_same("", &normal(&recorded("policy_v1.json")), &normal(&document));
}

#[test]
fn a_custom_resource_is_described_as_upstream_does() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/protobuf/customresourcedefinition.json");
    let definition: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    let schema = definition["manifest"]["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone();
    let mut document = normal(&ours(&custom(schema.clone())));
    let mut real = normal(&recorded("example.com_v1.json"));
    // Ours says also where the list of resources is, and how to authenticate.
    document["paths"].as_object_mut().unwrap().remove("/apis/example.com/v1/").unwrap();
    document["components"].as_object_mut().unwrap().remove("securitySchemes").unwrap();
    for name in ["APIResource", "APIResourceList"] {
        let name = format!("io.k8s.apimachinery.pkg.apis.meta.v1.{name}");
        document["components"]["schemas"].as_object_mut().unwrap().remove(&name).unwrap();
    }
    for document in [&mut real, &mut document] {
        document["components"].as_object_mut().unwrap().remove("securitySchemes");
        // A custom resource has no kind for options; what those of built-in types have depends on the server's groups.
        document["info"] = json!({});
        for name in ["DeleteOptions", "Status"] {
            let name = format!("io.k8s.apimachinery.pkg.apis.meta.v1.{name}");
            let options = document["components"]["schemas"][name].as_object_mut().unwrap();
            options.remove("x-kubernetes-group-version-kind");
        }
        // The server dropped what says nothing: `nullable: false` and `description: ""`.
        let a = document.pointer_mut("/components/schemas/com.example.v1.Odd/properties/spec/properties/a").unwrap();
        a.as_object_mut().unwrap().remove("nullable");
        let replicas = "/components/schemas/com.example.v1.Odd/properties/spec/properties/replicas";
        let replicas = document.pointer_mut(replicas).unwrap();
        replicas.as_object_mut().unwrap().remove("exclusiveMaximum");
        replicas["maximum"] = json!(100);
    }
    assert_same("", &real, &document);
}
