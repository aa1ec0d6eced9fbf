//! How long a unit of effort takes where it is spent, for the constants that say so: `cargo bench -p windlass-cel --bench effort`
//! on a machine that does nothing else.
//!
//! A unit is meant to take as long wherever it is spent. `COMPILE_STATE` and `UNICODE_CLASS` (`windlass-apimachinery`, patterns of
//! schemas) are right if compiling takes about as long per unit as evaluating does, and so is `SERVING_EFFORT`
//! (`windlass-control`, long work) if so many units are over within a millisecond, whatever they are spent on.
#![allow(clippy::print_stdout, clippy::cast_precision_loss, reason = "The measurements are what it is for")]

mod clock;

use std::sync::Arc;

use serde_json::{Value as Json, json};
use windlass_apimachinery::schema::pattern::{self, Parsed};
use windlass_cel::{Activation, Budget, DeclType, Environment, EvalError, Type, Value};

use self::clock::measure;

/// What a thread that answers requests may be held up for, in nanoseconds.
const SERVING: f64 = 1e6;

struct Numbers<'a>(&'a Json, &'a DeclType);

impl Activation for Numbers<'_> {
    fn variable(&self, name: &str) -> Option<Result<Value<'_>, EvalError>> {
        (name == "self").then(|| Value::of_type(self.0, self.1))
    }
}

/// What is measured: its name, its effort in units, and how it is done.
type Case<'c> = (&'c str, u64, Box<dyn FnMut() + 'c>);

/// The nanoseconds that a unit takes in each of several cases.
fn units<'c>(what: &str, cases: impl IntoIterator<Item = Case<'c>>) -> Vec<f64> {
    println!("{what}");
    let measured = cases.into_iter().map(|(name, effort, step)| {
        let each = measure(&format!("  {name} ({effort} units)"), 1, step) * 1e3 / effort.max(1) as f64;
        println!("{:<40} {each:>9.1} ns a unit", "");
        each
    });
    measured.collect()
}

fn mean(of: &[f64]) -> f64 {
    of.iter().sum::<f64>() / of.len().max(1) as f64
}

fn compiles(expression: &str) -> Case<'_> {
    let effort = Parsed::of(expression).expect("an expression").effort();
    (expression, effort, Box::new(move || drop(pattern::compile(expression).expect("an expression"))))
}

fn applies<'c>(expression: &'c str, text: &'c str) -> Case<'c> {
    let program = pattern::compile(expression).expect("an expression");
    let effort = program.effort(text);
    (expression, effort, Box::new(move || assert!(!program.regex().is_match(text))))
}

/// Rules about a list of numbers, as dear as one may be.
fn evaluations() -> Vec<f64> {
    let object = json!((0..45).collect::<Vec<u32>>());
    let schema = json!({"type": "array", "maxItems": 60, "items": {"type": "integer"}});
    let declared = Arc::new(DeclType::of_schema(&schema, false, "self_type").expect("a type"));
    let environment = Environment::base().with_variable("self", declared.cel_type().clone());
    let activation = Numbers(&object, &declared);
    let rules = [
        "self.all(a, self.all(b, self.all(c, a + b + c >= 0)))",
        "self.all(a, self.all(b, string(a + b) + 'x' != ''))",
        "self.map(a, self.map(b, a * b)).size() > 0",
        "self.all(a, self.all(b, 'abcdefghij'.matches('^[a-z]+$')))",
    ];
    let cases = rules.map(|rule| {
        let program = environment.compile(rule, &[Type::Bool]).expect("a rule").into_program();
        let mut budget = Budget::default();
        program.evaluate(&activation, &mut budget).expect("a value");
        let effort = budget.effort();
        let step = {
            let activation = &activation;
            move || drop(program.evaluate(activation, &mut Budget::default()).map(drop))
        };
        (rule, effort, Box::new(step) as Box<dyn FnMut() + '_>)
    });
    units("evaluate rules", cases)
}

fn main() {
    let evaluated = evaluations();
    // Without a text that a match must have, which would be looked for first.
    let text = "abcd".repeat(2000);
    let applied = units(
        "apply patterns",
        ["(a?b?c?d?){50}[e-h]", "[a-d]{1,200}[e-h]", "(ab|cd)*[e-h]", r"\pL{20}\pN"].map(|of| applies(of, &text)),
    );
    let states = units(
        "compile states: COMPILE_STATE",
        ["^(abcdefghij){100}$", "^(abcdefghij){1000}$", "^(a?b?c?d?){100}x$", "^(a?b?c?d?){500}x$"].map(compiles),
    );
    let classes = units(
        "compile classes of Unicode: UNICODE_CLASS",
        [r"^\pL{5}$", r"^\pL{60}$", r"^[\p{Han}\p{Greek}]{30}$"].map(compiles),
    );
    let unit = mean(&evaluated);
    println!("a unit takes {unit:.1} ns where rules are evaluated, {:.1} ns at most where patterns are applied", {
        applied.iter().copied().fold(0.0, f64::max)
    });
    println!("COMPILE_STATE is right if this is about 1:  {:.2}", mean(&states) / unit);
    println!("UNICODE_CLASS is right if this is about 1:  {:.2}", mean(&classes) / mean(&states));
    let slowest = [&evaluated, &applied, &states, &classes].into_iter().flatten().copied().fold(0.0, f64::max);
    println!(
        "SERVING_EFFORT: {:.0} units are over within a millisecond, whatever they are spent on",
        SERVING / slowest
    );
}
