//! Texts: cel-go's `ext/strings.go`, version 2. Positions count characters.

use super::{Row, format_string, global, member};
use crate::{
    cost::Cost,
    error::EvalError,
    eval::MAX_TEXT,
    value::{Outcome, Value},
};

#[rustfmt::skip]
pub(super) const ROWS: &[Row] = &[
    member("charAt", "string_char_at_int", "string, int -> string", Cost::One, char_at),
    member("indexOf", "string_index_of_string", "string, string -> int", Cost::Scan, index_of),
    member("indexOf", "string_index_of_string_int", "string, string, int -> int", Cost::Scan, index_of),
    member("lastIndexOf", "string_last_index_of_string", "string, string -> int", Cost::Scan, last_index_of),
    member("lastIndexOf", "string_last_index_of_string_int", "string, string, int -> int", Cost::Scan, last_index_of),
    member("lowerAscii", "string_lower_ascii", "string -> string", Cost::Traverse, lower_ascii),
    member("upperAscii", "string_upper_ascii", "string -> string", Cost::Traverse, upper_ascii),
    member("replace", "string_replace_string_string", "string, string, string -> string", Cost::Replace, replace),
    member("replace", "string_replace_string_string_int", "string, string, string, int -> string", Cost::Replace, replace),
    member("split", "string_split_string", "string, string -> list(string)", Cost::Split, split),
    member("split", "string_split_string_int", "string, string, int -> list(string)", Cost::Split, split),
    member("substring", "string_substring_int", "string, int -> string", Cost::Traverse, substring),
    member("substring", "string_substring_int_int", "string, int, int -> string", Cost::Traverse, substring),
    member("trim", "string_trim", "string -> string", Cost::Traverse, trim),
    member("format", "string_format", "string, list(dyn) -> string", Cost::Format, format_string::format),
    global("strings.quote", "strings_quote", "string -> string", Cost::Quote, quote),
    member("join", "list_join", "list(string) -> string", Cost::Join, join),
    member("join", "list_join_string", "list(string), string -> string", Cost::Join, join),
];

fn out_of_range<'a>(index: i64) -> Outcome<'a> {
    Err(EvalError::new(format!("index out of range: {index}")))
}

fn number<'a>(value: usize) -> Outcome<'a> {
    Ok(Value::Int(i64::try_from(value).unwrap_or(i64::MAX)))
}

/// Ends evaluation before a text is made that is longer than any may be: what functions make is charged for by what they read.
fn check_length(length: usize) -> Result<(), EvalError> {
    if length > MAX_TEXT { Err(EvalError::cost_limit()) } else { Ok(()) }
}

fn char_at<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let [Value::String(text), Value::Int(index)] = args else { return Err(EvalError::no_such_overload()) };
    let Ok(at) = usize::try_from(*index) else { return out_of_range(*index) };
    match text.chars().nth(at) {
        Some(c) => Ok(Value::text(c.to_string())),
        None if at == text.chars().count() => Ok(Value::text("")),
        None => out_of_range(*index),
    }
}

/// The characters of a text, of a part that is looked for, and the position from which.
type Search = (Vec<char>, Vec<char>, Option<i64>);

fn search(args: &[Value<'_>]) -> Result<Search, EvalError> {
    match args {
        [Value::String(text), Value::String(part), rest @ ..] => {
            let from = match rest {
                [] => None,
                [Value::Int(from)] => Some(*from),
                _ => return Err(EvalError::no_such_overload()),
            };
            Ok((text.chars().collect(), part.chars().collect(), from))
        }
        _ => Err(EvalError::no_such_overload()),
    }
}

fn index_of<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let (text, part, from) = search(args)?;
    let from = from.unwrap_or(0);
    if part.is_empty() {
        return Ok(Value::Int(from));
    }
    let Ok(start) = usize::try_from(from) else { return out_of_range(from) };
    let found = text.get(start..).and_then(|rest| rest.windows(part.len()).position(|window| window == part));
    found.map_or(Ok(Value::Int(-1)), |at| number(at + start))
}

fn last_index_of<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let (text, part, from) = search(args)?;
    if part.is_empty() {
        return from.map_or_else(|| number(text.len()), |from| Ok(Value::Int(from)));
    }
    let until = match from {
        None => text.len().saturating_sub(1),
        Some(from) => match usize::try_from(from) {
            Ok(from) if from >= text.len() => return Ok(Value::Int(-1)),
            Ok(from) => from,
            Err(_) => return out_of_range(from),
        },
    };
    let reach = text.len().min(until.saturating_add(part.len()));
    let found = text[..reach].windows(part.len()).rposition(|window| window == part);
    found.map_or(Ok(Value::Int(-1)), number)
}

fn one_text<'a>(args: &[Value<'a>], make: fn(&str) -> String) -> Outcome<'a> {
    match args {
        [Value::String(text)] => Ok(Value::text(make(text))),
        _ => Err(EvalError::no_such_overload()),
    }
}

fn lower_ascii<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    one_text(args, str::to_ascii_lowercase)
}

fn upper_ascii<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    one_text(args, str::to_ascii_uppercase)
}

/// What Go calls space.
fn is_space(c: char) -> bool {
    c.is_whitespace()
}

fn trim<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    one_text(args, |text| text.trim_matches(is_space).to_owned())
}

fn replace<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let (text, old, new, limit) = match args {
        [Value::String(text), Value::String(old), Value::String(new)] => (text, old, new, -1),
        [Value::String(text), Value::String(old), Value::String(new), Value::Int(limit)] => (text, old, new, *limit),
        _ => return Err(EvalError::no_such_overload()),
    };
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let times = text.matches(&**old).take(limit).count();
    check_length(times.saturating_mul(new.len()).saturating_add(text.len()))?;
    Ok(Value::text(text.replacen(&**old, new, limit)))
}

/// Go's `strings.SplitN`: between all characters, if there is nothing to split at.
fn split<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let (text, separator, limit) = match args {
        [Value::String(text), Value::String(separator)] => (text, separator, -1),
        [Value::String(text), Value::String(separator), Value::Int(limit)] => (text, separator, *limit),
        _ => return Err(EvalError::no_such_overload()),
    };
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    if limit == 0 {
        return Ok(Value::list(Vec::new()));
    }
    if !separator.is_empty() {
        return Ok(Value::texts(text.splitn(limit, &**separator)));
    }
    let mut parts: Vec<&str> = Vec::new();
    let mut rest: &str = text;
    while parts.len() + 1 < limit
        && let Some(first) = rest.chars().next()
    {
        let (one, others) = rest.split_at(first.len_utf8());
        parts.push(one);
        rest = others;
    }
    if !rest.is_empty() {
        parts.push(rest);
    }
    Ok(Value::texts(parts))
}

fn substring<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let (text, start, end) = match args {
        [Value::String(text), Value::Int(start)] => (text, *start, None),
        [Value::String(text), Value::Int(start), Value::Int(end)] => (text, *start, Some(*end)),
        _ => return Err(EvalError::no_such_overload()),
    };
    if let Some(end) = end.filter(|end| start > *end) {
        return Err(EvalError::new(format!("invalid substring range. start: {start}, end: {end}")));
    }
    let chars: Vec<char> = text.chars().collect();
    let within = |index: i64| usize::try_from(index).ok().filter(|index| *index <= chars.len());
    let Some(from) = within(start) else { return out_of_range(start) };
    let until = match end {
        None => chars.len(),
        Some(end) => match within(end) {
            Some(until) => until,
            None => return out_of_range(end),
        },
    };
    Ok(Value::text(chars[from..until].iter().collect::<String>()))
}

fn join<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let (list, separator) = match args {
        [Value::List(list)] => (list, ""),
        [Value::List(list), Value::String(separator)] => (list, &**separator),
        _ => return Err(EvalError::no_such_overload()),
    };
    let mut joined = String::new();
    for (index, element) in list.iter().enumerate() {
        let element = element?;
        let Value::String(text) = &element else {
            return Err(EvalError::new(format!("join: invalid input: {}", element.go_print())));
        };
        if index > 0 {
            joined.push_str(separator);
        }
        check_length(joined.len().saturating_add(text.len()))?;
        joined.push_str(text);
    }
    Ok(Value::text(joined))
}

fn quote<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    one_text(args, |text| {
        let mut quoted = String::with_capacity(text.len() + 2);
        quoted.push('"');
        for c in text.chars() {
            match c {
                '\u{7}' => quoted.push_str("\\a"),
                '\u{8}' => quoted.push_str("\\b"),
                '\u{c}' => quoted.push_str("\\f"),
                '\n' => quoted.push_str("\\n"),
                '\r' => quoted.push_str("\\r"),
                '\t' => quoted.push_str("\\t"),
                '\u{b}' => quoted.push_str("\\v"),
                '\\' => quoted.push_str("\\\\"),
                '"' => quoted.push_str("\\\""),
                c => quoted.push(c),
            }
        }
        quoted.push('"');
        quoted
    })
}
