//! Which of an object's fields its type does not have, and which hold something of another type.

use serde_json::{Map, Value};

use super::{
    Kind, NamedType, Object, Schema,
    scalars::{bytes, matches_kind},
};
use crate::{MAX_DEPTH, field::Path};

/// What is wrong with an object's fields.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldProblems {
    /// Paths of fields that the type does not have, such as `spec.containers[0].imagePolicy`.
    pub unknown: Vec<String>,
    /// Messages for values of the wrong type, as from upstream's decoder. Only for Go's types: in a custom resource
    /// these are its metadata and that of embedded objects; others are found by [`super::validate`].
    pub wrong: Vec<String>,
}

/// Checks every field of an object of the type `schema`. `kind` is the object's kind, for messages.
#[must_use]
pub fn check(schema: &Schema, value: &Value, kind: &str) -> FieldProblems {
    if matches!(schema.kind, Kind::Named(_)) && fits(schema, value, 0, true) {
        return FieldProblems::default();
    }
    let mut check =
        Check { problems: FieldProblems::default(), path: Path::default(), fields: Path::default(), depth: 0 };
    check.value(schema, value, &Within { holder: kind, typed: false });
    check.problems
}

/// Whether everything of Go's types can be decoded as such by any client, without unknown fields and nulls: of a
/// built-in object all, of a custom one its metadata and that of embedded objects. A boolean; [`check`] names the
/// problems.
#[must_use]
pub fn types_fit(schema: &Schema, value: &Value) -> bool {
    typed_parts_fit(schema, value, 0)
}

fn typed_parts_fit(schema: &Schema, value: &Value, depth: usize) -> bool {
    match (&schema.kind, value) {
        (_, Value::Null) => true,
        (Kind::Named(_), value) => fits(schema, value, depth, false),
        (_, Value::Object(_) | Value::Array(_)) if depth > MAX_DEPTH => false,
        (Kind::List(items), Value::Array(values)) => {
            values.iter().all(|value| typed_parts_fit(items, value, depth + 1))
        }
        (Kind::Union(_), value) => schema.alternative(value).is_none_or(|form| typed_parts_fit(form, value, depth + 1)),
        (Kind::Object(_) | Kind::Map(_), Value::Object(fields)) => fields
            .iter()
            .all(|(key, value)| schema.field(key).is_none_or(|field| typed_parts_fit(field, value, depth + 1))),
        _ => true,
    }
}

/// Whether a value of one of Go's types holds only what its type can, and nulls only if `nulls`: true of nearly every
/// object, and found without tracking the path.
fn fits(schema: &Schema, value: &Value, depth: usize, nulls: bool) -> bool {
    let schema = schema.resolved();
    match (&schema.kind, value) {
        (_, Value::Null) => nulls,
        _ if depth > MAX_DEPTH => false,
        (Kind::List(items), Value::Array(values)) => values.iter().all(|value| fits(items, value, depth + 1, nulls)),
        (Kind::Union(_), value) => schema.alternative(value).is_some_and(|form| fits(form, value, depth + 1, nulls)),
        (Kind::Object(_) | Kind::Map(_), Value::Object(fields)) => fields.iter().all(|(key, value)| {
            schema.field(key).map_or(schema.preserve_unknown_fields, |field| fits(field, value, depth + 1, nulls))
        }),
        _ => matches_kind(schema, value),
    }
}

/// Upstream's words for a text that is no quantity.
const QUANTITY: &str = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";

/// What holds a value.
#[derive(Debug, Clone, Copy)]
struct Within<'a> {
    /// The short name of the innermost type.
    holder: &'a str,
    /// Whether it is one of Go's types, which can hold nothing else than what it says.
    typed: bool,
}

/// A walk through one object.
struct Check {
    problems: FieldProblems,
    path: Path,
    /// The path through fields of Go's types, without list items and map keys, as upstream's decoder reports it.
    fields: Path,
    depth: usize,
}

impl Check {
    fn value(&mut self, schema: &Schema, value: &Value, within: &Within<'_>) {
        if self.depth > MAX_DEPTH {
            let place = self.place(within.holder);
            self.problems.wrong.push(format!("{place} is nested deeper than {MAX_DEPTH} levels"));
            return;
        }
        self.depth += 1;
        match (&schema.kind, value) {
            (_, Value::Null) => {}
            (Kind::Named(of), value) if within.typed => self.named(schema, of, value, within),
            (Kind::Named(of), value) => self.metadata(schema, of, value, within),
            (Kind::List(items), Value::Array(values)) => self.items(items, values, within),
            (Kind::Union(_), value) => match schema.alternative(value) {
                Some(form) => self.value(form, value, within),
                None => self.type_mismatch(schema, value, within),
            },
            (Kind::Object(_) | Kind::Map(_), Value::Object(fields)) => self.fields(schema, fields, within),
            (_, value) if !within.typed => self.untyped(schema, value, within),
            (_, value) if matches_kind(schema, value) => {}
            (Kind::Bytes, Value::String(text)) => self.bytes(text),
            (Kind::Time | Kind::MicroTime, Value::String(text)) => self.time(text, within),
            (Kind::Quantity, Value::String(_) | Value::Number(_)) => {
                self.problems.wrong.push(format!("{QUANTITY}: {}", self.path));
            }
            _ => self.type_mismatch(schema, value, within),
        }
        self.depth -= 1;
    }

    fn named(&mut self, schema: &Schema, of: &NamedType, value: &Value, within: &Within<'_>) {
        let inside = Within { holder: of.short_name(), typed: true };
        match (&of.definition().kind, value) {
            (Kind::Object(_), Value::Object(fields)) => self.fields(of.definition(), fields, &inside),
            (Kind::Object(_), _) => self.type_mismatch(schema, value, within),
            (Kind::Union(_), _) if of.definition().alternative(value).is_none() => {
                self.type_mismatch(schema, value, within);
            }
            _ => self.value(of.definition(), value, &inside),
        }
    }

    /// The root of a built-in object, or the metadata of a custom one, which is decoded separately; for embedded
    /// metadata upstream's message includes its path.
    fn metadata(&mut self, schema: &Schema, of: &NamedType, value: &Value, within: &Within<'_>) {
        let outer = std::mem::take(&mut self.fields);
        let before = self.problems.wrong.len();
        self.named(schema, of, value, within);
        self.fields = outer;
        if !matches!(self.path.as_str(), "" | "metadata") {
            for wrong in &mut self.problems.wrong[before..] {
                *wrong = format!("{}: Invalid value: {value}: {wrong}", self.path);
            }
        }
    }

    fn fields(&mut self, schema: &Schema, fields: &Map<String, Value>, within: &Within<'_>) {
        if schema.embedded_resource && !self.path.as_str().is_empty() {
            let other = |name: &&str| fields.get(*name).is_some_and(|value| !value.is_string());
            if let Some(name) = ["apiVersion", "kind"].into_iter().find(|name| other(name)) {
                let (field, value) = (self.path.field(name), &fields[name]);
                self.problems.wrong.push(format!("{field}: Invalid value: {value}: must be a string"));
            }
        }
        for (key, value) in fields {
            match schema.field(key) {
                Some(field) => {
                    let before = self.path.enter_field(key);
                    let before_field = match &schema.kind {
                        Kind::Object(object) => enter(&mut self.fields, object, key),
                        _ => self.fields.enter_nothing(),
                    };
                    self.value(field, value, within);
                    self.path.leave(before);
                    self.fields.leave(before_field);
                }
                None if schema.preserve_unknown_fields => {}
                None => self.problems.unknown.push(self.path.field(key)),
            }
        }
    }

    fn items(&mut self, items: &Schema, values: &[Value], within: &Within<'_>) {
        for (at, value) in values.iter().enumerate() {
            let before = self.path.enter_item(at);
            self.value(items, value, within);
            self.path.leave(before);
        }
    }

    /// A value of a custom resource where the schema has no list or object: nothing inside it is known.
    fn untyped(&mut self, schema: &Schema, value: &Value, within: &Within<'_>) {
        const NOTHING: Schema = Schema::new(Kind::Any);
        match value {
            _ if schema.preserve_unknown_fields => {}
            Value::Object(fields) => {
                self.problems.unknown.extend(fields.keys().map(|key| self.path.field(key)));
            }
            Value::Array(values) => self.items(&NOTHING, values, within),
            _ => {}
        }
    }

    fn time(&mut self, text: &str, within: &Within<'_>) {
        let (place, text) = (self.place(within.holder), Value::from(text));
        let wrong = format!("parsing time {text} of {place} as \"2006-01-02T15:04:05Z07:00\": not a point in time");
        self.problems.wrong.push(wrong);
    }

    fn bytes(&mut self, text: &str) {
        let at = match bytes(text) {
            Ok(_) => return,
            Err(base64::DecodeError::InvalidByte(at, _) | base64::DecodeError::InvalidLastSymbol(at, _)) => at,
            Err(_) => text.len(),
        };
        // The text may be a secret and is not repeated.
        self.problems.wrong.push(format!("illegal base64 data at input byte {at} of {}", self.path));
    }

    fn type_mismatch(&mut self, schema: &Schema, value: &Value, within: &Within<'_>) {
        let found = match value {
            Value::String(_) => "string".to_owned(),
            Value::Number(number) if matches!(schema.kind, Kind::Integer(_) | Kind::IntOrString) => {
                format!("number {number}")
            }
            Value::Number(_) => "number".to_owned(),
            Value::Bool(_) => "bool".to_owned(),
            Value::Array(_) => "array".to_owned(),
            _ => "object".to_owned(),
        };
        let place = self.place(within.holder);
        let of = match schema.kind {
            // What upstream's own decoders of these types read.
            Kind::IntOrString => "int32".to_owned(),
            Kind::Time | Kind::MicroTime | Kind::Duration => "string".to_owned(),
            _ => schema.to_string(),
        };
        self.problems.wrong.push(format!("json: cannot unmarshal {found} into Go {place} of type {of}"));
    }

    /// Where the walk is, in the words of upstream's decoder.
    fn place(&self, holder: &str) -> String {
        match self.fields.as_str() {
            "" => "value".to_owned(),
            fields => format!("struct field {holder}.{fields}"),
        }
    }
}

/// Goes into a field of one of Go's types; on the way to one of an inlined struct stands the struct.
fn enter(fields: &mut Path, object: &Object, key: &str) -> usize {
    let before = fields.enter_nothing();
    let mut object = Some(object);
    while let Some(inline) = object.and_then(|object| {
        let is_inlined = object.properties.get(key).is_some_and(|property| property.inlined);
        object.inline.iter().find(|inline| is_inlined && inline.of.definition().property(key).is_some())
    }) {
        fields.enter_field(inline.of.short_name());
        object = inline.of.definition().object();
    }
    fields.enter_field(key);
    before
}
