//! What a pod's `/status` may change. Statuses are validated in their canonical form. Pure.

use std::net::IpAddr;

use serde_json::{Value, json};

use super::{claim_statuses, container_statuses};
use crate::{
    apiserver::pipeline::validation::{
        errors::{Errors, list, text},
        names,
    },
    kinds::shared::field::Field,
};

const AGAIN: &str = "may not be transitioned to non-terminated state";

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
    let (status, was) = (Field::root(new).at("status"), Field::root(old).at("status"));
    for condition in status.at("conditions").items() {
        not_negative(&condition.at("observedGeneration"), errors);
        // The path is upstream's.
        let kind = Field { value: &condition.value["type"], path: format!("{}.Type", condition.path).into() };
        kind.label_key(errors);
    }
    validate_nomination(&status.at("nominatedNodeName"), &was, &old["spec"], errors);
    not_negative(&status.at("observedGeneration"), errors);
    let class = was.at("qosClass");
    if !class.is_empty() && status.value["qosClass"] != *class.value {
        let shown = format!("{:?}", status.at("qosClass").text());
        status.at("qosClass").invalid_as(&shown, "field is immutable", errors);
    }
    validate_transitions(&old["spec"], status.value, was.value, errors);
    claim_statuses::validate(&status, &new["spec"], errors);
    for (single, several) in [("podIP", "podIPs"), ("hostIP", "hostIPs")] {
        validate_addresses(&status, &was, single, several, errors);
    }
    container_statuses::validate(&status, &new["spec"], errors);
}

fn not_negative(generation: &Field<'_>, errors: &mut Errors) {
    if generation.number().is_some_and(|n| n < 0) {
        generation.invalid("must be a non-negative integer", errors);
    }
}

/// A pod is nominated for a node by its name, and only while it has none.
fn validate_nomination(node: &Field<'_>, old: &Field<'_>, spec: &Value, errors: &mut Errors) {
    if node.is_empty() || node.text() == old.at("nominatedNodeName").text() {
        return;
    }
    node.fits(names::subdomain, errors);
    if !text(spec, "nodeName").is_empty() {
        node.forbidden("may not be set on pods that are already bound to a node", errors);
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
                errors.forbidden(field, AGAIN);
            }
        }
    }
    // Those that a user adds run once.
    for (at, was) in list(old, "ephemeralContainerStatuses").filter(|(_, was)| was["state"]["terminated"].is_object()) {
        let again = |is: &Value| is["name"] == was["name"] && is["state"]["terminated"].is_null();
        for _ in list(new, "ephemeralContainerStatuses").filter(|(_, is)| again(is)) {
            errors.forbidden(format!("status.ephemeralContainerStatuses[{at}].state"), AGAIN);
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
    // A container that the pod does not have cannot be run.
    let Some(container) = container else { return false };
    let policy = container["restartPolicy"].as_str().unwrap_or_else(|| text(spec, "restartPolicy"));
    match policy {
        "Never" => false,
        "OnFailure" => ended["exitCode"].as_i64().unwrap_or(0) != 0,
        _ => true,
    }
}

/// An address that stands alone and in a list: at most one of each family. Those that were there may be wrong.
fn validate_addresses(
    status: &Field<'_>,
    old: &Field<'_>,
    single: &'static str,
    several: &'static str,
    errors: &mut Errors,
) {
    let (alone, all, before) = (status.at(single), status.at(several), old.at(several));
    if let Some(first) = all.items().next().map(|first| first.at("ip"))
        && several == "hostIPs"
        && first.text() != alone.text()
    {
        errors.invalid_text(&first.path, first.text(), "must be equal to `hostIP`");
    }
    for entry in all.items().filter(|entry| !before.items().any(|was| was.value["ip"] == entry.value["ip"])) {
        let address = text(entry.value, "ip");
        errors.unless(entry.path, address, names::ip(address));
    }
    let addresses: Vec<IpAddr> = all.items().filter_map(|entry| text(entry.value, "ip").parse().ok()).collect();
    let of = |v4: bool| addresses.iter().filter(|ip| ip.is_ipv4() == v4).count();
    if of(true) > 1 || of(false) > 1 {
        let shown: Vec<Value> = all.items().map(|entry| json!({"IP": entry.value["ip"]})).collect();
        let why = "may specify no more than one IP for each IP family";
        all.invalid_as(&Value::Array(shown).to_string(), why, errors);
    }
}
