mod openapi;
mod protobuf;

use proptest::prelude::*;
use serde_json::{Value, json};
use windlass_apimachinery::schema::FieldProblems;

use super::*;
use crate::{apiserver::tests::version, fuzzing::stored_versions};

#[test]
fn bodies_are_read_with_their_faults() {
    let json =
        decode(br#"{"a":1,"b":{"c":1,"c":2},"l":[{"x":1,"x":2}],"big":9007199254740993}"#, ContentType::Json).unwrap();
    assert_eq!(json.duplicates, Duplicates::Paths(vec!["b.c".to_owned(), "l[0].x".to_owned()]));
    assert_eq!(json.value["big"], json!(9_007_199_254_740_993i64));
    for broken in [&b"{"[..], b"", b"[1,]", b"{} x", b"\xff"] {
        assert!(decode(broken, ContentType::Json).is_err(), "{broken:?}");
    }
    assert_eq!(decode(b"mode: 0644\n", ContentType::Yaml).unwrap().value["mode"], 420);
    assert!(decode(b"a: [b\n", ContentType::Yaml).unwrap_err().contains("line"));
}

#[test]
fn unknown_and_mistyped_fields_are_named_by_path() {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", "labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "i", "imagePolicy": "x", "resources": {"limits": {"cpu": 1, "memory": "1Gi"}},
        "ports": [{"containerPort": "80"}]}], "colour": 1}});
    let problems = version("Pod").spec.schema.check(&pod);
    assert_eq!(problems.unknown, ["spec.colour", "spec.containers[0].imagePolicy"]);
    assert_eq!(problems.wrong.len(), 1, "{:?}", problems.wrong);
    assert_eq!(
        problems.wrong[0],
        "json: cannot unmarshal string into Go struct field ContainerPort.spec.containers.ports.containerPort of type int32"
    );
    for resource in stored_versions() {
        let empty =
            json!({"apiVersion": resource.gvk.api_version(), "kind": *resource.gvk.kind, "metadata": {"name": "x"}});
        assert_eq!(resource.spec.schema.check(&empty), FieldProblems::default(), "{}", resource.gvk.kind);
    }
}

#[test]
fn duplicates_and_numbers_of_yaml() {
    let yaml =
        decode(b"a: 1\nb:\n  c: 1\n  c: 2\nl:\n- x: 1\n  x: 2\nbig: 9007199254740993\non: yes\n", ContentType::Yaml)
            .unwrap();
    let lines = ["line 4: key \"c\" already set in map", "line 7: key \"x\" already set in map"];
    assert_eq!(yaml.duplicates, Duplicates::Lines(lines.map(str::to_owned).to_vec()));
    assert_eq!(yaml.value["big"], json!(9_007_199_254_740_993i64));
    assert_eq!(yaml.value["b"]["c"], 2);
    let error = decode(b"a: 1\nb: [1, 2\nc: 3\n", ContentType::Yaml).unwrap_err();
    assert!(error.contains("line 3") || error.contains("line 2"), "{error}");
    let deep = "[".repeat(5000);
    assert!(decode(deep.as_bytes(), ContentType::Json).is_err());
    assert!(decode(deep.as_bytes(), ContentType::Yaml).is_err());
}

#[test]
fn fields_that_a_typed_decoder_drops_are_pruned() {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", "creationTimestamp": null, "annotations": {"any.thing/x": "y"}},
        "spec": {"colour": 1, "containers": [{"name": "c", "imagePolicy": 1, "resources": {"limits": {"cpu": "1"}}}]}});
    version("Pod").spec.schema.prune(&mut pod);
    assert_eq!(
        pod,
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", "annotations": {"any.thing/x": "y"}},
        "spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "1"}}}]}})
    );
}

/// A name in a set of fields, with what text and JSON have to escape.
fn name() -> impl Strategy<Value = String> {
    "[a-c\\.:\"\\\\{}é ]{0,6}"
}

/// A set of fields as it is stored, with elements of each kind.
fn fields() -> impl Strategy<Value = Value> {
    let element = prop_oneof![
        name().prop_map(|name| format!("f:{name}")),
        (name(), 0..3).prop_map(|(name, port)| format!("k:{}", json!({"name": name, "port": port}))),
        name().prop_map(|name| format!("v:{}", json!(name))),
        (0..9).prop_map(|at| format!("i:{at}")),
        Just(".".to_owned()),
    ];
    let leaf = Just(json!({})).boxed();
    leaf.prop_recursive(4, 24, 4, move |inner| {
        prop::collection::btree_map(element.clone(), inner, 0..4).prop_map(|fields| json!(fields))
    })
}

proptest! {
    #[test]
    fn objects_with_owners_pass_through_protobuf(
        entries in prop::collection::vec((name(), any::<bool>(), any::<Option<u32>>(), name(), fields()), 0..4),
    ) {
        let entries: Vec<Value> = entries
            .into_iter()
            .map(|(manager, applies, time, subresource, fields)| {
                let time = time.and_then(|seconds| jiff::Timestamp::from_second(seconds.into()).ok());
                json!({"manager": manager, "operation": if applies { "Apply" } else { "Update" }, "apiVersion": "v1",
                    "time": time.map(|time| time.to_string()), "fieldsType": "FieldsV1", "fieldsV1": fields, "subresource": subresource})
            })
            .collect();
        crate::fuzzing::owners(json!(entries).to_string().as_bytes());
    }

    #[test]
    fn decoding_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = decode(&bytes, ContentType::Json);
        let _ = decode(&bytes, ContentType::Yaml);
    }

    #[test]
    fn fuzzing_entry_points_accept_odd_bodies(bytes in prop::collection::vec(any::<u8>(), 0..64), kind in any::<prop::sample::Index>(), text in "[\\[\\]{}:,\"a-c0-9]{0,40}") {
        let mut protobuf = b"k8s\0".to_vec();
        protobuf.extend(&bytes);
        crate::fuzzing::body(&protobuf);
        let all = stored_versions();
        let gvk = &all[kind.index(all.len())].gvk;
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|_| json!({"spec": [text], "metadata": {"labels": {"a": null}}, "data": [1]}));
        let object = json!({"apiVersion": gvk.api_version(), "kind": *gvk.kind, "metadata": {}, "spec": value, "data": value, "status": value});
        crate::fuzzing::body(object.to_string().as_bytes());
        crate::fuzzing::patch(json!([object, {"spec": value, "metadata": value}]).to_string().as_bytes());
    }

    #[test]
    fn nothing_panics_on_odd_objects(text in "[\\[\\]{}:,\"a-c0-9]{0,40}") {
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|_| json!({"spec": text, "metadata": 3, "data": [1]}));
        for resource in stored_versions() {
            let mut value = value.clone();
            let _ = resource.spec.schema.check(&value);
            resource.spec.schema.prune(&mut value);
        }
    }
}

/// Items of lists whose keys defaults change, which fuzzing has found: each apply adds another one, as upstream's.
#[test]
fn applied_items_need_their_keys_to_be_the_same_again() {
    for ports in [json!([{}]), json!([{"port": 60, "protocol": ""}]), json!([{"port": 60}])] {
        let service =
            |spec: Value| json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": spec});
        for before in [json!({}), json!({"ports": [{"port": 80, "protocol": "TCP"}, {"port": 80, "protocol": "UDP"}]})]
        {
            crate::fuzzing::applies(json!([service(before), service(json!({"ports": ports}))]).to_string().as_bytes());
        }
    }
}

#[test]
fn zero_values_are_omitted_unless_behind_a_pointer() {
    let pod = |spec: Value| json!({"metadata": {"name": "x"}, "spec": spec});
    let equal = |one: Value, other: Value| version("Pod").spec.schema.same(&pod(one), &pod(other));
    for nothing in [
        json!({"hostNetwork": false}),
        json!({"nodeName": ""}),
        json!({"volumes": []}),
        json!({"nodeSelector": {}}),
        json!({"tolerations": null}),
    ] {
        assert!(equal(nothing.clone(), json!({})), "{nothing}");
    }
    for something in [
        json!({"enableServiceLinks": false}),
        json!({"priority": 0}),
        json!({"securityContext": {}}),
        json!({"nodeSelector": {"a": ""}}),
        json!({"containers": [{}]}),
    ] {
        assert!(!equal(something.clone(), json!({})), "{something}");
    }
    assert!(equal(json!({"containers": [{"name": "", "resources": {"limits": {}}}]}), json!({"containers": [{}]})));
    assert!(equal(json!({"overhead": {"cpu": 1}}), json!({"overhead": {"cpu": "1000m"}})));
}
