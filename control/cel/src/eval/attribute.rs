//! Variables and what is selected from them: cel-go's `interpreter/attributes.go`.

use super::{Evaluator, is_cancelled};
use crate::{
    cost,
    error::EvalError,
    plan::{Attribute, Base, Qualifier, QualifierKey},
    value::{Key, List, Map, Outcome, Value, lossless_index},
};

/// What a qualifier leads to.
enum Found<'a> {
    Value(Value<'a>),
    /// A presence test was made.
    Test(bool),
    Absent,
}

impl<'x, 'a> Evaluator<'x, 'a> {
    /// The value of an attribute, which costs as much as a variable, unless it is a conditional or asks for presence.
    pub(super) fn attribute(&mut self, attribute: &'x Attribute) -> Outcome<'a> {
        let outcome = self.resolve(attribute);
        let is_conditional = matches!(attribute.base, Base::Conditional(_));
        if attribute.test_only {
            if is_conditional {
                // As upstream, which takes back what it has not charged.
                self.budget.refund(cost::SELECT);
            }
            return match outcome? {
                Value::Optional(value) => Ok(Value::Bool(value.is_some())),
                other => Ok(other),
            };
        }
        if is_conditional { outcome } else { self.charged(outcome, cost::SELECT) }
    }

    /// The value of an attribute, of which only the qualifiers are charged for.
    fn resolve(&mut self, attribute: &'x Attribute) -> Outcome<'a> {
        let value = match &attribute.base {
            Base::Variable(name) => match self.variables.get(name) {
                Some(value) => value?,
                None => return Err(EvalError::new(format!("no such attribute(s): {name}"))),
            },
            Base::Accumulator(fold) => self.accumulator(*fold)?,
            Base::Iteration { fold, second } => self.iteration(*fold, *second)?,
            Base::Step(node) => self.eval(node)?,
            Base::Conditional(parts) => {
                let (condition, truthy, falsy) = &**parts;
                let branch = match self.eval(condition)? {
                    Value::Bool(true) => truthy,
                    Value::Bool(false) => falsy,
                    _ => return Err(EvalError::no_such_overload()),
                };
                return self.nested_resolve(branch);
            }
        };
        self.qualify_all(value, &attribute.qualifiers)
    }

    fn nested_resolve(&mut self, attribute: &'x Attribute) -> Outcome<'a> {
        self.depth += 1;
        if self.depth > super::MAX_DEPTH {
            return Err(EvalError::too_deep());
        }
        let outcome = self.resolve(attribute);
        self.depth -= 1;
        outcome
    }

    fn qualify_all(&mut self, value: Value<'a>, qualifiers: &'x [Qualifier]) -> Outcome<'a> {
        let (mut value, mut is_optional) = match value {
            Value::Optional(Some(inner)) => (Value::clone(&inner).without_schema(), true),
            none @ Value::Optional(None) => return Ok(none),
            other => (other, false),
        };
        for qualifier in qualifiers {
            is_optional |= qualifier.optional;
            match self.qualify(&value, qualifier, is_optional)? {
                Found::Value(found) => value = found,
                Found::Test(present) => value = Value::Bool(present),
                Found::Absent => return Ok(Value::none()),
            }
        }
        Ok(if is_optional { Value::some(value) } else { value })
    }

    /// What a key, index or field of a value is. If it may be missing, only what is there is charged for.
    fn qualify(&mut self, value: &Value<'a>, qualifier: &'x Qualifier, may_miss: bool) -> Result<Found<'a>, EvalError> {
        let key = match &*qualifier.key {
            QualifierKey::Const(key) => Ok(key.clone()),
            QualifierKey::Attribute(attribute) => self
                .nested_resolve(attribute)
                .and_then(|key| if matches!(attribute.base, Base::Variable(_)) { not_native(key) } else { Ok(key) }),
            QualifierKey::Step(node) => self.eval(node),
        };
        if is_cancelled(&key) {
            return key.map(Found::Value);
        }
        let found = key.and_then(|key| {
            let key = as_key(key)?;
            let found = find(value, &key, may_miss || qualifier.test_only)?;
            Ok(match found {
                Some(found) if !may_miss && qualifier.test_only => {
                    drop(found);
                    Found::Test(true)
                }
                None if !may_miss && qualifier.test_only => Found::Test(false),
                Some(found) => Found::Value(found),
                None if may_miss => Found::Absent,
                None => return Err(missing(value, &key)),
            })
        });
        let is_charged = if may_miss { matches!(found, Ok(Found::Value(_))) } else { true };
        if is_charged {
            self.charge(1)?;
        }
        found
    }
}

/// Refuses what upstream has not made a value of CEL of, in words about Go's types.
fn not_native(key: Value<'_>) -> Outcome<'_> {
    let of = match key {
        Value::List(List::Json(_)) => "[]interface {}",
        Value::Map(Map::Json(_)) => "map[string]interface {}",
        Value::Null => "<nil>",
        other => return Ok(other),
    };
    Err(EvalError::new(format!("invalid qualifier type: {of}")))
}

/// Scalars select; of an optional what it holds does not.
pub(crate) fn as_key(key: Value<'_>) -> Result<Value<'_>, EvalError> {
    match Key::of(&key) {
        Some(Key::Null) | None => {
            Err(EvalError::new(format!("invalid qualifier type: {}", super::fold::go_type(&key))))
        }
        Some(_) => Ok(key),
    }
}

fn missing(value: &Value<'_>, key: &Value<'_>) -> EvalError {
    match value {
        Value::List(_) => EvalError::new(format!("index out of bounds: {}", key.go_print())),
        _ => EvalError::no_such_key(key.go_print()),
    }
}

/// What a key of a value is, or nothing. What has no keys has none of a test, and else it is an error.
fn find<'a>(value: &Value<'a>, key: &Value<'a>, is_test: bool) -> Result<Option<Value<'a>>, EvalError> {
    match value {
        Value::Map(map) => find_entry(map, key),
        Value::List(list) => find_element(list, key),
        Value::Struct(object) => match key {
            Value::String(name) => {
                let field = object.fields.iter().find(|(known, _)| **known == **name);
                // A field that was not given is null.
                Ok(field.map(|(_, value)| value.clone()).or((!is_test).then_some(Value::Null)))
            }
            _ => Ok(None),
        },
        Value::Lazy(fields) => match key {
            Value::String(name) => fields.field(name).transpose(),
            _ => Ok(None),
        },
        _ => Ok(None),
    }
}

fn find_entry<'a>(map: &Map<'a>, key: &Value<'a>) -> Result<Option<Value<'a>>, EvalError> {
    map.find(key).transpose()
}

fn find_element<'a>(list: &List<'a>, key: &Value<'a>) -> Result<Option<Value<'a>>, EvalError> {
    let index = match key {
        Value::Int(index) => Some(*index),
        Value::Double(_) | Value::Uint(_) => {
            let index = lossless_index(key);
            if index.is_none() {
                let shown = key.go_print();
                return Err(EvalError::new(format!("unsupported index value {shown} in list")));
            }
            index
        }
        other => {
            let name = other.type_of();
            return Err(EvalError::new(format!("unsupported index type '{}' in list", name.name())));
        }
    };
    let Some(found) = index.and_then(|index| usize::try_from(index).ok()).and_then(|index| list.get(index)) else {
        return Ok(None);
    };
    // Lists of a schema take ints alone.
    if matches!(list, List::Typed(_)) && !matches!(key, Value::Int(_)) {
        return Err(EvalError::new(format!("unsupported index: {}", key.go_print())));
    }
    found.map(Some)
}
