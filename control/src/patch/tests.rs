use proptest::prelude::*;
use serde_json::json;

use super::*;

fn strategic(current: Value, patch: Value) -> Value {
    apply(PatchKind::Strategic, &current, &patch).unwrap()
}

#[test]
fn lists_are_merged_by_their_keys() {
    let pod = json!({"spec": {"containers": [{"name": "a", "image": "1", "env": [{"name": "X", "value": "1"}]}, {"name": "b", "image": "1"}]}});
    let patch = json!({"spec": {"containers": [{"name": "a", "image": "2", "env": [{"name": "Y", "value": "2"}]}, {"name": "c", "image": "3"}]}});
    let merged = strategic(pod, patch);
    let containers = merged["spec"]["containers"].as_array().unwrap();
    assert_eq!(containers.iter().map(|c| c["name"].as_str().unwrap()).collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!(containers[0]["image"], "2");
    assert_eq!(containers[0]["env"].as_array().unwrap().len(), 2);
}

#[test]
fn directives() {
    let current = json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}], "nodeSelector": {"x": "1", "y": "2"}},
        "metadata": {"finalizers": ["f", "g"]}});
    for (patch, path, wanted) in [
        (json!({"spec": {"containers": [{"name": "a", "$patch": "delete"}]}}), "/spec/containers", json!([{"name": "b"}])),
        (json!({"spec": {"containers": [{"$patch": "replace"}, {"name": "z"}]}}), "/spec/containers", json!([{"name": "z"}])),
        (json!({"spec": {"nodeSelector": {"$patch": "replace", "z": "3"}}}), "/spec/nodeSelector", json!({"z": "3"})),
        (json!({"spec": {"nodeSelector": {"$retainKeys": ["x", "z"], "z": "3"}}}), "/spec/nodeSelector", json!({"x": "1", "z": "3"})),
        (json!({"spec": {"nodeSelector": {"x": null}}}), "/spec/nodeSelector", json!({"y": "2"})),
        (json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["f"]}}), "/metadata/finalizers", json!(["g"])),
        (json!({"metadata": {"finalizers": ["h"]}}), "/metadata/finalizers", json!(["f", "g", "h"])),
        (json!({"spec": {"$setElementOrder/containers": [{"name": "c"}, {"name": "b"}, {"name": "a"}], "containers": [{"name": "c"}]}}),
            "/spec/containers", json!([{"name": "c"}, {"name": "b"}, {"name": "a"}])),
    ] {
        assert_eq!(strategic(current.clone(), patch.clone()).pointer(path), Some(&wanted), "{patch}");
    }
}

#[test]
fn ports_have_the_key_of_their_holder() {
    let service = json!({"spec": {"ports": [{"port": 80, "nodePort": 30080}]}});
    let moved = json!({"spec": {"$setElementOrder/ports": [{"port": 8080}], "ports": [{"port": 8080}, {"port": 80, "$patch": "delete"}]}});
    assert_eq!(strategic(service, moved)["spec"]["ports"], json!([{"port": 8080}]));
    let pod = json!({"spec": {"containers": [{"name": "a", "ports": [{"containerPort": 80}]}]}});
    let named = json!({"spec": {"containers": [{"name": "a", "ports": [{"containerPort": 80, "name": "http"}]}]}});
    assert_eq!(strategic(pod, named)["spec"]["containers"][0]["ports"], json!([{"containerPort": 80, "name": "http"}]));
}

#[test]
fn wrong_patches_are_refused() {
    let code = |kind, patch| apply(kind, &json!({"a": 1}), &patch).unwrap_err().code();
    assert_eq!(code(PatchKind::Json, json!({})), 400);
    assert_eq!(code(PatchKind::Json, json!([{"op": "nonsense"}])), 400);
    assert_eq!(code(PatchKind::Json, json!([{"op": "test", "path": "/a", "value": 2}])), 422);
    assert_eq!(code(PatchKind::Json, json!([{"op": "remove", "path": "/b"}])), 422);
    assert_eq!(code(PatchKind::Merge, json!([])), 400);
    assert_eq!(code(PatchKind::Strategic, json!({"x": {"$patch": "explode"}})), 400);
    assert_eq!(code(PatchKind::Strategic, json!({"spec": {"containers": [{"image": "no name"}]}})), 400);
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![Just(json!(null)), any::<bool>().prop_map(Value::from), (0i64..9).prop_map(Value::from), "[a-c]{0,2}".prop_map(Value::from)];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            prop::collection::hash_map("(name|containers|ports|port|spec|env|\\$patch|a|b)", inner, 0..4).prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn no_patch_panics(current in any_json(), patch in any_json()) {
        for kind in [PatchKind::Json, PatchKind::Merge, PatchKind::Strategic, PatchKind::Apply] {
            let _ = apply(kind, &current, &patch);
        }
    }

    #[test]
    fn an_empty_patch_changes_nothing(current in any_json()) {
        if current.is_object() {
            prop_assert_eq!(&apply(PatchKind::Strategic, &current, &json!({})).unwrap(), &current);
            prop_assert_eq!(&apply(PatchKind::Merge, &current, &json!({})).unwrap(), &current);
            prop_assert_eq!(&apply(PatchKind::Json, &current, &json!([])).unwrap(), &current);
        }
    }
}
