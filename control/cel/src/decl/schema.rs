//! Declared types of an OpenAPI v3 schema; upstream's `SchemaDeclType` (`apiserver/pkg/cel/common/schemas.go`).

use std::sync::Arc;

use serde_json::{Map, Value as Json, json};

use super::{DeclType, ListKind, MAX_REQUEST_BYTES, Property, Scalar, Shape, escape};
use crate::types::Type;

/// Schemas are as deep as the API's objects, at most.
const MAX_DEPTH: usize = 100;
/// The longest text of a date, a date and time, and a duration; upstream's `limits.go`.
const DATE_BYTES: u64 = 12;
const DATE_TIME_BYTES: u64 = 32;
const DURATION_BYTES: u64 = 32;

impl DeclType {
    /// The type of an OpenAPI v3 schema, whose objects are named after `name` and the path that leads to them. Of the root of
    /// a resource `apiVersion`, `kind` and the name in `metadata` are visible, whatever the schema says.
    ///
    /// Nothing if the schema has no type.
    #[must_use]
    pub fn of_schema(schema: &Json, is_resource_root: bool, name: &str) -> Option<Self> {
        read(schema, is_resource_root, name, 0)
    }

    const fn scalar(scalar: Scalar, cel_type: Type, max_elements: u64, min_serialized_size: u64) -> Self {
        Self { shape: Shape::Scalar(scalar), cel_type, nullable: false, max_elements, min_serialized_size }
    }
}

fn flag(schema: &Json, name: &str) -> bool {
    schema.get(name).and_then(Json::as_bool).unwrap_or(false)
}

/// A limit of the schema; negative ones are zero.
fn limit(schema: &Json, name: &str) -> Option<u64> {
    schema.get(name).and_then(Json::as_i64).map(|limit| u64::try_from(limit).unwrap_or(0))
}

fn read(schema: &Json, is_root: bool, name: &str, depth: usize) -> Option<DeclType> {
    if depth > MAX_DEPTH {
        return None;
    }
    let nullable = flag(schema, "nullable");
    if flag(schema, "x-kubernetes-int-or-string") {
        let max_elements = limit(schema, "maxLength").map_or(MAX_REQUEST_BYTES - 2, |limit| limit.saturating_mul(4));
        let shape = Shape::IntOrString;
        return Some(DeclType { shape, cel_type: Type::Dyn, nullable, max_elements, min_serialized_size: 1 });
    }
    let with_metadata = is_root.then(|| with_type_and_metadata(schema));
    let schema = with_metadata.as_ref().unwrap_or(schema);
    let declared = match schema.get("type").and_then(Json::as_str)? {
        "array" => array(schema, name, depth)?,
        "object" => object(schema, name, depth)?,
        "string" => text(schema),
        "boolean" => DeclType::scalar(Scalar::Bool, Type::Bool, 0, 4),
        "number" => DeclType::scalar(Scalar::Double, Type::Double, 0, 1),
        "integer" => DeclType::scalar(Scalar::Int, Type::Int, 0, 1),
        _ => return None,
    };
    Some(DeclType { nullable, ..declared })
}

/// The schema of an object of the API, whose metadata has a name; upstream's `WithTypeAndObjectMeta`.
fn with_type_and_metadata(schema: &Json) -> Json {
    let mut schema = schema.clone();
    let Some(object) = schema.as_object_mut() else { return schema };
    let properties = object.entry("properties").or_insert_with(|| Json::Object(Map::new()));
    let Some(properties) = properties.as_object_mut() else { return schema };
    let is = |property: Option<&Json>, wanted: &str| {
        property.and_then(|property| property.get("type")).and_then(Json::as_str) == Some(wanted)
    };
    let metadata = properties.get("metadata");
    let of_metadata = |name: &str| metadata.and_then(|metadata| metadata.get("properties")?.get(name));
    let complete = is(properties.get("kind"), "string")
        && is(properties.get("apiVersion"), "string")
        && is(metadata, "object")
        && is(of_metadata("name"), "string")
        && is(of_metadata("generateName"), "string");
    if !complete {
        let string = json!({"type": "string"});
        properties.insert("kind".to_owned(), string.clone());
        properties.insert("apiVersion".to_owned(), string.clone());
        let metadata = json!({"type": "object", "properties": {"name": string, "generateName": string}});
        properties.insert("metadata".to_owned(), metadata);
    }
    schema
}

fn is_embedded(schema: &Json) -> bool {
    flag(schema, "x-kubernetes-embedded-resource")
}

fn array(schema: &Json, name: &str, depth: usize) -> Option<DeclType> {
    let items = schema.get("items")?;
    let element = read(items, is_embedded(items), &format!("{name}.@idx"), depth + 1)?;
    let max_elements = limit(schema, "maxItems").unwrap_or((MAX_REQUEST_BYTES - 2) / (element.min_serialized_size + 1));
    let kind = match schema.get("x-kubernetes-list-type").and_then(Json::as_str) {
        Some("set") => ListKind::Set,
        Some("map") => {
            let keys = schema.get("x-kubernetes-list-map-keys").and_then(Json::as_array);
            ListKind::Map(keys.into_iter().flatten().filter_map(Json::as_str).map(Box::from).collect())
        }
        _ => ListKind::Atomic,
    };
    let cel_type = Type::list(element.cel_type.clone());
    let shape = Shape::List(Arc::new(element), kind);
    Some(DeclType { shape, cel_type, nullable: false, max_elements, min_serialized_size: 2 })
}

fn object(schema: &Json, name: &str, depth: usize) -> Option<DeclType> {
    if let Some(values) = schema.get("additionalProperties").filter(|values| values.is_object()) {
        let value = read(values, is_embedded(values), &format!("{name}.@elem"), depth + 1)?;
        let max_elements =
            limit(schema, "maxProperties").unwrap_or((MAX_REQUEST_BYTES - 2) / (value.min_serialized_size + 6));
        let cel_type = Type::map(Type::String, value.cel_type.clone());
        let shape = Shape::Map(Arc::new(value));
        return Some(DeclType { shape, cel_type, nullable: false, max_elements, min_serialized_size: 2 });
    }
    let empty = Map::new();
    let properties = schema.get("properties").and_then(Json::as_object).unwrap_or(&empty);
    let required = schema.get("required").and_then(Json::as_array);
    let is_required =
        |name: &str| required.is_some_and(|names| names.iter().any(|required| required.as_str() == Some(name)));
    let mut min_serialized_size = 2;
    let mut fields = Vec::with_capacity(properties.len());
    for (key, property) in properties {
        let path = format!("{name}.{}", escape(key).unwrap_or_default());
        let declared = read(property, is_embedded(property), &path, depth + 1);
        if let Some(declared) = &declared
            && is_required(key)
            && property.get("default").is_none_or(Json::is_null)
        {
            min_serialized_size += key.len() as u64 + declared.min_serialized_size + 4;
        }
        let declared = declared.unwrap_or_else(|| DeclType {
            shape: Shape::Unknown,
            cel_type: Type::Dyn,
            nullable: flag(property, "nullable"),
            max_elements: 0,
            min_serialized_size: 1,
        });
        fields.push(Property { name: key.as_str().into(), declared: Arc::new(declared) });
    }
    fields.sort_by(|one, other| one.name.cmp(&other.name));
    let shape = Shape::Object(fields.into());
    Some(DeclType { shape, cel_type: Type::object(name), nullable: false, max_elements: 0, min_serialized_size })
}

fn text(schema: &Json) -> DeclType {
    let max_length = limit(schema, "maxLength");
    let unlimited = MAX_REQUEST_BYTES - 2;
    match schema.get("format").and_then(Json::as_str) {
        Some("byte") => DeclType::scalar(Scalar::Bytes, Type::Bytes, max_length.unwrap_or(unlimited), 2),
        Some("duration") => DeclType::scalar(Scalar::Duration, Type::Duration, DURATION_BYTES, 3),
        Some("date") => DeclType::scalar(Scalar::Date, Type::Timestamp, DATE_BYTES, DATE_BYTES),
        Some("date-time") => DeclType::scalar(Scalar::DateTime, Type::Timestamp, DATE_TIME_BYTES, 21),
        _ => {
            let longest = |values: &Vec<Json>| values.iter().filter_map(Json::as_str).map(str::len).max().unwrap_or(0);
            let values = schema.get("enum").and_then(Json::as_array).filter(|values| !values.is_empty());
            let max_elements = match (max_length, values) {
                (Some(characters), _) => characters.saturating_mul(4),
                (None, Some(values)) => longest(values) as u64,
                (None, None) => unlimited,
            };
            DeclType::scalar(Scalar::String, Type::String, max_elements, 2)
        }
    }
}
