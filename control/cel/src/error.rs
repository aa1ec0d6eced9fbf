//! Why an expression cannot be used, and why it has no value.

use std::{fmt, sync::Arc};

/// Why an expression cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// What cel-go's parser, checker or validators say, each with the line that it is about: cel-go's `Issues.String`.
    #[error("{0}")]
    Invalid(String),
    /// The expression is of this type, and not of the wanted one.
    #[error("must evaluate to {wanted}, not {found}")]
    WrongType {
        /// The type that was asked for.
        wanted: crate::Type,
        /// The expression's type.
        found: crate::Type,
    },
    /// A part without variables has no value: what cel-go says when it makes a program of the expression.
    #[error("{0}")]
    Program(String),
}

/// Why an expression has no value. Errors are values of operands: `true || error` is true.
#[derive(Clone, PartialEq, Eq)]
pub struct EvalError {
    cancelled: bool,
    message: Arc<str>,
}

impl EvalError {
    /// An error with these words.
    #[must_use]
    pub fn new(message: impl Into<Arc<str>>) -> Self {
        Self { cancelled: false, message: message.into() }
    }

    /// The expression has used up its budget. No operator absorbs this error.
    pub(crate) fn cost_limit() -> Self {
        Self { cancelled: true, message: "operation cancelled: actual cost limit exceeded".into() }
    }

    /// The nesting of values is deeper than any that an API accepts. No operator absorbs this error.
    pub(crate) fn too_deep() -> Self {
        Self { cancelled: true, message: "operation cancelled: evaluation is nested too deeply".into() }
    }

    /// What upstream's cost tracker does not expect, which ends its evaluation. No operator absorbs this error.
    pub(crate) fn internal(message: &str) -> Self {
        Self { cancelled: true, message: format!("internal error: {message}").into() }
    }

    pub(crate) fn no_such_overload() -> Self {
        Self::new("no such overload")
    }

    pub(crate) fn no_such_key(key: impl fmt::Display) -> Self {
        Self::new(format!("no such key: {key}"))
    }

    /// cel-go's words, without what the error is about.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Whether evaluation was ended as a whole, which no operator absorbs: by its budget, by its depth, or by an error within a
    /// list that is sorted, which upstream does not expect.
    #[must_use]
    pub const fn is_cancelled(&self) -> bool {
        self.cancelled
    }
}

impl fmt::Display for EvalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for EvalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EvalError({:?})", self.message)
    }
}

impl std::error::Error for EvalError {}
