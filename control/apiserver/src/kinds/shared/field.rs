//! A field of an object that is validated: its value and its path. Pure.

use serde_json::Value;
use windlass_kit::quantity::Quantity;

use super::field_path::FieldPath;
use crate::apiserver::pipeline::validation::{
    errors::{Cause, Errors},
    names,
};

/// Upstream's words for a field that may not change.
pub(crate) const IMMUTABLE: &str = "field is immutable";

/// A field, which may be missing.
#[derive(Debug, Clone)]
pub(crate) struct Field<'a> {
    pub(crate) value: &'a Value,
    pub(crate) path: FieldPath,
}

impl<'a> Field<'a> {
    /// The object itself.
    pub(crate) fn root(value: &'a Value) -> Self {
        Self { value, path: FieldPath::root() }
    }

    /// The field `name` below this one.
    pub(crate) fn at(&self, name: &'static str) -> Self {
        Self { value: &self.value[name], path: self.path.field(name) }
    }

    /// The field `name` below this one, whose name is not known before.
    pub(crate) fn at_name(&self, name: &str) -> Self {
        Self { value: &self.value[name], path: self.path.named(name) }
    }

    /// What stands at a path of names: `spec.template`.
    pub(crate) fn below(&self, path: &'static str) -> Self {
        path.split('.').fold(self.clone(), |field, name| field.at(name))
    }

    /// The items of a list.
    pub(crate) fn items(&self) -> impl Iterator<Item = Field<'a>> + use<'a> {
        let path = self.path.clone();
        let items = self.value.as_array().into_iter().flatten().enumerate();
        items.map(move |(at, value)| Field { value, path: path.item(at) })
    }

    /// The entries of a map, with their keys.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&'a str, Field<'a>)> + use<'a> {
        let path = self.path.clone();
        let entries = self.value.as_object().into_iter().flatten();
        entries.map(move |(key, value)| (key.as_str(), Field { value, path: path.key(key) }))
    }

    /// The text; empty if not set.
    pub(crate) fn text(&self) -> &'a str {
        self.value.as_str().unwrap_or("")
    }

    /// The number.
    pub(crate) fn number(&self) -> Option<i64> {
        self.value.as_i64()
    }

    /// The quantity.
    pub(crate) fn quantity(&self) -> Option<Quantity> {
        self.text().parse().ok()
    }

    /// Whether it is not null.
    pub(crate) fn is_set(&self) -> bool {
        !self.value.is_null()
    }

    /// The number of items, entries or bytes.
    pub(crate) fn len(&self) -> usize {
        match self.value {
            Value::Array(items) => items.len(),
            Value::Object(fields) => fields.len(),
            Value::String(text) => text.len(),
            _ => 0,
        }
    }

    /// Whether it is missing, or has no items, entries or bytes.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The texts of a list.
    pub(crate) fn texts(&self) -> Vec<&'a str> {
        self.value.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
    }

    /// Says that it is missing.
    pub(crate) fn required(&self, why: &str, errors: &mut Errors) {
        errors.required(&self.path, why);
    }

    /// Says that its value is not good. One that is missing is `null`, as upstream writes pointers.
    pub(crate) fn invalid(&self, why: &str, errors: &mut Errors) {
        match self.value {
            Value::Null => errors.push(&self.path, Cause::Invalid, format!("Invalid value: null: {why}")),
            value => errors.invalid(&self.path, value, why),
        }
    }

    /// The value as upstream's internal type writes it: its names of the fields, in their order.
    pub(crate) fn internal(&self, fields: &[(&str, &'static str)]) -> String {
        let fields: Vec<String> =
            fields.iter().map(|(internal, name)| format!("\"{internal}\":{}", self.at(name).value)).collect();
        format!("{{{}}}", fields.join(","))
    }

    /// Says that it is not good, without its value.
    pub(crate) fn invalid_whole(&self, why: &str, errors: &mut Errors) {
        errors.push(&self.path, Cause::Invalid, format!("Invalid value: {why}"));
    }

    /// Says that its value, which is shown so, is not good.
    pub(crate) fn invalid_as(&self, shown: &str, why: &str, errors: &mut Errors) {
        errors.push(&self.path, Cause::Invalid, format!("Invalid value: {shown}: {why}"));
    }

    /// Says that its value, which is shown so, stands twice.
    pub(crate) fn duplicate_as(&self, shown: &str, errors: &mut Errors) {
        errors.push(&self.path, Cause::Duplicate, format!("Duplicate value: {shown}"));
    }

    /// Adds the error that its value, in this form, is not one of `allowed`.
    pub(crate) fn not_supported_as(&self, shown: &str, allowed: &[&str], errors: &mut Errors) {
        let allowed: Vec<String> = allowed.iter().map(|word| format!("{word:?}")).collect();
        let detail = format!("Unsupported value: {shown}: supported values: {}", allowed.join(", "));
        errors.push(&self.path, Cause::NotSupported, detail);
    }

    /// Says that it may not be set.
    pub(crate) fn forbidden(&self, why: &str, errors: &mut Errors) {
        errors.forbidden(&self.path, why);
    }

    /// Says that it stands twice.
    pub(crate) fn duplicate(&self, errors: &mut Errors) {
        errors.duplicate(&self.path, self.value);
    }

    /// Refuses a missing text, and one that does not pass a check.
    pub(crate) fn named(&self, check: fn(&str) -> Option<String>, errors: &mut Errors) {
        if self.text().is_empty() {
            self.required("", errors);
        } else {
            self.fits(check, errors);
        }
    }

    /// Refuses a text that does not pass a check.
    pub(crate) fn fits(&self, check: fn(&str) -> Option<String>, errors: &mut Errors) {
        errors.unless(&self.path, self.text(), check(self.text()));
    }

    /// Refuses a text that is no key of a label.
    pub(crate) fn label_key(&self, errors: &mut Errors) {
        let problems = names::qualified_problems(self.text());
        problems.iter().for_each(|why| errors.invalid_text(&self.path, self.text(), why));
    }

    /// Refuses a missing text, and one that is no path with a domain before it.
    pub(crate) fn domain_prefixed_path(&self, errors: &mut Errors) {
        if self.text().is_empty() {
            self.required("", errors);
        } else if let Some((part, why)) = names::domain_prefixed_path(self.text()) {
            errors.invalid_text(&self.path, part, &why);
        }
    }

    /// Refuses a text that is not empty and does not pass a check.
    pub(crate) fn optionally_fits(&self, check: fn(&str) -> Option<String>, errors: &mut Errors) {
        if !self.text().is_empty() {
            self.fits(check, errors);
        }
    }

    /// Refuses all but `allowed`.
    pub(crate) fn one_of(&self, allowed: &[&str], errors: &mut Errors) {
        errors.one_of(&self.path, self.value, allowed);
    }

    /// Refuses all but `allowed`, and takes a missing value.
    pub(crate) fn optional_one_of(&self, allowed: &[&str], errors: &mut Errors) {
        if self.is_set() {
            self.one_of(allowed, errors);
        }
    }

    /// Refuses a missing text, and all but `allowed`.
    pub(crate) fn required_one_of(&self, allowed: &[&str], errors: &mut Errors) {
        if self.text().is_empty() { self.required("", errors) } else { self.one_of(allowed, errors) }
    }

    /// Refuses a missing value, and all but `allowed`, where an empty text is a value: upstream's pointers.
    pub(crate) fn pointer_one_of(&self, allowed: &[&str], errors: &mut Errors) {
        if self.is_set() { self.one_of(allowed, errors) } else { self.required("", errors) }
    }

    /// Refuses numbers below 0, and takes a missing value.
    pub(crate) fn at_least_0(&self, errors: &mut Errors) {
        errors.at_least_0(&self.path, self.value);
    }

    /// Refuses a text of more than `max` bytes.
    pub(crate) fn max_bytes(&self, max: usize, errors: &mut Errors) {
        if self.text().len() > max {
            errors.too_long(&self.path, max);
        }
    }

    /// Refuses a list of more than `max` items.
    pub(crate) fn max_items(&self, max: usize, errors: &mut Errors) {
        if self.len() > max {
            errors.too_many(&self.path, self.len(), max);
        }
    }

    /// Refuses a value that differs from `old`.
    pub(crate) fn unchanged(&self, old: &Field<'_>, errors: &mut Errors) {
        if self.value != old.value {
            self.invalid(IMMUTABLE, errors);
        }
    }
}

/// Refuses negative numbers in the fields of an object.
pub(crate) fn none_negative(object: &Field<'_>, fields: &[&'static str], errors: &mut Errors) {
    for field in fields {
        object.at(field).at_least_0(errors);
    }
}

/// Refuses changes of fields, by their paths from the root.
pub(crate) fn immutable(new: &Value, old: &Value, paths: &[&'static str], errors: &mut Errors) {
    for path in paths {
        Field::root(new).below(path).unchanged(&Field::root(old).below(path), errors);
    }
}
