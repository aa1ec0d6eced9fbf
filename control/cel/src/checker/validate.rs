//! What is wrong with an expression although its types fit: cel-go's `cel/validator.go` and the validator of `format`.

use super::Checked;
use crate::{
    ast::{Call, Expr, Id, Kind, Literal},
    library::{self, Clause},
    parser::Positions,
    source::{Errors, Source},
    stack,
    types::Type,
    value::Value,
};

/// Reports durations, timestamps and regular expressions that are none, lists and maps of several types, and formats that do
/// not fit their arguments.
pub(super) fn validate(checked: &Checked, source: &Source<'_>, positions: &Positions, errors: &mut Errors) {
    let mut found: Vec<(Id, String)> = Vec::new();
    let mut calls: Vec<(Id, &Call)> = Vec::new();
    checked.root.visit(&mut |expr| {
        if let Kind::Call(call) = &expr.kind {
            calls.push((expr.id, call));
        }
    });
    for function in ["duration", "timestamp", "matches"] {
        for (_, call) in calls.iter().filter(|(_, call)| call.function == function) {
            if let Some(Expr { id, kind: Kind::Literal(literal) }) = call.args.first()
                && !is_valid(function, literal)
            {
                found.push((*id, format!("invalid {function} argument")));
            }
        }
    }
    homogeneous(checked, &checked.root, false, &mut found);
    for (id, call) in calls {
        format(checked, id, call, &mut found);
    }
    for (id, message) in found {
        errors.report(|| positions.location(id, source), message);
    }
}

fn is_valid(function: &str, literal: &Literal) -> bool {
    if function == "matches" {
        return match literal {
            Literal::String(pattern) => library::compile_regex(pattern).is_ok(),
            _ => true,
        };
    }
    let value = Value::of_literal(literal);
    library::find(function, false).is_some_and(|function| function.call(None, &[value]).is_ok())
}

/// Lists and maps have one type of elements, except below a call of `format`.
fn homogeneous(checked: &Checked, expr: &Expr, exempt: bool, found: &mut Vec<(Id, String)>) {
    stack::enough(|| homogeneous_node(checked, expr, exempt, found));
}

fn homogeneous_node(checked: &Checked, expr: &Expr, exempt: bool, found: &mut Vec<(Id, String)>) {
    let exempt = exempt || matches!(&expr.kind, Kind::Call(call) if call.function == "format");
    let mut below = |expr: &Expr| homogeneous(checked, expr, exempt, found);
    match &expr.kind {
        Kind::Unspecified | Kind::Literal(_) | Kind::Ident(_) => {}
        Kind::Select(select) => below(&select.operand),
        Kind::Call(call) => call.target.iter().map(AsRef::as_ref).chain(&call.args).for_each(below),
        Kind::Struct(object) => object.fields.iter().for_each(|field| below(&field.value)),
        Kind::Comprehension(fold) => fold.children().into_iter().for_each(below),
        Kind::List(list) => {
            list.elements.iter().for_each(&mut below);
            if !exempt {
                let elements = list.elements.iter().enumerate();
                let elements = elements.map(|(index, element)| (element.id, list.optional.contains(&index)));
                // Of a list the first element that differs is reported alone.
                found.extend(different(checked, elements).into_iter().take(1));
            }
        }
        Kind::Map(entries) => {
            entries.iter().for_each(|entry| {
                below(&entry.key);
                below(&entry.value);
            });
            if !exempt {
                found.extend(different(checked, entries.iter().map(|entry| (entry.key.id, false))));
                found.extend(different(checked, entries.iter().map(|entry| (entry.value.id, entry.optional))));
            }
        }
    }
}

/// The elements whose type is not that of the first one.
fn different(checked: &Checked, elements: impl Iterator<Item = (Id, bool)>) -> Vec<(Id, String)> {
    let mut first: Option<&Type> = None;
    let mut found = Vec::new();
    for (id, optional) in elements {
        let of = checked.type_of(id);
        let of = if optional { of.unwrapped().unwrap_or(of) } else { of };
        match first {
            None => first = Some(of),
            Some(first) if !first.is_equivalent(of) => {
                found.push((id, format!("expected type '{first}' but found '{of}'")));
            }
            Some(_) => {}
        }
    }
    found
}

/// Checks a format that is written out with its arguments.
fn format(checked: &Checked, id: Id, call: &Call, found: &mut Vec<(Id, String)>) {
    let (Some(target), "format", [Expr { kind: Kind::List(list), .. }]) =
        (&call.target, call.function.as_str(), &call.args[..])
    else {
        return;
    };
    let Kind::Literal(Literal::String(text)) = &target.kind else { return };
    let args = &list.elements;
    let mut blame = id;
    let result = library::check_format(
        text,
        args.len(),
        |_| {},
        |index, clause| {
            let Some(arg) = args.get(index) else { return Ok(()) };
            match misfit(checked, arg, clause) {
                None => Ok(()),
                Some(bad) => {
                    blame = bad;
                    Err(clause.refusal(checked.type_of(bad).name()))
                }
            }
        },
    );
    match result {
        Err(message) => found.push((blame, message)),
        Ok(used) if used < args.len() => {
            let message = format!("too many arguments supplied to string.format (expected {used}, got {})", args.len());
            found.push((id, message));
        }
        Ok(_) => {}
    }
}

/// The node that does not fit a clause.
fn misfit(checked: &Checked, arg: &Expr, clause: Clause) -> Option<Id> {
    let of = checked.type_of(arg.id);
    let fits = match clause {
        _ if *of == Type::Dyn => true,
        Clause::Text => !matches!(of, Type::Opaque(..) | Type::Object(_) | Type::Param(_) | Type::Error | Type::Any),
        Clause::Decimal | Clause::Octal => matches!(of, Type::Int | Type::Uint),
        Clause::Fixed(_) | Clause::Scientific(_) => matches!(of, Type::Double | Type::String),
        Clause::Binary => matches!(of, Type::Int | Type::Uint | Type::Bool),
        Clause::Hexadecimal { .. } => matches!(of, Type::Int | Type::Uint | Type::String | Type::Bytes),
    };
    if !fits {
        return Some(arg.id);
    }
    match (&arg.kind, clause) {
        (Kind::List(list), Clause::Text) => list.elements.iter().find_map(|element| misfit(checked, element, clause)),
        (Kind::Map(entries), Clause::Text) => entries
            .iter()
            .find_map(|entry| misfit(checked, &entry.key, clause).or_else(|| misfit(checked, &entry.value, clause))),
        _ => None,
    }
}
