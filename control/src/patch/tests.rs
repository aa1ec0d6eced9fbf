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
    assert_eq!(containers.iter().map(|c| c["name"].as_str().unwrap()).collect::<Vec<_>>(), ["a", "c", "b"]);
    assert_eq!(containers[0]["image"], "2");
    assert_eq!(containers[0]["env"].as_array().unwrap().len(), 2);
}

#[test]
fn directives() {
    let current = json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}], "nodeSelector": {"x": "1", "y": "2"}},
        "metadata": {"finalizers": ["f", "g"]}});
    for (patch, path, wanted) in [
        (
            json!({"spec": {"containers": [{"name": "a", "$patch": "delete"}]}}),
            "/spec/containers",
            json!([{"name": "b"}]),
        ),
        (
            json!({"spec": {"containers": [{"$patch": "replace"}, {"name": "z"}]}}),
            "/spec/containers",
            json!([{"name": "z"}]),
        ),
        (json!({"spec": {"nodeSelector": {"$patch": "replace", "z": "3"}}}), "/spec/nodeSelector", json!({"z": "3"})),
        (
            json!({"spec": {"nodeSelector": {"$retainKeys": ["x", "z"], "z": "3"}}}),
            "/spec/nodeSelector",
            json!({"x": "1", "z": "3"}),
        ),
        (json!({"spec": {"nodeSelector": {"x": null}}}), "/spec/nodeSelector", json!({"y": "2"})),
        (json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["f"]}}), "/metadata/finalizers", json!(["g"])),
        (json!({"metadata": {"finalizers": ["h"]}}), "/metadata/finalizers", json!(["h", "f", "g"])),
        (
            json!({"spec": {"$setElementOrder/containers": [{"name": "c"}, {"name": "b"}, {"name": "a"}], "containers": [{"name": "c"}]}}),
            "/spec/containers",
            json!([{"name": "c"}, {"name": "b"}, {"name": "a"}]),
        ),
        (
            json!({"spec": {"$setElementOrder/containers": [{"name": "c"}, {"name": "a"}], "containers": [{"name": "c"}]}}),
            "/spec/containers",
            json!([{"name": "c"}, {"name": "a"}, {"name": "b"}]),
        ),
        (json!({"metadata": {"$setElementOrder/finalizers": ["g", "f"]}}), "/metadata/finalizers", json!(["g", "f"])),
        (json!({"spec": {"nodeSelector": {"$patch": "delete"}}}), "/spec/nodeSelector", json!({})),
        (json!({"spec": {"tolerations": [{"key": "k", "value": null}]}}), "/spec/tolerations", json!([{"key": "k"}])),
        (
            json!({"spec": {"volumes": [{"name": "gone", "$patch": "delete"}, {"name": "v"}]}}),
            "/spec/volumes",
            json!([{"name": "v"}]),
        ),
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
    assert_eq!(code(PatchKind::Strategic, json!({"x": {"$retainKeys": ["a"], "b": 1}})), 400);
    let pod = json!({"spec": {"containers": [{"name": "a"}]}});
    let nameless = json!({"spec": {"containers": [{"image": "no name"}]}});
    for kind in [PatchKind::Strategic, PatchKind::Apply] {
        let error = apply(kind, &pod, &nameless).unwrap_err();
        assert!(error.code() == 400 && error.to_string().contains("\"name\""), "{error}");
    }
}

#[test]
fn a_json_patch_cannot_fill_the_memory() {
    let doubling: Vec<Value> = (0..64).map(|n| json!({"op": "copy", "from": "", "path": format!("/x{n}")})).collect();
    assert_eq!(apply(PatchKind::Json, &json!({"a": "b"}), &Value::Array(doubling)).unwrap_err().code(), 400);
    let many = vec![json!({"op": "test", "path": "/a", "value": 1}); 10_001];
    assert_eq!(apply(PatchKind::Json, &json!({"a": 1}), &Value::Array(many)).unwrap_err().code(), 400);
}

#[test]
fn apply_merges_the_configuration_into_the_object() {
    let current = json!({"metadata": {"uid": "u", "labels": {"a": "1"}}, "spec": {"selector": {"old": "x"}, "clusterIP": "10.96.0.9",
        "ports": [{"port": 53, "protocol": "UDP", "nodePort": 30053, "targetPort": 53}]}});
    let applied = json!({"metadata": {"labels": {"b": "2"}}, "spec": {"selector": {"new": "y"}, "type": null,
        "ports": [{"port": 53, "protocol": "UDP", "targetPort": 5353}, {"port": 53}]}});
    let merged = apply(PatchKind::Apply, &current, &applied).unwrap();
    assert_eq!(
        merged,
        json!({"metadata": {"uid": "u", "labels": {"a": "1", "b": "2"}}, "spec": {"selector": {"new": "y"}, "clusterIP": "10.96.0.9",
        "ports": [{"port": 53, "protocol": "UDP", "nodePort": 30053, "targetPort": 5353}, {"port": 53}]}})
    );
    assert_eq!(apply(PatchKind::Apply, &merged, &applied).unwrap(), merged, "once more changes nothing");
    let pod = json!({"spec": {"volumes": [{"name": "v", "configMap": {"name": "c"}}], "containers": [{"name": "a", "env": [{"name": "X", "value": "1"}]}]}});
    let other = json!({"spec": {"volumes": [{"name": "v", "emptyDir": {}}], "containers": [{"name": "a", "env": [{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}]}});
    assert_eq!(apply(PatchKind::Apply, &pod, &other).unwrap(), other, "one source only");
}

#[test]
fn a_new_list_keeps_ports_that_differ_by_protocol() {
    let ports = json!([{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]);
    for kind in [PatchKind::Strategic, PatchKind::Apply] {
        let made = apply(kind, &json!({"spec": {}}), &json!({"spec": {"ports": ports}})).unwrap();
        assert_eq!(made["spec"]["ports"], ports);
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!(null)),
        any::<bool>().prop_map(Value::from),
        (0i64..9).prop_map(Value::from),
        "[a-c]{0,2}".prop_map(Value::from)
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            prop::collection::hash_map("(name|containers|ports|port|spec|env|\\$patch|a|b)", inner, 0..4)
                .prop_map(|m| Value::Object(m.into_iter().collect())),
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

    #[test]
    fn a_generated_json_patch_turns_one_object_into_the_other(a in any_json(), b in any_json()) {
        let difference = serde_json::to_value(json_patch::diff(&a, &b)).unwrap();
        prop_assert_eq!(&apply(PatchKind::Json, &a, &difference).unwrap(), &b);
    }

    #[test]
    fn applying_a_patch_twice_changes_nothing_more(current in any_json(), patch in any_json()) {
        for kind in [PatchKind::Merge, PatchKind::Strategic, PatchKind::Apply] {
            let Ok(once) = apply(kind, &current, &patch) else { continue };
            let Ok(twice) = apply(kind, &once, &patch) else { continue };
            prop_assert_eq!(&once, &twice, "{:?}", kind);
        }
    }
}
