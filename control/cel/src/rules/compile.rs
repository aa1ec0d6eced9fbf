//! Compiles rules; upstream's `compilation.go`.

use serde_json::Value as Json;
use windlass_apimachinery::schema::{ValidationRule, structural::field_path};

use super::{OLD_SELF, SELF, types::TypeInfo};
use crate::{
    environment::{Compiled, Environment},
    error::CompileError,
    plan::Program,
    types::Type,
};

/// A rule with what compiling it has given; upstream's `CompilationResult`.
#[derive(Debug, Default)]
pub(super) struct CompiledRule {
    /// Nothing if the rule is blank, or does not compile.
    pub(super) program: Option<Program>,
    pub(super) error: Option<String>,
    /// Whether it compares with the old value.
    pub(super) uses_old_self: bool,
    /// The most that one evaluation costs.
    pub(super) cost: u64,
    /// How often the value can be in an object, if no limit says.
    pub(super) cardinality: u64,
    pub(super) message: Option<Program>,
    pub(super) message_error: Option<String>,
    pub(super) message_cost: u64,
    /// The field that errors are about, below that of the rule.
    pub(super) field_path: Option<Box<str>>,
}

/// What the rules of a node are compiled with.
pub(super) struct Scope<'a> {
    info: &'a TypeInfo,
    schema: &'a Json,
    /// The same, but for the type of the old value.
    plain: Environment,
    optional: Environment,
}

impl<'a> Scope<'a> {
    pub(super) fn new(info: &'a TypeInfo, schema: &'a Json) -> Self {
        let own = info.declared.cel_type();
        let with_self = Environment::base().with_types(info.types.clone()).with_variable(SELF, own.clone());
        Self {
            info,
            schema,
            optional: with_self.clone().with_variable(OLD_SELF, Type::optional(own.clone())),
            plain: with_self.with_variable(OLD_SELF, own.clone()),
        }
    }

    /// Compiles a rule of the node.
    pub(super) fn compile(&self, rule: &ValidationRule) -> CompiledRule {
        let mut out = CompiledRule::default();
        if rule.rule.trim().is_empty() {
            return out;
        }
        let environment = if rule.optional_old_self == Some(true) { &self.optional } else { &self.plain };
        let compiled = match compile(environment, &rule.rule, &Type::Bool, "") {
            Ok(compiled) => compiled,
            Err(error) => {
                let of_type = "cel expression must evaluate to a bool";
                out.error = Some(error.unwrap_or_else(|| of_type.to_owned()));
                return out;
            }
        };
        out.uses_old_self = compiled.uses(OLD_SELF);
        out.cost = compiled.estimate(&*self.info.declared).max;
        out.cardinality = self.info.declared.max_cardinality();
        out.program = Some(compiled.into_program());
        if let Some(expression) = &rule.message_expression {
            match compile(environment, expression, &Type::String, "messageExpression ") {
                Ok(compiled) => {
                    out.message_cost = compiled.estimate(&*self.info.declared).max;
                    out.message = Some(compiled.into_program());
                }
                Err(error) => {
                    let of_type = "messageExpression must evaluate to a string";
                    out.message_error = Some(error.unwrap_or_else(|| of_type.to_owned()));
                    return out;
                }
            }
        }
        let path = rule.field_path.as_deref().and_then(|path| field_path(path, self.schema, true).ok());
        out.field_path = path.map(|path| path.text.into());
        out
    }
}

/// Compiles an expression; the error is absent if it is its type that is wrong.
fn compile(environment: &Environment, expression: &str, wanted: &Type, what: &str) -> Result<Compiled, Option<String>> {
    environment.compile(expression, std::slice::from_ref(wanted)).map_err(|error| match error {
        CompileError::Invalid(why) => Some(format!("{what}compilation failed: {why}")),
        CompileError::WrongType { .. } => None,
        CompileError::Program(why) if what.is_empty() => Some(format!("program instantiation failed: {why}")),
        CompileError::Program(why) => Some(format!("{what}instantiation failed: {why}")),
    })
}
