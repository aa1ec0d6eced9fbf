//! What a pod's `/status` may change. Statuses are validated in their canonical form. Pure.

use std::net::IpAddr;

use serde_json::{Value, json};

use crate::apiserver::validation::{
    errors::{Errors, list, text},
    names,
};

/// Restores what a status update does not reach: owners, the QoS class, and generations that older clients do not know.
pub(super) fn reset_fields(object: &mut Value, old: &Value) {
    match old["metadata"].get("ownerReferences") {
        Some(owners) => object["metadata"]["ownerReferences"] = owners.clone(),
        None => drop(object["metadata"].as_object_mut().map(|m| m.remove("ownerReferences"))),
    }
    if object["status"]["qosClass"].as_str().is_none_or(str::is_empty) && old["status"]["qosClass"].is_string() {
        if !object["status"].is_object() {
            object["status"] = json!({});
        }
        object["status"]["qosClass"] = old["status"]["qosClass"].clone();
    }
    keep_observed_generations(&mut object["status"], &old["status"]);
}

/// Keeps `observedGeneration` where a client leaves it out, since older clients do not know the field.
fn keep_observed_generations(status: &mut Value, old: &Value) {
    const FIELD: &str = "observedGeneration";
    let restore = |new: &mut Value, old: &Value| {
        if new.is_object() && new[FIELD].as_i64().unwrap_or(0) == 0 && old[FIELD].as_i64().unwrap_or(0) != 0 {
            new[FIELD] = old[FIELD].clone();
        }
    };
    restore(status, old);
    let before = old["conditions"].as_array().cloned().unwrap_or_default();
    for condition in status["conditions"].as_array_mut().into_iter().flatten() {
        if let Some(old) = before.iter().find(|old| old["type"] == condition["type"]) {
            restore(condition, old);
        }
    }
}

/// Validates a status update.
pub(super) fn validate(new: &Value, old: &Value, errors: &mut Errors) {
    validate_fields(&new["status"], &old["status"], errors);
    validate_transitions(&old["spec"], &new["status"], &old["status"], errors);
}

fn validate_fields(status: &Value, old: &Value, errors: &mut Errors) {
    if !text(old, "qosClass").is_empty() && status["qosClass"] != old["qosClass"] {
        errors.invalid("status.qosClass", &status["qosClass"], "field is immutable");
    }
    if status["observedGeneration"].as_i64().is_some_and(|n| n < 0) {
        errors.invalid("status.observedGeneration", &status["observedGeneration"], "must be a non-negative integer");
    }
    for (at, condition) in list(status, "conditions") {
        let here = format!("status.conditions[{at}]");
        errors.unless(format!("{here}.Type"), text(condition, "type"), names::qualified(text(condition, "type")));
        if condition["observedGeneration"].as_i64().is_some_and(|n| n < 0) {
            let field = format!("{here}.observedGeneration");
            errors.invalid(field, &condition["observedGeneration"], "must be a non-negative integer");
        }
    }
    for (single, several) in [("podIP", "podIPs"), ("hostIP", "hostIPs")] {
        validate_addresses(status, single, several, errors);
    }
}

/// A container that ended for good does not run again.
fn validate_transitions(spec: &Value, new: &Value, old: &Value, errors: &mut Errors) {
    for (containers, statuses) in [("containers", "containerStatuses"), ("initContainers", "initContainerStatuses")] {
        for (at, was) in list(old, statuses) {
            let (ended, name) = (&was["state"]["terminated"], text(was, "name"));
            let again =
                || list(new, statuses).any(|(_, is)| text(is, "name") == name && is["state"]["terminated"].is_null());
            let container = list(spec, containers).map(|(_, container)| container).find(|c| text(c, "name") == name);
            if ended.is_object() && !may_run_again(spec, container, ended) && again() {
                let field = format!("status.{statuses}[{at}].state");
                errors.forbidden(field, "may not be transitioned to non-terminated state");
            }
        }
    }
}

/// Whether a container that ended so may be run again, by its own word or the pod's.
fn may_run_again(spec: &Value, container: Option<&Value>, ended: &Value) -> bool {
    let acts = |container: &Value| container["restartPolicyRules"].as_array().is_some_and(|rules| !rules.is_empty());
    // A rule of one container may start all of them again.
    if ["containers", "initContainers"].iter().any(|all| list(spec, all).any(|(_, container)| acts(container))) {
        return true;
    }
    // One that the pod does not have is run by nobody.
    let Some(container) = container else { return false };
    let policy = container["restartPolicy"].as_str().unwrap_or_else(|| text(spec, "restartPolicy"));
    match policy {
        "Never" => false,
        "OnFailure" => ended["exitCode"].as_i64().unwrap_or(0) != 0,
        _ => true,
    }
}

/// An address that stands alone and in a list: at most one of each family.
fn validate_addresses(status: &Value, single: &str, several: &str, errors: &mut Errors) {
    let first = text(status, single);
    let mut all: Vec<&str> = list(status, several).map(|(_, entry)| text(entry, "ip")).collect();
    match all.first() {
        None if !first.is_empty() => all.push(first),
        Some(other) if several == "hostIPs" && *other != first => {
            errors.invalid_text(format!("status.{several}[0].ip"), other, "must be equal to `hostIP`");
        }
        _ => {}
    }
    for (at, address) in all.iter().enumerate() {
        errors.unless(format!("status.{several}[{at}]"), address, names::ip(address));
    }
    let of = |v4: bool| all.iter().filter(|a| a.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv4() == v4)).count();
    if of(true) > 1 || of(false) > 1 {
        errors.invalid(
            format!("status.{several}"),
            &status[several],
            "may specify no more than one IP for each IP family",
        );
    }
}
