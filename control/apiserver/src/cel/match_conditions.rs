//! Conditions of webhooks and policies: whether one is for a request.
//!
//! Upstream: `k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions`.

use serde_json::Value;
use windlass_cel::{
    Activation, Authorizer, Budget, EvalError, Opaque, PER_CALL_LIMIT, Program, ResourceAttributes, Value as CelValue,
};

use super::compile_condition;
use crate::apiserver::aggregate;

/// What all conditions of one webhook may cost; upstream's `RuntimeCELCostBudgetMatchConditions`.
const BUDGET: u64 = 2_500_000;

/// A condition, as it is evaluated.
#[derive(Debug)]
struct Condition {
    expression: String,
    /// Or why it cannot be evaluated: one that was stored before it was refused.
    program: Result<Program, String>,
}

/// The conditions of a webhook, in their order.
#[derive(Debug, Default)]
pub(crate) struct Conditions(Vec<Condition>);

/// Whether conditions hold.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Matches {
    Yes,
    No,
    /// None is false, and some have no value.
    Unknown(String),
}

/// The values of variables.
#[derive(Debug)]
pub(crate) struct Variables<'a> {
    pub(crate) object: &'a Value,
    pub(crate) old: &'a Value,
    /// The review's request without uid and objects.
    pub(crate) request: &'a Value,
    pub(crate) authorizer: &'a dyn Authorizer,
    /// What the request itself asks for.
    pub(crate) resource: ResourceAttributes,
}

impl Activation for Variables<'_> {
    fn variable(&self, name: &str) -> Option<Result<CelValue<'_>, EvalError>> {
        Some(Ok(match name {
            "object" => CelValue::from_json(self.object),
            "oldObject" => CelValue::from_json(self.old),
            "request" => CelValue::from_json(self.request),
            "namespaceObject" => CelValue::from_json(&Value::Null),
            "authorizer" => CelValue::Opaque(Opaque::authorizer(self.authorizer)),
            "authorizer.requestResource" => {
                CelValue::Opaque(Opaque::request_resource(self.authorizer, self.resource.clone()))
            }
            _ => return None,
        }))
    }
}

impl Conditions {
    /// The `matchConditions` of a webhook.
    pub(crate) fn read(conditions: &[Value]) -> Self {
        let expressions = conditions.iter().map(|condition| condition["expression"].as_str().unwrap_or("").to_owned());
        Self(
            expressions
                .map(|expression| Condition { program: compile_condition(&expression, false), expression })
                .collect(),
        )
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether all hold: one that is false decides, whatever is wrong with others.
    pub(crate) fn matches(&self, variables: &Variables<'_>) -> Matches {
        let (mut left, mut errors) = (BUDGET, Vec::new());
        for Condition { expression, program } in &self.0 {
            let program = match program {
                Ok(program) => program,
                Err(why) => {
                    errors.push(format!("compilation error: {why}"));
                    continue;
                }
            };
            let mut budget = Budget::new(PER_CALL_LIMIT);
            let value = program.evaluate(variables, &mut budget);
            let Some(rest) = left.checked_sub(budget.spent()) else {
                let why =
                    "validation failed due to running out of cost budget, no further validation rules will be run";
                return Matches::Unknown(why.to_owned());
            };
            left = rest;
            match value {
                Ok(CelValue::Bool(true)) => {}
                Ok(CelValue::Bool(false)) => return Matches::No,
                // A condition is compiled as one that is true or false.
                Ok(other) => errors.push(format!("expression '{expression}' resulted in {other}")),
                Err(error) => errors.push(format!("expression '{expression}' resulted in error: {error}")),
            }
        }
        aggregate(errors).map_or(Matches::Yes, Matches::Unknown)
    }
}
