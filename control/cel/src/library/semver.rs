//! Semantic versions: upstream's `library/semverlib.go`, and `github.com/blang/semver` with its words.

use std::{cmp::Ordering, fmt, sync::Arc};

use windlass_apimachinery::go_quoted;

use super::{Row, global, member};
use crate::{
    cost::Cost,
    error::EvalError,
    value::{Opaque, Outcome, Value},
};

#[rustfmt::skip]
pub(super) const ROWS: &[Row] = &[
    global("semver", "string_to_semver", "string -> semver", Cost::Parse, semver),
    global("semver", "string_bool_to_semver", "string, bool -> semver", Cost::Parse, semver),
    global("isSemver", "is_semver_string", "string -> bool", Cost::Parse, is_semver),
    global("isSemver", "is_semver_string_bool", "string, bool -> bool", Cost::Parse, is_semver),
    member("isGreaterThan", "semver_is_greater_than", "semver, semver -> bool", Cost::Accessor, |args| compared(args, |order| Value::Bool(order.is_gt()))),
    member("isLessThan", "semver_is_less_than", "semver, semver -> bool", Cost::Accessor, |args| compared(args, |order| Value::Bool(order.is_lt()))),
    member("compareTo", "semver_compare_to", "semver, semver -> int", Cost::Accessor, |args| compared(args, |order| Value::Int(order as i64))),
    member("major", "semver_major", "semver -> int", Cost::Accessor, |args| of(args, |version| version.numbers[0])),
    member("minor", "semver_minor", "semver -> int", Cost::Accessor, |args| of(args, |version| version.numbers[1])),
    member("patch", "semver_patch", "semver -> int", Cost::Accessor, |args| of(args, |version| version.numbers[2])),
];

/// A version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    /// Major, minor, patch.
    numbers: [u64; 3],
    before_release: Vec<Identifier>,
    build: Vec<String>,
}

/// A part of what stands before a release; numbers come first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Identifier {
    Number(u64),
    Text(String),
}

impl Version {
    fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("Version string empty".to_owned());
        }
        let mut parts = text.splitn(3, '.');
        let (Some(major), Some(minor), Some(rest)) = (parts.next(), parts.next(), parts.next()) else {
            return Err("No Major.Minor.Patch elements found".to_owned());
        };
        let (major, minor) = (number(major, "major", "Major")?, number(minor, "minor", "Minor")?);
        let (rest, build) = rest.split_once('+').map_or((rest, None), |(rest, build)| (rest, Some(build)));
        let (patch, before) = rest.split_once('-').map_or((rest, None), |(patch, before)| (patch, Some(before)));
        let patch = number(patch, "patch", "Patch")?;
        let before_release = before.into_iter().flat_map(|text| text.split('.')).map(identifier);
        let before_release = before_release.collect::<Result<_, _>>()?;
        let build = build.into_iter().flat_map(|text| text.split('.')).map(|part| {
            if part.is_empty() {
                return Err("Build meta data is empty".to_owned());
            }
            if !is_identifier(part) {
                return Err(format!("Invalid character(s) found in build meta data {}", go_quoted(part)));
            }
            Ok(part.to_owned())
        });
        Ok(Self { numbers: [major, minor, patch], before_release, build: build.collect::<Result<_, _>>()? })
    }

    /// The order of versions, for which what they were built of does not count.
    pub(crate) fn compare(&self, other: &Self) -> Ordering {
        self.numbers.cmp(&other.numbers).then_with(|| {
            match (self.before_release.is_empty(), other.before_release.is_empty()) {
                (true, true) => Ordering::Equal,
                (true, false) => Ordering::Greater,
                (false, true) => Ordering::Less,
                (false, false) => self.before_release.cmp(&other.before_release),
            }
        })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.numbers;
        write!(f, "{major}.{minor}.{patch}")?;
        for (index, part) in self.before_release.iter().enumerate() {
            f.write_str(if index == 0 { "-" } else { "." })?;
            match part {
                Identifier::Number(number) => write!(f, "{number}")?,
                Identifier::Text(text) => f.write_str(text)?,
            }
        }
        for (index, part) in self.build.iter().enumerate() {
            write!(f, "{}{part}", if index == 0 { "+" } else { "." })?;
        }
        Ok(())
    }
}

fn is_number(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_digit())
}

fn is_identifier(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

fn parse_number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|why: std::num::ParseIntError| {
        let why = match why.kind() {
            std::num::IntErrorKind::PosOverflow => "value out of range",
            _ => "invalid syntax",
        };
        format!("strconv.ParseUint: parsing {}: {why}", go_quoted(text))
    })
}

fn number(text: &str, name: &str, capital: &str) -> Result<u64, String> {
    if !is_number(text) {
        return Err(format!("Invalid character(s) found in {name} number {}", go_quoted(text)));
    }
    if text.len() > 1 && text.starts_with('0') {
        return Err(format!("{capital} number must not contain leading zeroes {}", go_quoted(text)));
    }
    parse_number(text)
}

fn identifier(text: &str) -> Result<Identifier, String> {
    if text.is_empty() {
        return Err("Prerelease is empty".to_owned());
    }
    if is_number(text) {
        if text.len() > 1 && text.starts_with('0') {
            let quoted = go_quoted(text);
            return Err(format!("Numeric PreRelease version must not contain leading zeroes {quoted}"));
        }
        return parse_number(text).map(Identifier::Number);
    }
    if is_identifier(text) {
        return Ok(Identifier::Text(text.to_owned()));
    }
    Err(format!("Invalid character(s) found in prerelease {}", go_quoted(text)))
}

/// A version that may begin with `v`, have zeros before its numbers, and fewer than three of them.
fn normalized(text: &str) -> Result<Version, String> {
    let text = text.strip_prefix('v').unwrap_or(text);
    let mut parts: Vec<String> = text
        .splitn(3, '.')
        .map(|part| {
            let trimmed = part.trim_start_matches('0');
            let zero = if trimmed.starts_with(|c: char| c.is_ascii_digit()) { "" } else { "0" };
            if part.len() > 1 { format!("{zero}{trimmed}") } else { part.to_owned() }
        })
        .collect();
    if parts.len() < 3 {
        if parts.last().is_some_and(|last| last.contains(['+', '-'])) {
            return Err("short version cannot contain PreRelease/Build meta data".to_owned());
        }
        parts.resize(3, "0".to_owned());
    }
    Version::parse(&parts.join("."))
}

fn parse<'a>(args: &[Value<'a>]) -> Result<Result<Version, String>, EvalError> {
    match args {
        [Value::String(text)] | [Value::String(text), Value::Bool(false)] => Ok(Version::parse(text)),
        [Value::String(text), Value::Bool(true)] => Ok(normalized(text)),
        _ => Err(EvalError::no_such_overload()),
    }
}

fn semver<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let version = parse(args)?.map_err(EvalError::new)?;
    Ok(Value::Opaque(Opaque::Semver(Arc::new(version))))
}

fn is_semver<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    Ok(Value::Bool(parse(args)?.is_ok()))
}

fn of<'a>(args: &[Value<'a>], part: fn(&Version) -> u64) -> Outcome<'a> {
    match args {
        [Value::Opaque(Opaque::Semver(version))] => Ok(Value::Int(part(version).cast_signed())),
        _ => Err(EvalError::no_such_overload()),
    }
}

fn compared<'a>(args: &[Value<'a>], part: fn(Ordering) -> Value<'static>) -> Outcome<'a> {
    match args {
        [Value::Opaque(Opaque::Semver(one)), Value::Opaque(Opaque::Semver(other))] => Ok(part(one.compare(other))),
        _ => Err(EvalError::no_such_overload()),
    }
}
