use serde_json::{Value, json};

use crate::{
    protobuf::{Problem, decode, encode, encode_into, envelope, is_on_wire},
    schema::{Schema, TypeIndex},
    testing::schema,
};

/// The bytes of a message, and back.
fn round(of: &str, value: &Value) -> Value {
    let schema = schema(of);
    decode(&schema, &encode(&schema, value).unwrap()).unwrap()
}

#[test]
fn an_answer_is_an_envelope_around_the_message() {
    // As recorded from a kube-apiserver 1.36 for a ConfigMap that does not exist.
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "NotFound", "code": 404,
        "message": "configmaps \"none\" not found", "details": {"name": "none", "kind": "configmaps"},
    });
    let expected = [
        b"k8s\0\x0a\x0c\x0a\x02v1\x12\x06Status\x12\x55\x0a\x06\x0a\0\x12\0\x1a\0\x12\x07Failure".as_slice(),
        b"\x1a\x1bconfigmaps \"none\" not found\x22\x08NotFound",
        b"*\x18\x0a\x04none\x12\0\x1a\x0aconfigmaps(\x002\x000\x94\x03\x1a\0\x22\0",
    ];
    let bytes = envelope::encode_object(&schema("meta/v1.Status"), &status).unwrap();
    assert_eq!(bytes.escape_ascii().to_string(), expected.concat().escape_ascii().to_string());
    let opened = envelope::open(&bytes).unwrap();
    assert_eq!((opened.api_version, opened.kind, opened.content_type), ("v1", "Status", ""));
    let mut compact = status.clone();
    compact.as_object_mut().unwrap().remove("metadata");
    assert_eq!(envelope::decode_object(&bytes, |_| Ok(schema("meta/v1.Status"))).unwrap(), compact);
}

#[test]
fn a_bookmark_is_a_frame_of_a_watch() {
    // As recorded.
    let bookmark = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {
        "resourceVersion": "672", "annotations": {"k8s.io/initial-events-end": "true"},
    }});
    let object = envelope::encode_object(&schema("core/v1.ConfigMap"), &bookmark).unwrap();
    let expected = [
        b"\0\0\0\x61\x0a\x08BOOKMARK\x12\x55\x0a\x53k8s\0\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12\x38\x0a\x36"
            .as_slice(),
        b"\x0a\0\x12\0\x1a\0\x22\0*\x002\x03672\x38\0B\0b\x21\x0a\x19k8s.io/initial-events-end\x12\x04true\x1a\0\x22\0",
    ];
    let frame = envelope::watch_frame("BOOKMARK", &object);
    assert_eq!(frame.escape_ascii().to_string(), expected.concat().escape_ascii().to_string());
}

#[test]
fn a_list_in_parts_is_the_list_in_one_piece() {
    let items =
        [json!({"metadata": {"name": "a"}}), json!({"metadata": {"name": "b"}, "data": {"k": "v".repeat(200)}})];
    let metadata = json!({"resourceVersion": "7", "continue": "next", "remainingItemCount": 3});
    let whole = json!({"apiVersion": "v1", "kind": "ConfigMapList", "metadata": metadata, "items": items});
    let mut written = Vec::new();
    for item in &items {
        envelope::list_item(&mut written, &schema("core/v1.ConfigMap"), item).unwrap();
    }
    let meta = schema("meta/v1.ListMeta");
    let (head, end) = envelope::list_parts("v1", "ConfigMapList", &meta, &metadata, written.len()).unwrap();
    let whole = envelope::encode_object(&schema("core/v1.ConfigMapList"), &whole).unwrap();
    assert_eq!([&head, &written[..], end].concat(), whole);
}

#[test]
fn a_form_is_chosen_by_the_json_type() {
    let of = "apiextensions/v1.JSONSchemaProps";
    for value in [
        json!({"items": {"type": "string"}}),
        json!({"items": [{"type": "string"}, {}]}),
        json!({"additionalProperties": true}),
        json!({"additionalProperties": false}),
        json!({"additionalProperties": {"type": "object"}, "dependencies": {"a": ["b", ""], "c": {"type": "object"}}}),
        json!({"default": {"b": [1, null]}, "enum": ["", 1.5, null], "maximum": 1e300, "minimum": -2}),
    ] {
        assert_eq!(round(of, &value), value);
    }
    let error = encode(&schema(of), &json!({"properties": {"a": {"items": true}}})).unwrap_err();
    assert_eq!(error.path, "properties.a.items");
    // The wire says `true` next to a schema.
    let bytes = encode(&schema(of), &json!({"additionalProperties": {}})).unwrap();
    assert!(bytes.windows(4).any(|bytes| bytes == [0x08, 1, 0x12, bytes[3]]), "{bytes:?}");
}

#[test]
fn lists_inside_maps_are_messages() {
    let value = json!({"username": "a", "extra": {"b": ["x", ""], "c": []}});
    let user = schema("authentication/v1.UserInfo");
    let bytes = encode(&user, &value).unwrap();
    let expected = b"\x0a\x01a\x12\0\x22\x0a\x0a\x01b\x12\x05\x0a\x01x\x0a\0\x22\x05\x0a\x01c\x12\0";
    assert_eq!(bytes.escape_ascii().to_string(), expected.escape_ascii().to_string());
    assert_eq!(decode(&user, &bytes).unwrap(), value);
}

#[test]
fn go_order_is_the_order_of_a_field_set() {
    let set = json!({
        "f:ports": {".": {}, "k:{\"port\":80}": {}, "k:{\"port\":443}": {}, "k:{\"name\":\"a-b\"}": {}, "k:{\"name\":\"a\"}": {}},
        "f:set": {"v:10": {}, "v:9": {}, "v:\"a\"": {}, "i:10": {}, "i:2": {}},
    });
    let entry = encode(&schema("meta/v1.ManagedFieldsEntry"), &json!({"fieldsV1": set})).unwrap();
    let text = String::from_utf8_lossy(&entry);
    let expected = r#"{"f:ports":{".":{},"k:{\"name\":\"a\"}":{},"k:{\"name\":\"a-b\"}":{},"k:{\"port\":80}":{},"k:{\"port\":443}":{}},"f:set":{"v:9":{},"v:10":{},"v:\"a\"":{},"i:2":{},"i:10":{}}}"#;
    assert!(text.contains(expected), "{text}");
}

#[test]
fn members_in_any_order_and_number_are_one_object() {
    let status = schema("meta/v1.Status");
    // The last scalar holds; messages are merged; unknown members of all wire types are skipped.
    let bytes = [
        b"\x12\x01a\x12\x01b".as_slice(),
        b"\x2a\x03\x0a\x01n\x2a\x03\x1a\x01k",
        b"\xf8\x07\x01\xf9\x0712345678\xfa\x07\x02ab\xfd\x071234",
        b"\x30\x05\x30\x00",
    ];
    let expected = json!({"metadata": {}, "status": "b", "details": {"name": "n", "kind": "k"}});
    assert_eq!(decode(&status, &bytes.concat()).unwrap(), expected);
    // Numbers of a list, packed and not.
    let index = TypeIndex::new(&[("x/v1", "A\n\tn\tlist<int32>\t1\n\tb\tlist<bool>\t2\n\tf\tlist<float64>\t3\n")]);
    let bytes = b"\x0a\x03\x01\x80\x01\x08\x05\x12\x02\x01\x00\x1a\x08\0\0\0\0\0\0\xe0\x3f";
    let value = decode(&index.get("x/v1.A").unwrap(), bytes).unwrap();
    assert_eq!(value, json!({"n": [1, 128, 5], "b": [true, false], "f": [0.5]}));
    // An entry without key and value.
    let value = decode(&schema("core/v1.ConfigMap"), b"\x12\x00\x12\x03\x0a\x01k\x1a\x03\x0a\x01b").unwrap();
    assert_eq!(value, json!({"metadata": {}, "data": {"": "", "k": ""}, "binaryData": {"b": ""}}));
}

#[test]
fn numbers_are_as_wide_as_their_type() {
    let class = json!({"metadata": {}, "value": -5});
    let bytes = encode(&schema("scheduling/v1.PriorityClass"), &class).unwrap();
    assert!(bytes.ends_with(b"\x10\xfb\xff\xff\xff\xff\xff\xff\xff\xff\x01\x18\0\x22\0"), "{bytes:?}");
    assert_eq!(round("scheduling/v1.PriorityClass", &class), class);
    // As in Go, the higher bits of a number of 32 are lost.
    let value = decode(&schema("scheduling/v1.PriorityClass"), b"\x10\x81\x80\x80\x80\x10").unwrap();
    assert_eq!(value["value"], 1);
}

#[test]
fn errors_say_where_and_what() {
    let pod = schema("core/v1.Pod");
    let error = |value: Value| encode(&pod, &value).unwrap_err().to_string();
    assert_eq!(
        error(json!({"spec": {"containers": [{}, {"ports": [{"containerPort": "x"}]}]}})),
        r#"spec.containers.[1].ports.[0].containerPort: expected int32, found "x""#
    );
    assert_eq!(error(json!({"metadata": {"labels": []}})), "metadata.labels: expected map[string]string, found []");
    assert_eq!(error(json!([])), "expected v1.Pod, found []");
    let decoded = decode(&pod, b"\x12\x04\x12\x02\x08\x01").unwrap_err();
    assert_eq!(decoded.to_string(), "spec.containers.[0].name: wire type 0 does not fit the field's type string");
    assert_eq!(decode(&pod, b"\x0a\x05").unwrap_err().problem, Problem::Truncated);
    assert_eq!(envelope::open(b"{}").unwrap_err().problem, Problem::Magic);
}

#[test]
fn types_without_numbers_are_not_on_the_wire() {
    let custom = Schema::any();
    assert!(!is_on_wire(&custom) && !is_on_wire(&schema("meta/v1.TableRow")) && is_on_wire(&schema("core/v1.Pod")));
    assert!(matches!(encode_into(&custom, &json!({}), &mut Vec::new()).unwrap_err().problem, Problem::NotOnWire(_)));
    assert!(matches!(decode(&custom, &[]).unwrap_err().problem, Problem::NotOnWire(_)));
}
