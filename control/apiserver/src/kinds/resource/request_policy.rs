//! How much of a device's capacity may be requested. Pure.

use windlass_kit::quantity::Quantity;

use super::lists;
use crate::{apiserver::pipeline::validation::errors::Errors, kinds::shared::field::Field};

const MAX_VALUES: usize = 10;
const ONE_POLICY: &str =
    "exactly one policy can be specified, cannot specify \"validValues\" and \"validRange\" at the same time";

/// Validates the policy of a capacity.
pub(super) fn validate(policy: &Field<'_>, capacity: Quantity, errors: &mut Errors) {
    let (values, range, default) = (policy.at("validValues"), policy.at("validRange"), policy.at("default"));
    match (values.is_empty(), range.is_set()) {
        (false, true) => policy.forbidden(ONE_POLICY, errors),
        (false, false) => match default.quantity() {
            None => default.required("required when validValues is defined", errors),
            Some(default) => validate_values(&values, default, capacity, errors),
        },
        (true, true) => match default.quantity() {
            None => default.required("required when validRange is defined", errors),
            Some(default) => validate_range(&range, default, capacity, errors),
        },
        (true, false) => {}
    }
}

/// Says that an amount, which need not be that of the field, is not good.
fn invalid(field: &Field<'_>, amount: Quantity, why: &str, errors: &mut Errors) {
    errors.invalid_text(&field.path, &amount.to_string(), why);
}

fn validate_values(values: &Field<'_>, default: Quantity, capacity: Quantity, errors: &mut Errors) {
    let all: Vec<(Field<'_>, Quantity)> =
        values.items().filter_map(|item| item.quantity().map(|amount| (item, amount))).collect();
    for pair in all.windows(2) {
        if let [(_, before), (field, after)] = pair
            && before > after
        {
            invalid(field, *after, "values must be sorted in ascending order", errors);
        }
    }
    let mut has_default = false;
    let units = |item: &Field<'_>| format!("\"{}\"", item.quantity().map_or(0, Quantity::units));
    lists::set(values, MAX_VALUES, units, errors, |item, errors| {
        let Some(amount) = item.quantity() else { return };
        if amount > capacity {
            invalid(item, amount, &format!("option is larger than capacity value: {capacity}"), errors);
        }
        has_default |= amount == default;
    });
    if !has_default {
        invalid(values, default, "default value is not valid according to the requestPolicy", errors);
    }
}

fn validate_range(range: &Field<'_>, default: Quantity, capacity: Quantity, errors: &mut Errors) {
    let (min_at, max_at, step_at) = (range.at("min"), range.at("max"), range.at("step"));
    let Some(min) = min_at.quantity() else {
        return min_at.required("required when validRange is defined", errors);
    };
    if min > capacity {
        invalid(&min_at, min, &format!("min is larger than capacity value: {capacity}"), errors);
    }
    if default < min {
        invalid(&min_at, default, &format!("default is less than min: {min}"), errors);
    }
    let max = max_at.quantity();
    if let Some(max) = max {
        if min > max {
            invalid(&max_at, min, &format!("min is larger than max: {max}"), errors);
        }
        if max > capacity {
            invalid(&max_at, max, &format!("max is larger than capacity value: {capacity}"), errors);
        }
        if default > max {
            invalid(&max_at, default, &format!("default is more than max: {max}"), errors);
        }
    }
    let Some(step) = step_at.quantity() else { return };
    let first = min.plus(step);
    if first > capacity {
        invalid(&step_at, step, &format!("one step {first} is larger than capacity value: {capacity}"), errors);
    }
    for amount in [Some(default), max].into_iter().flatten() {
        // A step of 0 ends upstream's request in a division by it.
        if step.units() == 0 || (amount.units() - min.units()) % step.units() != 0 {
            let why = format!("value is not a multiple of a given step ({step}) from ({min})");
            invalid(&step_at, amount, &why, errors);
        }
    }
}
