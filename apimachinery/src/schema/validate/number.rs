//! Limits of numbers. Upstream compares integers with limits that are cut to integers.

use serde_json::{Number, Value};

use super::value::Found;
use crate::{
    field::{Cause, Path},
    go_float::general,
    schema::Validations,
};

/// The largest number of which a double holds all smaller integers.
const MAX_EXACT: f64 = 9_007_199_254_740_991.0;

/// Whether a number is an integer to JSON Schema: `1.0` is one.
pub(super) fn is_integer(number: &Number) -> bool {
    number.is_i64() || number.as_f64().is_some_and(|n| n.fract() == 0.0 && n.abs() <= MAX_EXACT)
}

/// A number as Go's `%v` prints it.
pub(super) fn text(number: &Number) -> String {
    match number.as_f64().filter(|_| number.is_f64()) {
        Some(float) => general(float),
        None => number.to_string(),
    }
}

/// Checks a number. `integer` is whether the schema's type is that.
pub(super) fn check(validations: &Validations, number: &Number, integer: bool, path: &Path, found: &mut Found) {
    let field = path.as_str();
    let Some(n) = number.as_f64() else { return };
    let value = Value::Number(number.clone());
    // A limit that is not of the schema's type is reported, and compared as it is; others are truncated for integer
    // values.
    let limit = |limit: f64, name: &str, found: &mut Found| {
        if integer && limit.fract() != 0.0 {
            found.push_whole(&format!("{name} value must be of type integer (default format) in {path}"));
            return limit;
        }
        if number.is_i64() { limit.trunc() } else { limit }
    };
    // Go compares integers with integers, and writes those.
    let shown = |limit: f64| {
        if number.is_i64() && limit.fract() == 0.0 { limit.to_string() } else { general(limit) }
    };
    if let Some(factor) = validations.multiple_of.map(|factor| limit(factor, "MultipleOf", found)) {
        if factor <= 0.0 {
            let detail = format!(
                "Invalid value: {0}: factor MultipleOf declared for {field} must be positive: {0}",
                general(factor)
            );
            found.push(field, Cause::Invalid, detail);
        } else if !is_multiple(number, n, factor) {
            found.invalid(field, &value, &format!("should be a multiple of {}", shown(factor)));
        }
    }
    if let Some(max) = validations.maximum.map(|max| limit(max, "Maximum boundary", found)) {
        let exclusive = validations.exclusive_maximum;
        if above(number, n, max) || (exclusive && !above(number, n, max) && !below(number, n, max)) {
            let words = if exclusive { "less than" } else { "less than or equal to" };
            found.invalid(field, &value, &format!("should be {words} {}", shown(max)));
        }
    }
    if let Some(min) = validations.minimum.map(|min| limit(min, "Minimum boundary", found)) {
        let exclusive = validations.exclusive_minimum;
        if below(number, n, min) || (exclusive && !above(number, n, min) && !below(number, n, min)) {
            let words = if exclusive { "greater than" } else { "greater than or equal to" };
            found.invalid(field, &value, &format!("should be {words} {}", shown(min)));
        }
    }
    check_format(validations, number, n, path, found);
}

/// Compares exactly where both are integers: a double has only 53 bits of one.
fn compare(number: &Number, n: f64, limit: f64) -> std::cmp::Ordering {
    match number.as_i64() {
        #[expect(clippy::cast_possible_truncation, reason = "a limit beyond 64 bits becomes the largest of them")]
        Some(exact) if limit.fract() == 0.0 && limit.abs() < 9.2e18 => exact.cmp(&(limit as i64)),
        _ => n.partial_cmp(&limit).unwrap_or(std::cmp::Ordering::Equal),
    }
}

fn above(number: &Number, n: f64, limit: f64) -> bool {
    compare(number, n, limit).is_gt()
}

fn below(number: &Number, n: f64, limit: f64) -> bool {
    compare(number, n, limit).is_lt()
}

fn is_multiple(number: &Number, n: f64, factor: f64) -> bool {
    match number.as_i64() {
        #[expect(clippy::cast_possible_truncation, reason = "checked to be in range")]
        Some(exact) if factor.fract() == 0.0 && (1.0..9.2e18).contains(&factor) => exact % (factor as i64) == 0,
        _ => (n / factor).fract() == 0.0,
    }
}

fn check_format(validations: &Validations, number: &Number, n: f64, path: &Path, found: &mut Found) {
    let fits = |of: &str, fits: bool, found: &mut Found| {
        if !fits {
            found.push_whole(&format!("Checked value must be of type {of} in {path}"));
        }
    };
    match validations.format.as_deref() {
        Some("int32") if is_integer(number) => {
            let small = (f64::from(i32::MIN)..=f64::from(i32::MAX)).contains(&n);
            fits("integer with format int32", small, found);
        }
        Some("float") => fits("number with format float", n.abs() <= f64::from(f32::MAX), found),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use crate::{
        effort::Effort,
        schema::{structural, validate},
        testing::schema,
    };

    /// A fractional factor is not an integer, which is reported; it must not be truncated and divided by.
    #[test]
    fn a_fractional_factor_is_told_and_divides_nothing() {
        let meta = Arc::new(schema("meta/v1.ObjectMeta"));
        for factor in [0.1_f64, 0.5, 0.999, 1.5, 1e-300, 2.0, 9.3e18] {
            for kind in ["integer", "number"] {
                let a = json!({"type": kind, "multipleOf": factor});
                let of = structural::read(&json!({"type": "object", "properties": {"a": a}}), &meta);
                for value in [json!(0), json!(1), json!(-3), json!(i64::MIN), json!(u64::MAX), json!(1.5)] {
                    let errors = validate(&of, &json!({"a": value}), None, &mut Effort::unlimited());
                    let is_wrong = kind == "integer" && factor.fract() != 0.0 && value.is_i64();
                    assert!(!is_wrong || !errors.is_empty(), "{value} of {a}");
                }
            }
        }
    }
}
