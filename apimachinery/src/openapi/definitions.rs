//! Definitions of types, in the form of version 3.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde_json::{Map, Value, json};

use super::{Descriptions, Gvk, names};
use crate::schema::{Kind, ListType, MapType, NamedType, Object, Presence, Property, Schema, TypeIndex};

/// Collects the definitions of all types that are referred to.
pub(super) struct Definitions<'a> {
    types: &'a TypeIndex,
    descriptions: &'a Descriptions<'a>,
    /// Finished ones by their names.
    done: Map<String, Value>,
    /// Types that were referred to.
    known: BTreeSet<String>,
    waiting: Vec<Arc<NamedType>>,
    /// The kinds of which a type is.
    kinds: BTreeMap<String, BTreeSet<Gvk>>,
}

impl<'a> Definitions<'a> {
    pub(super) fn new(types: &'a TypeIndex, descriptions: &'a Descriptions<'a>) -> Self {
        Self {
            types,
            descriptions,
            done: Map::new(),
            known: BTreeSet::new(),
            waiting: Vec::new(),
            kinds: BTreeMap::new(),
        }
    }

    /// A reference to a built-in type, whose definition is added.
    pub(super) fn refer(&mut self, of: &Arc<NamedType>) -> Value {
        if self.known.insert(of.name().to_owned()) {
            self.waiting.push(Arc::clone(of));
        }
        reference(&names::definition(of.name()))
    }

    /// As [`Definitions::refer`], of a type that has a kind.
    pub(super) fn refer_kind(&mut self, of: &Arc<NamedType>, gvk: Gvk) -> Value {
        self.kinds.entry(of.name().to_owned()).or_default().insert(gvk);
        self.refer(of)
    }

    /// As [`Definitions::refer`], by name; a type that no table has may be anything.
    pub(super) fn refer_name(&mut self, name: &str) -> Value {
        match self.types.named(name) {
            Ok(of) => self.refer(&of),
            Err(_) => json!({}),
        }
    }

    /// A type of `meta/v1` that is a kind of `v1`, and of the group versions that `also` names.
    pub(super) fn refer_meta(&mut self, kind: &str, also: &[Gvk]) -> Value {
        let Ok(of) = self.types.named(&format!("meta/v1.{kind}")) else { return json!({}) };
        for gvk in also {
            self.refer_kind(&of, gvk.clone());
        }
        self.refer_kind(&of, Gvk { group: String::new(), version: "v1".to_owned(), kind: kind.to_owned() })
    }

    /// The type of lists of a type, if there is one.
    pub(super) fn list_of(&self, of: &NamedType) -> Option<Arc<NamedType>> {
        self.types.named(&format!("{}List", of.name())).ok()
    }

    /// The description of a field of a built-in type.
    pub(super) fn describe(&self, of: &str, field: &str) -> Option<String> {
        self.descriptions.of_field(of, field)
    }

    /// Adds a definition that is not a type of the tables.
    pub(super) fn add(&mut self, name: String, definition: Value) -> Value {
        let reference = reference(&name);
        self.done.insert(name, definition);
        reference
    }

    /// All definitions.
    pub(super) fn finish(mut self) -> Map<String, Value> {
        while let Some(of) = self.waiting.pop() {
            let definition = self.definition(&of);
            self.done.insert(names::definition(of.name()), definition);
        }
        self.done
    }

    fn definition(&mut self, of: &NamedType) -> Value {
        let schema = of.definition();
        let mut out = match &schema.kind {
            Kind::Object(object) => self.object(of.name(), object),
            // One of several forms: version 3 has no word for it that all clients know.
            _ => Map::new(),
        };
        if let Some(text) = self.descriptions.of_type(of.name()) {
            out.insert("description".to_owned(), text.into());
        }
        set_map_type(&mut out, schema);
        if let Some(kinds) = self.kinds.get(of.name()) {
            let list: Vec<Value> = kinds.iter().map(gvk_value).collect();
            out.insert(GVK.to_owned(), list.into());
        }
        Value::Object(out)
    }

    fn object(&mut self, of: &str, object: &Object) -> Map<String, Value> {
        let mut properties = Map::new();
        let mut required = Vec::new();
        for (name, property) in &object.properties {
            properties.insert((**name).to_owned(), self.property(of, name, property));
            if property.required {
                required.push(Value::from(&**name));
            }
        }
        let mut out = Map::new();
        out.insert("type".to_owned(), "object".into());
        if !properties.is_empty() {
            out.insert("properties".to_owned(), Value::Object(properties));
        }
        if !required.is_empty() {
            out.insert("required".to_owned(), Value::Array(required));
        }
        out
    }

    fn property(&mut self, of: &str, name: &str, property: &Property) -> Value {
        let schema = &property.schema;
        let mut out = self.schema(schema);
        let description = self.describe(of, name).or_else(|| schema.description.as_deref().map(str::to_owned));
        if let Some(text) = description {
            out.insert("description".to_owned(), text.into());
        }
        if let Some(default) = schema.default.as_deref().cloned().or_else(|| zero_default(property)) {
            out.insert("default".to_owned(), default);
        }
        Value::Object(beside_reference(out))
    }

    /// A value of a type, without description and default.
    fn schema(&mut self, schema: &Schema) -> Map<String, Value> {
        let mut out = Map::new();
        let mut set = |name: &str, value: Value| drop(out.insert(name.to_owned(), value));
        match &schema.kind {
            Kind::Any => {}
            Kind::Bool => set("type", "boolean".into()),
            Kind::Integer(bits) => {
                set("type", "integer".into());
                set("format", format!("int{bits}").into());
            }
            Kind::Number => {
                set("type", "number".into());
                set("format", "double".into());
            }
            Kind::String => set("type", "string".into()),
            Kind::Bytes => {
                set("type", "string".into());
                set("format", "byte".into());
            }
            Kind::List(items) => {
                set("type", "array".into());
                set("items", Value::Object(self.schema(items)));
            }
            Kind::Map(values) => {
                set("type", "object".into());
                set("additionalProperties", Value::Object(self.schema(values)));
            }
            Kind::Named(of) => set("$ref", self.refer(of)["$ref"].take()),
            Kind::Object(object) | Kind::Union(object) => out = self.object("", object),
            scalar => set("$ref", self.refer_scalar(scalar)["$ref"].take()),
        }
        if let Some(validations) = schema.validations.as_ref().filter(|rules| !rules.enumeration.is_empty()) {
            out.insert("enum".to_owned(), validations.enumeration.clone().into());
        }
        set_merging(&mut out, schema);
        out
    }

    /// Types of Go that are one value in JSON have definitions of their own.
    fn refer_scalar(&mut self, kind: &Kind) -> Value {
        let (name, definition) = match kind {
            Kind::Quantity => ("api/resource.Quantity", json!({"oneOf": [{"type": "string"}, {"type": "number"}]})),
            Kind::IntOrString => (
                "util/intstr.IntOrString",
                json!({"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]}),
            ),
            Kind::Time => ("meta/v1.Time", json!({"type": "string", "format": "date-time"})),
            Kind::MicroTime => ("meta/v1.MicroTime", json!({"type": "string", "format": "date-time"})),
            Kind::Duration => ("meta/v1.Duration", json!({"type": "string"})),
            Kind::FieldsV1 => ("meta/v1.FieldsV1", json!({"type": "object"})),
            Kind::RawExtension => ("runtime.RawExtension", json!({"type": "object"})),
            _ => ("apiextensions/v1.JSON", json!({})),
        };
        self.refer_constant(name, definition)
    }

    /// A reference to a definition that no table has.
    pub(super) fn refer_constant(&mut self, name: &str, mut definition: Value) -> Value {
        if self.known.insert(name.to_owned()) {
            if let Some(text) = self.descriptions.of_type(name) {
                definition["description"] = text.into();
            }
            self.done.insert(names::definition(name), definition);
        }
        reference(&names::definition(name))
    }
}

/// The extension that names the kinds of a definition, or the kind of an operation.
pub(super) const GVK: &str = "x-kubernetes-group-version-kind";

pub(super) fn gvk_value(gvk: &Gvk) -> Value {
    json!({"group": gvk.group, "version": gvk.version, "kind": gvk.kind})
}

pub(super) fn reference(definition: &str) -> Value {
    json!({"$ref": format!("{REFERENCE_PREFIX}{definition}")})
}

pub(super) const REFERENCE_PREFIX: &str = "#/components/schemas/";

/// Version 3 ignores siblings of a reference, unless the reference is one of `allOf`.
pub(super) fn beside_reference(mut schema: Map<String, Value>) -> Map<String, Value> {
    if schema.len() > 1
        && let Some(reference) = schema.remove("$ref")
    {
        schema.insert("allOf".to_owned(), json!([{"$ref": reference}]));
    }
    schema
}

/// What a field is that Go's type always has.
fn zero_default(property: &Property) -> Option<Value> {
    if property.presence != Presence::Always {
        return None;
    }
    match &property.schema.resolved().kind {
        Kind::Bool => Some(false.into()),
        Kind::Integer(_) | Kind::Number => Some(0.into()),
        Kind::String => Some("".into()),
        Kind::Object(_) => Some(json!({})),
        _ => None,
    }
}

fn set_map_type(out: &mut Map<String, Value>, schema: &Schema) {
    if let Some(map_type) = schema.map_type {
        let word = if map_type == MapType::Atomic { "atomic" } else { "granular" };
        out.insert("x-kubernetes-map-type".to_owned(), word.into());
    }
}

/// How patches and server-side apply merge the field.
fn set_merging(out: &mut Map<String, Value>, schema: &Schema) {
    set_map_type(out, schema);
    let mut set = |name: &str, value: Value| drop(out.insert(format!("x-kubernetes-{name}"), value));
    match &schema.list_type {
        Some(ListType::Atomic) => set("list-type", "atomic".into()),
        Some(ListType::Set) => set("list-type", "set".into()),
        Some(ListType::Map(keys)) => {
            set("list-type", "map".into());
            set("list-map-keys", keys.iter().map(|key| Value::from(&**key)).collect());
        }
        None => {}
    }
    let strategy = schema.patch_strategy;
    let words = [(strategy.merge, "merge"), (strategy.retain_keys, "retainKeys"), (strategy.replace, "replace")];
    let words: Vec<&str> = words.into_iter().filter(|(set, _)| *set).map(|(_, word)| word).collect();
    if !words.is_empty() {
        set("patch-strategy", words.join(",").into());
    }
    if let Some(key) = &schema.merge_key {
        set("patch-merge-key", (**key).into());
    }
}
