//! Decodes JSON and YAML bodies to JSON values, with the keys that they give more than once. Pure.

mod duplicates;
#[cfg(test)]
mod tests;

use std::{cell::RefCell, fmt};

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::UserMessageFormatter;

pub use duplicates::{Duplicates, in_document_order, unknown};

use crate::{MAX_DEPTH, field::Path};

/// The encoding of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentType {
    /// `application/json`.
    Json,
    /// `application/yaml` and `application/apply-patch+yaml`.
    Yaml,
}

/// A decoded body.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoded {
    /// The value; of duplicate keys the last one counts.
    pub value: Value,
    /// The duplicate keys.
    pub duplicates: Duplicates,
}

/// Decodes `bytes`; of a YAML text with several documents the first one.
///
/// # Errors
/// When the body is malformed or nested deeper than 100 levels: the reason, with line and column where they are known.
pub fn decode(bytes: &[u8], content_type: ContentType) -> Result<Decoded, String> {
    let notes = Notes::default();
    let seed = Node { notes: &notes, depth: 0 };
    let (value, text) = match content_type {
        ContentType::Json => (json(bytes, seed)?, None),
        ContentType::Yaml => {
            let text = first_document(utf8(bytes)?);
            (yaml(text, seed)?, Some(text))
        }
    };
    let paths = notes.duplicates.into_inner();
    let duplicates = match text {
        Some(text) if !paths.is_empty() => Duplicates::Lines(duplicates::lines(text, yaml_options())),
        _ => Duplicates::Paths(paths),
    };
    Ok(Decoded { value, duplicates })
}

fn json(bytes: &[u8], seed: Node<'_>) -> Result<Value, String> {
    let wrap = |error: serde_json::Error| {
        let (line, column) = (error.line(), error.column());
        let text = error.to_string();
        let tail = format!(" at line {line} column {column}");
        format!("json parse error: {} (line {line}, column {column})", text.strip_suffix(&tail).unwrap_or(&text))
    };
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = seed.deserialize(&mut deserializer).map_err(wrap)?;
    deserializer.end().map_err(wrap)?;
    Ok(value)
}

fn utf8(bytes: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(bytes).map_err(|e| format!("yaml parse error: the text is not UTF-8: {e}"))
}

/// The first document of a text: the others are not read, as upstream does not read them. What `helm template` writes, and
/// files that were put together, begin or end with `---`.
fn first_document(text: &str) -> &str {
    let is_marker = |line: &str, marker: &str| {
        line.strip_prefix(marker).is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']))
    };
    let (mut at, mut begun) = (0, false);
    for line in text.split_inclusive('\n') {
        let content = line.trim();
        match content {
            _ if begun && (is_marker(line, "---") || is_marker(line, "...")) => return &text[..at],
            // A byte order mark may stand before the first marker.
            _ if is_marker(line.trim_start_matches('\u{feff}'), "---") => begun = true,
            "" | "\u{feff}" => {}
            _ if content.starts_with('#') || line.starts_with('%') => {}
            _ => begun = true,
        }
        at += line.len();
    }
    text
}

fn yaml_options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        legacy_octal_numbers: true,
        with_snippet: false,
        duplicate_keys: serde_saphyr::options::DuplicateKeyPolicy::LastWins,
    }
}

fn yaml(text: &str, seed: Node<'_>) -> Result<Value, String> {
    let read = serde_saphyr::with_deserializer_from_str_with_options(text, yaml_options(), |deserializer| {
        seed.deserialize(deserializer)
    });
    read.map_err(|error| {
        let text = first_line(&error.without_snippet().render_with_formatter(&UserMessageFormatter));
        match error.location() {
            Some(at) => format!("yaml parse error: {text} (line {}, column {})", at.line(), at.column()),
            None => format!("yaml parse error: {text}"),
        }
    })
}

/// The message without the position, which is returned separately.
fn first_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    let line = line.split_once("error: ").map_or(line, |(_, rest)| rest);
    let cut = line.rfind(" at line ").unwrap_or(line.len());
    line[..cut].to_owned()
}

/// The current path, and the keys so far.
#[derive(Debug, Default)]
struct Notes {
    path: RefCell<Path>,
    /// The paths of those that are given more than once.
    duplicates: RefCell<Vec<String>>,
    /// The paths of all, where they are asked for.
    order: Option<RefCell<Vec<String>>>,
}

impl Notes {
    fn with_order() -> Self {
        Self { order: Some(RefCell::default()), ..Self::default() }
    }

    /// Runs `inside` with the path extended by `step`.
    fn within<T>(&self, step: impl FnOnce(&mut Path) -> usize, inside: impl FnOnce() -> T) -> T {
        let before = step(&mut self.path.borrow_mut());
        let result = inside();
        self.path.borrow_mut().leave(before);
        result
    }
}

/// One value to decode.
#[derive(Debug, Clone, Copy)]
struct Node<'a> {
    notes: &'a Notes,
    depth: usize,
}

impl Node<'_> {
    fn inner<E: serde::de::Error>(self) -> Result<Self, E> {
        if self.depth >= MAX_DEPTH {
            return Err(E::custom(format!("nested deeper than {MAX_DEPTH} levels")));
        }
        Ok(Self { depth: self.depth + 1, ..self })
    }
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("numbers must be finite"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let inner = self.inner()?;
        let mut list = Vec::new();
        loop {
            let at = list.len();
            match self.notes.within(|path| path.enter_item(at), || items.next_element_seed(inner))? {
                Some(item) => list.push(item),
                None => return Ok(Value::Array(list)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let inner = self.inner()?;
        let mut fields = Map::new();
        while let Some(key) = entries.next_key_seed(Key)? {
            let enter = |path: &mut Path| path.enter_field(&key);
            let value = self.notes.within(enter, || {
                if let Some(order) = &self.notes.order {
                    order.borrow_mut().push(self.notes.path.borrow().as_str().to_owned());
                }
                if fields.contains_key(&key) {
                    let path = self.notes.path.borrow().as_str().to_owned();
                    let mut duplicates = self.notes.duplicates.borrow_mut();
                    if !duplicates.contains(&path) {
                        duplicates.push(path);
                    }
                }
                entries.next_value_seed(inner)
            })?;
            fields.insert(key, value);
        }
        Ok(Value::Object(fields))
    }
}

/// A key; YAML's numbers and booleans are taken as they are written.
#[derive(Debug)]
struct Key;

impl<'de> DeserializeSeed<'de> for Key {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        let text: String = serde::Deserialize::deserialize(deserializer)?;
        if text.len() > 4096 {
            return Err(D::Error::custom("a key is longer than 4096 bytes"));
        }
        Ok(text)
    }
}
