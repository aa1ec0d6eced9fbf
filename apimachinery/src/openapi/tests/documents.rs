use serde_json::{Value, json};

use super::pods;
use crate::{
    openapi::{Descriptions, Documents},
    testing::TYPES,
};

fn paths() -> Value {
    let descriptions = Descriptions::default();
    Documents { types: &TYPES, descriptions: &descriptions, version: "1.36" }.v3(&pods())["paths"].take()
}

/// The names of an operation's or path's parameters.
fn names(of: &Value) -> Vec<&str> {
    of["parameters"].as_array().into_iter().flatten().filter_map(|one| one["name"].as_str()).collect()
}

#[test]
fn every_operation_of_a_resource_has_its_path() {
    let paths = paths();
    let mut found: Vec<String> = Vec::new();
    for (path, item) in paths.as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap().iter().filter(|(name, _)| *name != "parameters") {
            let action = operation["x-kubernetes-action"].as_str().unwrap_or("-");
            found.push(format!("{method} {path} {action}"));
        }
    }
    let one = "/api/v1/namespaces/{namespace}/pods/{name}";
    let expected = [
        "get /api/v1/ -".to_owned(),
        "get /api/v1/namespaces/{namespace}/pods list".to_owned(),
        "post /api/v1/namespaces/{namespace}/pods post".to_owned(),
        "delete /api/v1/namespaces/{namespace}/pods deletecollection".to_owned(),
        format!("get {one} get"),
        format!("put {one} put"),
        format!("patch {one} patch"),
        format!("delete {one} delete"),
        format!("get {one}/status get"),
        format!("put {one}/status put"),
        format!("patch {one}/status patch"),
        format!("get {one}/log get"),
        format!("get {one}/exec connect"),
        format!("post {one}/exec connect"),
        format!("get {one}/proxy connect"),
        format!("post {one}/proxy connect"),
        format!("get {one}/proxy/{{path}} connect"),
        format!("post {one}/proxy/{{path}} connect"),
        format!("post {one}/eviction post"),
        "get /api/v1/pods list".to_owned(),
        "get /api/v1/watch/pods watchlist".to_owned(),
        "get /api/v1/watch/namespaces/{namespace}/pods watchlist".to_owned(),
        "get /api/v1/watch/namespaces/{namespace}/pods/{name} watch".to_owned(),
    ];
    for operation in &expected {
        assert!(found.contains(operation), "{operation} is missing");
    }
    assert_eq!(found.len(), expected.len(), "{found:#?}");
}

#[test]
fn parameters_that_all_operations_have_belong_to_the_path() {
    let paths = paths();
    let one = &paths["/api/v1/namespaces/{namespace}/pods/{name}"];
    assert_eq!(names(one), ["name", "namespace", "pretty"]);
    assert_eq!(names(&one["get"]), [""; 0]);
    assert_eq!(names(&one["patch"]), ["dryRun", "fieldManager", "fieldValidation", "force"]);
    assert_eq!(names(&paths["/api/v1/namespaces/{namespace}/pods/{name}/exec"])[..3], ["command", "container", "name"]);
    let stdin = paths["/api/v1/namespaces/{namespace}/pods/{name}/exec"]["parameters"].as_array().unwrap();
    let stdin = stdin.iter().find(|one| one["name"] == "stdin").unwrap();
    assert_eq!(stdin["schema"], json!({"type": "boolean", "uniqueItems": true}));
}

#[test]
fn bodies_and_answers_are_typed() {
    let paths = paths();
    let one = &paths["/api/v1/namespaces/{namespace}/pods/{name}"];
    let pod = json!({"schema": {"$ref": "#/components/schemas/io.k8s.api.core.v1.Pod"}});
    assert_eq!(one["put"]["requestBody"], json!({"content": {"*/*": pod}, "required": true}));
    assert_eq!(one["delete"]["responses"]["200"]["content"]["application/vnd.kubernetes.protobuf"], pod);
    assert_eq!(one["get"]["operationId"], "readCoreV1NamespacedPod");
    let eviction = &paths["/api/v1/namespaces/{namespace}/pods/{name}/eviction"]["post"];
    assert_eq!(eviction["x-kubernetes-group-version-kind"]["group"], "policy");
    assert_eq!(eviction["operationId"], "createCoreV1NamespacedPodEviction");
    let log = &paths["/api/v1/namespaces/{namespace}/pods/{name}/log"]["get"];
    assert_eq!(log["responses"]["200"]["content"]["text/plain"], json!({"schema": {"type": "string"}}));
}
