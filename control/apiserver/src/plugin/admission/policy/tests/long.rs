//! Policies and conditions that take long.

use super::*;
use crate::apiserver::tests::long_work::{hold, until_waiting};

/// Of a ConfigMap with forty keys this looks at 64,000 combinations.
const CHAIN: &str = "object.data.all(a, object.data.all(b, object.data.all(c, size(a) + size(b) + size(c) > 0))) && !('bad' in object.data)";

fn many(name: &str, last: &str) -> Value {
    let keys = (0..39).map(|at| format!("k{at}")).chain([last.to_owned()]);
    let data: serde_json::Map<String, Value> = keys.map(|key| (key, json!("v"))).collect();
    json!({"metadata": {"name": name}, "data": data})
}

/// Writes ConfigMaps while long work is held up: somebody else is answered meanwhile.
async fn holds_up_nobody(api: &Instance, wanted: [u16; 2]) {
    for (name, last, code) in [("good-one", "good", wanted[0]), ("bad-one", "bad", wanted[1])] {
        let held = hold().await;
        let writer = api.clone();
        let write = tokio::spawn(async move { call(&writer, "POST", MAPS, many(name, last)).await });
        until_waiting(&write).await;
        let reader = api.clone();
        let read = tokio::spawn(async move { call(&reader, "GET", "/api/v1/namespaces/n", Value::Null).await });
        assert_eq!(read.await.unwrap().code, 200);
        assert!(!write.is_finished(), "{name} is decided on by the thread that has answered the read");
        drop(held);
        let written = write.await.unwrap();
        assert_eq!(written.code, code, "{}", written.body);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn validations_that_take_long_hold_up_nobody() {
    let api = with_namespace().await;
    validates(&api, "p", &json!({"validations": [{"expression": CHAIN}]}), &json!({})).await;
    holds_up_nobody(&api, [201, 422]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn conditions_and_mutations_that_take_long_hold_up_nobody() {
    let api = with_namespace().await;
    let expression = format!("[JSONPatch{{op: 'add', path: '/metadata/labels', value: {{'good': string({CHAIN})}}}}]");
    let mutation = json!({"patchType": "JSONPatch", "jsonPatch": {"expression": expression}});
    mutates(&api, "p", &json!({"mutations": [mutation]})).await;
    holds_up_nobody(&api, [201, 201]).await;
    for (name, good) in [("good-one", "true"), ("bad-one", "false")] {
        let map = call(&api, "GET", &format!("{MAPS}/{name}"), Value::Null).await.body;
        assert_eq!(map["metadata"]["labels"]["good"], good, "{map}");
        call(&api, "DELETE", &format!("{MAPS}/{name}"), Value::Null).await;
    }
    call(&api, "DELETE", &format!("{POLICIES}/mutatingadmissionpolicies/p"), Value::Null).await;
    let conditions = json!([{"name": "c", "expression": CHAIN}]);
    validates(&api, "q", &json!({"matchConditions": conditions, "validations": [{"expression": "false"}]}), &json!({}))
        .await;
    holds_up_nobody(&api, [422, 201]).await;
}

/// The question of what a user may do is charged for as if it took long, and does not.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn questions_about_users_are_answered_at_once() {
    let api = with_namespace().await;
    let asks = "authorizer.requestResource.check('breakglass').allowed()";
    validates(&api, "p", &json!({"validations": [{"expression": asks}]}), &json!({})).await;
    let held = hold().await;
    made(&api, MAPS, map("m")).await;
    drop(held);
}
