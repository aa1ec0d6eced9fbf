//! Budgets, and expressions that were made to hurt.

use serde_json::{Value as Json, json};

use super::super::{RuleBudget, RuleChecks, SchemaRules};
use crate::eval::PER_CALL_LIMIT;
use windlass_apimachinery::schema::structural::RuleLanguage as _;

fn list(rules: &Json, max: Option<u64>) -> Json {
    let mut items = json!({"type": "string"});
    let mut list = json!({"type": "array", "x-kubernetes-validations": rules});
    if let Some(max) = max {
        items["maxLength"] = max.into();
        list["maxItems"] = max.into();
    }
    list["items"] = items;
    json!({"type": "object", "properties": {"list": list}})
}

fn check(schema: &Json, is_stored: bool) -> Vec<String> {
    let found = RuleChecks::new(is_stored).check_rules(schema, "schema", &|_| true);
    found.iter().map(ToString::to_string).collect()
}

#[test]
fn an_expression_that_costs_too_much_ends_all_rules() {
    let nested = "self.all(a, self.all(b, self.all(c, a + b != c)))";
    let schema = list(&json!([{"rule": nested}, {"rule": "false"}]), None);
    let rules = SchemaRules::compile(&schema, true).expect("rules");
    let object = json!({"list": vec!["x"; 300]});
    let mut budget = RuleBudget::default();
    let found = rules.validate("", &object, None, None, &mut budget);
    let texts: Vec<String> = found.errors.iter().map(ToString::to_string).collect();
    let why = "no further validation rules will be run due to call cost exceeds limit for rule";
    let limit = "operation cancelled: actual cost limit exceeded";
    assert_eq!(texts, [format!("list: Invalid value: \"array\": '{limit}': {why}: {nested}")]);
    assert_eq!(budget.left(), None);
}

#[test]
fn a_budget_that_is_spent_is_an_error_of_the_next_rule() {
    let schema = json!({"type": "object", "properties": {
        "a": {"type": "string", "x-kubernetes-validations": [{"rule": "self == 'x'"}]},
        "b": {"type": "string", "x-kubernetes-validations": [{"rule": "self == 'x'"}]}}});
    let rules = SchemaRules::compile(&schema, true).expect("rules");
    let object = json!({"a": "x", "b": "x"});
    let mut whole = RuleBudget::default();
    let found = rules.validate("", &object, None, None, &mut whole);
    assert!(found.errors.is_empty(), "{found:?}");
    let one = (10_000_000 - whole.left().expect("a rest")) / 2;
    for (budget, field) in [(one, "b"), (one + 1, "b"), (one - 1, "a"), (0, "a")] {
        let mut budget = RuleBudget::new(budget, PER_CALL_LIMIT);
        let found = rules.validate("", &object, None, None, &mut budget);
        let texts: Vec<String> = found.errors.iter().map(ToString::to_string).collect();
        let why = "validation failed due to running out of cost budget, no further validation rules will be run";
        assert_eq!(texts, [format!("{field}: Invalid value: \"string\": {why}")]);
        assert_eq!(budget.left(), None);
    }
}

/// What has run out of its budget is an error even if nothing has changed: the rules after it were not run.
#[test]
fn a_costly_message_is_not_tolerated() {
    let text = "self.map(a, self.map(b, self.map(c, a + b + c).join()).join()).join()";
    let schema = list(&json!([{"rule": "false", "messageExpression": text}, {"rule": "1 == 2"}]), None);
    let rules = SchemaRules::compile(&schema, true).expect("rules");
    let object = json!({"list": vec!["xyz"; 300]});
    let mut budget = RuleBudget::default();
    let found = rules.validate("", &object, Some(&object), Some(&schema), &mut budget);
    let why = "no further validation rules will be run due to call cost exceeds limit for messageExpression";
    assert_eq!(found.errors.len(), 1, "{found:?}");
    assert!(found.errors[0].detail.starts_with(&format!("Invalid value: \"array\": {why}: \"{text}\"")), "{found:?}");
    assert_eq!(budget.left(), None);
}

#[test]
fn a_pattern_that_backtracks_elsewhere_costs_by_its_length() {
    let rule = r"self.all(x, x.matches('^(a+)+$'))";
    let rules = SchemaRules::compile(&list(&json!([{"rule": rule}]), None), true).expect("rules");
    let text = "a".repeat(50_000) + "b";
    let mut budget = RuleBudget::default();
    let found = rules.validate("", &json!({"list": [text]}), None, None, &mut budget);
    assert_eq!(found.errors.len(), 1, "{found:?}");
    assert!(budget.left().is_some());
    // Of a text without a limit it may cost too much.
    let estimate = check(&list(&json!([{"rule": rule}]), None), false);
    assert!(estimate[0].starts_with("schema.properties[list].x-kubernetes-validations[0].rule: Forbidden: estimated rule cost exceeds budget by factor of more than 100x"), "{estimate:?}");
    assert!(check(&list(&json!([{"rule": rule}]), Some(100)), false).is_empty());
}

#[test]
fn a_stored_schema_is_refused_for_its_total_cost_alone() {
    let rule = json!({"rule": "self.all(a, self.all(b, a != b))"});
    let schema = list(&json!([rule]), None);
    let (new, stored) = (check(&schema, false), check(&schema, true));
    let all = "estimated rule cost total";
    let alone =
        |found: &[String]| found.iter().filter(|text| text.contains("Forbidden: estimated rule cost exceeds")).count();
    assert_eq!((alone(&new), alone(&stored)), (1, 0), "{new:?} {stored:?}");
    assert!(new.iter().any(|text| text.contains(all)) && stored.iter().any(|text| text.contains(all)), "{stored:?}");
    let small = list(&json!([rule]), Some(10));
    assert!(check(&small, false).is_empty(), "{:?}", check(&small, false));
}

/// Each rule is compiled once, and what is around it is not read again.
#[test]
fn a_schema_with_many_rules_is_compiled_in_one_pass() {
    let field = json!({"type": "object", "properties": {"a": {"type": "string", "maxLength": 10}},
        "x-kubernetes-validations": [{"rule": "!has(self.a) || self.a != 'x'"}]});
    let fields: serde_json::Map<String, Json> = (0..300).map(|n| (format!("f{n}"), field.clone())).collect();
    let mut schema = json!({"type": "object", "properties": fields});
    for _ in 0..50 {
        schema = json!({"type": "object", "properties": {"inner": schema},
            "x-kubernetes-validations": [{"rule": "has(self.inner)"}]});
    }
    assert!(check(&schema, false).is_empty());
    let rules = SchemaRules::compile(&schema, true).expect("rules");
    let mut object = json!({"f7": {"a": "x"}});
    for _ in 0..50 {
        object = json!({"inner": object});
    }
    let found = rules.validate("", &object, None, None, &mut RuleBudget::default());
    assert_eq!(found.errors.len(), 1, "{found:?}");
    assert!(found.errors[0].field.ends_with("inner.f7"));
}
