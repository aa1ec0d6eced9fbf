//! Rules of schemas (`x-kubernetes-validations`): what they say of a definition that has them, and of the objects that it
//! defines. Upstream: `apiextensions-apiserver/pkg/apiserver/schema/cel`.

mod checks;
mod compile;
mod context;
mod correlation;
mod evaluate;
mod findings;
#[cfg(test)]
mod tests;
mod total_cost;
mod types;
mod validator;

pub use self::{
    checks::RuleChecks,
    findings::{Findings, RuleBudget},
    validator::SchemaRules,
};

/// The variables of a rule.
const SELF: &str = "self";
const OLD_SELF: &str = "oldSelf";
