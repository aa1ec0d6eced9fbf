//! Conditions of webhooks and policies: whether one is for a request.
//!
//! Upstream: `k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions`.

use serde_json::Value;
use windlass_cel::{OUT_OF_BUDGET, Value as CelValue};

use super::{
    activation::{Expression, Inputs, Scope},
    compile_condition,
    compiler::{Compiler, Composition, Wanted},
};
use crate::apiserver::aggregate;

/// What all conditions of one webhook or policy may cost; upstream's `RuntimeCELCostBudgetMatchConditions`.
const BUDGET: u64 = 2_500_000;

/// The conditions of a webhook or policy, in their order.
#[derive(Debug, Default)]
pub(crate) struct Conditions(Vec<Expression>);

/// Whether conditions hold.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Matches {
    Yes,
    No,
    /// None is false, and some have no value.
    Unknown(String),
}

impl Conditions {
    /// The `matchConditions` of a webhook.
    pub(crate) fn read(conditions: &[Value]) -> Self {
        let of = |text: &str| Expression::new(text, compile_condition(text, false));
        Self(conditions.iter().map(|condition| of(condition["expression"].as_str().unwrap_or(""))).collect())
    }

    /// The `matchConditions` of a policy, which can name its variables.
    pub(crate) fn of_policy(compiler: &Compiler, conditions: &Value) -> Self {
        let conditions = conditions.as_array().into_iter().flatten();
        let of = |condition: &Value| compiler.expression(condition["expression"].as_str().unwrap_or(""), Wanted::Bool);
        Self(conditions.map(of).collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether all hold: one that is false decides, whatever is wrong with others, unless all cost too much. As upstream's, they
    /// see no namespace, and the resource that the client has named, whatever rule is for it.
    pub(crate) fn matches(&self, inputs: &Inputs<'_>, composition: Option<&Composition>) -> Matches {
        let mut request = inputs.request.clone();
        if let Some(named) = inputs.request.get("requestResource") {
            request["resource"] = named.clone();
        }
        let resource = inputs.resource.clone();
        let inputs = Inputs { request: &request, namespace: &Value::Null, resource, ..*inputs };
        let scope = Scope::new(&inputs, composition);
        let (mut left, mut errors, mut is_false) = (BUDGET, Vec::new(), false);
        for condition in &self.0 {
            match condition.evaluate(scope.enter(), &mut left) {
                None => return Matches::Unknown(OUT_OF_BUDGET.to_owned()),
                Some(Ok(CelValue::Bool(value))) => is_false |= !value,
                // A condition is compiled as one that is true or false.
                Some(Ok(other)) => errors.push(format!("expression '{}' resulted in {other}", condition.text())),
                Some(Err(error)) => errors.push(error),
            }
        }
        if is_false {
            return Matches::No;
        }
        aggregate(errors).map_or(Matches::Yes, Matches::Unknown)
    }
}
