//! Which taints of nodes a pod takes. Pure.

use super::{container::Pod, leniency::Broken};
use crate::{
    apiserver::pipeline::validation::{errors::Errors, names},
    kinds::shared::field::Field,
};

const DECIMAL: &str = "must be a valid decimal integer in canonical form";

/// Validates tolerations.
pub(super) fn validate(tolerations: &Field<'_>, pod: &Pod<'_>, errors: &mut Errors) {
    for toleration in tolerations.items() {
        let (key, operator, effect) = (toleration.at("key"), toleration.at("operator"), toleration.at("effect"));
        let mut invalid = |field: &Field<'_>, value: &str, why: &str| {
            errors.invalid_text(&field.path, value, why);
        };
        let problems = if key.is_empty() { Vec::new() } else { names::qualified_problems(key.text()) };
        problems.iter().for_each(|why| invalid(&key, key.text(), why));
        if key.is_empty() && operator.text() != "Exists" {
            let why = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            invalid(&operator, operator.text(), why);
        }
        if toleration.at("tolerationSeconds").is_set() && effect.text() != "NoExecute" {
            invalid(&effect, effect.text(), "effect must be 'NoExecute' when `tolerationSeconds` is set");
        }
        validate_value(&toleration, pod, errors);
        if !effect.is_empty() {
            effect.one_of(&["NoSchedule", "PreferNoSchedule", "NoExecute"], errors);
        }
    }
}

fn validate_value(toleration: &Field<'_>, pod: &Pod<'_>, errors: &mut Errors) {
    let (operator, value) = (toleration.at("operator"), toleration.at("value"));
    let invalid = |why: &str, errors: &mut Errors| errors.invalid_text(&operator.path, value.text(), why);
    match operator.text() {
        "" | "Equal" => {
            if let Some(why) = names::label_value(value.text()) {
                invalid(&why, errors);
            }
        }
        "Exists" if value.is_empty() => {}
        "Exists" => invalid("value must be empty when `operator` is 'Exists'", errors),
        "Lt" | "Gt" if pod.leniency.allows(Broken::Comparisons) => {
            if !is_decimal(value.text()) {
                errors.invalid_text(&value.path, value.text(), DECIMAL);
            }
        }
        "Lt" | "Gt" => {
            // Upstream names them among the allowed ones, whose gate is off.
            operator.not_supported_as(&format!("{:?}", operator.text()), &["Equal", "Exists", "Lt", "Gt"], errors);
        }
        _ => operator.one_of(&["Equal", "Exists"], errors),
    }
}

/// Whether the text is a number as people write it, of 64 bits.
fn is_decimal(text: &str) -> bool {
    text.parse::<i64>().is_ok_and(|number| number.to_string() == text)
}
