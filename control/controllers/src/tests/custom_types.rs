//! Types that the API begins to serve while controllers run.

use kube::{
    Api,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
};
use serde_json::json;
use windlass_kit::prometheus::Format;

use super::{Bed, put};
use crate::Config;
use k8s_openapi::{
    api::core::v1::{ConfigMap, Namespace},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use windlass_test_api::widgets as resource_of_widgets;

#[tokio::test]
async fn they_are_collected_and_leave_with_their_namespace() {
    let mut bed = Bed::stopped().await;
    let served_types = Some(bed.server.served_types());
    let config = Config { served_types, ..Config::default() };
    let metrics = config.metrics.clone();
    bed.start(config);
    let _serving = bed.server.serve_custom_resources();
    let namespaces: Api<Namespace> = Api::all(bed.client.clone());
    put(&namespaces, json!({"metadata": {"name": "shop"}})).await;
    let resource = resource_of_widgets();
    let widgets =
        |namespace: &str| -> Api<DynamicObject> { Api::namespaced_with(bed.client.clone(), namespace, &resource) };
    let watched =
        || metrics.page(Format::Plain).contains("windlass_informer_objects{resource=\"widgets.example.com\"}");
    let until = async |wanted: bool| {
        for _ in 0..1000 {
            if watched() == wanted {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        panic!("never came: widgets are watched: {wanted}");
    };
    assert!(!watched());
    bed.server.define_widgets().await;
    until(true).await;

    let owner: ConfigMap = put(&bed.api(), json!({"metadata": {"name": "owner"}})).await;
    let reference = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.metadata.uid}]);
    for (namespace, name, owners) in
        [("default", "owned", reference), ("default", "free", json!([])), ("shop", "other", json!([]))]
    {
        let widget = json!({"apiVersion": "example.com/v1", "kind": "Widget",
            "metadata": {"name": name, "ownerReferences": owners}});
        let widget: DynamicObject = serde_json::from_value(widget).unwrap();
        widgets(namespace).create(&PostParams::default(), &widget).await.unwrap();
    }
    let names = |widgets: &[serde_json::Value]| -> Vec<String> {
        widgets.iter().map(|w| w["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    };
    bed.api::<ConfigMap>().delete("owner", &DeleteParams::background()).await.unwrap();
    bed.server.until("widgets", "the owned one goes", |w| names(w) == ["free", "other"]).await;
    namespaces.delete("shop", &DeleteParams::default()).await.unwrap();
    bed.server.until("widgets", "what is in the namespace goes", |w| names(w) == ["free"]).await;
    bed.server.until("namespaces", "the namespace goes", |n| n.iter().all(|n| n["metadata"]["name"] != "shop")).await;

    let definitions: Api<CustomResourceDefinition> = Api::all(bed.client.clone());
    definitions.delete("widgets.example.com", &DeleteParams::default()).await.unwrap();
    until(false).await;
    bed.end().await;
}

#[tokio::test]
async fn a_conversion_webhook_that_is_down_stops_nothing_else() {
    let mut bed = Bed::stopped().await;
    let served_types = Some(bed.server.served_types());
    bed.start(Config { served_types, ..Config::default() });
    let _serving = bed.server.serve_custom_resources();
    bed.server.define_widgets().await;
    let widgets: Api<DynamicObject> = Api::namespaced_with(bed.client.clone(), "shop", &resource_of_widgets());
    let namespaces: Api<Namespace> = Api::all(bed.client.clone());
    put(&namespaces, json!({"metadata": {"name": "shop"}})).await;
    let map: ConfigMap = put(&Api::namespaced(bed.client.clone(), "shop"), json!({"metadata": {"name": "map"}})).await;
    let owner: ConfigMap = put(&bed.api(), json!({"metadata": {"name": "owner"}})).await;
    let widget = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}});
    widgets.create(&PostParams::default(), &serde_json::from_value(widget).unwrap()).await.unwrap();

    // Another version is preferred and stored now, and nobody converts what is there.
    let definitions: Api<CustomResourceDefinition> = Api::all(bed.client.clone());
    let mut definition = definitions.get("widgets.example.com").await.unwrap();
    let mut newer = definition.spec.versions[0].clone();
    newer.name = "v2".to_owned();
    definition.spec.versions[0].storage = false;
    definition.spec.versions.push(newer);
    let down = json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"],
        "clientConfig": {"url": "https://127.0.0.1:1/convert"}}});
    definition.spec.conversion = Some(serde_json::from_value(down).unwrap());
    definitions.replace("widgets.example.com", &PostParams::default(), &definition).await.unwrap();

    namespaces.delete("shop", &DeleteParams::default()).await.unwrap();
    let name = map.metadata.name.as_deref();
    let gone = |maps: &[serde_json::Value]| maps.iter().all(|m| m["metadata"]["name"].as_str() != name);
    bed.server.until("configmaps", "what can be deleted in the namespace goes", gone).await;
    let reported = |all: &[serde_json::Value]| {
        let conditions = all.iter().flat_map(|n| n["status"]["conditions"].as_array().into_iter().flatten());
        let why = "conversion webhook for example.com/v1, Kind=Widget failed: ";
        conditions.into_iter().any(|c| {
            c["type"] == "NamespaceDeletionContentFailure" && c["message"].as_str().is_some_and(|m| m.contains(why))
        })
    };
    bed.server.until("namespaces", "it says what it cannot delete, and why", reported).await;
    let reference = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.metadata.uid}]);
    let _: ConfigMap = put(&bed.api(), json!({"metadata": {"name": "owned", "ownerReferences": reference}})).await;
    bed.api::<ConfigMap>().delete("owner", &DeleteParams::background()).await.unwrap();
    let collected = |maps: &[serde_json::Value]| maps.iter().all(|m| m["metadata"]["name"] != "owned");
    bed.server.until("configmaps", "garbage is collected", collected).await;

    // It converts again, or need not.
    let none = Patch::Merge(json!({"spec": {"conversion": {"strategy": "None", "webhook": null}}}));
    definitions.patch("widgets.example.com", &PatchParams::default(), &none).await.unwrap();
    bed.server.until("namespaces", "the namespace goes", |n| n.iter().all(|n| n["metadata"]["name"] != "shop")).await;
    bed.end().await;
}
