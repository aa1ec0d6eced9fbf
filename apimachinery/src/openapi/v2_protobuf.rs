//! The protobuf representation of an OpenAPI v2 document, which client-go asks for: the messages of `openapi.v2` as
//! github.com/google/gnostic-models defines them (`openapiv2/OpenAPIv2.proto`). What is open in the format (defaults,
//! enumerations, vendor extensions) travels as YAML text; JSON is YAML.

use std::convert::Infallible;

use serde_json::{Map, Value};

use crate::protobuf::wire::{write_bytes_field, write_fixed64_field, write_nested, write_varint_field};

/// Encodes a document as [`v2`](super::v2) makes it.
#[must_use]
pub fn encode(document: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    text(&mut out, 1, &document["swagger"]);
    nested(&mut out, 2, |out| {
        text(out, 1, &document["info"]["title"]);
        text(out, 2, &document["info"]["version"]);
    });
    nested(&mut out, 8, |out| named(out, 2, &document["paths"], path_item));
    nested(&mut out, 9, |out| named(out, 1, &document["definitions"], schema));
    nested(&mut out, 10, |out| named(out, 1, &document["parameters"], parameter));
    for requirement in items(&document["security"]) {
        nested(&mut out, 12, |out| named(out, 1, requirement, |out, scopes| texts(out, 1, scopes)));
    }
    nested(&mut out, 13, |out| {
        named(out, 1, &document["securityDefinitions"], |out, scheme| nested(out, 2, |out| api_key(out, scheme)));
    });
    out
}

fn api_key(out: &mut Vec<u8>, scheme: &Value) {
    for (number, field) in [(1, "type"), (2, "name"), (3, "in"), (4, "description")] {
        text(out, number, &scheme[field]);
    }
}

fn path_item(out: &mut Vec<u8>, item: &Value) {
    const METHODS: [(u32, &str); 7] =
        [(2, "get"), (3, "put"), (4, "post"), (5, "delete"), (6, "options"), (7, "head"), (8, "patch")];
    for (number, method) in METHODS {
        if let Some(value) = item.get(method) {
            nested(out, number, |out| operation(out, value));
        }
    }
    parameters(out, 9, &item["parameters"]);
}

fn operation(out: &mut Vec<u8>, value: &Value) {
    texts(out, 1, &value["tags"]);
    text(out, 3, &value["description"]);
    text(out, 5, &value["operationId"]);
    texts(out, 6, &value["produces"]);
    texts(out, 7, &value["consumes"]);
    parameters(out, 8, &value["parameters"]);
    nested(out, 9, |out| {
        named(out, 1, &value["responses"], |out, response| {
            nested(out, 1, |out| {
                text(out, 1, &response["description"]);
                if let Some(body) = response.get("schema") {
                    nested(out, 2, |out| nested(out, 1, |out| schema(out, body)));
                }
            });
        });
    });
    texts(out, 10, &value["schemes"]);
    extensions(out, 13, value);
}

/// Each is a parameter, or a reference to one that several operations share.
fn parameters(out: &mut Vec<u8>, number: u32, list: &Value) {
    for item in items(list) {
        nested(out, number, |out| match item.get("$ref") {
            Some(reference) => nested(out, 2, |out| text(out, 1, reference)),
            None => nested(out, 1, |out| parameter(out, item)),
        });
    }
}

fn parameter(out: &mut Vec<u8>, value: &Value) {
    match value["in"].as_str() {
        Some("body") => nested(out, 1, |out| {
            text(out, 1, &value["description"]);
            text(out, 2, &value["name"]);
            text(out, 3, &value["in"]);
            flag(out, 4, &value["required"]);
            nested(out, 5, |out| schema(out, &value["schema"]));
        }),
        Some("path") => nested(out, 2, |out| nested(out, 4, |out| simple_parameter(out, value, [5, 6, 19]))),
        _ => nested(out, 2, |out| nested(out, 3, |out| simple_parameter(out, value, [6, 7, 20]))),
    }
}

/// A parameter of the path or the query; they differ in the numbers of `type`, `format` and `uniqueItems`.
fn simple_parameter(out: &mut Vec<u8>, value: &Value, numbers: [u32; 3]) {
    let [kind, format, unique] = numbers;
    flag(out, 1, &value["required"]);
    text(out, 2, &value["in"]);
    text(out, 3, &value["description"]);
    text(out, 4, &value["name"]);
    text(out, kind, &value["type"]);
    text(out, format, &value["format"]);
    flag(out, unique, &value["uniqueItems"]);
}

fn schema(out: &mut Vec<u8>, value: &Value) {
    text(out, 1, &value["$ref"]);
    text(out, 2, &value["format"]);
    text(out, 3, &value["title"]);
    text(out, 4, &value["description"]);
    if let Some(default) = value.get("default") {
        any(out, 5, default);
    }
    number(out, 6, &value["multipleOf"]);
    number(out, 7, &value["maximum"]);
    flag(out, 8, &value["exclusiveMaximum"]);
    number(out, 9, &value["minimum"]);
    flag(out, 10, &value["exclusiveMinimum"]);
    count(out, 11, &value["maxLength"]);
    count(out, 12, &value["minLength"]);
    text(out, 13, &value["pattern"]);
    count(out, 14, &value["maxItems"]);
    count(out, 15, &value["minItems"]);
    flag(out, 16, &value["uniqueItems"]);
    count(out, 17, &value["maxProperties"]);
    count(out, 18, &value["minProperties"]);
    texts(out, 19, &value["required"]);
    for item in items(&value["enum"]) {
        any(out, 20, item);
    }
    match value.get("additionalProperties") {
        Some(Value::Bool(open)) => nested(out, 21, |out| write_varint_field(out, 2, u64::from(*open))),
        Some(of) => nested(out, 21, |out| nested(out, 1, |out| schema(out, of))),
        None => {}
    }
    if value["type"].is_string() {
        nested(out, 22, |out| text(out, 1, &value["type"]));
    }
    if let Some(of) = value.get("items") {
        nested(out, 23, |out| nested(out, 1, |out| schema(out, of)));
    }
    for part in items(&value["allOf"]) {
        nested(out, 24, |out| schema(out, part));
    }
    if value["properties"].is_object() {
        nested(out, 25, |out| named(out, 1, &value["properties"], schema));
    }
    if let Some(example) = value.get("example") {
        any(out, 30, example);
    }
    extensions(out, 31, value);
}

/// The members whose names begin with `x-`.
fn extensions(out: &mut Vec<u8>, number: u32, of: &Value) {
    for (name, value) in members(of).filter(|(name, _)| name.starts_with("x-")) {
        nested(out, number, |out| {
            write_bytes_field(out, 1, name.as_bytes());
            any(out, 2, value);
        });
    }
}

/// A value of any type, as YAML.
fn any(out: &mut Vec<u8>, number: u32, value: &Value) {
    nested(out, number, |out| write_bytes_field(out, 2, format!("{value}\n").as_bytes()));
}

/// Each member as a message of a name and a value.
fn named(out: &mut Vec<u8>, number: u32, object: &Value, mut write: impl FnMut(&mut Vec<u8>, &Value)) {
    for (name, value) in members(object) {
        nested(out, number, |out| {
            write_bytes_field(out, 1, name.as_bytes());
            nested(out, 2, |out| write(out, value));
        });
    }
}

fn nested(out: &mut Vec<u8>, number: u32, write: impl FnOnce(&mut Vec<u8>)) {
    let Ok(()) = write_nested(out, number, |out| {
        write(out);
        Ok::<_, Infallible>(())
    });
}

fn text(out: &mut Vec<u8>, number: u32, value: &Value) {
    if let Some(text) = value.as_str().filter(|text| !text.is_empty()) {
        write_bytes_field(out, number, text.as_bytes());
    }
}

fn texts(out: &mut Vec<u8>, number: u32, list: &Value) {
    for text in items(list).iter().filter_map(Value::as_str) {
        write_bytes_field(out, number, text.as_bytes());
    }
}

fn flag(out: &mut Vec<u8>, number: u32, value: &Value) {
    if value == &Value::Bool(true) {
        write_varint_field(out, number, 1);
    }
}

fn number(out: &mut Vec<u8>, number: u32, value: &Value) {
    if let Some(value) = value.as_f64().filter(|value| *value != 0.0) {
        write_fixed64_field(out, number, value.to_bits());
    }
}

fn count(out: &mut Vec<u8>, number: u32, value: &Value) {
    if let Some(value) = value.as_u64().filter(|value| *value != 0) {
        write_varint_field(out, number, value);
    }
}

fn items(list: &Value) -> &[Value] {
    list.as_array().map_or(&[], Vec::as_slice)
}

fn members(object: &Value) -> impl Iterator<Item = (&String, &Value)> {
    object.as_object().into_iter().flat_map(Map::iter)
}
