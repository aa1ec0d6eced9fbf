//! What of an extension is published: discovery and OpenAPI, and that no extension holds up others.

use super::*;

fn names(groups: &[Value]) -> Vec<String> {
    groups.iter().map(|group| group["metadata"]["name"].as_str().unwrap_or("").to_owned()).collect()
}

#[tokio::test]
async fn groups_of_extensions_have_their_place() {
    let bed = Bed::new().await;
    bed.register(GROUP, "v1alpha1", (2000, 20)).await;
    bed.register("early.example", "v1", (17_900, 15)).await;
    bed.register("late.example", "v1", (10, 15)).await;
    let found = bed.until_fresh(GROUP, "v1", "Current").await;
    assert_eq!(found["resources"][0]["resource"], "things");
    assert_eq!(found["resources"][0]["responseKind"], json!({"group": GROUP, "version": "v1", "kind": "Thing"}));
    bed.until_fresh(GROUP, "v1alpha1", "Current").await;
    // What the server does not list has no resources.
    assert_eq!(
        bed.until_fresh("early.example", "v1", "Current").await,
        json!({"version": "v1", "freshness": "Current"})
    );
    let names = names(&bed.groups().await);
    let at = |name: &str| names.iter().position(|one| one == name).unwrap_or_else(|| panic!("{name}: {names:?}"));
    assert_eq!((at("apiregistration.k8s.io"), at("early.example"), at("apps")), (0, 1, 2), "{names:?}");
    assert!(at("flowcontrol.apiserver.k8s.io") < at(GROUP) && at(GROUP) < at("metrics.k8s.io"), "{names:?}");
    assert_eq!(at("late.example"), names.len() - 1);
    let list = call(&bed.api, "GET", "/apis", Value::Null).await.body;
    let listed: Vec<&str> = list["groups"].as_array().unwrap().iter().map(|g| g["name"].as_str().unwrap()).collect();
    assert_eq!(listed, names, "both documents have one order");
    let group = call(&bed.api, "GET", "/apis/ext.example", Value::Null).await.body;
    assert_eq!(group["preferredVersion"]["version"], "v1alpha1", "the priority decides: {group}");
    assert_eq!(group["versions"][1], json!({"groupVersion": "ext.example/v1", "version": "v1"}));
    let resources = call(&bed.api, "GET", "/apis/ext.example/v1", Value::Null).await.body;
    assert_eq!((&resources["kind"], &resources["resources"][0]["name"]), (&json!("APIResourceList"), &json!("things")));
    call(&bed.api, "DELETE", &format!("{API_SERVICES}/v1.ext.example"), Value::Null).await;
    bed.until("/apis/ext.example", |reply| reply.body["versions"].as_array().is_some_and(|all| all.len() == 1)).await;
    call(&bed.api, "DELETE", &format!("{API_SERVICES}/v1alpha1.ext.example"), Value::Null).await;
    bed.until("/apis/ext.example", |reply| reply.code == 404).await;
}

#[tokio::test]
async fn servers_without_documents_of_all_groups_are_read_by_version() {
    for act in [Act::Legacy, Act::Forbid] {
        let bed = Bed::empty().await;
        bed.server.act(act);
        bed.serve().await;
        bed.register(GROUP, "v1", (2000, 15)).await;
        let found = bed.until_fresh(GROUP, "v1", "Current").await;
        let resource = &found["resources"][0];
        assert_eq!((&resource["resource"], &resource["scope"]), (&json!("things"), &json!("Namespaced")), "{act:?}");
        assert_eq!(resource["subresources"][0]["subresource"], "status", "{act:?}");
    }
}

/// What it has said stays, and is said to be old; everybody else is answered as before.
#[tokio::test]
async fn an_extension_that_floods_or_hangs_holds_up_nobody() {
    for act in [Act::Flood, Act::Hang] {
        let bed = Bed::empty().await;
        bed.server.act(act);
        bed.serve().await;
        bed.register(GROUP, "v1", (2000, 15)).await;
        let found = bed.until_fresh(GROUP, "v1", "Stale").await;
        assert_eq!(found, json!({"version": "v1", "freshness": "Stale"}), "{act:?}");
        let one = format!("{API_SERVICES}/v1.ext.example");
        let wanted = if act == Act::Flood { "Passed" } else { "FailedDiscoveryCheck" };
        bed.until(&one, |reply| available(&reply.body).1 == wanted).await;
        assert_eq!(bed.version(GROUP, "v1").await.unwrap()["freshness"], "Stale", "{act:?}");
        for path in ["/apis", "/apis/apps/v1", "/openapi/v3", "/openapi/v2"] {
            let asked = tokio::time::timeout(Duration::from_secs(60), bed.get(path)).await;
            assert_eq!(asked.unwrap_or_else(|_| panic!("{path} hangs: {act:?}")).0, 200, "{path}");
        }
        bed.server.act(Act::Whole);
        bed.until_fresh(GROUP, "v1", "Current").await;
    }
}

#[tokio::test]
async fn openapi_documents_are_merged() {
    let bed = Bed::new().await;
    let index = bed.until("/openapi/v3", |reply| !reply.body["paths"]["apis/ext.example/v1"].is_null()).await.body;
    let url = |path: &str| index["paths"][path]["serverRelativeURL"].as_str().unwrap_or("").to_owned();
    assert_eq!(url("apis/ext.example/v1"), "/openapi/v3/apis/ext.example/v1?hash=1");
    assert!(!url("apis/apps/v1").ends_with("bad"), "nobody says where documents of others are");
    let document = bed.get("/openapi/v3/apis/ext.example/v1?hash=1").await;
    assert_eq!(document.0, 200);
    assert!(document.1.contains("3.0.0"), "{}", document.1);
    // The document is waited for a while alone.
    let merged =
        bed.until("/openapi/v2", |reply| !reply.body["paths"]["/apis/ext.example/v1/things"].is_null()).await.body;
    assert!(!merged["paths"]["/apis/apps/v1/deployments"].is_null());
    assert!(merged["paths"]["/apis/other/v1/x"].is_null(), "only what it serves");
    let (own, other) = ("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta", "another one");
    let definitions = &merged["definitions"];
    assert_ne!(definitions[own]["description"], other);
    assert_eq!(definitions[format!("{own}_v2")]["description"], other);
    let thing = &definitions["example.ext.v1.Thing"]["properties"]["metadata"]["$ref"];
    assert_eq!(thing, &json!(format!("#/definitions/{own}_v2")));
    // A protobuf form has it as well.
    let accept = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
    let request = Request::get("/openapi/v2").header(header::ACCEPT, accept).body(Body::empty()).unwrap();
    let (code, _, body) = bed.raw(&User::internal("test"), request).await;
    assert!(code == 200 && body.contains("/apis/ext.example/v1/things"));
}

#[tokio::test]
async fn a_server_of_version_2_alone_gets_a_document_of_version_3() {
    let bed = Bed::empty().await;
    bed.server.act(Act::Legacy);
    bed.serve().await;
    bed.register(GROUP, "v1", (2000, 15)).await;
    bed.until_available("v1.ext.example").await;
    let index = bed.until("/openapi/v3", |reply| !reply.body["paths"]["apis/ext.example/v1"].is_null()).await.body;
    let url = index["paths"]["apis/ext.example/v1"]["serverRelativeURL"].as_str().unwrap();
    let (place, hash) = url.split_once("?hash=").unwrap();
    assert_eq!((place, hash.len()), ("/openapi/v3/apis/ext.example/v1", 128));
    let (code, text) = bed.get(url).await;
    let document: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, &document["openapi"]), (200, &json!("3.0.0")));
    let thing = &document["components"]["schemas"]["example.ext.v1.Thing"];
    assert_eq!(thing["x-kubernetes-group-version-kind"][0]["group"], GROUP);
    let metadata = "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
    assert_eq!(thing["properties"]["metadata"], json!({"$ref": metadata}));
    assert_eq!(bed.get(&format!("{place}?hash=0")).await.0, 301, "an outdated one is not kept");
    assert_eq!(bed.get(&format!("{place}alpha1")).await.0, 404);
}
