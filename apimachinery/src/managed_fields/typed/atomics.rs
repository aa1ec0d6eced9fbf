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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::schema::{Schema, structural};

    #[test]
    fn what_is_replaced_as_a_whole_is_found_where_it_is_declared() {
        let text = json!({"type": "string"});
        let named = json!({"type": "object", "properties": {
            "name": text, "args": {"type": "array", "items": text},
        }});
        let schema = json!({"type": "object", "properties": {
            "plain": text,
            "labels": {"type": "object", "additionalProperties": {"type": "array", "items": text}},
            "selector": {"type": "object", "x-kubernetes-map-type": "atomic", "properties": {"a": text}},
            "set": {"type": "array", "x-kubernetes-list-type": "set", "items": text},
            "items": {
                "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": named,
            },
        }});
        let any = Arc::new(Schema::any());
        let schema = structural::read(&schema, &any);
        for (value, wanted) in [
            (json!({"plain": "a", "set": ["a"]}), &[][..]),
            (json!({"selector": {"a": "b"}}), &[".selector"]),
            (json!({"items": [{"name": "a"}, {"name": "b", "args": ["c"]}]}), &[".items[1].args"]),
            // Entries of maps are not declared one by one.
            (json!({"labels": {"a": ["b"]}}), &[]),
            (json!({"selector": null, "items": null}), &[]),
        ] {
            let found: Vec<String> = Type::new(&schema, &any).atomics(&value).iter().map(ToString::to_string).collect();
            assert_eq!(found, wanted, "{value}");
        }
    }
}
