//! Regular expressions in Go's syntax (RE2): `matches` of the standard, and upstream's `library/regex.go`.

use std::sync::{Arc, OnceLock};

use windlass_apimachinery::schema::pattern::{self, Parsed, Program};

use super::{Row, Style, global, member, no_overload};
use crate::{
    cost::Cost,
    error::EvalError,
    eval::Budget,
    value::{Outcome, Value},
};

#[rustfmt::skip]
pub(super) const ROWS: &[Row] = &[
    global("matches", "matches", "string, string -> bool", Cost::One, matches).style(Style::Single),
    member("matches", "matches_string", "string, string -> bool", Cost::Matches, matches).style(Style::Single),
    member("find", "string_find_string", "string, string -> string", Cost::Find, find),
    member("findAll", "string_find_all_string", "string, string -> list(string)", Cost::Find, find),
    member("findAll", "string_find_all_string_int", "string, string, int -> list(string)", Cost::Find, find),
];

/// Whether a function's second argument is a regular expression.
pub(crate) fn is_regex(function: &str) -> bool {
    matches!(function, "matches" | "find" | "findAll")
}

/// Compiles an expression.
///
/// # Errors
/// What Go's compiler says.
pub(crate) fn compile(text: &str) -> Result<Program, String> {
    pattern::compile(text)
}

/// An expression that is written out, compiled when it is first used: most rules of most schemas never run.
#[derive(Debug, Clone)]
pub(crate) struct Regexp {
    text: Arc<str>,
    compiled: Arc<OnceLock<Program>>,
}

impl Regexp {
    /// An expression that can be compiled.
    ///
    /// # Errors
    /// What Go's compiler says.
    pub(crate) fn new(text: &str) -> Result<Self, String> {
        compile(text)?;
        Ok(Self { text: text.into(), compiled: Arc::default() })
    }

    fn get(&self, budget: &mut Budget) -> Result<&Program, EvalError> {
        if let Some(compiled) = self.compiled.get() {
            return Ok(compiled);
        }
        let compiled = compile_within(&self.text, budget)?.map_err(EvalError::new)?;
        Ok(self.compiled.get_or_init(|| compiled))
    }

    /// Calls one of the functions of this file, whose second argument this expression is.
    pub(crate) fn call<'a>(&self, function: &str, args: &[Value<'a>], budget: &mut Budget) -> Outcome<'a> {
        let Some(Value::String(text)) = args.first() else { return Err(EvalError::no_such_overload()) };
        apply(self.get(budget)?, function, text, args.get(2), budget)
    }
}

/// Calls one of the functions of this file with a text and an expression, which is compiled first.
pub(crate) fn call<'a>(
    function: &str,
    (text, expression): (&str, &str),
    rest: &[Value<'a>],
    budget: &mut Budget,
) -> Outcome<'a> {
    let compiled = compile_within(expression, budget)?.map_err(|why| match function {
        "matches" => EvalError::new(why),
        _ => EvalError::new(format!("Illegal regex: {why}")),
    })?;
    apply(&compiled, function, text, rest.first(), budget)
}

/// Compiles an expression, unless that takes longer than is left.
fn compile_within(expression: &str, budget: &mut Budget) -> Result<Result<Program, String>, EvalError> {
    let parsed = match Parsed::of(expression) {
        Ok(parsed) => parsed,
        Err(why) => return Ok(Err(why)),
    };
    budget.take(parsed.effort())?;
    Ok(parsed.compile())
}

fn apply<'a>(
    program: &Program,
    function: &str,
    text: &str,
    limit: Option<&Value<'a>>,
    budget: &mut Budget,
) -> Outcome<'a> {
    budget.take(program.effort(text))?;
    let regex = program.regex();
    match function {
        "matches" => Ok(Value::Bool(regex.is_match(text))),
        "find" => Ok(Value::text(regex.find(text).map_or("", |found| found.as_str()))),
        _ => {
            let limit = match limit {
                None => usize::MAX,
                Some(Value::Int(limit)) => usize::try_from(*limit).unwrap_or(usize::MAX),
                Some(_) => return Err(EvalError::no_such_overload()),
            };
            // Go leaves out an empty match right after another match, as this does.
            Ok(Value::texts(regex.find_iter(text).take(limit).map(|found| found.as_str())))
        }
    }
}

/// What is no pair of texts: evaluation calls the others itself, since they take effort.
fn matches<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::String(_), ..] => Err(EvalError::no_such_overload()),
        _ => no_overload("matches", args.first()),
    }
}

fn find<'a>(_: &[Value<'a>]) -> Outcome<'a> {
    Err(EvalError::no_such_overload())
}
