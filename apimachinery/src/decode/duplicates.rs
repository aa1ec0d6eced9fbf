//! Duplicate keys of a body, reported as by upstream's strict decoders. Pure.
//!
//! A body is read a second time for that, so that bodies without duplicates, which is nearly all, pay nothing.

use std::{collections::HashSet, fmt};

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

use super::{Node, Notes};

/// Keys that are given more than once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Duplicates {
    /// Of JSON: dotted paths, each once, in the order of the document.
    Paths(Vec<String>),
    /// Of YAML: such as `line 7: key "replicas" already set in map`, one for each repetition; those inside a value come
    /// before those of its own key.
    Lines(Vec<String>),
}

impl Duplicates {
    /// No duplicates.
    pub const NONE: Self = Self::Paths(Vec::new());

    /// Whether no key is repeated.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let (Self::Paths(all) | Self::Lines(all)) = self;
        all.is_empty()
    }

    /// Upstream's messages, one for each duplicate.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        match self {
            Self::Paths(paths) => paths.iter().map(|path| duplicate(path)).collect(),
            Self::Lines(lines) => lines.clone(),
        }
    }

    /// Upstream's errors: one for each JSON duplicate, one for all of a YAML document, whose decoder reports them
    /// together.
    #[must_use]
    pub fn errors(&self) -> Vec<String> {
        match self {
            Self::Lines(lines) if !lines.is_empty() => {
                vec![format!("yaml: unmarshal errors:\n  {}", lines.join("\n  "))]
            }
            _ => self.problems(),
        }
    }
}

fn duplicate(path: &str) -> String {
    format!("duplicate field {path:?}")
}

/// Upstream's message for an unknown field.
#[must_use]
pub fn unknown(path: &str) -> String {
    format!("unknown field {path:?}")
}

/// The problems of a JSON document of one of Go's types, in the document's order: its decoder meets unknown and duplicate
/// fields on one way, and skips what is in an unknown one. `duplicates` and `unknown` are the paths of the document's.
#[must_use]
pub fn in_document_order(document: &[u8], duplicates: &[String], unknown_fields: &[String]) -> Vec<String> {
    let notes = Notes::with_order();
    let mut deserializer = serde_json::Deserializer::from_slice(document);
    // The document was read before: its other errors have been reported.
    let _ = serde::de::DeserializeSeed::deserialize(Node { notes: &notes, depth: 0 }, &mut deserializer);
    let mut told = HashSet::new();
    let mut seen = HashSet::new();
    let mut skipped: Option<String> = None;
    let mut problems = Vec::new();
    for path in notes.order.into_iter().flat_map(std::cell::RefCell::into_inner) {
        if skipped.as_ref().is_some_and(|above| is_inside(&path, above)) {
            continue;
        }
        skipped = None;
        let problem = if unknown_fields.contains(&path) {
            skipped = Some(path.clone());
            unknown(&path)
        } else if !seen.insert(path.clone()) && duplicates.contains(&path) {
            duplicate(&path)
        } else {
            continue;
        };
        if told.insert(problem.clone()) {
            problems.push(problem);
        }
    }
    problems
}

fn is_inside(path: &str, above: &str) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.starts_with(['.', '[']))
}

/// Messages for the duplicate keys of a YAML document, which was read before. In a map, keys from the first integer on
/// are deduplicated by the parser itself and not found here; no type of the API has such keys.
pub(super) fn lines(text: &str, options: serde_saphyr::Options) -> Vec<String> {
    serde_saphyr::from_str_with_options::<Repeated>(text, options).map_or_else(|_| Vec::new(), |repeated| repeated.0)
}

/// Messages for the duplicate keys within a value.
#[derive(Debug, Default)]
struct Repeated(Vec<String>);

impl<'de> Deserialize<'de> for Repeated {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RepeatedVisitor)
    }
}

struct RepeatedVisitor;

impl<'de> Visitor<'de> for RepeatedVisitor {
    type Value = Repeated;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Repeated, E> {
        Ok(Repeated::default())
    }

    fn visit_i64<E>(self, _: i64) -> Result<Repeated, E> {
        Ok(Repeated::default())
    }

    fn visit_u64<E>(self, _: u64) -> Result<Repeated, E> {
        Ok(Repeated::default())
    }

    fn visit_f64<E>(self, _: f64) -> Result<Repeated, E> {
        Ok(Repeated::default())
    }

    fn visit_str<E>(self, _: &str) -> Result<Repeated, E> {
        Ok(Repeated::default())
    }

    fn visit_unit<E>(self) -> Result<Repeated, E> {
        Ok(Repeated::default())
    }

    fn visit_none<E>(self) -> Result<Repeated, E> {
        Ok(Repeated::default())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Repeated, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Repeated, A::Error> {
        let mut all = Vec::new();
        while let Some(Repeated(inside)) = items.next_element()? {
            all.extend(inside);
        }
        Ok(Repeated(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Repeated, A::Error> {
        let (mut all, mut seen) = (Vec::new(), HashSet::new());
        while let Some(Key(key)) = entries.next_key()? {
            let value: Spanned<Repeated> = entries.next_value()?;
            all.extend(value.value.0);
            if seen.contains(&key) {
                all.push(format!("line {}: key {key} already set in map", value.referenced.line()));
            }
            seen.insert(key);
        }
        Ok(Repeated(all))
    }
}

/// A key as Go shows it (`%#v`): texts quoted, so that `5` and `"5"` are two keys.
#[derive(Debug)]
struct Key(String);

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(KeyVisitor)
    }
}

struct KeyVisitor;

impl Visitor<'_> for KeyVisitor {
    type Value = Key;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_bool<E>(self, key: bool) -> Result<Key, E> {
        Ok(Key(key.to_string()))
    }

    fn visit_i64<E>(self, key: i64) -> Result<Key, E> {
        Ok(Key(key.to_string()))
    }

    fn visit_u64<E>(self, key: u64) -> Result<Key, E> {
        Ok(Key(key.to_string()))
    }

    fn visit_f64<E>(self, key: f64) -> Result<Key, E> {
        Ok(Key(key.to_string()))
    }

    fn visit_str<E>(self, key: &str) -> Result<Key, E> {
        Ok(Key(format!("{key:?}")))
    }

    fn visit_unit<E>(self) -> Result<Key, E> {
        Ok(Key("<nil>".to_owned()))
    }
}
