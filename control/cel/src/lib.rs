//! The Common Expression Language as Kubernetes has it: rules of custom resources, match conditions, admission policies.
//!
//! An [`Environment`] says what an expression can name; compiling one gives a [`Program`], which is evaluated with the values
//! of variables and a [`Budget`]. What an expression costs is estimated when it is compiled and counted when it is evaluated,
//! both in upstream's units, which are part of the API. Texts of errors are cel-go's.
//!
//! Knows no kind. Pure: no I/O, no clock.

mod ast;
mod checker;
mod cost;
mod decl;
mod environment;
mod error;
mod eval;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod library;
mod message;
mod parser;
mod plan;
mod provider;
mod rules;
mod source;
mod stack;
#[cfg(test)]
mod tests;
mod types;
mod value;

pub use crate::{
    cost::{CostEstimate, SizeEstimate},
    decl::{DeclType, DeclTypes, ListKind, MAX_REQUEST_BYTES, Scalar, Shape, escape, unescape},
    environment::{Compiled, Environment},
    error::{CompileError, EvalError},
    eval::{Budget, OUT_OF_BUDGET, PER_CALL_LIMIT, RUNTIME_COST_BUDGET},
    message::shown_message,
    plan::Program,
    provider::{Activation, SizeEstimator, TypeProvider, UnknownSizes},
    rules::{Findings, RuleBudget, RuleChecks, SchemaRules},
    types::{Param, Type},
    value::{Authorizer, Decision, Fields, List, Map, Opaque, ResourceAttributes, Struct, Text, Timestamp, Value},
};
