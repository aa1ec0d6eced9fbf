//! Lists and maps with a limit: the items of a longer one are not validated, to bound the work per request (upstream:
//! `validateSlice`, `validateSet` and `validateMap`). Pure.

use std::collections::BTreeSet;

use windlass_apimachinery::field::quoted;

use crate::{
    apiserver::pipeline::validation::errors::{Cause, Errors},
    kinds::shared::{field::Field, field_path::FieldPath},
};

/// Validates each item.
pub(super) fn slice(
    list: &Field<'_>,
    max: usize,
    errors: &mut Errors,
    mut check: impl FnMut(&Field<'_>, &mut Errors),
) -> bool {
    let fits = list.len() <= max;
    list.max_items(max, errors);
    if fits {
        list.items().for_each(|item| check(&item, errors));
    }
    fits
}

/// The same, and refuses items whose keys, as errors show them, stand twice.
pub(super) fn set(
    list: &Field<'_>,
    max: usize,
    key: impl Fn(&Field<'_>) -> String,
    errors: &mut Errors,
    check: impl FnMut(&Field<'_>, &mut Errors),
) {
    if !slice(list, max, errors, check) {
        return;
    }
    let mut seen = BTreeSet::new();
    for item in list.items() {
        let shown = key(&item);
        let detail = format!("Duplicate value: {shown}");
        if !seen.insert(shown) {
            errors.push(item.path, Cause::Duplicate, detail);
        }
    }
}

/// The key of an item by one of its fields.
pub(super) fn by(field: &'static str) -> impl Fn(&Field<'_>) -> String {
    move |item| quoted(item.at(field).value)
}

/// The item as its own key.
pub(super) fn itself(item: &Field<'_>) -> String {
    quoted(item.value)
}

/// Validates keys and values. Keys of more than `max_shown` bytes are shortened where they are part of a path.
pub(super) fn map(
    map: &Field<'_>,
    max: Option<usize>,
    max_shown: usize,
    errors: &mut Errors,
    check_key: impl Fn(&FieldPath, &str, &mut Errors),
    check: impl Fn(&Field<'_>, &mut Errors),
) {
    if let Some(max) = max.filter(|max| map.len() > *max) {
        return errors.too_many(&map.path, map.len(), max);
    }
    for (key, entry) in map.entries() {
        check_key(&map.path, key, errors);
        check(&Field { value: entry.value, path: map.path.key(&shortened(key, max_shown)) }, errors);
    }
}

/// A key without its middle, if it is longer than `max` bytes.
fn shortened(key: &str, max: usize) -> String {
    const GAP: &str = "...";
    if key.len() <= max {
        return key.to_owned();
    }
    let rest = max - GAP.len();
    let (start, end) = (key.floor_char_boundary(rest.div_ceil(2)), key.ceil_char_boundary(key.len() - rest / 2));
    format!("{}{GAP}{}", &key[..start], &key[end..])
}
