//! Types that the API begins to serve while controllers run.

use kube::{
    Api,
    api::{DeleteParams, DynamicObject, PostParams},
};
use serde_json::json;
use tokio::sync::watch;
use windlass_kit::prometheus::Format;

use super::{Bed, put};
use crate::controllers::{Config, fake_api::custom};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};

#[tokio::test]
async fn they_are_collected_and_leave_with_their_namespace() {
    let served_types = watch::Sender::new(1);
    let config = Config { served_types: Some(served_types.subscribe()), ..Config::default() };
    let metrics = config.metrics.clone();
    let bed = Bed::new(config).await;
    let namespaces: Api<Namespace> = Api::all(bed.client.clone());
    put(&namespaces, json!({"metadata": {"name": "shop"}})).await;
    let resource = custom();
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
    bed.fake.serve_custom(true);
    served_types.send_replace(2);
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
    bed.fake.until("widgets", "the owned one goes", |w| names(w) == ["free", "other"]).await;
    namespaces.delete("shop", &DeleteParams::default()).await.unwrap();
    bed.fake.until("widgets", "what is in the namespace goes", |w| names(w) == ["free"]).await;
    bed.fake.until("namespaces", "the namespace goes", |n| n.len() == 1).await;

    bed.fake.serve_custom(false);
    served_types.send_replace(3);
    until(false).await;
    bed.end().await;
}
