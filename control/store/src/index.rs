//! Fields of objects that watchers select by, such as the node of a pod: read once for each object, not once for each
//! watcher.

use std::{fmt, sync::Arc};

use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

/// An indexed field of a resource, which holds text.
#[derive(Debug, Clone)]
pub struct Index {
    /// Its path, such as `spec.nodeName`.
    pub field: Arc<str>,
}

impl Index {
    /// The index of a field by its path.
    #[must_use]
    pub fn new(field: &str) -> Self {
        Self { field: field.into() }
    }

    /// The field of an object; empty where it has none.
    fn of_value(&self, object: &Value) -> Box<str> {
        let field = self.field.split('.').try_fold(object, |value, name| value.get(name));
        field.and_then(Value::as_str).unwrap_or_default().into()
    }

    /// The same of an object's text.
    fn of_text(&self, object: &[u8]) -> Box<str> {
        let found = serde_json::Deserializer::from_slice(object).deserialize_any(At(Some(&self.field)));
        found.ok().flatten().unwrap_or_default()
    }
}

/// The values of an object, in the order of the indexes of its resource.
pub(crate) type Values = Box<[Box<str>]>;

pub(crate) fn values_of(indexes: &[Index], object: &[u8]) -> Values {
    indexes.iter().map(|index| index.of_text(object)).collect()
}

pub(crate) fn values_in(indexes: &[Index], object: &Value) -> Values {
    indexes.iter().map(|index| index.of_value(object)).collect()
}

/// Finds text below a path, of which nothing may be left; the rest of the object is skipped.
struct At<'a>(Option<&'a str>);

impl<'de> serde::de::DeserializeSeed<'de> for At<'_> {
    type Value = Option<Box<str>>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for At<'_> {
    type Value = Option<Box<str>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
        let (name, rest) = match self.0.map(|path| path.split_once('.').map_or((path, None), |(n, r)| (n, Some(r)))) {
            Some((name, rest)) => (Some(name), rest),
            None => (None, None),
        };
        let mut found = None;
        while let Some(key) = map.next_key::<String>()? {
            if Some(key.as_str()) == name {
                found = map.next_value_seed(At(rest))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut items: S) -> Result<Self::Value, S::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(None)
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(self.0.is_none().then(|| text.into()))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_field_is_the_same_of_a_value_and_of_its_text() {
        let index = [Index::new("spec.nodeName"), Index::new("status.phase"), Index::new("kind")];
        for (object, wanted) in [
            (
                json!({"kind": "Pod", "spec": {"a": [{"nodeName": "x"}], "nodeName": "one"}, "status": {"phase": "a\"b"}}),
                ["one", "a\"b", "Pod"],
            ),
            (json!({"kind": {"spec": 1}, "spec": {"nodeName": {"nodeName": "x"}}, "status": null}), ["", "", ""]),
            (json!({"spec": {"nodeName": 5}, "status": {"phase": ["x"]}, "kind": true}), ["", "", ""]),
            (json!({"spec": "nodeName", "status": -1.5}), ["", "", ""]),
            (json!([]), ["", "", ""]),
        ] {
            let text = serde_json::to_vec(&object).unwrap_or_default();
            let (of_text, of_value) = (values_of(&index, &text), values_in(&index, &object));
            assert_eq!(of_text.iter().map(|value| &**value).collect::<Vec<_>>(), wanted, "{object}");
            assert_eq!(of_text, of_value, "{object}");
        }
    }
}
