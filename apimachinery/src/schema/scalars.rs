//! Values that are text in JSON: quantities, times, durations, bytes.

use serde_json::Value;

use super::{Kind, Schema};
use crate::{duration, quantity::Quantity};

/// The zero time of upstream's types. They write it as `null`, which clients in other languages refuse where a time is
/// required.
pub(super) const ZERO_TIME: &str = "0001-01-01T00:00:00Z";

/// Whether a value that is not null is one that a field of this type can hold; objects and lists are looked at by their
/// own parts.
pub(super) fn matches_kind(schema: &Schema, value: &Value) -> bool {
    match (&schema.resolved().kind, value) {
        (Kind::Any | Kind::Json | Kind::RawExtension | Kind::FieldsV1, _)
        | (Kind::String, Value::String(_))
        | (Kind::Bool, Value::Bool(_))
        | (Kind::Number, Value::Number(_))
        | (Kind::IntOrString, Value::String(_))
        | (Kind::List(_), Value::Array(_))
        | (Kind::Map(_) | Kind::Object(_), Value::Object(_)) => true,
        (Kind::Integer(32) | Kind::IntOrString, Value::Number(n)) => {
            n.as_i64().is_some_and(|n| i32::try_from(n).is_ok())
        }
        (Kind::Integer(_), Value::Number(n)) => n.is_i64(),
        (Kind::Quantity, Value::Number(n)) => n.to_string().parse::<Quantity>().is_ok(),
        (Kind::Quantity, Value::String(text)) => text.parse::<Quantity>().is_ok(),
        (Kind::Bytes, Value::String(text)) => bytes(text).is_ok(),
        (Kind::Time | Kind::MicroTime, Value::String(text)) => time(text).is_some(),
        (Kind::Duration, Value::String(text)) => duration::parse(text).is_some(),
        (Kind::Union(_), value) => schema.alternative(value).is_some(),
        _ => false,
    }
}

/// A point in time as RFC 3339 has it; the reader would take other forms too.
pub(super) fn time(text: &str) -> Option<jiff::Timestamp> {
    let separated = matches!(text.as_bytes().get(10), Some(b'T' | b't'));
    let plain = !text.contains(['[', ' ', ',']);
    text.parse().ok().filter(|_| separated && plain)
}

/// A time as upstream's types write it: UTC, in seconds or, with `micros`, in microseconds.
pub(super) fn time_text(at: jiff::Timestamp, micros: bool) -> String {
    let format = if micros { "%Y-%m-%dT%H:%M:%S%.6fZ" } else { "%Y-%m-%dT%H:%M:%SZ" };
    at.strftime(format).to_string()
}

/// What base64 stands for; line ends inside it are passed over, as upstream's decoder does.
pub(super) fn bytes(text: &str) -> Result<Vec<u8>, base64::DecodeError> {
    use base64::Engine as _;
    let engine = &base64::engine::general_purpose::STANDARD;
    if text.contains(['\r', '\n']) { engine.decode(text.replace(['\r', '\n'], "")) } else { engine.decode(text) }
}

/// Writes a quantity, a time or base64 as upstream does; any other value, and one that is none, stays.
pub(super) fn canonicalize(kind: &Kind, value: &mut Value) {
    match (kind, value) {
        (Kind::Quantity, value) => quantity(value),
        (Kind::Time | Kind::MicroTime, Value::String(text)) => {
            if let Some(at) = time(text) {
                *text = time_text(at, matches!(kind, Kind::MicroTime));
            }
        }
        (Kind::Duration, Value::String(text)) => {
            if let Some(nanos) = duration::parse(text) {
                *text = duration::format(nanos);
            }
        }
        (Kind::Bytes, Value::String(text)) => text.retain(|c| !matches!(c, '\r' | '\n')),
        _ => {}
    }
}

/// Writes `1.0` as `1`, which is the same integer to JSON Schema, and to Go's clients another type.
pub(super) fn canonicalize_integer(value: &mut Value) {
    /// Every whole number up to this one is exact.
    const EXACT: f64 = 9_007_199_254_740_991.0;
    if let Value::Number(number) = value
        && number.is_f64()
        && let Some(number) = number.as_f64().filter(|number| number.fract() == 0.0 && number.abs() <= EXACT)
        && let Ok(whole) = format!("{number:.0}").parse::<i64>()
    {
        *value = whole.into();
    }
}

fn quantity(value: &mut Value) {
    let text = match &*value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => return,
    };
    if let Ok(quantity) = text.parse::<Quantity>() {
        *value = Value::String(quantity.to_string());
    }
}

/// The zero value, which upstream's decoder makes of `null` in a list or map.
pub(super) fn zero(schema: &Schema) -> Value {
    match &schema.resolved().kind {
        Kind::Any | Kind::Json | Kind::RawExtension | Kind::Union(_) => Value::Null,
        Kind::String | Kind::Bytes => "".into(),
        Kind::Integer(_) | Kind::Number | Kind::IntOrString => 0.into(),
        Kind::Bool => false.into(),
        Kind::Quantity => "0".into(),
        Kind::Duration => "0s".into(),
        Kind::Time | Kind::MicroTime => ZERO_TIME.into(),
        Kind::List(_) => Value::Array(Vec::new()),
        Kind::Map(_) | Kind::Object(_) | Kind::FieldsV1 | Kind::Named(_) => Value::Object(serde_json::Map::new()),
    }
}
