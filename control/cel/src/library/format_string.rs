//! `format`: cel-go's `ext/formatting.go`, the version of 1.x, whose numbers are written as in English.

use crate::{
    error::EvalError,
    eval::MAX_TEXT,
    value::{self, List, Map, Outcome, Value},
};
use windlass_apimachinery::{go_float, go_quoted};

/// Digits after the point, if a clause does not say.
const PRECISION: usize = 6;
/// More digits would only cost memory.
const MAX_PRECISION: usize = 1000;

/// What stands for an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clause {
    Text,
    Decimal,
    Fixed(usize),
    /// Upstream takes the digits for a width.
    Scientific(usize),
    Binary,
    Hexadecimal {
        upper: bool,
    },
    Octal,
}

impl Clause {
    /// What takes only some types says which ones.
    pub(crate) fn refusal(self, given: &str) -> String {
        match self {
            Self::Text => format!(
                "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, and timestamps, was given {given}"
            ),
            Self::Decimal => format!("decimal clause can only be used on integers, was given {given}"),
            Self::Fixed(_) => format!("fixed-point clause can only be used on doubles, was given {given}"),
            Self::Scientific(_) => format!("scientific clause can only be used on doubles, was given {given}"),
            Self::Binary => format!("only integers and bools can be formatted as binary, was given {given}"),
            Self::Hexadecimal { .. } => {
                format!("only integers, byte buffers, and strings can be formatted as hex, was given {given}")
            }
            Self::Octal => format!("octal clause can only be used on integers, was given {given}"),
        }
    }
}

/// Walks over a text with clauses: `literal` gets what stands for itself, `argument` the index of each argument and its
/// clause.
///
/// # Errors
/// What is wrong with the text, or what `argument` says; `(true, …)` if it was said of an argument.
pub(crate) fn check(
    text: &str,
    arguments: usize,
    mut literal: impl FnMut(&str),
    mut argument: impl FnMut(usize, Clause) -> Result<(), String>,
) -> Result<usize, String> {
    let (mut rest, mut index) = (text, 0);
    while let Some((before, after)) = rest.split_once('%') {
        literal(before);
        if let Some(after) = after.strip_prefix('%') {
            literal("%");
            rest = after;
            continue;
        }
        if after.is_empty() {
            return Err("unexpected end of string".to_owned());
        }
        if index >= arguments {
            return Err(format!("index {index} out of range"));
        }
        let (clause, after) = clause(after).map_err(|why| format!("could not parse formatting clause: {why}"))?;
        argument(index, clause).map_err(|why| format!("error during formatting: {why}"))?;
        index += 1;
        rest = after;
    }
    literal(rest);
    Ok(index)
}

fn clause(text: &str) -> Result<(Clause, &str), String> {
    let (precision, text) = match text.strip_prefix('.') {
        None => (None, text),
        Some(after) => {
            let end = after.find(|c: char| !c.is_ascii_digit());
            let end = end.ok_or("error while parsing precision: could not find end of precision specifier")?;
            let number = after[..end].parse::<usize>().map_err(|why| {
                let why = if after[..end].is_empty() { "invalid syntax".to_owned() } else { why.to_string() };
                let quoted = go_quoted(&after[..end]);
                format!(
                    "error while parsing precision: error while converting precision to integer: strconv.Atoi: parsing {quoted}: {why}"
                )
            })?;
            (Some(number), &after[end..])
        }
    };
    let Some(letter) = text.chars().next() else { return Err("unexpected end of string".to_owned()) };
    let clause = match letter {
        's' => Clause::Text,
        'd' => Clause::Decimal,
        'f' => Clause::Fixed(precision.unwrap_or(PRECISION).min(MAX_PRECISION)),
        'e' => Clause::Scientific(precision.unwrap_or(PRECISION).min(MAX_PRECISION)),
        'b' => Clause::Binary,
        'x' | 'X' => Clause::Hexadecimal { upper: letter == 'X' },
        'o' => Clause::Octal,
        // Go looks at bytes.
        _ => {
            let byte = text.as_bytes().first().copied().unwrap_or(0);
            return Err(format!("unrecognized formatting clause \"{}\"", char::from(byte)));
        }
    };
    Ok((clause, &text[letter.len_utf8()..]))
}

pub(super) fn format<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let [Value::String(text), Value::List(list)] = args else { return Err(EvalError::no_such_overload()) };
    let formatted = std::cell::RefCell::new(String::with_capacity(text.len()));
    let is_too_long = std::cell::Cell::new(false);
    check(
        text,
        list.len(),
        |literal| formatted.borrow_mut().push_str(literal),
        |index, clause| {
            let value = list.get(index).ok_or_else(|| format!("index {index} out of range"))?;
            let value = value.map_err(|error| error.to_string())?;
            let written = written(&value, clause)?;
            let mut formatted = formatted.borrow_mut();
            is_too_long.set(formatted.len().saturating_add(written.len()) > MAX_TEXT);
            if is_too_long.get() {
                return Err(String::new());
            }
            formatted.push_str(&written);
            Ok(())
        },
    )
    .map_err(|why| if is_too_long.get() { EvalError::cost_limit() } else { EvalError::new(why) })?;
    Ok(Value::text(formatted.into_inner()))
}

fn written(value: &Value<'_>, clause: Clause) -> Result<String, String> {
    let refused = || Err(clause.refusal(value.type_of().name()));
    match (clause, value) {
        (Clause::Text, value) => text(value),
        (Clause::Decimal, Value::Int(number)) => Ok(number.to_string()),
        (Clause::Decimal, Value::Uint(number)) => Ok(number.to_string()),
        (Clause::Fixed(precision), value) => match double(value) {
            // Zero has no sign, as in upstream's language-dependent printer.
            Some(number) => Ok(fixed(number + 0.0, precision)),
            None => refused(),
        },
        (Clause::Scientific(width), value) => match double(value) {
            Some(number) => Ok(format!("{:>width$}", scientific(number + 0.0))),
            None => refused(),
        },
        (Clause::Binary, Value::Int(number)) => Ok(signed(*number, |number| format!("{number:b}"))),
        (Clause::Binary, Value::Uint(number)) => Ok(format!("{number:b}")),
        (Clause::Binary, Value::Bool(value)) => Ok(if *value { "1" } else { "0" }.to_owned()),
        (Clause::Hexadecimal { upper }, value) => {
            let digits = match value {
                Value::Int(number) => signed(*number, |number| format!("{number:x}")),
                Value::Uint(number) => format!("{number:x}"),
                Value::String(text) => hexadecimal(text.as_bytes()),
                Value::Bytes(bytes) => hexadecimal(bytes),
                _ => return refused(),
            };
            Ok(if upper { digits.to_ascii_uppercase() } else { digits })
        }
        (Clause::Octal, Value::Int(number)) => Ok(signed(*number, |number| format!("{number:o}"))),
        (Clause::Octal, Value::Uint(number)) => Ok(format!("{number:o}")),
        _ => refused(),
    }
}

fn signed(number: i64, digits: fn(u64) -> String) -> String {
    let sign = if number < 0 { "-" } else { "" };
    format!("{sign}{}", digits(number.unsigned_abs()))
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A double, or a text that stands for one that is no number.
fn double(value: &Value<'_>) -> Option<f64> {
    match value {
        Value::Double(number) => Some(*number),
        Value::String(text) => match &**text {
            "NaN" => Some(f64::NAN),
            "Infinity" => Some(f64::INFINITY),
            "-Infinity" => Some(f64::NEG_INFINITY),
            _ => None,
        },
        _ => None,
    }
}

fn special(number: f64) -> Option<String> {
    if number.is_nan() {
        return Some("NaN".to_owned());
    }
    number.is_infinite().then(|| if number > 0.0 { "∞" } else { "-∞" }.to_owned())
}

/// With commas between thousands.
fn fixed(number: f64, precision: usize) -> String {
    if let Some(text) = special(number) {
        return text;
    }
    let plain = format!("{:.precision$}", number.abs());
    let (whole, fraction) = plain.split_once('.').map_or((plain.as_str(), ""), |(whole, fraction)| (whole, fraction));
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    let sign = if number.is_sign_negative() { "-" } else { "" };
    let point = if fraction.is_empty() { "" } else { "." };
    format!("{sign}{grouped}{point}{fraction}")
}

/// With a power of ten in small digits.
fn scientific(number: f64) -> String {
    if let Some(text) = special(number) {
        return text;
    }
    let plain = go_float::exponent(number, PRECISION);
    let (mantissa, exponent) = plain.split_once('e').unwrap_or((&plain, "+00"));
    let small = |c: char| match c {
        '-' => '\u{207b}',
        '1' => '\u{b9}',
        '2' => '\u{b2}',
        '3' => '\u{b3}',
        digit => digit.to_digit(10).and_then(|digit| char::from_u32(0x2070 + digit)).unwrap_or(digit),
    };
    let exponent: String = exponent.trim_start_matches('+').chars().map(small).collect();
    format!("{mantissa}\u{d7}10{exponent}")
}

/// A value as `%s` writes it.
fn text(value: &Value<'_>) -> Result<String, String> {
    match value {
        Value::List(list) => of_list(list),
        Value::Map(map) => of_map(map),
        Value::Null
        | Value::Int(_)
        | Value::Uint(_)
        | Value::Double(_)
        | Value::Bool(_)
        | Value::String(_)
        | Value::Timestamp(_)
        | Value::Duration(_)
        | Value::Type(_)
        | Value::Bytes(_) => match value::convert(value, &crate::Type::String) {
            Ok(Value::String(text)) => Ok(text.to_string()),
            Ok(other) => Ok(other.to_string()),
            Err(error) => Err(format!("could not convert argument {} to string", go_quoted(error.message()))),
        },
        other => Err(Clause::Text.refusal(other.type_of().name())),
    }
}

/// A value within a list or a map.
fn nested(value: &Value<'_>) -> Result<String, String> {
    let plain = match value {
        Value::Timestamp(_) | Value::Duration(_) => {
            let name = if matches!(value, Value::Timestamp(_)) { "timestamp" } else { "duration" };
            format!("{name}({})", go_quoted(&text(value)?))
        }
        Value::Double(number) => {
            let special = special(*number);
            return Ok(special.map_or_else(
                || format!("{number:.PRECISION$}"),
                |text| match &*text {
                    "∞" => "\"+Inf\"".to_owned(),
                    "-∞" => "\"-Inf\"".to_owned(),
                    other => go_quoted(other),
                },
            ));
        }
        Value::String(text) => return Ok(go_quoted(text)),
        Value::Bytes(_) => return Ok(format!("b{}", go_quoted(&text(value)?))),
        Value::Optional(_) | Value::Opaque(_) | Value::Struct(_) | Value::Lazy(_) | Value::Unknown(_) => {
            return Err(format!("no formatting function for {}", value.type_of().name()));
        }
        other => text(other)?,
    };
    Ok(plain)
}

fn of_list(list: &List<'_>) -> Result<String, String> {
    let elements: Result<Vec<_>, _> =
        list.iter().map(|element| nested(&element.map_err(|error| error.to_string())?)).collect();
    Ok(format!("[{}]", elements?.join(", ")))
}

fn of_map(map: &Map<'_>) -> Result<String, String> {
    let mut entries = Vec::new();
    for key in map.keys() {
        let name = match &key {
            Value::String(_) | Value::Bool(_) | Value::Int(_) | Value::Uint(_) => nested(&key)?,
            other => return Err(format!("no formatting function for map key of type {}", other.type_of().name())),
        };
        let value = map.find(&key).ok_or_else(|| format!("could not find key: {name}"))?;
        entries.push((name, nested(&value.map_err(|error| error.to_string())?)?));
    }
    entries.sort_by(|(one, _), (other, _)| one.cmp(other));
    let entries: Vec<String> = entries.into_iter().map(|(key, value)| format!("{key}:{value}")).collect();
    Ok(format!("{{{}}}", entries.join(", ")))
}
