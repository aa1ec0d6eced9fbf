//! What an embedder says of its variables: their types, their sizes and their values.

use crate::{cost::SizeEstimate, error::EvalError, types::Type, value::Value};

/// Types with fields, by their names; cel-go's `types.Provider`.
pub trait TypeProvider: std::fmt::Debug + Send + Sync {
    /// A type that has fields, or can be made of fields.
    fn find_type(&self, name: &str) -> Option<Type>;

    /// The type of a field. A type may have a field of any name.
    fn find_field(&self, type_name: &str, field: &str) -> Option<Type>;
}

/// Sizes of variables and of what they hold; the part of cel-go's `CostEstimator` that knows schemas.
pub trait SizeEstimator {
    /// How large the value is that a path leads to: the variable, then names of fields, `@items`, `@keys` and `@values`.
    /// Nothing if that is not known.
    fn estimate(&self, path: &[&str]) -> Option<SizeEstimate>;
}

/// Sizes of which nothing is known.
#[derive(Debug, Clone, Copy, Default)]
pub struct UnknownSizes;

impl SizeEstimator for UnknownSizes {
    fn estimate(&self, _: &[&str]) -> Option<SizeEstimate> {
        None
    }
}

/// The values of variables; cel-go's `Activation`.
pub trait Activation {
    /// The value of a variable; nothing if it has none.
    fn variable(&self, name: &str) -> Option<Result<Value<'_>, EvalError>>;
}

/// Names and values.
impl Activation for [(&str, Value<'_>)] {
    fn variable(&self, name: &str) -> Option<Result<Value<'_>, EvalError>> {
        self.iter().find(|(known, _)| *known == name).map(|(_, value)| Ok(value.clone()))
    }
}

/// Names and values.
impl<const N: usize> Activation for [(&str, Value<'_>); N] {
    fn variable(&self, name: &str) -> Option<Result<Value<'_>, EvalError>> {
        self[..].variable(name)
    }
}
