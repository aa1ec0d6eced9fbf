//! Which changes of a pod are refused. Pure.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::apiserver::validation::errors::{Errors, list};

const IMMUTABLE_FIELDS: &str = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// Images, a shorter deadline, added tolerations and removed scheduling gates are the changes that are allowed.
pub(super) fn validate_update(new: &Value, old: &Value, errors: &mut Errors) {
    for key in ["containers", "initContainers"] {
        if list(new, key).count() != list(old, key).count() {
            return errors.forbidden(format!("spec.{key}"), "pod updates may not add or remove containers");
        }
    }
    let deadline = (old["activeDeadlineSeconds"].as_i64(), new["activeDeadlineSeconds"].as_i64());
    match deadline {
        (Some(_), None) => errors.invalid(
            "spec.activeDeadlineSeconds",
            &Value::Null,
            "must not update from a positive integer to nil value",
        ),
        (Some(was), Some(is)) if is > was => {
            errors.invalid(
                "spec.activeDeadlineSeconds",
                &new["activeDeadlineSeconds"],
                "must be less than or equal to previous value",
            );
        }
        _ => {}
    }
    // How long one lasts may change, nothing else of it.
    let lasting = |toleration: &Value| {
        let mut toleration = toleration.clone();
        toleration.as_object_mut().and_then(|fields| fields.remove("tolerationSeconds"));
        toleration
    };
    let there: Vec<Value> = list(new, "tolerations").map(|(_, toleration)| lasting(toleration)).collect();
    if list(old, "tolerations").any(|(_, kept)| !there.contains(&lasting(kept))) {
        errors.forbidden("spec.tolerations", "existing toleration can not be modified except its tolerationSeconds");
    }
    if list(new, "schedulingGates").any(|(_, gate)| !list(old, "schedulingGates").any(|(_, was)| was == gate)) {
        errors.forbidden("spec.schedulingGates", "only deletion is allowed, but found new scheduling gate");
    }
    let mut changed = Vec::new();
    let keys: BTreeSet<&String> = [new, old].into_iter().filter_map(Value::as_object).flat_map(Map::keys).collect();
    for key in keys {
        match key.as_str() {
            "activeDeadlineSeconds" | "tolerations" | "schedulingGates" => {}
            "containers" | "initContainers" => {
                for ((at, is), (_, was)) in list(new, key).zip(list(old, key)) {
                    let fields: BTreeSet<&String> =
                        [is, was].into_iter().filter_map(Value::as_object).flat_map(Map::keys).collect();
                    let others = fields.into_iter().filter(|f| *f != "image" && is[f.as_str()] != was[f.as_str()]);
                    changed.extend(others.map(|field| format!("spec.{key}[{at}].{field}")));
                }
            }
            "terminationGracePeriodSeconds" if old[key].as_i64().is_some_and(|n| n < 0) && new[key] == 1 => {}
            key if new[key] != old[key] => changed.push(format!("spec.{key}")),
            _ => {}
        }
    }
    if !changed.is_empty() {
        errors.forbidden("spec", &format!("{IMMUTABLE_FIELDS}\nchanged: {}", changed.join(", ")));
    }
}
