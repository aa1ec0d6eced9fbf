//! A custom type with each topology.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::schema::{Kind, ListType, MapType, Object, Property, Schema, Validations};

pub(super) fn object<const N: usize>(fields: [(&str, Schema); N]) -> Schema {
    let property = |schema| Property { schema, ..Property::default() };
    let properties = fields.into_iter().map(|(name, schema)| (name.into(), property(schema))).collect();
    Schema::new(Kind::Object(Arc::new(Object { properties, ..Object::default() })))
}

pub(super) fn map(values: Schema) -> Schema {
    Schema::new(Kind::Map(Arc::new(values)))
}

pub(super) fn list(items: Schema, list_type: Option<ListType>) -> Schema {
    Schema { list_type, ..Schema::new(Kind::List(Arc::new(items))) }
}

pub(super) fn text() -> Schema {
    Schema::new(Kind::String)
}

pub(super) fn number() -> Schema {
    Schema::new(Kind::Integer(64))
}

/// What the recorded custom resource has in its `spec`.
fn spec() -> Schema {
    let protocol = Schema { default: Some(Arc::new(Value::from("TCP"))), ..text() };
    let port = object([("port", number()), ("protocol", protocol), ("name", text()), ("opts", map(number()))]);
    let ports = list(port, Some(ListType::Map(["port".into(), "protocol".into()].into())));
    let free = Schema { preserve_unknown_fields: true, ..object([("known", object([("x", number())]))]) };
    let atomic = Schema { map_type: Some(MapType::Atomic), ..object([("a", text()), ("b", text())]) };
    let dated = Schema {
        validations: Some(Arc::new(Validations { format: Some("date-time".into()), ..Validations::default() })),
        ..text()
    };
    object([
        ("replicas", number()),
        ("name", text()),
        ("ios", Schema::new(Kind::IntOrString)),
        ("untypedIos", Schema { untyped: true, ..Schema::new(Kind::IntOrString) }),
        ("atomicMap", atomic),
        ("labels", map(text())),
        ("set", list(text(), Some(ListType::Set))),
        ("plain", list(text(), None)),
        ("ports", ports),
        ("free", free),
        ("any", Schema::any()),
        ("nest", object([("deep", object([("x", text()), ("y", Schema { nullable: true, ..text() })]))])),
        ("date", dated),
    ])
}

/// The recorded custom resource.
pub(super) fn thing() -> Schema {
    let status = object([("replicas", number()), ("phase", text())]);
    Schema { embedded_resource: true, ..object([("spec", spec()), ("status", status)]) }
}

/// An object of that type.
pub(super) fn thing_with(spec: Value) -> Value {
    json!({"apiVersion": "ex.io/v1", "kind": "Thing", "metadata": {"name": "t"}, "spec": spec})
}
