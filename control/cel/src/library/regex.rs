//! Regular expressions in Go's syntax (RE2): `matches` of the standard, and upstream's `library/regex.go`.

use std::sync::{Arc, OnceLock};

use regex::Regex;
use windlass_apimachinery::schema::pattern;

use super::{Row, Style, global, member, no_overload};
use crate::{
    cost::Cost,
    error::EvalError,
    value::{Outcome, Value},
};

#[rustfmt::skip]
pub(super) const ROWS: &[Row] = &[
    global("matches", "matches", "string, string -> bool", Cost::One, matches).style(Style::Single),
    member("matches", "matches_string", "string, string -> bool", Cost::Matches, matches).style(Style::Single),
    member("find", "string_find_string", "string, string -> string", Cost::Find, find),
    member("findAll", "string_find_all_string", "string, string -> list(string)", Cost::Find, find_all),
    member("findAll", "string_find_all_string_int", "string, string, int -> list(string)", Cost::Find, find_all),
];

/// Compiles an expression.
///
/// # Errors
/// What Go's compiler says.
pub(crate) fn compile(text: &str) -> Result<Regex, String> {
    pattern::compile(text)
}

/// An expression that is written out, compiled when it is first used: most rules of most schemas never run.
#[derive(Debug, Clone)]
pub(crate) struct Regexp {
    text: Arc<str>,
    compiled: Arc<OnceLock<Regex>>,
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

    fn get(&self) -> Result<&Regex, EvalError> {
        if let Some(compiled) = self.compiled.get() {
            return Ok(compiled);
        }
        let compiled = compile(&self.text).map_err(EvalError::new)?;
        Ok(self.compiled.get_or_init(|| compiled))
    }

    /// Calls one of the functions of this file, whose second argument this expression is.
    pub(crate) fn call<'a>(&self, function: &str, args: &[Value<'a>]) -> Outcome<'a> {
        let Some(Value::String(text)) = args.first() else { return Err(EvalError::no_such_overload()) };
        let regex = self.get()?;
        match function {
            "matches" => Ok(Value::Bool(regex.is_match(text))),
            "find" => Ok(first_match(regex, text)),
            _ => all_matches(regex, text, args.get(2)),
        }
    }
}

fn matches<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::String(text), Value::String(pattern)] => {
            compile(pattern).map(|regex| Value::Bool(regex.is_match(text))).map_err(EvalError::new)
        }
        [Value::String(_), _] => Err(EvalError::no_such_overload()),
        _ => no_overload("matches", args.first()),
    }
}

fn compiled(pattern: &str) -> Result<Regex, EvalError> {
    compile(pattern).map_err(|why| EvalError::new(format!("Illegal regex: {why}")))
}

fn first_match<'a>(regex: &Regex, text: &str) -> Value<'a> {
    Value::text(regex.find(text).map_or("", |found| found.as_str()))
}

fn all_matches<'a>(regex: &Regex, text: &str, limit: Option<&Value<'a>>) -> Outcome<'a> {
    let limit = match limit {
        None => usize::MAX,
        Some(Value::Int(limit)) => usize::try_from(*limit).unwrap_or(usize::MAX),
        Some(_) => return Err(EvalError::no_such_overload()),
    };
    // Go leaves out an empty match right after another match, as this does.
    Ok(Value::texts(regex.find_iter(text).take(limit).map(|found| found.as_str())))
}

fn find<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::String(text), Value::String(pattern)] => Ok(first_match(&compiled(pattern)?, text)),
        _ => Err(EvalError::no_such_overload()),
    }
}

fn find_all<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::String(text), Value::String(pattern), rest @ ..] => {
            all_matches(&compiled(pattern)?, text, rest.first())
        }
        _ => Err(EvalError::no_such_overload()),
    }
}
