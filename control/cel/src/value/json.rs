//! Values of JSON, with and without a schema: upstream's `UnstructuredToVal` (`apiserver/pkg/cel/common`), and values as JSON.

use base64::Engine as _;
use serde_json::{Number, Value as Json};
use windlass_apimachinery::go_type;

use super::{Key, List, Map, Outcome, Text, Timestamp, Value, list::Typed, time};
use crate::{
    decl::{DeclType, Scalar, Shape},
    error::EvalError,
};

impl<'a> Value<'a> {
    /// A value of JSON without a schema: whole numbers are ints, others doubles.
    #[must_use]
    pub fn from_json(json: &'a Json) -> Self {
        match json {
            Json::Null => Self::Null,
            Json::Bool(value) => Self::Bool(*value),
            Json::Number(number) => from_number(number),
            Json::String(text) => Self::String(Text::Borrowed(text)),
            Json::Array(elements) => Self::List(List::Json(elements)),
            Json::Object(entries) => Self::Map(Map::Json(entries)),
        }
    }

    /// A value of JSON as its schema says.
    ///
    /// # Errors
    /// The value is not of the schema.
    pub fn of_type(json: &'a Json, declared: &'a DeclType) -> Outcome<'a> {
        if json.is_null() {
            return if declared.is_nullable() {
                Ok(Self::Null)
            } else {
                Err(EvalError::new("invalid data, got null for schema with nullable=false"))
            };
        }
        match (declared.shape(), json) {
            (Shape::Dyn, _) => Ok(Self::from_json(json)),
            (Shape::IntOrString, Json::String(text)) => Ok(Self::String(Text::Borrowed(text))),
            (Shape::IntOrString, Json::Number(number)) if number.is_i64() => Ok(from_number(number)),
            (Shape::IntOrString, _) => {
                Err(EvalError::new("invalid data, expected XIntOrString value to be either a string or integer"))
            }
            (Shape::Object(_) | Shape::Map(_), Json::Object(entries)) => Ok(Self::Map(Map::Typed(entries, declared))),
            (Shape::Object(_) | Shape::Map(_), _) => {
                Err(EvalError::new("invalid data, expected a map for the provided schema with type=object"))
            }
            (Shape::List(element, kind), Json::Array(elements)) => {
                Ok(Self::List(List::Typed(Typed { elements, computed: None, element, kind })))
            }
            (Shape::List(..), _) => {
                Err(EvalError::new("invalid data, expected an array for the provided schema with type=array"))
            }
            (Shape::Scalar(scalar), _) => of_scalar(json, *scalar),
            (Shape::Unknown, _) => Ok(Self::Unknown(json)),
        }
    }

    /// The value as JSON; nothing of what JSON cannot hold, such as types and floats that are no numbers. Bytes are base64,
    /// durations and timestamps text; cel-go's `ConvertToNative` to `structpb.Value`.
    #[must_use]
    pub fn to_json(&self) -> Option<Json> {
        Some(match self {
            Self::Null => Json::Null,
            Self::Bool(value) => Json::Bool(*value),
            Self::Int(value) => Json::from(*value),
            Self::Uint(value) => Json::from(*value),
            Self::Double(value) => Json::Number(Number::from_f64(*value)?),
            Self::String(text) => Json::from(&**text),
            Self::Bytes(bytes) => Json::from(base64::engine::general_purpose::STANDARD.encode(bytes)),
            Self::Duration(_) | Self::Timestamp(_) => Json::from(super::convert::to_text(self)?),
            Self::Optional(Some(value)) => value.to_json()?,
            Self::List(list) => Json::Array(list.iter().map(|value| value.ok()?.to_json()).collect::<Option<_>>()?),
            Self::Map(map) => {
                let mut object = serde_json::Map::new();
                for key in map.keys() {
                    let value = map.find(&key)?.ok()?.to_json()?;
                    let Key::String(name) = Key::of(&key)? else { return None };
                    object.insert(name.to_string(), value);
                }
                Json::Object(object)
            }
            Self::Struct(object) => {
                let fields = object.fields.iter().map(|(name, value)| Some((name.to_string(), value.to_json()?)));
                Json::Object(fields.collect::<Option<_>>()?)
            }
            Self::Unknown(json) => (*json).clone(),
            Self::Type(_) | Self::Optional(None) | Self::Opaque(_) | Self::Lazy(_) => return None,
        })
    }
}

fn from_number<'a>(number: &Number) -> Value<'a> {
    number.as_i64().map_or_else(|| Value::Double(number.as_f64().unwrap_or(f64::NAN)), Value::Int)
}

fn of_scalar(json: &Json, scalar: Scalar) -> Outcome<'_> {
    let wrong =
        |expected: &str| Err(EvalError::new(format!("invalid data, expected {expected}, got {}", go_type(json))));
    match (scalar, json) {
        (Scalar::Bool, Json::Bool(value)) => Ok(Value::Bool(*value)),
        (Scalar::Bool, _) => wrong("bool"),
        (Scalar::Int, Json::Number(number)) if number.is_i64() => Ok(from_number(number)),
        (Scalar::Int, _) => wrong("int"),
        (Scalar::Double, Json::Number(number)) => Ok(Value::Double(number.as_f64().unwrap_or(f64::NAN))),
        (Scalar::Double, _) => wrong("float"),
        (Scalar::String, Json::String(text)) => Ok(Value::String(Text::Borrowed(text))),
        (Scalar::Bytes, Json::String(text)) => {
            let decoded = base64::engine::general_purpose::STANDARD.decode(text);
            decoded
                .map(|bytes| Value::Bytes(bytes.into()))
                .map_err(|why| EvalError::new(format!("Invalid byte formatted string {text}: {why}")))
        }
        (Scalar::Duration, Json::String(text)) => time::parse_format_duration(text)
            .map(Value::Duration)
            .ok_or_else(|| EvalError::new(format!("Invalid duration {text}: unable to parse {text} as duration"))),
        (Scalar::Date, Json::String(text)) => Timestamp::parse_date(text)
            .map(Value::Timestamp)
            .ok_or_else(|| EvalError::new(format!("Invalid date formatted string {text}: no date"))),
        (Scalar::DateTime, Json::String(text)) => Timestamp::parse_lenient(text)
            .map(Value::Timestamp)
            .ok_or_else(|| EvalError::new(format!("Invalid date-time formatted string {text}: no date and time"))),
        (Scalar::String | Scalar::Bytes | Scalar::Duration | Scalar::Date | Scalar::DateTime, _) => wrong("string"),
    }
}
