//! An APIService with a service takes a group version from this server, and gives it back.

use super::*;
use crate::apiextensions::CustomResources;

const METRICS: &str = "/apis/metrics.k8s.io/v1beta1/nodes";

/// Registers a group version and takes it back; `own` is what this server says there.
async fn claim(bed: &Bed, group: &str, version: &str, path: &str) {
    // Without the revision of the list.
    let answer = async || {
        let mut reply = call(&bed.api, "GET", path, Value::Null).await;
        reply.body["metadata"]["resourceVersion"] = Value::Null;
        (reply.code, reply.body)
    };
    let own = answer().await;
    let name = format!("{version}.{group}");
    let one = format!("{API_SERVICES}/{name}");
    let known = call(&bed.api, "GET", &one, Value::Null).await;
    let claimed = bed.server.api_service(group, version, (2000, 15));
    if known.code == 404 {
        bed.create(API_SERVICES, claimed).await;
    } else {
        // Without the label, which would bring it back at once.
        let patch = json!({"metadata": {"labels": null}, "spec": claimed["spec"]});
        assert_eq!(call(&bed.api, "PATCH", &one, patch).await.code, 200);
    }
    // The server does not have this group.
    bed.until(&one, |reply| available(&reply.body).1 == "FailedDiscoveryCheck").await;
    assert_eq!(bed.get(path).await, (503, "service unavailable\n".to_owned()), "{name}");
    assert_eq!(bed.get(&format!("/apis/{group}/{version}")).await.0, 503, "{name}");
    let found = bed.version(group, version).await.unwrap();
    assert!(found.get("resources").is_none(), "{name}: {found}");
    assert_eq!(call(&bed.api, "DELETE", &one, Value::Null).await.code, 200);
    bed.until(path, |reply| reply.code == 200).await;
    assert_eq!(answer().await, own, "{name}");
    assert_eq!(bed.version(group, version).await.unwrap()["freshness"], "Current", "{name}");
}

#[tokio::test]
async fn own_groups_give_way_and_come_back() {
    let bed = Bed::empty().await;
    bed.serve().await;
    bed.until(&format!("{API_SERVICES}/v1.batch"), |reply| reply.code == 200).await;
    claim(&bed, "batch", "v1", "/apis/batch/v1/namespaces/n/jobs?limit=1").await;
    bed.until(&format!("{API_SERVICES}/v1.batch"), |reply| available(&reply.body).1 == "Local").await;
    claim(&bed, "metrics.k8s.io", "v1beta1", METRICS).await;
    let one = format!("{API_SERVICES}/v1beta1.metrics.k8s.io");
    assert_eq!(call(&bed.api, "GET", &one, Value::Null).await.code, 404, "a chart can bring its own");
}

#[tokio::test]
async fn custom_resources_give_way_and_come_back() {
    let bed = Bed::empty().await;
    bed.serve().await;
    let stop = CancellationToken::new();
    let client = kube::Client::new(bed.api.router().layer(axum::Extension(User::internal("test"))), "default");
    let (custom_resources, token) = (CustomResources::load(&bed.api, &bed.api.conversion_webhooks), stop.clone());
    tokio::spawn(async move { custom_resources.run(client, token).await });
    let _stop = stop.drop_guard();
    let definition = json!({"metadata": {"name": "widgets.test.example"}, "spec": {"group": "test.example",
        "scope": "Cluster", "names": {"plural": "widgets", "kind": "Widget"}, "versions": [{"name": "v1", "served": true,
            "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
    bed.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition).await;
    let path = "/apis/test.example/v1/widgets";
    bed.until(path, |reply| reply.code == 200).await;
    bed.create(path, json!({"apiVersion": "test.example/v1", "kind": "Widget", "metadata": {"name": "a"}})).await;
    let one = format!("{API_SERVICES}/v1.test.example");
    bed.until(&one, |reply| available(&reply.body).1 == "Local").await;
    claim(&bed, "test.example", "v1", path).await;
    bed.until(&one, |reply| available(&reply.body).1 == "Local").await;
    // Who keeps the label gets what is there without him.
    let claimed = bed.server.api_service("test.example", "v1", (2000, 15));
    assert_eq!(call(&bed.api, "PATCH", &one, json!({"spec": claimed["spec"]})).await.code, 200);
    bed.until(&one, |reply| reply.body["spec"]["service"].is_null()).await;
    bed.until(path, |reply| reply.code == 200).await;
}

/// The group of APIServices and the core group are this server's in any case: nothing could be mended without them.
#[tokio::test]
async fn nobody_takes_the_groups_that_all_depends_on() {
    let bed = Bed::empty().await;
    bed.serve().await;
    bed.register("apiregistration.k8s.io", "v1", (2000, 15)).await;
    let own = format!("{API_SERVICES}/v1.apiregistration.k8s.io");
    bed.until(&own, |reply| available(&reply.body).1 == "Local").await;
    assert_eq!(bed.get("/apis/apiregistration.k8s.io/v1").await.0, 200);
    let service = json!({"spec": bed.server.api_service("", "v1", (2000, 15))["spec"], "metadata": {"labels": null}});
    let core = format!("{API_SERVICES}/v1.");
    bed.until(&core, |reply| reply.code == 200).await;
    assert_eq!(call(&bed.api, "PATCH", &core, service).await.code, 200);
    bed.until(&core, |reply| reply.body["spec"]["service"]["name"] == SERVICE).await;
    assert_eq!(bed.get("/api/v1/namespaces").await.0, 200);
}
