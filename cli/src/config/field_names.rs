//! The field names of a deserializable type, obtained from its own `Deserialize`, so that there is no second list to
//! maintain.

use std::fmt;

use serde::{
    Deserialize,
    de::{Deserializer, Error, Visitor},
    forward_to_deserialize_any,
};

/// The field names of `T`; none if it is no struct, or accepts any field.
pub(crate) fn names<T: for<'de> Deserialize<'de>>() -> &'static [&'static str] {
    match T::deserialize(FieldCapture) {
        Err(CapturedFields(names)) => names,
        Ok(_) => &[],
    }
}

/// A deserializer without data that only captures the requested fields.
struct FieldCapture;

#[derive(Debug)]
struct CapturedFields(&'static [&'static str]);

impl fmt::Display for CapturedFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

impl std::error::Error for CapturedFields {}

impl Error for CapturedFields {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self(&[])
    }
}

impl<'de> Deserializer<'de> for FieldCapture {
    type Error = CapturedFields;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, CapturedFields> {
        Err(CapturedFields(&[]))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, CapturedFields> {
        Err(CapturedFields(fields))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// The most similar name, for suggestions.
pub(crate) fn nearest<'a>(wrong: &str, names: &[&'a str]) -> Option<&'a str> {
    let lower = wrong.to_lowercase();
    let scored = names.iter().map(|name| (strsim::jaro_winkler(&lower, &name.to_lowercase()), *name));
    scored.filter(|(score, _)| *score > 0.8).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, name)| name)
}
