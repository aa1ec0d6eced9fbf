//! Whether a value fits its type.

use serde_json::Value;

use super::{
    MAX_DEPTH, TypeError, TypeErrors,
    atom::{ListAtom, MapAtom, Scalar, Topology, Type},
};
use crate::{
    go_type,
    managed_fields::path::{Path, PathElement},
};

/// What is accepted in lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Duplicates {
    /// Items with equal keys are errors: for what a client applies.
    Refused,
    /// For stored objects, which may be older than the list's keys.
    Allowed,
}

impl Type<'_> {
    /// Checks that a value fits its type: kinds of values, declared fields, keys of list items.
    ///
    /// # Errors
    /// All that does not fit, in upstream's words.
    pub fn check(self, value: &Value, duplicates: Duplicates) -> Result<(), TypeErrors> {
        self.checked(value, duplicates, true)
    }

    /// Checks that a value which an expression has made fits its type. Null, which clients may write for what is not there, is a
    /// value of no type there.
    ///
    /// # Errors
    /// All that does not fit, in upstream's words.
    pub fn check_computed(self, value: &Value) -> Result<(), TypeErrors> {
        self.checked(value, Duplicates::Refused, false)
    }

    fn checked(self, value: &Value, duplicates: Duplicates, takes_null: bool) -> Result<(), TypeErrors> {
        let mut walk = Walk { duplicates, takes_null, path: Vec::new(), errors: Vec::new() };
        walk.value(self, value);
        if walk.errors.is_empty() { Ok(()) } else { Err(TypeErrors(walk.errors)) }
    }
}

struct Walk {
    duplicates: Duplicates,
    takes_null: bool,
    path: Vec<PathElement>,
    errors: Vec<TypeError>,
}

impl Walk {
    fn error(&mut self, message: String) {
        self.errors.push(TypeError { path: Path(self.path.clone()), message });
    }

    fn inside(&mut self, element: PathElement, ty: Type<'_>, value: &Value) {
        self.path.push(element);
        self.value(ty, value);
        self.path.pop();
    }

    fn value(&mut self, ty: Type<'_>, value: &Value) {
        if self.path.len() > MAX_DEPTH {
            return self.error(format!("nested deeper than {MAX_DEPTH} levels"));
        }
        let atom = ty.atom(value);
        if let Some(map) = &atom.map {
            self.map(map, value);
        } else if let Some(scalar) = atom.scalar {
            self.scalar(scalar, value);
        } else if let Some(list) = &atom.list {
            self.list(list, value);
        }
    }

    fn scalar(&mut self, scalar: Scalar, value: &Value) {
        let expected = match (scalar, value) {
            (_, Value::Null) if self.takes_null => return,
            (Scalar::Number, Value::Number(_))
            | (Scalar::Text, Value::String(_))
            | (Scalar::Bool, Value::Bool(_))
            | (Scalar::Any, Value::Number(_) | Value::String(_) | Value::Bool(_)) => return,
            (Scalar::Number, _) => "numeric (int or float)",
            (Scalar::Text, _) => "string",
            (Scalar::Bool, _) => "boolean",
            (Scalar::Any, _) => "any scalar",
        };
        let got = match scalar {
            Scalar::Number if value.is_null() => "structpb.NullValue".to_owned(),
            Scalar::Text if value.is_null() => "&value.valueUnstructured{Value:0}".to_owned(),
            Scalar::Bool | Scalar::Any if value.is_null() => NULL.to_owned(),
            Scalar::Number => go_type(value).to_owned(),
            Scalar::Text => format!("&value.valueUnstructured{{Value:{}}}", go_syntax(value)),
            Scalar::Bool | Scalar::Any => format!("&{{{}}}", go_print(value)),
        };
        self.error(format!("expected {expected}, got {got}"));
    }

    fn map(&mut self, map: &MapAtom<'_>, value: &Value) {
        let fields = match value {
            Value::Object(fields) => fields,
            Value::Null if self.takes_null => return,
            Value::Null => return self.error(format!("expected map, got {NULL}")),
            other => return self.error(format!("expected map, got &{{{}}}", go_print(other))),
        };
        for (name, field) in fields {
            match map.entry(name) {
                Some(ty) => self.inside(PathElement::Field(name.clone()), ty, field),
                None => {
                    self.path.push(PathElement::Field(name.clone()));
                    self.error("field not declared in schema".to_owned());
                    self.path.pop();
                    // Upstream reports the first unknown field of a map.
                    return;
                }
            }
        }
    }

    fn list(&mut self, list: &ListAtom<'_>, value: &Value) {
        let items = match value {
            Value::Array(items) => items,
            Value::Null if self.takes_null => return,
            Value::Null => return self.error(format!("expected list, got {NULL}")),
            other => return self.error(format!("expected list, got &{{{}}}", go_print(other))),
        };
        let mut seen = Vec::new();
        for (at, item) in items.iter().enumerate() {
            let element = match list.topology {
                Topology::Atomic => PathElement::Index(i64::try_from(at).unwrap_or(i64::MAX)),
                _ => match list.element(item) {
                    Err(why) => return self.error(format!("element {at}: {why}")),
                    Ok(element) => {
                        match seen.binary_search(&element) {
                            Ok(_) if self.duplicates == Duplicates::Refused => {
                                self.error(format!("duplicate entries for key {element}"));
                            }
                            Ok(_) => {}
                            Err(at) => seen.insert(at, element.clone()),
                        }
                        element
                    }
                },
            };
            self.inside(element, list.item, item);
        }
    }
}

/// Null as Go prints what an expression makes of it.
const NULL: &str = "&{NULL_VALUE}";

/// A value in Go's syntax: `%#v`.
fn go_syntax(value: &Value) -> String {
    match value {
        Value::Null => "interface {}(nil)".to_owned(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => value.to_string(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(go_syntax).collect();
            format!("{}{{{}}}", go_type(value), items.join(", "))
        }
        Value::Object(fields) => {
            let fields: Vec<String> = fields.iter().map(|(name, v)| format!("{name:?}:{}", go_syntax(v))).collect();
            format!("{}{{{}}}", go_type(value), fields.join(", "))
        }
    }
}

/// A value as Go prints it: `%v`.
fn go_print(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) => text.clone(),
        Value::Array(items) => format!("[{}]", items.iter().map(go_print).collect::<Vec<_>>().join(" ")),
        Value::Object(fields) => {
            let fields: Vec<String> = fields.iter().map(|(name, v)| format!("{name}:{}", go_print(v))).collect();
            format!("map[{}]", fields.join(" "))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::schema::{Schema, structural};

    #[test]
    fn null_fits_what_a_client_writes_and_nothing_that_is_computed() {
        let schema = json!({"type": "object", "properties": {
            "map": {"type": "object", "additionalProperties": {"type": "string"}},
            "list": {"type": "array", "items": {"type": "string"}},
            "text": {"type": "string"}, "number": {"type": "integer"}, "bool": {"type": "boolean"},
        }});
        let any = Arc::new(Schema::any());
        let schema = structural::read(&schema, &any);
        let ty = Type::new(&schema, &any);
        for (field, wanted) in [
            ("map", ".map: expected map, got &{NULL_VALUE}"),
            ("list", ".list: expected list, got &{NULL_VALUE}"),
            ("text", ".text: expected string, got &value.valueUnstructured{Value:0}"),
            ("number", ".number: expected numeric (int or float), got structpb.NullValue"),
            ("bool", ".bool: expected boolean, got &{NULL_VALUE}"),
        ] {
            let value = json!({field: null});
            assert!(ty.check(&value, Duplicates::Refused).is_ok());
            assert_eq!(ty.check_computed(&value).unwrap_err().to_string(), wanted);
        }
        assert!(
            ty.check_computed(&json!({"map": {"a": "b"}, "list": ["a"], "text": "a", "number": 1, "bool": true}))
                .is_ok()
        );
    }
}
