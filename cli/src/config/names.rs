//! The names that a type's fields have in a file, asked of its own reader, so that no second list can grow old.

use std::fmt;

use serde::{
    Deserialize,
    de::{Deserializer, Error, Visitor},
    forward_to_deserialize_any,
};

/// Names of the fields of `T`; none when it is no struct, or takes any field.
pub(crate) fn names<T: for<'de> Deserialize<'de>>() -> &'static [&'static str] {
    match T::deserialize(Asks) {
        Err(Told(names)) => names,
        Ok(_) => &[],
    }
}

/// A reader that has nothing to read and only hears what is wanted of it.
struct Asks;

#[derive(Debug)]
struct Told(&'static [&'static str]);

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

impl std::error::Error for Told {}

impl Error for Told {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self(&[])
    }
}

impl<'de> Deserializer<'de> for Asks {
    type Error = Told;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Told> {
        Err(Told(&[]))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Told> {
        Err(Told(fields))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// The name that was most likely meant.
pub(crate) fn nearest<'a>(wrong: &str, names: &[&'a str]) -> Option<&'a str> {
    let lower = wrong.to_lowercase();
    let scored = names.iter().map(|name| (strsim::jaro_winkler(&lower, &name.to_lowercase()), *name));
    scored.filter(|(score, _)| *score > 0.8).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, name)| name)
}
