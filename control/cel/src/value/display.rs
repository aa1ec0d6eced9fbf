//! Values as texts: in errors, and as literals in recordings (cel-go's `types.Format`).

use std::fmt::{self, Write as _};

use windlass_apimachinery::go_quoted;

use super::{Opaque, Value, convert::seconds};

impl fmt::Display for Value<'_> {
    /// The value as a literal; keys of maps are sorted by their texts.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Int(value) => write!(f, "{value}"),
            Self::Uint(value) => write!(f, "{value}u"),
            Self::Double(value) => double(f, *value),
            Self::String(text) => f.write_str(&go_quoted(text)),
            Self::Bytes(bytes) => {
                f.write_str("b\"")?;
                bytes.iter().try_for_each(|byte| write!(f, "\\{byte:03o}"))?;
                f.write_char('"')
            }
            Self::Duration(nanos) => write!(f, "duration(\"{}s\")", seconds(*nanos)),
            Self::Timestamp(at) => write!(f, "timestamp(\"{}\")", at.utc().to_text()),
            Self::Type(of) => f.write_str(of.name()),
            Self::Optional(Some(value)) => write!(f, "optional.of({value})"),
            Self::Optional(None) => f.write_str("optional.none()"),
            Self::List(list) => {
                f.write_char('[')?;
                for (index, element) in list.iter().enumerate() {
                    f.write_str(if index == 0 { "" } else { ", " })?;
                    outcome(f, element)?;
                }
                f.write_char(']')
            }
            Self::Map(map) => {
                let mut entries = Vec::new();
                for key in map.keys() {
                    let value =
                        map.find(&key).map(|found| found.map_or_else(|error| error.to_string(), |v| v.to_string()));
                    entries.push((key.to_string(), value.unwrap_or_default()));
                }
                braced(f, "", entries)
            }
            Self::Struct(object) => {
                let fields = object.fields.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
                braced(f, &object.type_name, fields)
            }
            Self::Opaque(opaque) => write!(f, "{opaque}"),
            Self::Lazy(fields) => f.write_str(fields.type_name()),
            Self::Unknown(json) => write!(f, "{json}"),
        }
    }
}

fn outcome(f: &mut fmt::Formatter<'_>, value: super::Outcome<'_>) -> fmt::Result {
    match value {
        Ok(value) => write!(f, "{value}"),
        Err(error) => write!(f, "{error}"),
    }
}

fn braced(f: &mut fmt::Formatter<'_>, name: &str, mut entries: Vec<(String, String)>) -> fmt::Result {
    entries.sort();
    write!(f, "{name}{{")?;
    for (index, (key, value)) in entries.iter().enumerate() {
        write!(f, "{}{key}: {value}", if index == 0 { "" } else { ", " })?;
    }
    f.write_char('}')
}

fn double(f: &mut fmt::Formatter<'_>, value: f64) -> fmt::Result {
    if value.is_nan() {
        return f.write_str("double(\"NaN\")");
    }
    if value.is_infinite() {
        return f.write_str(if value > 0.0 { "double(\"Infinity\")" } else { "double(\"-Infinity\")" });
    }
    let text = value.to_string();
    write!(f, "{text}{}", if text.contains('.') { "" } else { ".0" })
}

impl Value<'_> {
    /// The value as Go prints it by `%v`, in errors: a text stands as it is.
    pub(crate) fn go_print(&self) -> String {
        match self {
            Self::String(text) => text.to_string(),
            Self::Double(value) => super::go_float::general(*value),
            Self::Uint(value) => value.to_string(),
            Self::Null => "0".to_owned(),
            Self::Optional(Some(value)) => format!("optional({})", value.go_print()),
            Self::Opaque(Opaque::Ip(ip)) => ip.to_string(),
            Self::List(list) => {
                let elements = list.iter().map(|element| element.map_or_else(|e| e.to_string(), |e| e.go_print()));
                format!("[{}]", elements.collect::<Vec<_>>().join(", "))
            }
            other => other.to_string(),
        }
    }
}
