//! Objects and their keys, as they lie in memory.

use std::sync::OnceLock;

use bytes::Bytes;
use serde_json::Value;

use super::index::{Index, Values, values_in, values_of};

/// The key of an object: its namespace (empty for cluster scope) and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Empty for cluster-scoped objects.
    pub namespace: String,
    /// The object's name.
    pub name: String,
}

/// One stored object: compact JSON with its own `resourceVersion`. Only the store constructs it, from JSON that it has
/// encoded itself.
#[derive(Debug, Clone)]
pub struct Object {
    /// Its key.
    pub key: Key,
    /// The revision of its last write.
    pub revision: u64,
    /// The object as JSON.
    pub bytes: Bytes,
    /// Where the digits of the `resourceVersion` begin in `bytes`; 0 for an object without metadata.
    pub(crate) revision_at: u32,
    /// Its indexed fields, when somebody has asked for them.
    pub(crate) index_values: OnceLock<Values>,
}

impl Object {
    /// The object, decoded.
    ///
    /// # Panics
    /// Never: what is stored was encoded by the store.
    #[must_use]
    pub fn value(&self) -> Value {
        serde_json::from_slice(&self.bytes).expect("the store keeps only JSON that it has written itself")
    }

    /// Whether an indexed field has a value.
    pub(crate) fn has_index_value(&self, indexes: &[Index], at: usize, value: &str) -> bool {
        let values = self.index_values.get_or_init(|| values_of(indexes, &self.bytes));
        values.get(at).is_some_and(|own| **own == *value)
    }

    /// The value of an indexed field; `None` if the resource has no such index.
    pub(crate) fn index_value(&self, indexes: &[Index], field: &str) -> Option<&str> {
        let at = indexes.iter().position(|index| *index.field == *field)?;
        let values = self.index_values.get_or_init(|| values_of(indexes, &self.bytes));
        values.get(at).map(|value| &**value)
    }

    /// The same object at another revision.
    pub(crate) fn at_revision(&self, revision: u64) -> Self {
        let at = self.revision_at as usize;
        let end = if at == 0 { 0 } else { at + self.revision.to_string().len() };
        let bytes = splice(&self.bytes[..at], revision, &self.bytes[end..], at > 0);
        let (key, index_values) = (self.key.clone(), self.index_values.clone());
        Self { key, revision, bytes, revision_at: self.revision_at, index_values }
    }
}

/// An object without its revision, which the writer splices in.
#[derive(Debug)]
pub(crate) struct Encoded {
    text: Vec<u8>,
    revision_at: usize,
    index_values: OnceLock<Values>,
}

impl Encoded {
    /// Encodes an object; its own `resourceVersion` does not count.
    pub(crate) fn new(value: &Value) -> Self {
        let mut out = Self { text: Vec::with_capacity(4096), revision_at: 0, index_values: OnceLock::new() };
        match value.as_object() {
            None => out.push(value),
            Some(fields) => {
                out.text.push(b'{');
                for (at, (name, value)) in fields.iter().enumerate() {
                    out.name(at, name);
                    match value.as_object().filter(|_| name == "metadata") {
                        Some(metadata) => out.metadata(metadata),
                        None => out.push(value),
                    }
                }
                out.text.push(b'}');
            }
        }
        out
    }

    /// The same with its indexed fields.
    pub(crate) fn with_indexes(value: &Value, indexes: &[Index]) -> Self {
        let index_values = if indexes.is_empty() { OnceLock::new() } else { values_in(indexes, value).into() };
        Self { index_values, ..Self::new(value) }
    }

    fn metadata(&mut self, metadata: &serde_json::Map<String, Value>) {
        const REVISION: &str = "resourceVersion";
        // Maps are sorted by name.
        let before = metadata.iter().take_while(|(name, _)| name.as_str() < REVISION);
        let after = metadata.iter().skip_while(|(name, _)| name.as_str() <= REVISION);
        self.text.push(b'{');
        for (at, (name, value)) in before.map(|(n, v)| (n, Some(v))).chain([(&REVISION.to_owned(), None)]).enumerate() {
            self.name(at, name);
            match value {
                Some(value) => self.push(value),
                None => {
                    self.revision_at = self.text.len() + 1;
                    self.text.extend_from_slice(b"\"\"");
                }
            }
        }
        for (name, value) in after {
            self.name(1, name);
            self.push(value);
        }
        self.text.push(b'}');
    }

    fn name(&mut self, at: usize, name: &str) {
        if at > 0 {
            self.text.push(b',');
        }
        // A vector takes whatever is written.
        let _ = serde_json::to_writer(&mut self.text, name);
        self.text.push(b':');
    }

    fn push(&mut self, value: &Value) {
        let _ = serde_json::to_writer(&mut self.text, value);
    }

    /// Its size, without the revision.
    pub(crate) fn bytes(&self) -> usize {
        self.text.len()
    }

    /// The object at its revision.
    pub(crate) fn finish(&self, key: Key, revision: u64) -> Object {
        let (before, after) = self.text.split_at(self.revision_at);
        let bytes = splice(before, revision, after, self.revision_at > 0);
        let revision_at = u32::try_from(self.revision_at).unwrap_or(0);
        Object { key, revision, bytes, revision_at, index_values: self.index_values.clone() }
    }
}

/// The text without spare capacity: objects live long.
fn splice(before: &[u8], revision: u64, after: &[u8], has_revision: bool) -> Bytes {
    let digits = if has_revision { revision.to_string() } else { String::new() };
    let mut text = Vec::with_capacity(before.len() + digits.len() + after.len());
    text.extend_from_slice(before);
    text.extend_from_slice(digits.as_bytes());
    text.extend_from_slice(after);
    text.into_boxed_slice().into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_revision_is_spliced_into_what_serde_would_have_written() {
        for value in [
            json!({"metadata": {"name": "a", "resourceVersion": "old", "uid": "u"}, "spec": {"x": [1, {"metadata": {}}]}}),
            json!({"metadata": {}}),
            json!({"a": {"metadata": {"name": "x"}}}),
            json!({"metadata": 5, "q\"": "\n"}),
            json!(null),
        ] {
            let key = Key { namespace: String::new(), name: "a".to_owned() };
            let object = Encoded::new(&value).finish(key, 99).at_revision(1234);
            let mut wanted = value.clone();
            if let Some(metadata) = wanted.get_mut("metadata").and_then(Value::as_object_mut) {
                metadata.insert("resourceVersion".to_owned(), json!("1234"));
            }
            assert_eq!(
                (String::from_utf8_lossy(&object.bytes).as_ref(), object.revision),
                (wanted.to_string().as_str(), 1234)
            );
        }
    }
}
