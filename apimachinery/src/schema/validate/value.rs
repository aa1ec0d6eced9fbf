//! The value validations of one node, and the junctors that join several.

use serde_json::Value;

use super::{formats, number, type_name};
use crate::{
    MAX_DEPTH,
    effort::Effort,
    field::{Cause, FieldError, Path, quoted, too_long, too_many},
    schema::{Junctors, Validations},
};

/// What was found so far.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) errors: Vec<FieldError>,
    /// How much was checked: of several failing alternatives, the one with the most checks is reported.
    looked_at: usize,
    /// What is left for regular expressions.
    pub(super) effort: Effort,
}

/// The field of errors that are about no single one.
const WHOLE: &str = "<nil>";

impl Found {
    pub(super) const fn within(effort: Effort) -> Self {
        Self { errors: Vec::new(), looked_at: 0, effort }
    }

    pub(super) fn push(&mut self, field: &str, cause: Cause, detail: String) {
        self.errors.push(FieldError { field: field.to_owned(), cause, detail });
    }

    /// The value at `field` is not as it should be.
    pub(super) fn invalid(&mut self, field: &str, value: &Value, why: &str) {
        let value = match value {
            Value::Number(number) => number::text(number),
            value => quoted(value),
        };
        self.push(field, Cause::Invalid, format!("Invalid value: {value}: {field} in body {why}"));
    }

    /// The value at `field` is of another type.
    pub(super) fn wrong_type(&mut self, field: &str, wanted: &str, found: &str) {
        let detail = format!("Invalid value: {found:?}: {field} in body must be of type {wanted}: {found:?}");
        self.push(field, Cause::TypeInvalid, detail);
    }

    /// What upstream says besides of a number that is no integer where one is wanted, perhaps of a format.
    pub(super) fn no_integer(&mut self, field: &str, value: &Value, format: Option<&str>) {
        if type_name(value) == "number" {
            let of = format.map_or("(default format)".to_owned(), |format| format!("with format {format}"));
            self.push_whole(&format!("Checked value must be of type integer {of} in {field}"));
        }
    }

    /// An error that upstream reports without a path.
    pub(super) fn push_whole(&mut self, why: &str) {
        self.push(WHOLE, Cause::Invalid, format!("Invalid value: \"\": {why}"));
    }
}

/// Checks one value, and what nested validations say of what is inside it. `integer` is whether the schema's type is that.
/// Fields that are missing are for [`check_required`].
pub(super) fn check(
    validations: &Validations,
    value: &Value,
    integer: bool,
    path: &mut Path,
    found: &mut Found,
    depth: usize,
) {
    if depth > MAX_DEPTH {
        return;
    }
    found.looked_at += 1;
    if let Some(junctors) = validations.junctors.as_deref().filter(|_| !value.is_null()) {
        check_junctors(junctors, value, path, found, depth);
    }
    match value {
        Value::String(text) => check_text(validations, text, path, found),
        Value::Number(number) => number::check(validations, number, integer, path, found),
        Value::Array(items) => check_list(validations, items, path, found, depth),
        Value::Object(fields) => check_fields(validations, fields, path, found, depth),
        Value::Null | Value::Bool(_) => {}
    }
    check_enumeration(validations, value, path, found);
}

/// Checks a value of which nothing else is known than these validations.
fn check_inside(validations: &Validations, value: &Value, path: &mut Path, found: &mut Found, depth: usize) {
    check(validations, value, false, path, found, depth);
    check_required(validations, value, path, found);
}

/// The fields that are missing, which upstream reports after all that is wrong with the others.
pub(super) fn check_required(validations: &Validations, value: &Value, path: &Path, found: &mut Found) {
    let Some(fields) = value.as_object() else { return };
    for name in validations.required.iter().filter(|name| !fields.contains_key(&***name)) {
        found.push(&path.field(name), Cause::Required, "Required value".to_owned());
    }
}

fn check_text(validations: &Validations, text: &str, path: &Path, found: &mut Found) {
    let field = path.as_str();
    let length = text.chars().count() as u64;
    let value = Value::from(text);
    if let Some(max) = validations.max_length.filter(|max| length > *max) {
        found.push(field, Cause::TooLong, too_long(max));
    }
    if let Some(min) = validations.min_length.filter(|min| length < *min) {
        found.invalid(field, &value, &format!("should be at least {min} chars long"));
    }
    if let Some(pattern) = &validations.pattern
        && pattern.matches(text, &mut found.effort) == Some(false)
    {
        found.invalid(field, &value, &format!("should match '{}'", pattern.as_str()));
    }
    if let Some(format) = &validations.format
        && !formats::matches(format, text)
    {
        let value = quoted(&value);
        let detail = format!("Invalid value: {value}: {field} in body must be of type {format}: {value}");
        found.push(field, Cause::TypeInvalid, detail);
    }
}

fn check_list(validations: &Validations, items: &[Value], path: &mut Path, found: &mut Found, depth: usize) {
    if let Some(inside) = &validations.items {
        for (at, item) in items.iter().enumerate() {
            let before = path.enter_item(at);
            check_inside(inside, item, path, found, depth + 1);
            path.leave(before);
        }
    }
    let (field, count) = (path.as_str(), items.len() as u64);
    if let Some(min) = validations.min_items.filter(|min| count < *min) {
        found.invalid(field, &count.into(), &format!("should have at least {min} items"));
    }
    if let Some(max) = validations.max_items.filter(|max| count > *max) {
        found.push(field, Cause::TooMany, too_many(count, max));
    }
}

fn check_fields(
    validations: &Validations,
    fields: &serde_json::Map<String, Value>,
    path: &mut Path,
    found: &mut Found,
    depth: usize,
) {
    let count = fields.len() as u64;
    if let Some(min) = validations.min_properties.filter(|min| count < *min) {
        found.invalid(path.as_str(), &count.into(), &format!("should have at least {min} properties"));
    }
    if let Some(max) = validations.max_properties.filter(|max| count > *max) {
        found.push(path.as_str(), Cause::TooMany, too_many(count, max));
    }
    for (name, inside) in &validations.properties {
        if let Some(value) = fields.get(&**name) {
            let before = path.enter_field(name);
            check_inside(inside, value, path, found, depth + 1);
            path.leave(before);
        }
    }
    if let Some(inside) = &validations.additional_properties {
        for (name, value) in fields.iter().filter(|(name, _)| !validations.properties.contains_key(name.as_str())) {
            let before = path.enter_field(name);
            check_inside(inside, value, path, found, depth + 1);
            path.leave(before);
        }
    }
}

fn check_enumeration(validations: &Validations, value: &Value, path: &Path, found: &mut Found) {
    let allowed = &validations.enumeration;
    if allowed.is_empty() || allowed.iter().any(|allowed| equal(allowed, value)) {
        return;
    }
    let words = allowed.iter().map(|allowed| match allowed {
        Value::String(text) => Value::from(text.as_str()).to_string(),
        other => Value::from(other.to_string()).to_string(),
    });
    let words: Vec<String> = words.collect();
    let shown = match value {
        Value::Null => "null".to_owned(),
        value => quoted(value),
    };
    let detail = format!("Unsupported value: {shown}: supported values: {}", words.join(", "));
    found.push(path.as_str(), Cause::NotSupported, detail);
}

/// Whether two values are equal, numbers by their value.
fn equal(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one == other || one.as_f64() == other.as_f64(),
        _ => one == other,
    }
}

fn check_junctors(junctors: &Junctors, value: &Value, path: &mut Path, found: &mut Found, depth: usize) {
    let mut alone = |validations: &Validations, found: &mut Found| {
        let mut own = Found::within(found.effort);
        check_inside(validations, value, path, &mut own, depth + 1);
        found.looked_at += own.looked_at;
        found.effort = own.effort;
        own
    };
    let all = |members: &[Validations], found: &mut Found, alone: &mut dyn FnMut(&Validations, &mut Found) -> Found| {
        members.iter().map(|member| alone(member, found)).collect::<Vec<_>>()
    };
    let any_of = all(&junctors.any_of, found, &mut alone);
    let one_of = all(&junctors.one_of, found, &mut alone);
    let all_of = all(&junctors.all_of, found, &mut alone);
    let not = junctors.not.as_ref().map(|not| alone(not, found));
    let field = Value::from(path.as_str()).to_string();
    let none = format!("{field} must validate at least one schema (anyOf)");
    if junctors.integer_or_text && !matches!(type_name(value), "integer" | "string") {
        found.push_whole(&none);
        // Of the two forms, which fail alike, the first one is reported.
        found.wrong_type(path.as_str(), "integer", type_name(value));
        found.no_integer(path.as_str(), value, None);
    }
    if !any_of.is_empty() && any_of.iter().all(|member| !member.errors.is_empty()) {
        found.push_whole(&none);
        found.errors.extend(best_failure(any_of));
    }
    let valid = one_of.iter().filter(|member| member.errors.is_empty()).count();
    if !one_of.is_empty() && valid != 1 {
        let count = if valid == 0 { "none valid".to_owned() } else { format!("{valid} valid alternatives") };
        found.push_whole(&format!("{field} must validate one and only one schema (oneOf). Found {count}"));
        if valid == 0 {
            found.errors.extend(best_failure(one_of));
        }
    }
    let valid = all_of.iter().filter(|member| member.errors.is_empty()).count();
    if valid < all_of.len() {
        let none = if valid == 0 { ". None validated" } else { "" };
        found.errors.extend(all_of.into_iter().flat_map(|member| member.errors));
        found.push_whole(&format!("{field} must validate all the schemas (allOf){none}"));
    }
    if not.is_some_and(|not| not.errors.is_empty()) {
        found.push_whole(&format!("{field} must not validate the schema (not)"));
    }
}

/// The errors of the alternative that was looked at most, the first of several.
fn best_failure(members: Vec<Found>) -> Vec<FieldError> {
    let best = members.into_iter().reduce(|best, next| if next.looked_at > best.looked_at { next } else { best });
    best.map(|best| best.errors).unwrap_or_default()
}
