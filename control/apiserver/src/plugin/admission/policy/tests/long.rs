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

/// Writes a ConfigMap while long work is held up: somebody else is answered meanwhile.
async fn holds_up_nobody(api: &Instance, map: Value, code: u16) {
    let held = hold().await;
    let (writer, reader) = (api.clone(), api.clone());
    let write = tokio::spawn(async move { call(&writer, "POST", MAPS, map).await });
    until_waiting(&write).await;
    let read = tokio::spawn(async move { call(&reader, "GET", "/api/v1/namespaces/n", Value::Null).await });
    assert_eq!(read.await.unwrap().code, 200);
    assert!(!write.is_finished(), "it is decided on by the thread that has answered the read");
    drop(held);
    let written = write.await.unwrap();
    assert_eq!(written.code, code, "{}", written.body);
}

/// The same of one with a good key and of one with a bad one.
async fn both_hold_up_nobody(api: &Instance, wanted: [u16; 2]) {
    for (name, last, code) in [("good-one", "good", wanted[0]), ("bad-one", "bad", wanted[1])] {
        holds_up_nobody(api, many(name, last), code).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn validations_that_take_long_hold_up_nobody() {
    let api = with_namespace().await;
    validates(&api, "p", &json!({"validations": [{"expression": CHAIN}]}), &json!({})).await;
    made(&api, MAPS, map("first")).await;
    both_hold_up_nobody(&api, [201, 422]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn conditions_and_mutations_that_take_long_hold_up_nobody() {
    let api = with_namespace().await;
    let expression = format!("[JSONPatch{{op: 'add', path: '/metadata/labels', value: {{'good': string({CHAIN})}}}}]");
    let mutation = json!({"patchType": "JSONPatch", "jsonPatch": {"expression": expression}});
    mutates(&api, "p", &json!({"mutations": [mutation]})).await;
    made(&api, MAPS, map("first")).await;
    both_hold_up_nobody(&api, [201, 201]).await;
    for (name, good) in [("good-one", "true"), ("bad-one", "false")] {
        let map = call(&api, "GET", &format!("{MAPS}/{name}"), Value::Null).await.body;
        assert_eq!(map["metadata"]["labels"]["good"], good, "{map}");
        call(&api, "DELETE", &format!("{MAPS}/{name}"), Value::Null).await;
    }
    call(&api, "DELETE", &format!("{POLICIES}/mutatingadmissionpolicies/p"), Value::Null).await;
    let conditions = json!([{"name": "c", "expression": CHAIN}]);
    validates(&api, "q", &json!({"matchConditions": conditions, "validations": [{"expression": "false"}]}), &json!({}))
        .await;
    both_hold_up_nobody(&api, [422, 201]).await;
}

/// Compiling takes as long as whoever has written a policy or a webhook wants.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn policies_and_conditions_are_compiled_apart() {
    let api = with_namespace().await;
    validates(&api, "p", &json!({"validations": [{"expression": "!('bad' in object.data)"}]}), &json!({})).await;
    holds_up_nobody(&api, map("one"), 201).await;
    let expression = "[JSONPatch{op: 'add', path: '/metadata/labels', value: {'a': 'b'}}]";
    let mutation = json!({"patchType": "JSONPatch", "jsonPatch": {"expression": expression}});
    mutates(&api, "q", &json!({"mutations": [mutation]})).await;
    holds_up_nobody(&api, map("two"), 201).await;
    let webhook = json!({
        "name": "x.hook.example",
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "rules": [rule("", "v1", "configmaps")],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "matchConditions": [{"name": "c", "expression": "'bad' in object.data"}],
    });
    let configuration = json!({"metadata": {"name": "h"}, "webhooks": [webhook]});
    made(&api, &format!("{POLICIES}/validatingwebhookconfigurations"), configuration).await;
    holds_up_nobody(&api, map("three"), 201).await;
    // All of that was compiled once.
    let held = hold().await;
    made(&api, MAPS, map("four")).await;
    drop(held);
}

/// The question of what a user may do is charged for as if it took long, and does not.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn questions_about_users_are_answered_at_once() {
    let api = with_namespace().await;
    let asks = "authorizer.requestResource.check('breakglass').allowed()";
    validates(&api, "p", &json!({"validations": [{"expression": asks}]}), &json!({})).await;
    made(&api, MAPS, map("first")).await;
    let held = hold().await;
    made(&api, MAPS, map("m")).await;
    drop(held);
}
