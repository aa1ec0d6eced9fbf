//! What of a value is replaced as a whole where it is merged.

use serde_json::Value;

use super::Type;
use crate::managed_fields::path::{Path, PathElement};

impl Type<'_> {
    /// The lists, maps and objects of a value that fits the type which are atomic: where it is merged, all that they had before is
    /// gone. Only declared fields are looked into. Upstream: `findAtomics`.
    #[must_use]
    pub fn atomics(self, value: &Value) -> Vec<Path> {
        let mut found = Vec::new();
        collect(self, value, &mut Vec::new(), &mut found);
        found
    }
}

fn collect(ty: Type<'_>, value: &Value, path: &mut Vec<PathElement>, found: &mut Vec<Path>) {
    let atom = ty.atom(value);
    match (value, &atom.map, &atom.list) {
        (Value::Object(fields), Some(map), _) => {
            if map.atomic {
                found.push(Path(path.clone()));
            }
            for (name, field) in fields {
                if let Some(declared) = map.field(name) {
                    path.push(PathElement::Field(name.clone()));
                    collect(declared, field, path, found);
                    path.pop();
                }
            }
        }
        (Value::Array(items), _, Some(list)) => {
            if list.is_atomic() {
                found.push(Path(path.clone()));
            }
            for (at, item) in items.iter().enumerate() {
                path.push(PathElement::Index(i64::try_from(at).unwrap_or(i64::MAX)));
                collect(list.item, item, path, found);
                path.pop();
            }
        }
        _ => {}
    }
}
