//! How the items of lists are named in paths.

use std::sync::Arc;

use serde_json::Value;

use super::atom::{ListAtom, Topology, Type};
use crate::managed_fields::path::PathElement;

impl ListAtom<'_> {
    /// The path element of an item of a set or list map. Keys that an item leaves out have their defaults; those without
    /// one are left out of the path element.
    ///
    /// # Errors
    /// Upstream's text, when the item can be no item of such a list.
    pub(super) fn element(&self, item: &Value) -> Result<PathElement, String> {
        match &self.topology {
            Topology::Map(keys) => self.keyed_element(keys, item),
            Topology::Set => match item {
                // Upstream has the same texts, and lists of lists are as unusual there.
                Value::Object(_) => Err("associative list without keys has an element that's a map type".to_owned()),
                Value::Array(_) => Err("not supported: associative list with lists as elements".to_owned()),
                Value::Null => Err("associative list without keys has an element that's an explicit null".to_owned()),
                scalar => Ok(PathElement::Value(scalar.clone())),
            },
            Topology::Atomic => Err("items of an atomic list have no path elements".to_owned()),
        }
    }

    fn keyed_element(&self, keys: &[Arc<str>], item: &Value) -> Result<PathElement, String> {
        let fields = match item {
            Value::Object(fields) => fields,
            Value::Null => return Err("associative list with keys may not have a null element".to_owned()),
            _ => return Err("associative list with keys may not have non-map elements".to_owned()),
        };
        let mut key = Vec::with_capacity(keys.len());
        for name in keys {
            if let Some(value) = fields.get(&**name).cloned().or_else(|| self.key_default(name)) {
                key.push((name.to_string(), value));
            }
        }
        if key.is_empty() {
            return Err(match keys {
                [only] => {
                    format!(
                        "associative list with keys has an element that omits key field {:?} (and doesn't have default value)",
                        &**only
                    )
                }
                several => {
                    let names: Vec<String> = several.iter().map(|name| format!("{:?}", &**name)).collect();
                    format!(
                        "associative list with keys has an element that omits all key fields {} (and doesn't have default values)",
                        names.join(", ")
                    )
                }
            });
        }
        Ok(PathElement::key(key))
    }

    fn key_default(&self, name: &str) -> Option<Value> {
        self.item.atom(&Value::Null).map?.field(name).and_then(Type::default_value)
    }
}
