//! Objects of volumes from the real API server, as the node that runs their pod: whichever request fails and whichever event,
//! in whichever way, the node has what the API has.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, Patch, PatchParams};
use windlass_tests::api_faults::with_each_fault;

use super::*;
use crate::test_api::PATIENCE;

/// Waits until the reader gives this value, or none.
async fn has(reader: &ObjectReader, wanted: Option<&str>, faults: &Faults) {
    let begun = tokio::time::Instant::now();
    loop {
        let read = reader.config_map("n", "m").await;
        let value = |map: Option<Arc<ConfigMap>>| map.and_then(|map| map.data.as_ref()?.get("a").cloned());
        let is = read.map(value);
        if is.as_ref().is_ok_and(|is| is.as_deref() == wanted) {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{:?}: {is:?} in place of {wanted:?}", faults.calls());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn whatever_fails_a_node_has_what_the_api_has() {
    let server = server_with(map(false)).await;
    server.put("pods", pod_of_node()).await;
    let maps: Api<ConfigMap> = Api::namespaced(test_api::user(&server), "n");
    let write = async |value: &str| {
        let patch = Patch::Merge(json!({"data": {"a": value}}));
        maps.patch("m", &PatchParams::default(), &patch).await.unwrap();
    };
    let (ran, hit) = with_each_fault(async |faults| {
        let client = of_node(&server, faults);
        let watch = ObjectWatches::new(client.clone()).watch(&reference());
        let reader = ObjectReader::new(client, BTreeMap::from([(reference(), watch)]), Freshness::Watched);
        has(&reader, Some("1"), faults).await;
        write("2").await;
        has(&reader, Some("2"), faults).await;
        maps.delete("m", &DeleteParams::default()).await.unwrap();
        has(&reader, None, faults).await;
        maps.create(&PostParams::default(), &serde_json::from_value(map(false)).unwrap()).await.unwrap();
        has(&reader, Some("1"), faults).await;
        drop(reader);
    })
    .await;
    // One request, and an event for each state and the end of the first list.
    assert!(ran >= 30 && hit == ran, "{hit} of {ran}");
}
