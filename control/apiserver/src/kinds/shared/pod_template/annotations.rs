//! Annotations that mean something of a pod. Pure.

use serde_json::Value;

use super::{
    MIRROR,
    leniency::{Broken, Leniency},
    security_profiles, validate_tolerations,
};
use crate::{
    apiserver::pipeline::validation::errors::Errors,
    kinds::shared::{field::Field, go_json},
};

const TOLERATIONS: &str = "scheduler.alpha.kubernetes.io/tolerations";
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// Validates the annotations of a pod or template.
pub(crate) fn validate(annotations: &Field<'_>, spec: &Field<'_>, leniency: Leniency<'_>, errors: &mut Errors) {
    let keyed =
        |key: &str| Field { value: &annotations.value[key], path: format!("{}[{key}]", annotations.path).into() };
    let mirror = keyed(MIRROR);
    if mirror.is_set() && spec.at("nodeName").is_empty() {
        errors.invalid_text(&mirror.path, mirror.text(), "must set spec.nodeName if mirror pod annotation is set");
    }
    let old = annotations.value[TOLERATIONS].as_str().unwrap_or_default();
    match go_json::read(old) {
        Ok(list) => {
            let field = Field { value: &list, path: format!("{}.{TOLERATIONS}", annotations.path).into() };
            validate_tolerations(&field, leniency, errors);
        }
        Err(_) if old.is_empty() => {}
        Err(why) => errors.invalid_text(&annotations.path, TOLERATIONS, &why),
    }
    let cost = keyed(DELETION_COST);
    if has_odd_cost(annotations.value) && !leniency.allows(Broken::DeletionCost) {
        errors.invalid_text(&cost.path, cost.text(), "must be a 32bit integer");
    }
    security_profiles::validate_annotations(annotations, spec, errors);
}

/// Whether the cost of a pod's deletion is no number.
pub(super) fn has_odd_cost(annotations: &Value) -> bool {
    let is_number = |text: &str| text.parse::<i32>().is_ok_and(|number| number.to_string() == text);
    annotations[DELETION_COST].as_str().is_some_and(|text| !is_number(text))
}

/// Refuses changes of annotations that stay as they are.
pub(crate) fn validate_update(new: &Field<'_>, old: &Field<'_>, errors: &mut Errors) {
    security_profiles::validate_annotations_update(new, old, errors);
    let (is, was) = (&new.value[MIRROR], &old.value[MIRROR]);
    if is != was {
        let what = if was.is_null() { "add" } else { "remove or update" };
        errors.forbidden(format!("{}[{MIRROR}]", new.path), &format!("may not {what} mirror pod annotation"));
    }
}
