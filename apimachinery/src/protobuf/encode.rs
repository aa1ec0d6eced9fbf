//! Writes JSON values as protobuf messages.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Map, Value};

use super::{
    Error, Problem, field_set, scalars,
    wire::{write_bytes_field, write_fixed64_field, write_nested, write_varint_field},
};
use crate::{
    MAX_DEPTH,
    schema::{Kind, Member, Object, Presence, Schema},
};

/// Whether a type has a protobuf representation; those of custom resources and tables have none.
#[must_use]
pub fn is_on_wire(schema: &Schema) -> bool {
    schema.object().is_some_and(|object| !object.by_number().is_empty())
}

/// The message of an object, without `apiVersion` and `kind`. Fields that the schema does not name are left out.
///
/// # Errors
/// When a field does not have the JSON type of the schema, or the type is not on the wire.
pub fn encode(schema: &Schema, value: &Value) -> Result<Vec<u8>, Error> {
    let mut out = Vec::new();
    encode_into(schema, value, &mut out)?;
    Ok(out)
}

/// As [`encode`], at the end of `out`, which holds a part of the message after an error.
///
/// # Errors
/// As [`encode`].
pub fn encode_into(schema: &Schema, value: &Value, out: &mut Vec<u8>) -> Result<(), Error> {
    let object = schema.object().filter(|object| !object.by_number().is_empty());
    let object = object.ok_or_else(|| Problem::NotOnWire(schema.to_string()))?;
    let fields = value.as_object().ok_or_else(|| Error::wrong_type(schema, value))?;
    message(out, object, Some(fields), 1)
}

/// The members of an object, by ascending number. An absent one that is no pointer is written as its zero value.
fn message(out: &mut Vec<u8>, object: &Object, fields: Option<&Map<String, Value>>, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(Problem::TooDeep.into());
    }
    for (number, member) in object.by_number() {
        match member {
            Member::Inline(place) => {
                // The fields of an inlined struct are those of the object itself.
                if let Some(inner) = object.inline[*place].of.definition().as_object() {
                    write_nested(out, *number, |out| message(out, inner, fields, depth))?;
                }
            }
            Member::Property(name) => {
                let Some(property) = object.properties.get(name) else { continue };
                let value = fields.and_then(|fields| fields.get(&**name)).filter(|value| !value.is_null());
                if value.is_some() || property.presence != Presence::Pointer {
                    field(out, *number, &property.schema, value, depth).map_err(|error| error.inside(name))?;
                }
            }
        }
    }
    Ok(())
}

/// A field of a message: all items of a list, all entries of a map, or one value.
fn field(out: &mut Vec<u8>, number: u32, schema: &Schema, value: Option<&Value>, depth: usize) -> Result<(), Error> {
    match &schema.resolved().kind {
        Kind::List(items) if !schema.is_message => {
            for (place, item) in list(schema, value)?.iter().enumerate() {
                single(out, number, items, Some(item).filter(|item| !item.is_null()), depth + 1)
                    .map_err(|error| error.inside(&format!("[{place}]")))?;
            }
            Ok(())
        }
        Kind::Map(values) => {
            for (key, value) in map(schema, value)? {
                let value = Some(value).filter(|value| !value.is_null());
                write_nested(out, number, |out| {
                    write_bytes_field(out, 1, key.as_bytes());
                    single(out, 2, values, value, depth + 1)
                })
                .map_err(|error: Error| error.inside(key))?;
            }
            Ok(())
        }
        _ => single(out, number, schema, value, depth),
    }
}

/// One value. `None` is the zero value, which is written, but for lists and bytes.
fn single(out: &mut Vec<u8>, number: u32, schema: &Schema, value: Option<&Value>, depth: usize) -> Result<(), Error> {
    let wrong = |value: &Value| Error::wrong_type(schema, value);
    match (&schema.resolved().kind, value) {
        (Kind::Bool, None) | (Kind::Integer(_), None) => write_varint_field(out, number, 0),
        (Kind::Bool, Some(value)) => {
            write_varint_field(out, number, value.as_bool().ok_or_else(|| wrong(value))?.into());
        }
        (Kind::Integer(_), Some(value)) => {
            write_varint_field(out, number, integer(value).ok_or_else(|| wrong(value))?.cast_unsigned());
        }
        (Kind::Number, value) => {
            let value = value.map_or(Ok(0.0), |value| value.as_f64().ok_or_else(|| wrong(value)))?;
            write_fixed64_field(out, number, value.to_bits());
        }
        (Kind::String, value) => {
            let text = value.map_or(Ok(""), |value| value.as_str().ok_or_else(|| wrong(value)))?;
            write_bytes_field(out, number, text.as_bytes());
        }
        (Kind::Bytes, None) => {}
        (Kind::Bytes, Some(value)) => {
            let bytes = value.as_str().and_then(|text| STANDARD.decode(text).ok()).ok_or_else(|| wrong(value))?;
            write_bytes_field(out, number, &bytes);
        }
        (Kind::List(_), None) => {}
        (Kind::List(items), value) => {
            // A list that is a message of its own.
            write_nested(out, number, |out| {
                list(schema, value)?.iter().try_for_each(|item| single(out, 1, items, Some(item), depth + 1))
            })?;
        }
        (_, value) => write_nested(out, number, |out| content(out, schema, value, depth))?,
    }
    Ok(())
}

/// The content of a value that is a message.
fn content(out: &mut Vec<u8>, schema: &Schema, value: Option<&Value>, depth: usize) -> Result<(), Error> {
    let wrong = |value: &Value| Error::wrong_type(schema, value);
    match (&schema.resolved().kind, value) {
        (Kind::Object(object), value) => {
            let fields = value.map(|value| value.as_object().ok_or_else(|| wrong(value))).transpose()?;
            message(out, object, fields, depth + 1)?;
        }
        (Kind::Union(forms), Some(value)) => form(out, schema, forms, value, depth)?,
        (Kind::Quantity, value) => {
            let text = match value {
                None => "0".to_owned(),
                Some(Value::String(text)) => text.clone(),
                Some(Value::Number(number)) => number.to_string(),
                Some(value) => return Err(wrong(value)),
            };
            write_bytes_field(out, 1, text.as_bytes());
        }
        (Kind::IntOrString, value) => {
            let (is_text, number, text) = match value {
                None => (0, 0, ""),
                Some(Value::String(text)) => (1, 0, text.as_str()),
                Some(value) => (0, integer(value).ok_or_else(|| wrong(value))?, ""),
            };
            write_varint_field(out, 1, is_text);
            write_varint_field(out, 2, number.cast_unsigned());
            write_bytes_field(out, 3, text.as_bytes());
        }
        (Kind::Time | Kind::MicroTime, Some(value)) => {
            let is_micro = matches!(schema.resolved().kind, Kind::MicroTime);
            let written = value.as_str().and_then(|text| scalars::write_time(out, text, is_micro));
            written.ok_or_else(|| wrong(value))?;
        }
        (Kind::Duration, value) => {
            let parsed = value.map_or(Some(0), |value| value.as_str().and_then(crate::duration::parse));
            let nanoseconds = parsed.ok_or_else(|| wrong(value.unwrap_or(&Value::Null)))?;
            write_varint_field(out, 1, nanoseconds.cast_unsigned());
        }
        (Kind::FieldsV1, Some(value)) => {
            let mut raw = Vec::new();
            field_set::write(&mut raw, value);
            write_bytes_field(out, 1, &raw);
        }
        (Kind::RawExtension, Some(value)) => write_bytes_field(out, 1, value.to_string().as_bytes()),
        (Kind::Json, Some(value)) => write_bytes_field(out, 1, html_escaped(&value.to_string()).as_bytes()),
        (Kind::Union(_) | Kind::Time | Kind::MicroTime | Kind::FieldsV1 | Kind::RawExtension | Kind::Json, None) => {}
        // A value of no declared type is in types alone that are not on the wire.
        _ => return Err(Problem::NotOnWire(schema.to_string()).into()),
    }
    Ok(())
}

/// The members of a union: the form that `value` has. Where a truth value is one of the forms, an object says `true` too.
fn form(out: &mut Vec<u8>, schema: &Schema, forms: &Object, value: &Value, depth: usize) -> Result<(), Error> {
    let chosen = schema.alternative(value).ok_or_else(|| Error::wrong_type(schema, value))?;
    for (number, member) in forms.by_number() {
        let Member::Property(name) = member else { continue };
        let Some(property) = forms.properties.get(name) else { continue };
        if std::ptr::eq(&property.schema, chosen) {
            field(out, *number, &property.schema, Some(value), depth)?;
        } else if matches!(property.schema.kind, Kind::Bool) {
            write_varint_field(out, *number, 1);
        }
    }
    Ok(())
}

fn list<'a>(schema: &Schema, value: Option<&'a Value>) -> Result<&'a [Value], Error> {
    let Some(value) = value else { return Ok(&[]) };
    value.as_array().map(Vec::as_slice).ok_or_else(|| Error::wrong_type(schema, value))
}

/// The entries of a map, sorted by their keys' bytes, as `serde_json` keeps them.
fn map<'a>(schema: &Schema, value: Option<&'a Value>) -> Result<impl Iterator<Item = (&'a String, &'a Value)>, Error> {
    let entries = value.map(|value| value.as_object().ok_or_else(|| Error::wrong_type(schema, value))).transpose()?;
    Ok(entries.into_iter().flat_map(Map::iter))
}

/// JSON as Go's encoder writes it, safe inside HTML. Upstream encodes `apiextensions/v1.JSON` again, unlike a raw extension.
fn html_escaped(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for letter in json.chars() {
        match letter {
            '<' => out.push_str("\\u003c"),
            '>' => out.push_str("\\u003e"),
            '&' => out.push_str("\\u0026"),
            '\u{2028}' => out.push_str("\\u2028"),
            '\u{2029}' => out.push_str("\\u2029"),
            other => out.push(other),
        }
    }
    out
}

/// A whole number, also one that is written with a fraction of zero.
fn integer(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| scalars::json_number(value.as_f64()?).as_i64())
}
