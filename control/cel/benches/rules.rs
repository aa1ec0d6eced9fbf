//! How long rules of the kind that Gateway API has take: `cargo bench -p windlass-cel`.
#![allow(clippy::print_stdout, clippy::cast_precision_loss, reason = "The measurements are what it is for")]

mod clock;

use std::sync::Arc;

use serde_json::{Value as Json, json};
use windlass_apimachinery::schema::pattern::{self, Parsed};
use windlass_cel::{Activation, Budget, DeclType, DeclTypes, Environment, EvalError, Program, Type, Value};

use self::clock::measure;

/// Rules on lists of rules, backends and filters of a route, as long as such are.
const RULES: [&str; 8] = [
    "self.rules.all(r, !has(r.backends) || r.backends.size() <= 16)",
    "self.rules.all(r, !has(r.filters) || !(r.filters.exists(f, f.type == 'Redirect') && has(r.backends) && r.backends.size() > 0))",
    "self.rules.all(r, r.filters.filter(f, f.type == 'Rewrite').size() <= 1)",
    "self.rules.all(r, !has(r.name) || self.rules.exists_one(other, has(other.name) && other.name == r.name))",
    "self.hostnames.all(h, h == '' || h.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?\\\\.)*[a-z]+$'))",
    "self.parents.all(p, has(p.port) ? p.port > 0 && p.port < 65536 : true)",
    "self.rules.all(r, r.backends.all(b, has(b.port) || b.kind != 'Service'))",
    "self.rules.map(r, size(r.backends)).sum() <= 128",
];

fn schema() -> Json {
    let text = json!({"type": "string", "maxLength": 253});
    let list = |items: Json, most: u32| json!({"type": "array", "maxItems": most, "items": items});
    let object = |properties: Json| json!({"type": "object", "properties": properties});
    let port = json!({"type": "integer", "format": "int32"});
    let backend = object(json!({"name": text, "kind": text, "port": port, "weight": {"type": "integer"}}));
    let filter = object(json!({"type": text, "value": text}));
    let rule = object(json!({"name": text, "backends": list(backend, 16), "filters": list(filter, 16)}));
    object(json!({"rules": list(rule, 16), "hostnames": list(text.clone(), 16),
        "parents": list(object(json!({"name": text, "port": port})), 32)}))
}

fn route() -> Json {
    let rules: Vec<Json> = (0..8)
        .map(|n| {
            let backends: Vec<Json> = (0..4)
                .map(|b| json!({"name": format!("b{b}"), "kind": "Service", "port": 80 + b, "weight": 1}))
                .collect();
            let filters = json!([{"type": "Rewrite", "value": "/"}, {"type": "Header", "value": "x"}]);
            json!({"name": format!("rule-{n}"), "backends": backends, "filters": filters})
        })
        .collect();
    json!({"rules": rules, "hostnames": ["a.example.com", "b.example.com"], "parents": [{"name": "g", "port": 443}]})
}

struct Route<'a>(&'a Json, &'a DeclType);

impl Activation for Route<'_> {
    fn variable(&self, name: &str) -> Option<Result<Value<'_>, EvalError>> {
        (name == "self").then(|| Value::of_type(self.0, self.1))
    }
}

/// The memory that this process occupies, in bytes.
fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    let pages = pages.and_then(|text| text.split(' ').nth(1)?.parse::<usize>().ok());
    pages.unwrap_or_default() * 4096
}

fn main() {
    let declared = Arc::new(DeclType::of_schema(&schema(), false, "self_type").expect("a type"));
    let environment = Environment::base()
        .with_types(Arc::new(DeclTypes::new([Arc::clone(&declared)])))
        .with_variable("self", declared.cel_type().clone());
    let compile = |rule: &str| environment.compile(rule, &[Type::Bool]).expect("a rule");
    let object = route();
    let activation = Route(&object, &declared);
    measure("compile 8 rules", 20, || RULES.map(&compile));
    let before = resident();
    let kept: Vec<_> = (0..500).map(|_| RULES.map(|rule| compile(rule).into_program())).collect();
    let bytes = resident().saturating_sub(before) / (kept.len() * RULES.len());
    println!("{:<40} {bytes:>9} bytes", "kept of a rule");
    let compiled = RULES.map(compile);
    measure("estimate 8 rules", 20, || compiled.each_ref().map(|rule| rule.estimate(&*declared)));
    let programs = compiled.map(windlass_cel::Compiled::into_program);
    let evaluate = |program: &Program| {
        let mut budget = Budget::default();
        let value = program.evaluate(&activation, &mut budget);
        assert!(matches!(value, Ok(Value::Bool(true))), "{value:?}");
        budget.spent()
    };
    measure("evaluate 8 rules", 200, || programs.each_ref().map(evaluate));
    let spent: u64 = programs.iter().map(evaluate).sum();
    println!("{:<40} {spent:>9} units", "cost of 8 rules");
    at_the_limit();
    patterns();
}

/// What a unit of cost takes in a rule that costs about as much as one may.
fn at_the_limit() {
    let object = json!((0..45).collect::<Vec<u32>>());
    let schema = json!({"type": "array", "maxItems": 60, "items": {"type": "integer"}});
    let declared = Arc::new(DeclType::of_schema(&schema, false, "self_type").expect("a type"));
    let environment = Environment::base().with_variable("self", declared.cel_type().clone());
    let rule = "self.all(a, self.all(b, self.all(c, a + b + c >= 0)))";
    let program = environment.compile(rule, &[Type::Bool]).expect("a rule").into_program();
    let activation = Route(&object, &declared);
    let mut spent = 0;
    let each = measure("evaluate a rule at its limit", 1, || {
        let mut budget = Budget::default();
        let value = program.evaluate(&activation, &mut budget);
        spent = budget.spent();
        value.map(drop)
    });
    println!("{:<40} {spent:>9} units, {:.0} ns each", "its cost", each * 1e3 / spent.max(1) as f64);
}

/// What a unit of effort takes where regular expressions are compiled and applied.
fn patterns() {
    for expression in
        ["^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "^(a?b?c?d?){500}x$", "^(abcdefghij){1000}$", r"^\pL{60}$", "^[^/]{1,63}$"]
    {
        let parsed = Parsed::of(expression).expect("an expression");
        let (effort, text) = (parsed.effort(), "abcd".repeat(2000));
        measure(&format!("compile {expression} ({effort} units)"), 3, || pattern::compile(expression));
        let program = pattern::compile(expression).expect("an expression");
        let effort = program.effort(&text);
        measure(&format!("  apply to {} bytes ({effort} units)", text.len()), 3, || program.regex().is_match(&text));
    }
}
