use proptest::prelude::*;
use serde_json::{Value, json as object};

use super::{json, merge, strategic};
use crate::{MAX_DEPTH, schema::canonical, testing::schema};

const POD: &str = "core/v1.Pod";

fn patched(kind: &str, current: Value, patch: Value) -> Value {
    strategic(&schema(kind), &current, &patch).unwrap()
}

#[test]
fn lists_are_merged_by_their_keys() {
    let pod = object!({"spec": {"containers": [{"name": "a", "image": "1", "env": [{"name": "X", "value": "1"}]}, {"name": "b", "image": "1"}]}});
    let patch = object!({"spec": {"containers": [{"name": "a", "image": "2", "env": [{"name": "Y", "value": "2"}]}, {"name": "c", "image": "3"}]}});
    let merged = patched(POD, pod, patch);
    let containers = merged["spec"]["containers"].as_array().unwrap();
    assert_eq!(containers.iter().map(|c| c["name"].as_str().unwrap()).collect::<Vec<_>>(), ["a", "c", "b"]);
    assert_eq!(containers[0]["image"], "2");
    assert_eq!(containers[0]["env"].as_array().unwrap().len(), 2);
}

#[test]
fn directives() {
    let current = object!({"spec": {"containers": [{"name": "a"}, {"name": "b"}], "nodeSelector": {"x": "1", "y": "2"}},
        "metadata": {"finalizers": ["f", "g"]}});
    for (patch, path, wanted) in [
        (
            object!({"spec": {"containers": [{"name": "a", "$patch": "delete"}]}}),
            "/spec/containers",
            object!([{"name": "b"}]),
        ),
        (
            object!({"spec": {"containers": [{"$patch": "replace"}, {"name": "z"}]}}),
            "/spec/containers",
            object!([{"name": "z"}]),
        ),
        (
            object!({"spec": {"nodeSelector": {"$patch": "replace", "z": "3"}}}),
            "/spec/nodeSelector",
            object!({"z": "3"}),
        ),
        (
            object!({"spec": {"nodeSelector": {"$retainKeys": ["x", "z"], "z": "3"}}}),
            "/spec/nodeSelector",
            object!({"x": "1", "z": "3"}),
        ),
        (object!({"spec": {"nodeSelector": {"x": null}}}), "/spec/nodeSelector", object!({"y": "2"})),
        (object!({"metadata": {"labels": {"$patch": "replace", "z": "3"}}}), "/metadata", current["metadata"].clone()),
        (object!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["f"]}}), "/metadata/finalizers", object!(["g"])),
        (object!({"metadata": {"finalizers": ["h"]}}), "/metadata/finalizers", object!(["h", "f", "g"])),
        (
            object!({"spec": {"$setElementOrder/containers": [{"name": "c"}, {"name": "b"}, {"name": "a"}], "containers": [{"name": "c"}]}}),
            "/spec/containers",
            object!([{"name": "c"}, {"name": "b"}, {"name": "a"}]),
        ),
        (
            object!({"spec": {"$setElementOrder/containers": [{"name": "c"}, {"name": "a"}], "containers": [{"name": "c"}]}}),
            "/spec/containers",
            object!([{"name": "c"}, {"name": "a"}, {"name": "b"}]),
        ),
        (
            object!({"metadata": {"$setElementOrder/finalizers": ["g", "f"]}}),
            "/metadata/finalizers",
            object!(["g", "f"]),
        ),
        (object!({"spec": {"nodeSelector": {"$patch": "delete"}}}), "/spec/nodeSelector", object!({})),
        (
            object!({"spec": {"tolerations": [{"key": "k", "value": null}]}}),
            "/spec/tolerations",
            object!([{"key": "k"}]),
        ),
        (
            object!({"spec": {"volumes": [{"name": "gone", "$patch": "delete"}, {"name": "v"}]}}),
            "/spec/volumes",
            object!([{"name": "v"}]),
        ),
    ] {
        assert_eq!(patched(POD, current.clone(), patch.clone()).pointer(path), Some(&wanted), "{patch}");
    }
}

#[test]
fn ports_have_the_key_of_their_holder() {
    let service = object!({"spec": {"ports": [{"port": 80, "nodePort": 30080}]}});
    let moved = object!({"spec": {"$setElementOrder/ports": [{"port": 8080}], "ports": [{"port": 8080}, {"port": 80, "$patch": "delete"}]}});
    assert_eq!(patched("core/v1.Service", service, moved)["spec"]["ports"], object!([{"port": 8080}]));
    let pod = object!({"spec": {"containers": [{"name": "a", "ports": [{"containerPort": 80}]}]}});
    let named = object!({"spec": {"containers": [{"name": "a", "ports": [{"containerPort": 80, "name": "http"}]}]}});
    assert_eq!(
        patched(POD, pod, named)["spec"]["containers"][0]["ports"],
        object!([{"containerPort": 80, "name": "http"}])
    );
}

#[test]
fn wrong_patches_are_refused() {
    let current = object!({"a": 1, "x": {}});
    let code = |result: Result<Value, super::PatchError>| result.unwrap_err().code();
    assert_eq!(code(json(&current, &object!({}))), 400);
    assert_eq!(code(json(&current, &object!(["remove"]))), 400);
    assert_eq!(code(json(&current, &object!([{"op": "nonsense"}]))), 422);
    assert_eq!(code(json(&current, &object!([{"op": "test", "path": "/a", "value": 2}]))), 422);
    assert_eq!(code(json(&current, &object!([{"op": "remove", "path": "/b"}]))), 422);
    assert_eq!(code(merge(&current, &object!([]))), 400);
    let strategic = |patch: Value| strategic(&schema(POD), &current, &patch);
    assert_eq!(code(strategic(object!({"x": {"$patch": "explode"}}))), 500);
    assert_eq!(code(strategic(object!({"x": {"$retainKeys": ["a"], "b": 1}}))), 400);
}

/// Each as kube-apiserver 1.36 answers it.
#[test]
fn operations_are_as_lenient_as_upstreams() {
    let current = object!({"a": {"b": "1"}, "l": ["x", "y"], "n": null});
    for (operations, result) in [
        (object!([{"op": "test", "path": "/a/c", "value": null}]), Some(object!({"a": {"b": "1"}}))),
        (
            object!([{"op": "test", "path": "/a/c"}, {"op": "add", "path": "/a/c", "value": ["f"]}]),
            Some(object!({"a": {"b": "1", "c": ["f"]}})),
        ),
        (object!([{"op": "test", "path": "/n", "value": null}]), Some(object!({"n": null}))),
        (object!([{"op": "test", "path": "/c/d", "value": null}]), None),
        (object!([{"op": "test", "path": "/a/b/c", "value": null}]), None),
        (object!([{"op": "test", "path": "/a/b"}]), None),
        (object!([{"op": "test", "path": "/l/2", "value": null}]), None),
        (object!([{"op": "test", "path": "", "value": null}]), None),
        (object!([{"op": "replace", "path": "/a/c", "value": "2"}]), Some(object!({"a": {"b": "1", "c": "2"}}))),
        (object!([{"op": "replace", "path": "/l/2", "value": "2"}]), None),
        (object!([{"op": "copy", "from": "/a/c", "path": "/a/d"}]), Some(object!({"a": {"b": "1", "d": null}}))),
        (object!([{"op": "move", "from": "/a/c", "path": "/a/d"}]), None),
        (object!([{"op": "move", "from": "/a/b", "path": "/l/-"}]), Some(object!({"a": {}, "l": ["x", "y", "1"]}))),
        (object!([{"op": "add", "path": "/a/c"}]), Some(object!({"a": {"b": "1", "c": null}}))),
        (object!([{"op": "add", "path": "/l/-1", "value": "z"}]), Some(object!({"l": ["x", "y", "z"]}))),
        (object!([{"op": "add", "path": "/l/3", "value": "z"}]), None),
        (object!([{"op": "remove", "path": "/l/-2"}]), Some(object!({"l": ["y"]}))),
        (object!([{"op": "remove", "path": "/l/-3"}]), None),
        (object!([{"op": "remove", "path": "/l/-"}]), None),
        (object!([{"op": "add", "path": "ignored/a/c~1~0", "value": 1}]), Some(object!({"a": {"b": "1", "c/~": 1}}))),
        (object!([{"op": "add", "path": "a", "value": 1}]), None),
        (object!([{"op": "add", "value": 1}]), None),
    ] {
        let patched = json(&current, &operations);
        match result {
            Some(result) => {
                let patched = patched.unwrap();
                for (key, value) in result.as_object().unwrap() {
                    assert_eq!(&patched[key], value, "{operations}");
                }
            }
            None => assert_eq!(patched.unwrap_err().code(), 422, "{operations}"),
        }
    }
}

#[test]
fn a_merge_patch_leaves_no_null_in_the_objects_of_a_list() {
    let patch = object!({"l": [{"a": null, "b": {"c": null}}, null, [{"d": null}]], "o": {"n": null}});
    let patched = merge(&object!({"o": {"n": 1}}), &patch).expect("a patch");
    assert_eq!(patched, object!({"l": [{"b": {}}, null, [{}]], "o": {}}));
}

/// As upstream: what a directive says is only read where there is something that it could be about.
#[test]
fn directives_without_a_field_leave_it_out() {
    let pod = object!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a"}]}});
    for word in [object!("replace"), object!("delete"), object!("merge"), object!("explode"), object!(1), object!("")] {
        for patch in [
            object!({"metadata": {"annotations": {"$patch": word, "z": "1"}}}),
            object!({"spec": {"imagePullSecrets": [{"$patch": word, "name": "x"}], "nodeSelector": {"$patch": word}}}),
        ] {
            let mut patched = strategic(&schema(POD), &pod, &patch).expect("a patch");
            // An empty list counts as absent.
            patched["spec"].as_object_mut().map(|spec| spec.remove("imagePullSecrets"));
            assert_eq!(patched, pod, "{patch}");
        }
    }
    let null = object!({"metadata": {"annotations": {"$patch": null, "z": "1"}}});
    let patched = strategic(&schema(POD), &pod, &null).expect("a patch");
    assert_eq!(patched["metadata"]["annotations"], object!({"z": "1"}));
    // A new item of a list is added as it is.
    let item = object!({"name": "b", "resources": {"$patch": "explode", "limits": {"cpu": "1"}}});
    let patched = strategic(&schema(POD), &pod, &object!({"spec": {"containers": [item]}})).expect("a patch");
    assert_eq!(patched["spec"]["containers"], object!([item, {"name": "a"}]));
    let replaced = object!({"spec": {"containers": [{"$patch": "replace"}, {"$patch": "explode"}]}});
    assert_eq!(strategic(&schema(POD), &pod, &replaced).map_err(|error| error.code()), Err(500));
}

#[test]
fn directives_that_do_not_fit_are_refused_in_upstreams_words() {
    let pod =
        object!({"metadata": {"labels": {"a": "b"}, "finalizers": ["y"]}, "spec": {"containers": [{"name": "a"}]}});
    let metadata = |metadata: Value| object!({"metadata": metadata});
    let spec = |spec: Value| object!({"spec": spec});
    for (patch, words) in [
        (
            metadata(object!({"labels": {"$patch": "merge", "z": "1"}})),
            "unknown patch type: merge in map: map[$patch:merge z:1]",
        ),
        (
            metadata(object!({"labels": {"$patch": 1, "z": "1"}})),
            "unknown patch type: %!s(int64=1) in map: map[$patch:1 z:1]",
        ),
        (
            metadata(object!({"labels": {"$patch": null, "z": "1"}})),
            "unknown patch type: %!s(<nil>) in map: map[$patch:<nil> z:1]",
        ),
        (
            metadata(object!({"$setElementOrder/labels": ["a"]})),
            "expected a []interface {}, but received a map[string]interface {}",
        ),
        (
            metadata(object!({"$setElementOrder/finalizers": ["x", "z"], "finalizers": ["z", "x"]})),
            "The order in patch list:\n[z x]\n doesn't match $setElementOrder list:\n[x z]\n",
        ),
        (
            spec(object!({"containers": [{"$patch": "merge", "name": "a"}]})),
            "merging lists cannot yet be specified in the patch",
        ),
        (
            spec(object!({"containers": [{"$patch": "explode", "name": "a"}]})),
            "unknown patch type: explode in map: map[$patch:explode name:a]",
        ),
        (
            spec(object!({"containers": [{"image": "k"}]})),
            "map: map[image:k] does not contain declared merge key: name",
        ),
        (
            spec(object!({"$setElementOrder/containers": [{"nam": "z"}], "containers": [{"name": "a"}]})),
            "map: map[nam:z] does not contain declared merge key: name",
        ),
        (spec(object!({"$setElementOrder/containers": ["a"]})), "value for key 0 is not a map"),
        (
            spec(
                object!({"$setElementOrder/containers": [{"name": "b"}], "containers": [{"name": "a", "image": "j"}]}),
            ),
            "The order in patch list:\n[map[image:j name:a]]\n doesn't match $setElementOrder list:\n[map[name:b]]\n",
        ),
    ] {
        let error = strategic(&schema(POD), &pod, &patch).unwrap_err();
        assert_eq!((error.code(), error.to_string().as_str()), (500, words), "{patch}");
    }
    // Deleted items need no position, and an order may name items that do not exist.
    let fits = spec(
        object!({"$setElementOrder/containers": [{"name": "z"}], "containers": [{"name": "a", "$patch": "delete"}]}),
    );
    assert_eq!(strategic(&schema(POD), &pod, &fits).unwrap()["spec"]["containers"], object!([]));
}

#[test]
fn how_a_list_is_merged_is_a_matter_of_its_type_not_of_its_name() {
    // A ConfigMap's data may be called anything, and so may the fields of a custom resource.
    let current = object!({"data": {"containers": "a"}, "containers": [{"name": "a"}]});
    let patch = object!({"containers": [{"name": "b"}]});
    assert_eq!(patched("core/v1.ConfigMap", current, patch)["containers"], object!([{"name": "b"}]));
    // A selector of this type is replaced, others are merged.
    let current = object!({"spec": {"selector": {"matchLabels": {"a": "b"}}}});
    let patch = object!({"spec": {"selector": {"matchLabels": {"c": "d"}}}});
    let replaced = patched("policy/v1.PodDisruptionBudget", current.clone(), patch.clone());
    assert_eq!(replaced["spec"]["selector"]["matchLabels"], object!({"c": "d"}));
    let merged = patched("apps/v1.Deployment", current, patch);
    assert_eq!(merged["spec"]["selector"]["matchLabels"], object!({"a": "b", "c": "d"}));
}

#[test]
fn a_field_may_begin_like_a_directive() {
    let current = object!({"spec": {"versions": [{"name": "v1", "schema": {"openAPIV3Schema": {"$ref": "a", "not": {"title": "t"}}}}]}});
    let patch = object!({"spec": {"versions": [{"name": "v1", "schema": {"openAPIV3Schema": {"$ref": "b"}}}]}});
    // Versions are atomic.
    let merged = patched("apiextensions/v1.CustomResourceDefinition", current, patch);
    assert_eq!(merged["spec"]["versions"][0]["schema"]["openAPIV3Schema"], object!({"$ref": "b"}));
}

#[test]
fn a_json_patch_cannot_fill_the_memory() {
    let doubling: Vec<Value> =
        (0..64).map(|n| object!({"op": "copy", "from": "/a", "path": format!("/a/x{n}")})).collect();
    assert_eq!(json(&object!({"a": {"b": "c"}}), &Value::Array(doubling)).unwrap_err().code(), 400);
    let many = vec![object!({"op": "test", "path": "/a", "value": 1}); 10_001];
    assert_eq!(json(&object!({"a": 1}), &Value::Array(many)).unwrap_err().code(), 400);
}

#[test]
fn no_patch_nests_an_object_deeper_than_it_can_be_read() {
    let mut nested = Value::Null;
    for _ in 0..MAX_DEPTH - 1 {
        nested = object!({"a": nested});
    }
    let mut operations = vec![object!({"op": "add", "path": "/a", "value": nested})];
    assert!(json(&object!({}), &Value::Array(operations.clone())).is_ok());
    let deeper = object!({"op": "add", "path": "/a".repeat(MAX_DEPTH), "value": {"a": 1}});
    let error = json(&object!({}), &Value::Array(vec![operations[0].clone(), deeper])).unwrap_err();
    assert_eq!(error.code(), 400, "{error}");
    for step in 0..20 {
        let path = "/a".repeat(MAX_DEPTH + step * (MAX_DEPTH - 1));
        operations.push(object!({"op": "add", "path": path, "value": nested}));
    }
    let error = json(&object!({}), &Value::Array(operations)).unwrap_err();
    assert!(error.to_string().contains("too deep"), "{error}");
    let moves: Vec<Value> = (0..2000).map(|_| object!({"op": "copy", "from": "/a", "path": "/a/a"})).collect();
    assert_eq!(json(&object!({"a": {}}), &Value::Array(moves)).unwrap_err().code(), 400);
    for _ in 0..1_500 {
        nested = Value::Array(vec![nested]);
    }
    let bomb = Value::Object([("spec".to_owned(), nested)].into_iter().collect());
    assert_eq!(strategic(&schema(POD), &object!({}), &bomb).unwrap_err().code(), 400);
    assert_eq!(merge(&object!({}), &bomb).unwrap_err().code(), 400);
}

#[test]
fn a_new_list_keeps_ports_that_differ_by_protocol() {
    let ports = object!([{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]);
    let made = patched("core/v1.Service", object!({"spec": {}}), object!({"spec": {"ports": ports}}));
    assert_eq!(made["spec"]["ports"], ports);
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(object!(null)),
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

/// What kube-apiserver 1.36 answered to strategic merge patches, as what they changed.
#[test]
fn strategic_patches_do_what_they_do_at_kube_apiserver() {
    let recorded = |file: &str| -> Value {
        let path = format!("{}/tests/patches/{file}.json", env!("CARGO_MANIFEST_DIR"));
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    };
    let (objects, cases) = (recorded("objects"), recorded("strategic"));
    let mut wrong = Vec::new();
    for case in cases.as_array().unwrap() {
        let kind = case["type"].as_str().unwrap();
        let (of, current) = (schema(kind), &objects[kind]);
        let patched = strategic(&of, current, &case["patch"]);
        if case["refused"].is_string() {
            let refused = patched.is_err() || !crate::schema::check(&of, &patched.unwrap(), kind).wrong.is_empty();
            if !refused {
                wrong.push(format!("{}: refused with {}", case["patch"], case["refused"]));
            }
            continue;
        }
        let expected = merge(current, &case["changes"]).unwrap();
        match patched {
            Ok(patched) if crate::schema::same(&of, &patched, &expected) => {}
            Ok(patched) => {
                let differences = json_patch::diff(&canonical(&of, &expected), &canonical(&of, &patched));
                wrong.push(format!("{}: {differences}", case["patch"]));
            }
            Err(error) => wrong.push(format!("{}: {error}", case["patch"])),
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// Types whose fields have the names of [`any_json`].
const TYPES: [&str; 4] = [POD, "core/v1.PodSpec", "core/v1.Container", "core/v1.ServiceSpec"];

/// Whether a patch has no `$patch`, and no item of a list has a null.
fn is_plain(patch: &Value, is_item: bool) -> bool {
    match patch {
        Value::Object(fields) => {
            let plain = |(name, value): (&String, &Value)| {
                name != "$patch" && !(is_item && value.is_null()) && is_plain(value, false)
            };
            fields.iter().all(plain)
        }
        Value::Array(items) => items.iter().all(|item| is_plain(item, true)),
        _ => true,
    }
}

proptest! {
    #[test]
    fn no_patch_panics(current in any_json(), patch in any_json()) {
        let _ = json(&current, &patch);
        let _ = merge(&current, &patch);
        for of in TYPES {
            let _ = strategic(&schema(of), &current, &patch);
        }
    }

    #[test]
    fn an_empty_patch_changes_nothing(current in any_json()) {
        if current.is_object() {
            for of in TYPES {
                prop_assert_eq!(&strategic(&schema(of), &current, &object!({})).unwrap(), &current);
            }
            prop_assert_eq!(&merge(&current, &object!({})).unwrap(), &current);
            prop_assert_eq!(&json(&current, &object!([])).unwrap(), &current);
        }
    }

    #[test]
    fn a_generated_json_patch_turns_one_object_into_the_other(a in any_json(), b in any_json()) {
        let difference = serde_json::to_value(json_patch::diff(&a, &b)).unwrap();
        prop_assert_eq!(&json(&a, &difference).unwrap(), &b);
    }

    #[test]
    fn applying_a_patch_twice_changes_nothing_more(current in any_json(), patch in any_json()) {
        if let Ok(once) = merge(&current, &patch) {
            prop_assert_eq!(&merge(&once, &patch).unwrap(), &once);
        }
        // Upstream omits an item with a directive from a new list, but appends it as it is to an existing one; an item
        // whose merge key is null is added each time.
        for of in TYPES.into_iter().filter(|_| is_plain(&patch, false)) {
            let Ok(once) = strategic(&schema(of), &current, &patch) else { continue };
            let Ok(twice) = strategic(&schema(of), &once, &patch) else { continue };
            prop_assert_eq!(&once, &twice, "{}", of);
        }
    }
}
