//! The functions of Kubernetes' environment, as one table of signatures, costs and bodies: what is not in it does not exist.
//!
//! Each file is a library of upstream's (`cel-go/ext`, `apiserver/pkg/cel/library`), and a part of the table.

mod authorizer;
pub(crate) mod cidr;
mod format_string;
mod ip;
mod json_patch;
mod lists;
mod lists_ext;
pub(crate) mod named_format;
mod optional;
pub(crate) mod quantity;
mod regex;
pub(crate) mod semver;
mod sets;
mod signature;
mod standard;
mod strings;
mod time;
pub(crate) mod url;

use std::{collections::HashMap, sync::LazyLock};

pub(crate) use self::{
    format_string::{Clause, check as check_format},
    regex::{Regexp, call as call_regex, compile as compile_regex, is_regex},
    standard::in_aggregate,
};
use crate::{
    cost::Cost,
    error::EvalError,
    types::Type,
    value::{Outcome, Value},
};

/// What computes a function.
pub(crate) type Native = for<'x, 'a> fn(&'x [Value<'a>]) -> Outcome<'a>;

/// A row of the table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    function: &'static str,
    id: &'static str,
    member: bool,
    /// `string, int -> string`: arguments, of a member the receiver first, and the result.
    signature: &'static str,
    cost: Cost,
    style: Style,
    /// Nothing if evaluation knows the operator itself.
    body: Option<Native>,
}

/// How a body is found when the types of arguments are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    /// The first overload whose signature takes the arguments.
    Guarded,
    /// The first overload with as many arguments.
    Unguarded,
    /// One body for all overloads, which knows what it takes.
    Single,
}

impl Row {
    const fn new(
        function: &'static str,
        id: &'static str,
        signature: &'static str,
        cost: Cost,
        body: Option<Native>,
    ) -> Self {
        Self { function, id, member: false, signature, cost, style: Style::Guarded, body }
    }

    const fn member(self) -> Self {
        Self { member: true, ..self }
    }

    const fn style(self, style: Style) -> Self {
        Self { style, ..self }
    }
}

/// A function that is called by its name.
const fn global(function: &'static str, id: &'static str, signature: &'static str, cost: Cost, body: Native) -> Row {
    Row::new(function, id, signature, cost, Some(body))
}

/// A function that is called on its first argument.
const fn member(function: &'static str, id: &'static str, signature: &'static str, cost: Cost, body: Native) -> Row {
    Row::new(function, id, signature, cost, Some(body)).member()
}

/// A function with all of its overloads.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) name: &'static str,
    pub(crate) overloads: Vec<Overload>,
}

/// A signature of a function.
#[derive(Debug)]
pub(crate) struct Overload {
    pub(crate) id: &'static str,
    pub(crate) member: bool,
    pub(crate) args: Vec<Type>,
    pub(crate) result: Type,
    pub(crate) cost: Cost,
    style: Style,
    body: Option<Native>,
}

impl Overload {
    /// Whether one body serves all overloads of the function.
    pub(crate) fn is_single(&self) -> bool {
        self.style == Style::Single
    }

    fn takes(&self, args: &[Value<'_>]) -> bool {
        self.args.len() == args.len()
            && (self.style == Style::Unguarded || self.args.iter().zip(args).all(|(wanted, arg)| arg.is_of(wanted)))
    }
}

impl Function {
    /// Calls the overload that the checker has found, or the first one that takes the arguments.
    ///
    /// # Errors
    /// What the body says, or that no overload takes the arguments.
    pub(crate) fn call<'a>(&self, overload: Option<usize>, args: &[Value<'a>]) -> Outcome<'a> {
        let single = overload.and_then(|index| self.overloads.get(index));
        let candidates = single.map_or(&self.overloads[..], std::slice::from_ref);
        let found = candidates.iter().find(|overload| overload.style == Style::Single || overload.takes(args));
        match found.and_then(|overload| overload.body) {
            Some(body) => body(args),
            None => {
                let types: Vec<_> = args.iter().map(|arg| arg.type_of().name().to_owned()).collect();
                Err(EvalError::new(format!("no such overload: {}({})", self.name, types.join(", "))))
            }
        }
    }

    /// What a call costs when it is not known which overload it is.
    pub(crate) fn cost_of_any(&self) -> Cost {
        self.overloads.first().map_or(Cost::One, |overload| overload.cost.of_any_overload())
    }
}

/// What operators and functions that know themselves what they take say of what they do not: some types answer for
/// themselves, without the name of the function.
fn no_overload<'a>(function: &str, first: Option<&Value<'a>>) -> Outcome<'a> {
    match first {
        Some(Value::String(_) | Value::Timestamp(_) | Value::Duration(_)) => Err(EvalError::no_such_overload()),
        _ => Err(EvalError::new(format!("no such overload: {function}"))),
    }
}

/// A function's table by name.
type Table = HashMap<&'static str, Function>;

fn table(parts: &[&[Row]]) -> Table {
    let mut functions: Table = HashMap::new();
    for row in parts.iter().flat_map(|part| part.iter()) {
        let (args, result) = signature::parse(row.signature);
        let overload =
            Overload { id: row.id, member: row.member, args, result, cost: row.cost, style: row.style, body: row.body };
        let function =
            functions.entry(row.function).or_insert_with(|| Function { name: row.function, overloads: Vec::new() });
        function.overloads.push(overload);
    }
    functions
}

/// What every environment has.
static BASE: LazyLock<Table> = LazyLock::new(|| {
    table(&[
        standard::ROWS,
        standard::COMPARISONS,
        standard::CONVERSIONS,
        time::ROWS,
        strings::ROWS,
        lists::ROWS,
        optional::ROWS,
        lists_ext::ROWS,
        sets::ROWS,
        regex::ROWS,
        url::ROWS,
        quantity::ROWS,
        ip::ROWS,
        cidr::ROWS,
        named_format::ROWS,
        semver::ROWS,
        authorizer::ROWS,
    ])
});

/// What policies that mutate have besides.
static JSON_PATCH: LazyLock<Table> = LazyLock::new(|| table(&[json_patch::ROWS]));

/// A function of the environment.
pub(crate) fn find(name: &str, with_json_patch: bool) -> Option<&'static Function> {
    BASE.get(name).or_else(|| JSON_PATCH.get(name).filter(|_| with_json_patch))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_overloads_are_given_once() {
        let mut ids: Vec<_> =
            BASE.values().flat_map(|function| &function.overloads).map(|overload| overload.id).collect();
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count);
        assert!(count > 250, "{count}");
    }
}
