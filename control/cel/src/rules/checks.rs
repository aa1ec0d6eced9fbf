//! What is refused in the rules of a definition; upstream's `ValidateCustomResourceDefinitionOpenAPISchema`, as far as it is
//! about rules, and those of defaults.

use serde_json::Value as Json;
use windlass_apimachinery::{
    MAX_DEPTH,
    field::{Cause, Errors, FieldError, Path},
    go_json,
    schema::{ValidationRule, structural::RuleLanguage},
};

use super::{
    compile::{CompiledRule, Scope},
    context::{Context, Step},
    findings::RuleBudget,
    total_cost::{PER_EXPRESSION_LIMIT, PER_SCHEMA_LIMIT, TotalCost, exceeds},
    validator::{SchemaRules, has_rules},
};

/// Checks the rules of one schema that is written.
#[derive(Debug)]
pub struct RuleChecks {
    /// Whether the schema is stored already: then no expression is refused for what it costs alone.
    is_stored: bool,
    /// For the rules of all defaults.
    budget: RuleBudget,
}

impl RuleChecks {
    /// The checks of a schema, which is stored already or is new.
    #[must_use]
    pub fn new(is_stored: bool) -> Self {
        Self { is_stored, budget: RuleBudget::default() }
    }
}

impl RuleLanguage for RuleChecks {
    /// A default must do for an object that has it already, and for one that gets it.
    fn check_default(&mut self, schema: &Json, is_resource_root: bool, path: &str) -> Vec<FieldError> {
        let Some(rules) = SchemaRules::compile(schema, is_resource_root) else { return Vec::new() };
        let (default, mut left) = (&schema["default"], self.budget);
        let mut errors = rules.validate(path, default, Some(default), None, &mut left).errors;
        if errors.is_empty() {
            let mut other = self.budget;
            errors = rules.validate(path, default, None, None, &mut other).errors;
            if other.left() < left.left() {
                left = other;
            }
        }
        self.budget = left;
        errors
    }

    fn is_exhausted(&self) -> bool {
        self.budget.has_ended()
    }

    fn check_rules(&mut self, schema: &Json, path: &str, is_sound: &dyn Fn(&str) -> bool) -> Vec<FieldError> {
        if !has_rules(schema, 0) {
            return Vec::new();
        }
        let mut walk = Walk {
            path: Path::new(path),
            errors: Errors::default(),
            total: TotalCost::default(),
            is_stored: self.is_stored,
            is_sound,
        };
        walk.node(&Context::root(schema), 0);
        let (mut errors, total) = (walk.errors, walk.total);
        if total.total > PER_SCHEMA_LIMIT {
            for (path, _) in total.most_expensive {
                let why = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
                errors.forbidden(path, why);
            }
            let what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
            errors.forbidden(path, &exceeds(what, total.total, PER_SCHEMA_LIMIT));
        }
        errors.0
    }
}

/// A walk through one schema.
struct Walk<'w> {
    path: Path,
    errors: Errors,
    total: TotalCost,
    is_stored: bool,
    is_sound: &'w dyn Fn(&str) -> bool,
}

impl Walk<'_> {
    fn node(&mut self, context: &Context<'_>, depth: usize) {
        if depth > MAX_DEPTH {
            return;
        }
        let (schema, here) = (context.schema, self.path.to_string());
        if schema["additionalProperties"].is_object() {
            let values = context.child(&schema["additionalProperties"], Step::Element, None);
            self.inside("additionalProperties", None, &values, depth);
        }
        let matched = matches!(schema["x-kubernetes-map-type"].as_str(), None | Some("granular" | "atomic"));
        let uncorrelatable = (!matched).then_some(&*here);
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let property = context.child(property, Step::Property(name), uncorrelatable);
            self.inside("properties", Some(name), &property, depth);
        }
        if schema["items"].is_object() {
            let uncorrelatable = (schema["x-kubernetes-list-type"] != "map").then_some(&*here);
            self.inside("items", None, &context.child(&schema["items"], Step::Element, uncorrelatable), depth);
        }
        self.rules(context);
    }

    fn inside(&mut self, word: &str, key: Option<&str>, context: &Context<'_>, depth: usize) {
        let before = self.path.enter_field(word);
        if let Some(key) = key {
            self.path.enter_key(key);
        }
        self.node(context, depth + 1);
        self.path.leave(before);
    }

    fn rules(&mut self, context: &Context<'_>) {
        let rules: Vec<ValidationRule> = ValidationRule::all_of(context.schema).collect();
        if rules.is_empty() || !(self.is_sound)(self.path.as_str()) {
            return;
        }
        let here = self.path.field("x-kubernetes-validations");
        let info = match context.info() {
            Ok(Some(info)) => info,
            Ok(None) => return self.errors.internal(here, "failed to convert to declType for CEL validation rules"),
            Err(why) => {
                let what = "failed to construct type information for x-kubernetes-validations rules";
                return self.errors.internal(here, &format!("internal error: {what}: {why}"));
            }
        };
        let scope = Scope::new(info, context.schema);
        for (at, rule) in rules.iter().enumerate() {
            self.rule(rule, &scope.compile(rule), &format!("{here}[{at}]"), context);
        }
    }

    fn rule(&mut self, rule: &ValidationRule, compiled: &CompiledRule, here: &str, context: &Context<'_>) {
        let at = |field: &str| format!("{here}.{field}");
        let cost = compiled.cost.saturating_mul(context.cardinality.unwrap_or(compiled.cardinality));
        self.cost("estimated rule cost", cost, || at("rule"));
        if let Some(why) = &compiled.error {
            self.errors.push(at("rule"), Cause::Invalid, format!("Invalid value: {}: {why}", shown(rule)));
        }
        if let Some(why) = &compiled.message_error {
            let detail = format!("Invalid value: {}: {why}", shown(rule));
            self.errors.push(at("messageExpression"), Cause::Invalid, detail);
        } else if compiled.message.is_some() {
            self.cost("estimated messageExpression cost", compiled.message_cost, || at("messageExpression"));
        }
        if compiled.uses_old_self {
            if let Some(path) = context.uncorrelatable {
                let why = format!("oldSelf cannot be used on the uncorrelatable portion of the schema within {path}");
                self.errors.invalid_text(at("rule"), &rule.rule, &why);
            }
        } else if let Some(set) = rule.optional_old_self {
            let why = "may not be set if oldSelf is not used in rule";
            self.errors.invalid(at("optionalOldSelf"), &Json::Bool(set), why);
        }
    }

    fn cost(&mut self, what: &str, cost: u64, path: impl Fn() -> String) {
        if !self.is_stored && cost > PER_EXPRESSION_LIMIT {
            self.errors.forbidden(path(), &exceeds(what, cost, PER_EXPRESSION_LIMIT));
        }
        self.total.add(path, cost);
    }
}

/// A rule as errors repeat it: upstream's internal type in JSON.
fn shown(rule: &ValidationRule) -> String {
    let text = |text: Option<&str>| go_json(&Json::from(text.unwrap_or_default()));
    let or_null = |value: Option<Json>| value.unwrap_or(Json::Null).to_string();
    format!(
        r#"{{"Rule":{},"Message":{},"MessageExpression":{},"Reason":{},"FieldPath":{},"OptionalOldSelf":{}}}"#,
        text(Some(&rule.rule)),
        text(rule.message.as_deref()),
        text(rule.message_expression.as_deref()),
        or_null(rule.reason.as_deref().map(Json::from)),
        text(rule.field_path.as_deref()),
        or_null(rule.optional_old_self.map(Json::from)),
    )
}
