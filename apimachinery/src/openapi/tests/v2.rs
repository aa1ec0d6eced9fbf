use serde_json::{Value, json};

use super::{custom, pods};
use crate::{
    openapi::{Descriptions, Documents, v2, v2_protobuf},
    testing::TYPES,
};

fn document() -> Value {
    let descriptions = Descriptions::new("core/v1.Pod\tA pod.\n\tspec\tWhat it should be.\n");
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object"}}});
    Documents { types: &TYPES, descriptions: &descriptions, version: "1.36" }.v2(&[pods(), custom(schema)])
}

#[test]
fn schemas_lose_what_version_2_does_not_know() {
    for (v3, v2) in [
        (
            json!({"description": "d", "default": {}, "allOf": [{"$ref": "#/components/schemas/a.B"}]}),
            json!({"description": "d", "$ref": "#/definitions/a.B"}),
        ),
        (json!({"oneOf": [{"type": "string"}, {"type": "number"}]}), json!({"type": "string"})),
        (
            json!({"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]}),
            json!({"format": "int-or-string", "type": "string"}),
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "string", "default": "x", "not": {}}}}),
            json!({"type": "object", "properties": {"a": {"type": "string"}}}),
        ),
        (
            json!({"type": "object", "properties": {}, "x-kubernetes-preserve-unknown-fields": true}),
            json!({"x-kubernetes-preserve-unknown-fields": true}),
        ),
        // As kube-apiserver 1.36.2 publishes a definition whose schema preserves unknown fields at its root.
        (
            json!({"description": "d", "type": "object", "properties": {"kind": {"type": "string"}},
                "x-kubernetes-preserve-unknown-fields": true, "x-kubernetes-group-version-kind": [{"kind": "Half"}]}),
            json!({"type": "object", "x-kubernetes-group-version-kind": [{"kind": "Half"}]}),
        ),
        (
            json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]}),
            json!({"x-kubernetes-int-or-string": true}),
        ),
        (json!({"type": "array", "items": {"type": "string"}, "nullable": true}), json!({})),
        (json!({"additionalProperties": {"default": 1}}), json!({"additionalProperties": {}})),
        (json!({"additionalProperties": true}), json!({"additionalProperties": true})),
    ] {
        assert_eq!(v2::schema(v3.clone()), v2, "{v3}");
    }
}

#[test]
fn all_groups_are_one_document_with_shared_parameters() {
    let document = document();
    let definitions = document["definitions"].as_object().unwrap();
    for name in ["io.k8s.api.core.v1.Pod", "com.example.v1.Odd", "io.k8s.api.autoscaling.v1.Scale"] {
        assert!(definitions.contains_key(name), "{name}");
    }
    let spec = &definitions["io.k8s.api.core.v1.Pod"]["properties"]["spec"];
    let expected = json!({"description": "What it should be.", "$ref": "#/definitions/io.k8s.api.core.v1.PodSpec"});
    assert_eq!(spec, &expected);
    let put = &document["paths"]["/apis/example.com/v1/namespaces/{namespace}/odds/{name}"]["put"];
    let body = json!({
        "name": "body", "in": "body", "required": true, "schema": {"$ref": "#/definitions/com.example.v1.Odd"},
    });
    assert_eq!(put["parameters"][0], body);
    assert_eq!(put["parameters"][1], json!({"$ref": "#/parameters/dryRun"}));
    assert_eq!(put["consumes"], json!(["application/json", "application/yaml"]));
    fn visit(value: &Value, document: &Value) {
        match value {
            Value::Object(fields) => {
                if let Some(reference) = fields.get("$ref").and_then(Value::as_str) {
                    assert!(document.pointer(&reference[1..]).is_some(), "{reference}");
                }
                fields.values().for_each(|field| visit(field, document));
            }
            Value::Array(items) => items.iter().for_each(|item| visit(item, document)),
            _ => {}
        }
    }
    visit(&document, &document);
}

/// Compared with a real server's bytes where there is one: `control/apiserver/tests/differential`.
#[test]
fn the_protobuf_form_has_upstreams_numbers() {
    let document = json!({
        "swagger": "2.0",
        "info": {"title": "T", "version": "1"},
        "paths": {"/a": {
            "get": {
                "tags": ["t"], "operationId": "i", "produces": ["p"], "schemes": ["https"],
                "responses": {"200": {"description": "OK", "schema": {"$ref": "r"}}}, "x-a": "get",
            },
            "parameters": [{"name": "n", "in": "path", "type": "string", "required": true}, {"$ref": "s"}],
        }},
        "definitions": {"D": {"type": "object", "required": ["f"], "properties": {"f": {"format": "x", "enum": [1]}}}},
        "parameters": {"q": {"name": "q", "in": "query", "type": "boolean", "uniqueItems": true}},
        "security": [{"B": []}],
        "securityDefinitions": {"B": {"type": "apiKey", "name": "h", "in": "header"}},
    });
    let bytes = v2_protobuf::encode(&document);
    assert!(bytes.starts_with(b"\x0a\x032.0\x12\x06\x0a\x01T\x12\x011\x42"), "{}", bytes.escape_ascii());
    for part in [
        b"\x0a\x03200\x12\x0d\x0a\x0b\x0a\x02OK\x12\x05\x0a\x03\x0a\x01r".as_slice(),
        b"\x0a\x03x-a\x12\x08\x12\x06\"get\"\x0a",
        b"\x4a\x19\x0a\x17\x12\x15\x22\x13\x08\x01\x12\x04path\x22\x01n*\x06string",
        b"\x4a\x05\x12\x03\x0a\x01s",
        b"\x0a\x01D\x12",
        b"\x9a\x01\x01f",
        b"\xb2\x01\x08\x0a\x06object",
        b"\x12\x01x\xa2\x01\x04\x12\x021\x0a",
        b"\x0a\x01q\x12\x1a\x12\x18\x1a\x16\x12\x05query\x22\x01q2\x07boolean\xa0\x01\x01",
        b"b\x07\x0a\x05\x0a\x01B\x12\0",
        b"j\x1c\x0a\x1a\x0a\x01B\x12\x15\x12\x13\x0a\x06apiKey\x12\x01h\x1a\x06header",
    ] {
        assert!(
            bytes.windows(part.len()).any(|window| window == part),
            "{}\n{}",
            part.escape_ascii(),
            bytes.escape_ascii()
        );
    }
}

#[test]
fn the_protobuf_form_is_no_larger() {
    let document = document();
    let (json, bytes) = (document.to_string().len(), v2_protobuf::encode(&document).len());
    assert!(bytes < json && bytes > json / 2, "{json} {bytes}");
}
