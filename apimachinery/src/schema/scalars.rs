//! Values that are text in JSON: quantities, times, durations, bytes.

use jiff::{SignedDuration, civil::DateTime, tz::TimeZone};
use serde_json::Value;

use super::{Kind, Schema};
use crate::{
    duration,
    quantity::{self, Quantity},
};

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
        (Kind::Quantity, Value::String(text)) => text.trim().parse::<Quantity>().is_ok(),
        (Kind::Bytes, Value::String(text)) => bytes(text).is_ok(),
        (Kind::Time | Kind::MicroTime, Value::String(text)) => time(text).is_some(),
        (Kind::Duration, Value::String(text)) => duration::parse(text).is_some(),
        (Kind::Union(_), value) => schema.alternative(value).is_some(),
        _ => false,
    }
}

/// A point in time, in UTC, as RFC 3339 has it and Go's parser reads it: with seconds, a capital `T` and `Z`, and a colon in
/// the offset; the fraction of a second may follow a comma. `None` for the last day of the year 9999, too, which is beyond
/// what clients in Rust can read.
#[must_use]
pub fn time(text: &str) -> Option<DateTime> {
    rfc3339(text).filter(|utc| utc.to_zoned(TimeZone::UTC).is_ok())
}

/// The same, up to the end of the year 9999.
#[must_use]
pub fn rfc3339(text: &str) -> Option<DateTime> {
    let number = |from: usize, to: usize| -> Option<i16> {
        let digits = text.get(from..to)?;
        digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())?
    };
    let small = |from: usize| -> Option<i8> { i8::try_from(number(from, from + 2)?).ok() };
    for (at, separator) in [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')] {
        if *text.as_bytes().get(at)? != separator {
            return None;
        }
    }
    let after = text.get(19..)?;
    let (fraction, offset) = match after.strip_prefix(['.', ',']) {
        Some(rest) => rest.split_at(rest.find(|c: char| !c.is_ascii_digit())?),
        None => ("0", after),
    };
    let nanoseconds = format!("{:0<9.9}", fraction).parse().ok().filter(|_| !fraction.is_empty())?;
    let local =
        DateTime::new(number(0, 4)?, small(5)?, small(8)?, small(11)?, small(14)?, small(17)?, nanoseconds).ok()?;
    let minutes = match offset.as_bytes() {
        b"Z" => 0,
        [sign @ (b'+' | b'-'), _, _, b':', _, _] => {
            let at = text.len() - 5;
            let (hours, minutes) = (small(at).filter(|h| *h <= 24)?, small(at + 3).filter(|m| *m <= 60)?);
            let whole = i64::from(hours) * 60 + i64::from(minutes);
            if *sign == b'-' { -whole } else { whole }
        }
        _ => return None,
    };
    local.checked_sub(SignedDuration::from_mins(minutes)).ok()
}

/// A time as upstream's types write it: in seconds or, with `micros`, in microseconds.
pub(super) fn time_text(at: DateTime, micros: bool) -> String {
    let format = if micros { "%Y-%m-%dT%H:%M:%S%.6fZ" } else { "%Y-%m-%dT%H:%M:%SZ" };
    at.strftime(format).to_string()
}

/// Decodes base64; line ends inside it are skipped, as by upstream's decoder.
pub(super) fn bytes(text: &str) -> Result<Vec<u8>, base64::DecodeError> {
    use base64::Engine as _;
    let engine = &base64::engine::general_purpose::STANDARD;
    if text.contains(['\r', '\n']) { engine.decode(text.replace(['\r', '\n'], "")) } else { engine.decode(text) }
}

/// Writes a quantity, a time or base64 as upstream does, or, with `compared`, so that equal ones are equal texts; any
/// other value, and an invalid one, stays as it is.
pub(super) fn canonicalize(kind: &Kind, value: &mut Value, compared: bool) {
    match (kind, value) {
        (Kind::Quantity, value) => quantity(value, compared),
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

/// Whether [`canonicalize`] would change nothing.
pub(super) fn is_canonical(kind: &Kind, value: &Value, compared: bool) -> bool {
    match kind {
        Kind::Quantity | Kind::Time | Kind::MicroTime | Kind::Duration | Kind::Bytes => {
            let mut canonical = value.clone();
            canonicalize(kind, &mut canonical, compared);
            canonical == *value
        }
        _ => true,
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

fn quantity(value: &mut Value, compared: bool) {
    let text = match &*value {
        // As upstream's decoder of JSON does.
        Value::String(text) => text.trim().to_owned(),
        Value::Number(number) => number.to_string(),
        _ => return,
    };
    if let Ok(quantity) = text.parse::<Quantity>() {
        let keeps_its_form = !compared && quantity::is_written_as_read(&text);
        *value = Value::String(if keeps_its_form { text } else { quantity.to_string() });
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
        // Which Go writes so.
        Kind::Time | Kind::MicroTime => Value::Null,
        Kind::List(_) => Value::Array(Vec::new()),
        Kind::Map(_) | Kind::Object(_) | Kind::FieldsV1 | Kind::Named(_) => Value::Object(serde_json::Map::new()),
    }
}
