use serde_json::{Value, json};

use super::pods;
use crate::{
    openapi::{Descriptions, Documents, names},
    testing::TYPES,
};

const WORDS: &str = "core/v1.Pod\tA pod.\n\tspec\tWhat it should be.\n\tkind\tIts kind.\ncore/v1.PodList\tPods.\n\titems\tThe pods.\ncore/v1.EphemeralContainer\tE.\n\tname\tIts own.\ncore/v1.Container\tline\\nnext \\\\n\n\tname\tIts name.\n";

fn schemas() -> Value {
    let descriptions = Descriptions::new(WORDS);
    Documents { types: &TYPES, descriptions: &descriptions, version: "1.36" }.v3(&pods())["components"]["schemas"]
        .take()
}

#[test]
fn fields_carry_what_clients_merge_by() {
    let schemas = schemas();
    let containers = &schemas["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"];
    let expected = json!({
        "type": "array",
        "items": {"$ref": "#/components/schemas/io.k8s.api.core.v1.Container"},
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
        "x-kubernetes-patch-strategy": "merge",
        "x-kubernetes-patch-merge-key": "name",
    });
    assert_eq!(containers, &expected);
    let volumes = &schemas["io.k8s.api.core.v1.PodSpec"]["properties"]["volumes"];
    assert_eq!(volumes["x-kubernetes-patch-strategy"], "merge,retainKeys");
    assert_eq!(schemas["io.k8s.apimachinery.pkg.apis.meta.v1.OwnerReference"]["x-kubernetes-map-type"], "atomic");
    let port = &schemas["io.k8s.api.core.v1.ContainerPort"];
    assert_eq!(port["required"], json!(["containerPort"]));
    assert_eq!(port["properties"]["containerPort"], json!({"type": "integer", "format": "int32", "default": 0}));
    assert_eq!(port["properties"]["protocol"]["default"], "TCP");
    assert_eq!(port["properties"]["protocol"]["enum"], json!(["SCTP", "TCP", "UDP"]));
    let spec = &schemas["io.k8s.api.core.v1.Pod"];
    let kinds = json!([{"group": "", "version": "v1", "kind": "Pod"}]);
    assert_eq!(spec["x-kubernetes-group-version-kind"], kinds);
    assert_eq!(schemas["io.k8s.api.core.v1.PodList"]["x-kubernetes-group-version-kind"][0]["kind"], "PodList");
}

#[test]
fn descriptions_stand_beside_references() {
    let schemas = schemas();
    let pod = &schemas["io.k8s.api.core.v1.Pod"];
    assert_eq!(pod["description"], "A pod.");
    assert_eq!(pod["properties"]["kind"], json!({"type": "string", "description": "Its kind."}));
    let expected = json!({
        "description": "What it should be.",
        "default": {},
        "allOf": [{"$ref": "#/components/schemas/io.k8s.api.core.v1.PodSpec"}],
    });
    assert_eq!(pod["properties"]["spec"], expected);
    let container = &schemas["io.k8s.api.core.v1.Container"];
    assert_eq!(container["description"], "line\nnext \\n");
    // A field of an inlined type is one of the type itself.
    assert_eq!(schemas["io.k8s.api.core.v1.EphemeralContainer"]["properties"]["name"]["description"], "Its own.");
    let descriptions = Descriptions::new(WORDS);
    assert_eq!(descriptions.of_field("apps/v1.DeploymentList", "items").as_deref(), Some("The pods."));
    assert_eq!(descriptions.of_field("apps/v1.Deployment", "items"), None);
}

#[test]
fn every_reference_has_a_definition() {
    fn visit(value: &Value, schemas: &Value) {
        match value {
            Value::Object(fields) => {
                if let Some(reference) = fields.get("$ref").and_then(Value::as_str) {
                    let name = reference.strip_prefix("#/components/schemas/").unwrap();
                    assert!(schemas[name].is_object(), "{name}");
                }
                fields.values().for_each(|field| visit(field, schemas));
            }
            Value::Array(items) => items.iter().for_each(|item| visit(item, schemas)),
            _ => {}
        }
    }
    let descriptions = Descriptions::new(WORDS);
    let document = Documents { types: &TYPES, descriptions: &descriptions, version: "1.36" }.v3(&pods());
    visit(&document, &document["components"]["schemas"]);
}

#[test]
fn names_are_those_of_upstream() {
    for (go_type, definition) in [
        ("core/v1.Pod", "io.k8s.api.core.v1.Pod"),
        ("meta/v1.ObjectMeta", "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"),
        ("api/resource.Quantity", "io.k8s.apimachinery.pkg.api.resource.Quantity"),
        ("resource/v1.DeviceClass", "io.k8s.api.resource.v1.DeviceClass"),
        ("util/intstr.IntOrString", "io.k8s.apimachinery.pkg.util.intstr.IntOrString"),
        ("runtime.RawExtension", "io.k8s.apimachinery.pkg.runtime.RawExtension"),
        (
            "apiextensions/v1.CustomResourceDefinition",
            "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition",
        ),
        ("apiregistration/v1.APIService", "io.k8s.kube-aggregator.pkg.apis.apiregistration.v1.APIService"),
    ] {
        assert_eq!(names::definition(go_type), definition);
    }
    assert_eq!(names::custom_definition("stable.example.com", "v1", "CronTab"), "com.example.stable.v1.CronTab");
    for (group, tag, part) in [
        ("", "core_v1", "CoreV1"),
        ("apps", "apps_v1", "AppsV1"),
        ("rbac.authorization.k8s.io", "rbacAuthorization_v1", "RbacAuthorizationV1"),
        ("stable.example.com", "stableExampleCom_v1", "StableExampleComV1"),
    ] {
        assert_eq!((names::tag(group, "v1").as_str(), names::operation_part(group, "v1").as_str()), (tag, part));
    }
}
