use proptest::prelude::*;
use serde_json::{Value, json};

use super::merge;

fn patched(last: &Value, desired: &Value, live: &Value) -> Value {
    Value::Object(merge::patch(last, desired, live))
}

#[test]
fn what_the_server_filled_in_stays() {
    let last = json!({"spec": {"replicas": 2, "old": 1, "ports": [{"port": 80}, {"port": 81}]}});
    let desired = json!({"spec": {"replicas": 3, "ports": [{"port": 80, "name": "web"}]}});
    let live = json!({"spec": {"replicas": 2, "old": 1, "clusterIP": "10.96.0.1", "ports": [
        {"port": 80, "nodePort": 30080}, {"port": 81, "nodePort": 30081}, {"port": 99}]}});
    assert_eq!(
        patched(&last, &desired, &live),
        json!({"spec": {"replicas": 3, "old": null, "ports": [
            {"port": 80, "nodePort": 30080, "name": "web"}, {"port": 99}]}})
    );
}

#[test]
fn nothing_to_do_is_an_empty_patch() {
    let desired = json!({"metadata": {"name": "a"}, "spec": {"args": ["x"], "n": null}});
    let live = json!({"metadata": {"name": "a", "uid": "1"}, "spec": {"args": ["x"], "more": true}});
    assert_eq!(patched(&Value::Null, &desired, &live), json!({}));
    assert_eq!(patched(&json!({"spec": {"gone": 1}}), &desired, &live), json!({}), "it is gone already");
}

fn tree() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![any::<bool>().prop_map(Value::from), (0i64..5).prop_map(Value::from)];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::btree_map("[a-c]", inner.clone(), 0..4)
                .prop_map(|m| Value::Object(m.into_iter().collect())),
            prop::collection::vec(inner, 0..3).prop_map(Value::Array),
        ]
    })
}

fn object() -> impl Strategy<Value = Value> {
    prop::collection::btree_map("[a-d]", tree(), 0..4).prop_map(|m| Value::Object(m.into_iter().collect()))
}

proptest! {
    /// Applied once, a second look finds nothing to do.
    #[test]
    fn merging_is_idempotent(last in object(), desired in object(), mut live in object()) {
        let patch = patched(&last, &desired, &live);
        json_patch::merge(&mut live, &patch);
        prop_assert_eq!(patched(&desired, &desired, &live), json!({}));
    }

}

#[tokio::test]
async fn a_folder_is_applied_and_followed() {
    let server = windlass_test_api::TestApi::new().await;
    let (client, stop) = (server.client(), tokio_util::sync::CancellationToken::new());
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    let map =
        |data: &str| format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: b, namespace: shop}}\ndata: {data}\n");
    // The namespace comes in a later file: the map is refused first and tried again.
    write("a.yaml", &map("{x: old, y: gone}"));
    write("b.yaml", "kind: [\n");
    write("c.yaml", "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n");
    write("d.yaml", "apiVersion: example.com/v1\nkind: Unheard\nmetadata: {name: u}\n");
    let running = tokio::spawn(super::run(client, dir.path().to_owned(), stop.clone()));
    server.until("configmaps", "the map", |c| c.len() == 1).await;
    write("a.yaml", &map("{x: new}"));
    server.until("configmaps", "the change", |c| c[0]["data"] == json!({"x": "new"})).await;
    write("b.yaml", "apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: shop}\n");
    server.until("secrets", "the corrected file", |s| s.len() == 1).await;

    // The same again, and a file that is removed: nothing is written.
    let before = server.requests(http::Method::PATCH, "configmaps");
    write("a.yaml", &(map("{x: new}") + "# a comment\n"));
    std::fs::remove_file(dir.path().join("b.yaml")).unwrap();
    write("e.yaml", "apiVersion: v1\nkind: Secret\nmetadata: {name: last, namespace: shop}\n");
    server.until("secrets", "both", |s| s.len() == 2).await;
    assert_eq!(server.requests(http::Method::PATCH, "configmaps"), before);
    stop.cancel();
    running.await.unwrap().unwrap();
}
