//! What a policy says of one request: its validations and the annotations of the audit log. Pure.
//!
//! Upstream: `policy/validating/validator.go`.

use std::time::{Duration, Instant};

use serde_json::Value;
use windlass_cel::{OUT_OF_BUDGET, RUNTIME_COST_BUDGET, Value as CelValue, shown_message};

use crate::{
    cel::{Compiler, Composition, Conditions, Expression, Inputs, Matches, Scope, Wanted},
    plugin::admission::policy::configuration::{Evaluator, ignores_failures},
};

/// A validation.
#[derive(Debug)]
struct Validation {
    expression: Expression,
    message: String,
    message_expression: Option<Expression>,
    reason: String,
}

/// A policy, as it is evaluated.
#[derive(Debug)]
pub(in crate::plugin::admission::policy) struct Validator {
    composition: Composition,
    conditions: Conditions,
    validations: Vec<Validation>,
    /// Annotations of the audit log, by their keys.
    annotations: Vec<(String, Expression)>,
    ignores_failures: bool,
}

/// How a validation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Evaluation {
    Admitted,
    Denied,
    /// It has no value.
    Failed,
}

/// What a validation says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Decision {
    pub(super) evaluation: Evaluation,
    /// Whether the request violates the policy.
    pub(super) is_violation: bool,
    pub(super) message: String,
    /// The reason of the response; empty for the usual one.
    pub(super) reason: String,
    pub(super) took: Duration,
}

/// An annotation of the audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Annotation {
    Publish {
        key: String,
        value: String,
    },
    /// It has no value, which refuses the request.
    Failed {
        why: String,
        took: Duration,
    },
}

/// What a policy says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) decisions: Vec<Decision>,
    pub(super) annotations: Vec<Annotation>,
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or("")
}

impl Evaluator for Validator {
    const POLICIES: &'static str = "validatingadmissionpolicies.admissionregistration.k8s.io";
    const BINDINGS: &'static str = "validatingadmissionpolicybindings.admissionregistration.k8s.io";

    fn compile(spec: &Value) -> Self {
        let items = |field: &str| spec[field].as_array().into_iter().flatten();
        let mut compiler = Compiler::new(!spec["paramKind"].is_null(), true);
        compiler.add_variables(&spec["variables"]);
        let validation = |one: &Value| {
            let message = text(one, "messageExpression");
            Validation {
                expression: compiler.expression(text(one, "expression"), Wanted::Bool),
                message: text(one, "message").to_owned(),
                message_expression: (!message.is_empty()).then(|| compiler.expression(message, Wanted::Message)),
                reason: text(one, "reason").to_owned(),
            }
        };
        let annotation = |one: &Value| {
            let value = compiler.expression(text(one, "valueExpression"), Wanted::Annotation);
            (text(one, "key").to_owned(), value)
        };
        Self {
            conditions: Conditions::of_policy(&compiler, &spec["matchConditions"]),
            validations: items("validations").map(validation).collect(),
            annotations: items("auditAnnotations").map(annotation).collect(),
            ignores_failures: ignores_failures(spec),
            composition: compiler.into_composition(),
        }
    }
}

impl Validator {
    /// What the policy says of a request.
    pub(super) fn validate(&self, inputs: &Inputs<'_>) -> Verdict {
        if !self.conditions.is_empty() {
            match self.conditions.matches(inputs, Some(&self.composition)) {
                Matches::Yes => {}
                // Failures are ignored as if the conditions were false.
                Matches::Unknown(_) if self.ignores_failures => return Verdict::default(),
                Matches::No => return Verdict::default(),
                Matches::Unknown(why) => return self.failed(&why),
            }
        }
        let mut left = RUNTIME_COST_BUDGET;
        let Some(results) = self.results(inputs, &mut left) else { return self.failed(OUT_OF_BUDGET) };
        let messages = self.messages(inputs, &mut left);
        let decisions = results.into_iter().zip(&self.validations).enumerate();
        let decisions = decisions.map(|(at, ((result, took), validation))| {
            let message = messages.as_ref().map(|messages| messages.get(at).and_then(Option::as_deref));
            Decision { took, ..self.decision(validation, result, message) }
        });
        let decisions = decisions.collect();
        match self.annotations(inputs) {
            Some(annotations) => Verdict { decisions, annotations },
            None => self.failed(OUT_OF_BUDGET),
        }
    }

    /// Whether each validation holds, or why nobody knows, and how long that took; nothing if all cost too much.
    fn results(&self, inputs: &Inputs<'_>, left: &mut u64) -> Option<Vec<(Result<bool, String>, Duration)>> {
        let scope = Scope::new(inputs, Some(&self.composition));
        let evaluate = |validation: &Validation| {
            let started = Instant::now();
            let value = validation.expression.evaluate(scope.enter(), left)?;
            Some((value.map(|value| matches!(value, CelValue::Bool(true))), started.elapsed()))
        };
        self.validations.iter().map(evaluate).collect()
    }

    /// The messages that expressions make; nothing if all cost too much. Where one has no value, the policy's plain message stands
    /// in its place.
    fn messages(&self, inputs: &Inputs<'_>, left: &mut u64) -> Option<Vec<Option<String>>> {
        let without_authorizer = Inputs { authorizer: None, resource: inputs.resource.clone(), ..*inputs };
        let scope = Scope::new(&without_authorizer, Some(&self.composition));
        let evaluate = |validation: &Validation| {
            let Some(expression) = &validation.message_expression else { return Some(None) };
            Some(match expression.evaluate(scope.enter(), left)? {
                Ok(CelValue::String(text)) => shown_message(&text).map(str::to_owned),
                _ => None,
            })
        };
        self.validations.iter().map(evaluate).collect()
    }

    /// What a validation says. `message` is what its expression makes of it; nothing if messages cost too much.
    fn decision(
        &self,
        validation: &Validation,
        result: Result<bool, String>,
        message: Option<Option<&str>>,
    ) -> Decision {
        let failed = |message: String| Decision {
            evaluation: Evaluation::Failed,
            is_violation: !self.ignores_failures,
            message,
            reason: String::new(),
            took: Duration::ZERO,
        };
        match (result, message) {
            (Err(why), _) => failed(why),
            (Ok(_), None) => failed(format!("failed messageExpression: {OUT_OF_BUDGET}")),
            (Ok(true), _) => Decision {
                evaluation: Evaluation::Admitted,
                is_violation: false,
                message: String::new(),
                reason: String::new(),
                took: Duration::ZERO,
            },
            (Ok(false), Some(message)) => {
                let written = Some(validation.message.trim()).filter(|message| !message.is_empty());
                let usual = || format!("failed expression: {}", validation.expression.text().trim());
                Decision {
                    evaluation: Evaluation::Denied,
                    is_violation: true,
                    message: message.or(written).map_or_else(usual, str::to_owned),
                    reason: if validation.reason.is_empty() { "Invalid".to_owned() } else { validation.reason.clone() },
                    took: Duration::ZERO,
                }
            }
        }
    }

    /// The annotations of the audit log; nothing if all cost too much.
    fn annotations(&self, inputs: &Inputs<'_>) -> Option<Vec<Annotation>> {
        let without_authorizer = Inputs { authorizer: None, resource: inputs.resource.clone(), ..*inputs };
        let scope = Scope::new(&without_authorizer, Some(&self.composition));
        let mut left = RUNTIME_COST_BUDGET;
        let mut annotations = Vec::new();
        for (key, expression) in &self.annotations {
            let started = Instant::now();
            match expression.evaluate(scope.enter(), &mut left)? {
                Ok(CelValue::String(text)) if !text.trim().is_empty() => {
                    annotations.push(Annotation::Publish { key: key.clone(), value: text.trim().to_owned() });
                }
                Err(why) if !self.ignores_failures => {
                    annotations.push(Annotation::Failed { why, took: started.elapsed() });
                }
                // An expression of another type does not compile.
                Ok(_) | Err(_) => {}
            }
        }
        Some(annotations)
    }

    fn failed(&self, why: &str) -> Verdict {
        let decision = Decision {
            evaluation: Evaluation::Failed,
            is_violation: !self.ignores_failures,
            message: why.to_owned(),
            reason: String::new(),
            took: Duration::ZERO,
        };
        Verdict { decisions: vec![decision], annotations: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use windlass_cel::ResourceAttributes;

    use super::*;

    /// What a policy says of the object `{"a": 1, "text": "…"}`.
    fn verdict(spec: &Value) -> Verdict {
        let object = json!({"a": 1, "text": "long ".repeat(2000)});
        let validator = Validator::compile(spec);
        let mut verdict = validator.validate(&Inputs {
            object: &object,
            old: &Value::Null,
            request: &Value::Null,
            namespace: &Value::Null,
            params: &Value::Null,
            authorizer: None,
            resource: ResourceAttributes::default(),
            effort: None,
        });
        verdict.decisions.iter_mut().for_each(|decision| decision.took = Duration::ZERO);
        for annotation in &mut verdict.annotations {
            if let Annotation::Failed { took, .. } = annotation {
                *took = Duration::ZERO;
            }
        }
        verdict
    }

    /// Whether each decision is a violation, with its message and reason.
    fn decisions(spec: &Value) -> Vec<(Evaluation, bool, String, String)> {
        let of = |one: Decision| (one.evaluation, one.is_violation, one.message, one.reason);
        verdict(spec).decisions.into_iter().map(of).collect()
    }

    const FAILS: &str = "object.b == 1";
    const WHY: &str = "expression 'object.b == 1' resulted in error: no such key: b";

    /// Upstream's `TestValidate`.
    #[test]
    fn a_validation_that_is_not_true_is_a_violation() {
        use Evaluation::{Admitted, Denied, Failed};
        let one = |expression: &str| json!({"expression": expression});
        let validations = json!([one("true"), one(" false "), one(FAILS)]);
        let wanted = |is_violation: bool| {
            vec![
                (Admitted, false, String::new(), String::new()),
                (Denied, true, "failed expression: false".to_owned(), "Invalid".to_owned()),
                (Failed, is_violation, WHY.to_owned(), String::new()),
            ]
        };
        assert_eq!(decisions(&json!({"validations": validations})), wanted(true));
        assert_eq!(decisions(&json!({"validations": validations, "failurePolicy": "Fail"})), wanted(true));
        assert_eq!(decisions(&json!({"validations": validations, "failurePolicy": "Ignore"})), wanted(false));
        let broken = decisions(&json!({"validations": [one("1 +")]}));
        assert!(broken[0].2.starts_with("compilation error: compilation failed: ERROR: <input>:1:4"), "{broken:?}");
    }

    #[test]
    fn a_violation_has_the_message_and_reason_that_the_policy_gives() {
        for (more, message, reason) in [
            (json!({"reason": "Forbidden"}), "failed expression: false", "Forbidden"),
            (json!({"message": " test1 "}), "test1", "Invalid"),
            (json!({"message": "test1", "messageExpression": "'mine: ' + string(object.a)"}), "mine: 1", "Invalid"),
            (json!({"message": "test1", "messageExpression": "string(object.b)"}), "test1", "Invalid"),
            (json!({"message": "test1", "messageExpression": "'  '"}), "test1", "Invalid"),
            (json!({"message": "test1", "messageExpression": "'hello\\nthere'"}), "test1", "Invalid"),
            (json!({"message": "test1", "messageExpression": "string(object.text)"}), "test1", "Invalid"),
            (json!({"messageExpression": "string(object.b)"}), "failed expression: false", "Invalid"),
        ] {
            let mut validation = json!({"expression": "false"});
            json_patch::merge(&mut validation, &more);
            let found = decisions(&json!({"validations": [validation]}));
            assert_eq!((found[0].2.as_str(), found[0].3.as_str()), (message, reason), "{more}");
        }
    }

    #[test]
    fn conditions_decide_whether_anything_is_said() {
        let of = |condition: &str, failure: &str| {
            decisions(&json!({
                "failurePolicy": failure,
                "matchConditions": [{"name": "c", "expression": condition}],
                "validations": [{"expression": "false"}],
            }))
        };
        assert_eq!(of("object.a == 2", "Fail"), []);
        assert_eq!(of("object.a == 1", "Fail").len(), 1);
        assert_eq!(of(FAILS, "Ignore"), []);
        assert_eq!(of(FAILS, "Fail"), [(Evaluation::Failed, true, WHY.to_owned(), String::new())]);
    }

    #[test]
    fn annotations_are_texts_that_are_not_empty() {
        let of = |value: &str, failure: &str| {
            verdict(&json!({
                "failurePolicy": failure,
                "auditAnnotations": [{"key": "k", "valueExpression": value}],
            }))
            .annotations
        };
        let published = |value: &str| vec![Annotation::Publish { key: "k".to_owned(), value: value.to_owned() }];
        assert_eq!(of("' string value '", "Fail"), published("string value"));
        assert_eq!(of("'  '", "Fail"), []);
        assert_eq!(of("null", "Fail"), []);
        assert_eq!(of("string(object.b)", "Ignore"), []);
        let why = "expression 'string(object.b)' resulted in error: no such key: b".to_owned();
        assert_eq!(of("string(object.b)", "Fail"), [Annotation::Failed { why, took: Duration::ZERO }]);
    }

    #[test]
    fn all_that_is_evaluated_has_one_budget() {
        let limit = "[1,2,3,4,5,6,7,8,9,10]";
        let dear =
            format!("{limit}.all(a, {limit}.all(b, {limit}.all(c, {limit}.all(d, {limit}.all(e, a+b+c+d+e > 0)))))");
        let all = vec![json!({"expression": dear}); 20];
        let found = decisions(&json!({"validations": all}));
        assert_eq!(found, [(Evaluation::Failed, true, OUT_OF_BUDGET.to_owned(), String::new())]);
        // Messages have what is left, and each that needed none is refused as well.
        let mut spent = vec![json!({"expression": dear}); 9];
        spent.push(json!({"expression": "true", "messageExpression": format!("string({dear})")}));
        spent.push(json!({"expression": "true", "messageExpression": format!("string({dear})")}));
        let found = decisions(&json!({"validations": spent}));
        assert_eq!(found[10].2, format!("failed messageExpression: {OUT_OF_BUDGET}"));
        assert!(found[10].1);
    }
}
