//! Conversions between types: cel-go's `ConvertToType`.

use super::{Opaque, Outcome, Timestamp, Value, go_float, parse_duration, parse_timestamp};
use crate::{error::EvalError, types::Type};

/// Converts to a type of the standard.
///
/// # Errors
/// cel-go's words for what cannot be converted, or does not fit.
pub(crate) fn convert<'a>(value: &Value<'a>, to: &Type) -> Outcome<'a> {
    if *to == value.type_of() {
        return Ok(value.clone());
    }
    let converted = match (value, to) {
        (Value::Bytes(bytes), Type::String) if std::str::from_utf8(bytes).is_err() => {
            Some(Err(EvalError::new("invalid UTF-8 in bytes, cannot convert to string")))
        }
        (value, Type::String) => to_text(value).map(|text| Ok(Value::text(text))),
        (Value::Int(value), Type::Uint) => Some(u64::try_from(*value).map(Value::Uint).map_err(|_| overflow(to))),
        (Value::Int(value), Type::Double) => Some(Ok(Value::Double(*value as f64))),
        (Value::Int(value), Type::Timestamp) => {
            let found = Timestamp::from_seconds(*value).map(Value::Timestamp);
            Some(found.ok_or_else(|| EvalError::new("timestamp overflow")))
        }
        (Value::Uint(value), Type::Int) => Some(i64::try_from(*value).map(Value::Int).map_err(|_| overflow(to))),
        (Value::Uint(value), Type::Double) => Some(Ok(Value::Double(*value as f64))),
        (Value::Double(value), Type::Int) => {
            // The largest ints are refused on purpose: floats next to them are beyond.
            let fits = value.is_finite() && *value > i64::MIN as f64 && *value < i64::MAX as f64;
            Some(if fits { Ok(Value::Int(*value as i64)) } else { Err(overflow(to)) })
        }
        (Value::Double(value), Type::Uint) => {
            let fits = value.is_finite() && *value >= 0.0 && *value < u64::MAX as f64;
            Some(if fits { Ok(Value::Uint(*value as u64)) } else { Err(overflow(to)) })
        }
        (Value::Duration(nanos), Type::Int) => Some(Ok(Value::Int(*nanos))),
        (Value::Timestamp(at), Type::Int) => Some(Ok(Value::Int(at.seconds()))),
        (Value::String(text), to) => from_text(text, to).transpose(),
        _ => None,
    };
    converted.unwrap_or_else(|| {
        let (from, to) = (value.type_of(), shown(to));
        Err(EvalError::new(format!("type conversion error from '{}' to '{to}'", shown(&from))))
    })
}

/// A type as cel-go's `String` writes it in these errors.
fn shown(of: &Type) -> String {
    match of {
        Type::Duration | Type::Timestamp | Type::Null => of.name().to_owned(),
        Type::List(_) => "list(dyn)".to_owned(),
        Type::Map(_) => "map(dyn, dyn)".to_owned(),
        Type::Type(_) => "type".to_owned(),
        Type::Opaque(name, _) => name.to_string(),
        other => other.to_string(),
    }
}

fn overflow(to: &Type) -> EvalError {
    EvalError::new(if *to == Type::Uint { "unsigned integer overflow" } else { "integer overflow" })
}

/// What a text is as another type; nothing if it is none.
fn from_text<'a>(text: &str, to: &Type) -> Result<Option<Value<'a>>, EvalError> {
    Ok(match to {
        Type::Int => text.parse().ok().map(Value::Int),
        Type::Uint if !text.starts_with('+') => text.parse().ok().map(Value::Uint),
        Type::Double => parse_float(text).map(Value::Double),
        Type::Bool => match text {
            "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(Value::Bool(true)),
            "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(Value::Bool(false)),
            _ => None,
        },
        Type::Bytes => Some(Value::Bytes(text.as_bytes().into())),
        Type::Duration => parse_duration(text).map(Value::Duration),
        Type::Timestamp => parse_timestamp(text)?.map(Value::Timestamp),
        _ => None,
    })
}

/// Go's `strconv.ParseFloat`, without hexadecimal numbers.
fn parse_float(text: &str) -> Option<f64> {
    let plain = text.strip_prefix(['+', '-']).unwrap_or(text).to_ascii_lowercase();
    let named = matches!(plain.as_str(), "inf" | "infinity" | "nan");
    if plain == "nan" && plain.len() != text.len() {
        return None;
    }
    let number: f64 = text.parse().ok()?;
    (number.is_finite() || named).then_some(number)
}

/// The text of a value that `string()` takes.
pub(super) fn to_text(value: &Value<'_>) -> Option<String> {
    Some(match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Int(value) => value.to_string(),
        Value::Uint(value) => value.to_string(),
        Value::Double(value) => go_float::general(*value),
        Value::String(text) => text.to_string(),
        Value::Bytes(bytes) => return std::str::from_utf8(bytes).ok().map(str::to_owned),
        Value::Duration(nanos) => format!("{}s", seconds(*nanos)),
        Value::Timestamp(at) => at.to_text(),
        Value::Type(of) => of.name().to_owned(),
        Value::Opaque(Opaque::Ip(ip)) => ip.to_string(),
        Value::Opaque(Opaque::Cidr(cidr)) => cidr.to_string(),
        _ => return None,
    })
}

/// Seconds of nanoseconds, as Go's `Duration.Seconds`.
pub(super) fn seconds(nanos: i64) -> f64 {
    (nanos / 1_000_000_000) as f64 + (nanos % 1_000_000_000) as f64 / 1e9
}

/// The int that a float is exactly.
pub(super) fn lossless_int(value: f64) -> Option<i64> {
    let fits = value.is_finite() && value > i64::MIN as f64 && value < i64::MAX as f64;
    (fits && value.trunc() == value).then_some(value as i64)
}

/// The uint that a float is exactly.
pub(super) fn lossless_uint(value: f64) -> Option<u64> {
    let fits = value.is_finite() && value >= 0.0 && value < u64::MAX as f64;
    (fits && value.trunc() == value).then_some(value as u64)
}

/// The int that a number is exactly, as an index.
pub(crate) fn lossless_index(value: &Value<'_>) -> Option<i64> {
    match value {
        Value::Int(value) => Some(*value),
        Value::Uint(value) => i64::try_from(*value).ok(),
        Value::Double(value) => lossless_int(*value),
        _ => None,
    }
}
