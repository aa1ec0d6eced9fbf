//! Evaluates the rules of a schema for an object; upstream's `validation.go`.

use serde_json::Value as Json;
use windlass_apimachinery::{
    field::{Cause, Errors, FieldError, Path, quoted},
    go_float, go_quoted,
    schema::ValidationRule,
};

use super::{
    OLD_SELF, SELF,
    compile::CompiledRule,
    correlation::{Correlated, MapList, Ratcheting},
    findings::{Findings, RuleBudget},
    validator::{Node, SchemaRules},
};
use crate::{
    decl::DeclType, error::EvalError, eval::OUT_OF_BUDGET, message::shown_message, plan::Program, provider::Activation,
    value::Value,
};

/// The field of errors about an object as a whole.
const WHOLE: &str = "<nil>";

impl SchemaRules {
    /// What the rules say of the value at a path, which is empty for an object of the API. `old` is what is stored; a rule
    /// that compares with it has an effect where there is such a value.
    ///
    /// With the `schema` that the rules are of, errors of what is as it was are warnings. It is the schema of both values.
    #[must_use]
    pub fn validate(
        &self,
        path: &str,
        object: &Json,
        old: Option<&Json>,
        schema: Option<&Json>,
        budget: &mut RuleBudget,
    ) -> Findings {
        let mut walk = Walk { path: Path::new(path), found: Findings::default(), budget };
        let root = old.zip(schema).map(|(old, schema)| Correlated::new(object, old, schema));
        walk.node(&self.root, object, old, root.as_ref().map(Ratcheting::of).unwrap_or_default());
        walk.found
    }
}

/// A walk through one object.
struct Walk<'w> {
    path: Path,
    found: Findings,
    budget: &'w mut RuleBudget,
}

impl Walk<'_> {
    fn node(&mut self, node: &Node, object: &Json, old: Option<&Json>, ratcheting: Ratcheting<'_, '_>) {
        // Whether null is good is for rules around it to say.
        if object.is_null() || self.budget.has_ended() {
            return;
        }
        let old = old.filter(|old| !old.is_null());
        self.expressions(node, object, old, ratcheting);
        for member in &node.all_of {
            self.node(member, object, old, ratcheting.all_of());
        }
        match object {
            Json::Array(items) => {
                let Some(of_items) = &node.items else { return };
                let keys: Vec<&str> = node.list_map_keys.iter().map(|key| &**key).collect();
                let before = old.and_then(Json::as_array).map(|old| MapList::new(old, &keys)).unwrap_or_default();
                for (at, item) in items.iter().enumerate() {
                    let left = self.path.enter_item(at);
                    let child = ratcheting.correlated_item(at);
                    self.node(of_items, item, before.get(item, &keys), ratcheting.item(child.as_ref()));
                    self.path.leave(left);
                }
            }
            Json::Object(fields) => {
                let before = |name: &str| old.and_then(|old| old.get(name));
                for (name, value) in fields {
                    let Some(of_values) = &node.additional else { break };
                    let left = self.path.enter_key(name);
                    let child = ratcheting.correlated_key(name);
                    self.node(of_values, value, before(name), ratcheting.key(name, child.as_ref()));
                    self.path.leave(left);
                }
                for (name, of_property) in &node.properties {
                    let Some(value) = fields.get(&**name) else { continue };
                    let left = self.path.enter_field(name);
                    let child = ratcheting.correlated_key(name);
                    self.node(of_property, value, before(name), ratcheting.key(name, child.as_ref()));
                    self.path.leave(left);
                }
            }
            _ => {}
        }
    }

    /// An error about the value as a whole, by its type.
    fn refuse(&mut self, node: &Node, why: &str) {
        let error = invalid(field(&self.path, None), Some(&go_quoted(&node.type_name)), why);
        self.found.errors.push(error);
    }

    fn expressions(&mut self, node: &Node, object: &Json, old: Option<&Json>, ratcheting: Ratcheting<'_, '_>) {
        if node.rules.is_empty() {
            return;
        }
        let Some(declared) = &node.declared else {
            let why = "failed to convert to declType for CEL validation rules";
            return self.refuse(node, &format!("rule compiler initialization error: {why}"));
        };
        if self.budget.left() == Some(0) {
            self.refuse(node, OUT_OF_BUDGET);
            return self.budget.end();
        }
        for (rule, compiled) in &node.rules {
            if let Some(why) = &compiled.error {
                self.refuse(node, &format!("rule compile error: {why}"));
                continue;
            }
            let is_optional = rule.optional_old_self == Some(true);
            // A rule that compares has an effect where there is something to compare with.
            let is_skipped = compiled.uses_old_self && old.is_none() && !is_optional;
            let Some(program) = compiled.program.as_ref().filter(|_| !is_skipped) else { continue };
            let plain = match old.filter(|_| node.uses_old_self) {
                None => OldSelf::Absent,
                Some(old) => OldSelf::Value(old),
            };
            let of_rule = if is_optional && node.uses_old_self { OldSelf::Optional(old) } else { plain };
            let variables = |old| Variables { declared, object, old };
            self.rule(node, (rule, compiled, program), &variables(of_rule), &variables(plain), ratcheting);
            if self.budget.has_ended() {
                return;
            }
        }
    }

    fn rule(
        &mut self,
        node: &Node,
        (rule, compiled, program): (&ValidationRule, &CompiledRule, &Program),
        variables: &Variables<'_>,
        of_message: &Variables<'_>,
        ratcheting: Ratcheting<'_, '_>,
    ) {
        let mut budget = self.budget.of_call();
        let value = program.evaluate(variables, &mut budget);
        if !self.budget.spend(budget) {
            return self.refuse(node, OUT_OF_BUDGET);
        }
        match value {
            Ok(Value::Bool(true)) => return,
            Ok(_) => {}
            Err(error) => {
                let (text, of_rule) = (error.message(), shown(rule));
                if text.starts_with("no such overload") {
                    let why = "call arguments did not match a supported operator, function or macro signature for rule";
                    self.refuse(node, &format!("'{text}': {why}: {of_rule}"));
                } else if is_limit(&error) {
                    let why = "no further validation rules will be run due to call cost exceeds limit for rule";
                    self.refuse(node, &format!("'{text}': {why}: {of_rule}"));
                    self.budget.end();
                } else {
                    self.refuse(node, &format!("{text} evaluating rule: {of_rule}"));
                }
                return;
            }
        }
        let field = field(&self.path, compiled.field_path.as_deref());
        let own = match compiled.message.as_ref().map(|program| self.message(rule, program, of_message)) {
            // Upstream tolerates this error, too, if nothing has changed: then the rules that were not run would be passed over
            // in silence.
            Some(Err(why)) => {
                self.found.errors.push(invalid(field, Some(&go_quoted(&node.type_name)), &why));
                return self.budget.end();
            }
            Some(Ok(own)) => own,
            None => None,
        };
        let text = own.unwrap_or_else(|| match &rule.message {
            Some(message) => message.trim().to_owned(),
            None => format!("failed rule: {}", shown(rule)),
        });
        let value = (!matches!(&*node.type_name, "object" | "array")).then(|| scalar(variables.object));
        let error = for_reason(rule.reason.as_deref(), field, value.as_deref(), &text);
        if !compiled.uses_old_self && ratcheting.is_tolerated() {
            self.found.warnings.push(error.to_string());
        } else {
            self.found.errors.push(error);
        }
    }

    /// The text that a `messageExpression` makes; nothing if it makes no good one.
    ///
    /// # Errors
    /// It has cost so much that no other rule is evaluated.
    fn message(
        &mut self,
        rule: &ValidationRule,
        program: &Program,
        variables: &Variables<'_>,
    ) -> Result<Option<String>, String> {
        let mut budget = self.budget.of_call();
        let value = program.evaluate(variables, &mut budget);
        if !self.budget.spend(budget) {
            let why = "messageExpression evaluation failed due to running out of cost budget, no further validation rules will be run";
            return Err(why.to_owned());
        }
        match value {
            Err(error) if is_limit(&error) => {
                let source = go_quoted(rule.message_expression.as_deref().unwrap_or_default());
                Err(format!(
                    "no further validation rules will be run due to call cost exceeds limit for messageExpression: {source}"
                ))
            }
            Ok(Value::String(text)) => Ok(shown_message(&text).map(str::to_owned)),
            _ => Ok(None),
        }
    }
}

/// Whether an expression has cost more than one may.
fn is_limit(error: &EvalError) -> bool {
    error.message().starts_with("operation cancelled: actual cost limit exceeded")
}

/// A rule as errors repeat it.
fn shown(rule: &ValidationRule) -> &str {
    rule.message.as_deref().unwrap_or(&rule.rule).trim()
}

/// The path of an error, at the value or below.
fn field(path: &Path, below: Option<&str>) -> String {
    match below.filter(|below| !below.is_empty()) {
        Some(below) => path.field(below),
        None if path.as_str().is_empty() => WHOLE.to_owned(),
        None => path.to_string(),
    }
}

/// A value as errors repeat it.
fn scalar(value: &Json) -> String {
    match value {
        Json::Number(number) if number.is_f64() => go_float::general(number.as_f64().unwrap_or(f64::NAN)),
        value => quoted(value),
    }
}

fn invalid(field: String, value: Option<&str>, why: &str) -> FieldError {
    let detail = match value {
        Some(value) => format!("Invalid value: {value}: {why}"),
        None => format!("Invalid value: {why}"),
    };
    FieldError { field, cause: Cause::Invalid, detail }
}

/// The error of a rule that does not hold.
fn for_reason(reason: Option<&str>, field: String, value: Option<&str>, text: &str) -> FieldError {
    let mut errors = Errors::default();
    match reason {
        Some("FieldValueForbidden") => errors.forbidden(field, text),
        Some("FieldValueRequired") => errors.required(field, text),
        Some("FieldValueDuplicate") => {
            let value = value.map(|value| format!(": {value}")).unwrap_or_default();
            return FieldError { field, cause: Cause::Duplicate, detail: format!("Duplicate value{value}") };
        }
        _ => return invalid(field, value, text),
    }
    errors.0.remove(0)
}

/// The old value, as a rule sees it.
#[derive(Debug, Clone, Copy)]
enum OldSelf<'a> {
    /// The variable is not there.
    Absent,
    Value(&'a Json),
    /// The variable is there, whether there is an old value or not.
    Optional(Option<&'a Json>),
}

/// The variables of a rule.
#[derive(Debug)]
struct Variables<'a> {
    declared: &'a DeclType,
    object: &'a Json,
    old: OldSelf<'a>,
}

impl Activation for Variables<'_> {
    fn variable(&self, name: &str) -> Option<Result<Value<'_>, EvalError>> {
        let value = |json| Value::of_type(json, self.declared);
        match (name, self.old) {
            (SELF, _) => Some(value(self.object)),
            (OLD_SELF, OldSelf::Value(old)) => Some(value(old)),
            (OLD_SELF, OldSelf::Optional(old)) => {
                Some(old.map_or_else(|| Ok(Value::none()), |old| value(old).map(Value::some)))
            }
            _ => None,
        }
    }
}
