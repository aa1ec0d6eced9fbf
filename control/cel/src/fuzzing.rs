//! What the fuzzer calls: expressions of any text, over a value of any JSON.

use std::sync::{Arc, LazyLock};

use serde_json::{Value as Json, json};

use crate::{
    Activation, Budget, CompileError, CostEstimate, DeclType, DeclTypes, Environment, EvalError, SizeEstimator, Type,
    UnknownSizes, Value,
};

/// What an evaluation may cost.
const LIMIT: u64 = 10_000;

/// The type of the variable `self`, which has a bit of everything.
static SELF: LazyLock<Arc<DeclType>> = LazyLock::new(|| {
    let schema = json!({"type": "object", "properties": {
        "name": {"type": "string", "maxLength": 20}, "count": {"type": "integer"}, "ratio": {"type": "number"},
        "on": {"type": "boolean"}, "port": {"x-kubernetes-int-or-string": true}, "at": {"type": "string", "format": "date-time"},
        "after": {"type": "string", "format": "duration"}, "data": {"type": "string", "format": "byte"},
        "names": {"type": "array", "x-kubernetes-list-type": "set", "maxItems": 9, "items": {"type": "string", "maxLength": 9}},
        "items": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "maxItems": 9,
            "items": {"type": "object", "properties": {"k": {"type": "string"}, "v": {"type": "integer"}}}},
        "labels": {"type": "object", "maxProperties": 9, "additionalProperties": {"type": "string", "maxLength": 9}},
        "any": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
    }});
    Arc::new(DeclType::of_schema(&schema, false, "self_type").expect("a type"))
});

static ENVIRONMENT: LazyLock<Environment> = LazyLock::new(|| {
    Environment::base()
        .with_types(Arc::new(DeclTypes::new([Arc::clone(&SELF)])))
        .with_variable("self", SELF.cel_type().clone())
        .with_variable("any", Type::Dyn)
        .with_variable("boxed", Type::map(Type::String, Type::Any))
        .with_json_patch()
        .with_bindings()
});

struct Variables<'a>(&'a Json);

impl Activation for Variables<'_> {
    fn variable(&self, name: &str) -> Option<Result<Value<'_>, EvalError>> {
        match name {
            "self" => Some(Value::of_type(self.0, &SELF)),
            "any" | "boxed" => Some(Ok(Value::from_json(self.0))),
            _ => None,
        }
    }
}

/// Compiles a text, estimates and evaluates it, with little to spend.
///
/// # Panics
/// When an estimate is less at most than at least, a smaller budget does not end evaluation, or two evaluations differ.
pub fn expression(text: &str, json: &Json) {
    let _ = cost_and_estimate(text, json);
}

/// As [`expression`]; what evaluation cost, and what was estimated.
///
/// # Errors
/// What is wrong with the expression.
///
/// # Panics
/// As [`expression`].
pub fn cost_and_estimate(text: &str, json: &Json) -> Result<(u64, CostEstimate), CompileError> {
    let compiled = ENVIRONMENT.compile(text, &[])?;
    let estimates = [&**SELF as &dyn SizeEstimator, &UnknownSizes].map(|sizes| compiled.estimate(sizes));
    assert!(estimates.iter().all(|estimate| estimate.min <= estimate.max), "{text}: {estimates:?}");
    let evaluate = |limit| {
        let mut budget = Budget::new(limit);
        let outcome = compiled.program().evaluate(&Variables(json), &mut budget).map(|value| value.to_string());
        (outcome.map_err(|error| error.to_string()), budget.spent())
    };
    let (outcome, cost) = evaluate(LIMIT);
    assert_eq!(evaluate(LIMIT), (outcome, cost), "{text}");
    if (1..=LIMIT).contains(&cost) {
        let (outcome, _) = evaluate(cost - 1);
        assert_eq!(outcome, Err("operation cancelled: actual cost limit exceeded".to_owned()), "{text}");
    }
    Ok((cost, estimates[0]))
}

/// An expression, or JSON and an expression on the lines below it.
///
/// # Panics
/// As [`expression`].
pub fn target(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let with_json = text.split_once('\n').and_then(|(json, text)| Some((serde_json::from_str(json).ok()?, text)));
    match with_json {
        Some((json, text)) => expression(text, &json),
        None => expression(text, &Json::Null),
    }
}
