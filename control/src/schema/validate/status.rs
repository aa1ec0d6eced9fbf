//! What may stand in a status. Objects come here in their canonical form.

use std::net::IpAddr;

use serde_json::Value;
use windlass_kit::quantity::Quantity;

use super::{
    errors::{AT_LEAST_0, Errors, list, text},
    names,
};
use crate::registry::Gvk;

pub(super) fn validate_kind(gvk: &Gvk, new: &Value, old: &Value, errors: &mut Errors) {
    match gvk.kind {
        "Namespace" => namespace(new, errors),
        "Node" => {
            for field in ["capacity", "allocatable"] {
                amounts(&new["status"], field, errors);
            }
            features(&new["status"], errors);
        }
        "PersistentVolumeClaim" => amounts(&new["status"], "capacity", errors),
        "Pod" => {
            pod(&new["status"], &old["status"], errors);
            transitions(&old["spec"], &new["status"], &old["status"], errors);
        }
        "ReplicationController" => counts(&new["status"], errors),
        "Service" => balancer(new, errors),
        _ => {}
    }
}

/// Sorted, so that two lists of the same features are equal.
fn features(status: &Value, errors: &mut Errors) {
    let all: Vec<(usize, &Value)> = list(status, "declaredFeatures").collect();
    for pair in all.windows(2) {
        let ((_, before), (at, feature)) = (pair[0], pair[1]);
        if before.as_str() >= feature.as_str() {
            errors.invalid(format!("status.declaredFeatures[{at}]"), feature, "list must be sorted alphabetically");
        }
    }
}

fn namespace(object: &Value, errors: &mut Errors) {
    let phase = text(&object["status"], "phase");
    let (wanted, why) = if object["metadata"]["deletionTimestamp"].is_null() {
        ("Active", "may only be 'Active' if `deletionTimestamp` is empty")
    } else {
        ("Terminating", "may only be 'Terminating' if `deletionTimestamp` is not empty")
    };
    if phase != wanted {
        errors.invalid_text("status.Phase", phase, why);
    }
}

fn pod(status: &Value, old: &Value, errors: &mut Errors) {
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
        addresses(status, single, several, errors);
    }
}

/// What has ended for good runs no more.
fn transitions(spec: &Value, new: &Value, old: &Value, errors: &mut Errors) {
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
fn addresses(status: &Value, single: &str, several: &str, errors: &mut Errors) {
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

fn counts(status: &Value, errors: &mut Errors) {
    let count = |field: &str| status[field].as_i64().unwrap_or(0);
    for field in ["replicas", "fullyLabeledReplicas", "readyReplicas", "availableReplicas", "observedGeneration"] {
        errors.at_least_0(format!("status.{field}"), &status[field]);
    }
    for field in ["fullyLabeledReplicas", "readyReplicas", "availableReplicas"] {
        if count(field) > count("replicas") {
            errors.invalid(format!("status.{field}"), &status[field], "cannot be greater than status.replicas");
        }
    }
    if count("availableReplicas") > count("readyReplicas") {
        let field = "availableReplicas";
        errors.invalid(format!("status.{field}"), &status[field], "cannot be greater than readyReplicas");
    }
}

fn balancer(object: &Value, errors: &mut Errors) {
    let balancer = &object["status"]["loadBalancer"];
    let any = list(balancer, "ingress").next().is_some();
    if any && object["spec"]["type"] != "LoadBalancer" {
        errors.forbidden("status.loadBalancer.ingress", "may only be used when `spec.type` is 'LoadBalancer'");
    }
    for (at, ingress) in list(balancer, "ingress") {
        let here = format!("status.loadBalancer.ingress[{at}]");
        let (ip, mode, name) = (text(ingress, "ip"), &ingress["ipMode"], text(ingress, "hostname"));
        if ip.is_empty() {
            if !mode.is_null() {
                errors.forbidden(format!("{here}.ipMode"), "may not be specified when `ip` is not set");
            }
        } else {
            errors.unless(format!("{here}.ip"), ip, names::ip(ip));
            errors.one_of(format!("{here}.ipMode"), mode, &["Proxy", "VIP"]);
        }
        if name.parse::<IpAddr>().is_ok() {
            errors.invalid_text(format!("{here}.hostname"), name, "must be a DNS name, not an IP address");
        } else if !name.is_empty() {
            errors.unless(format!("{here}.hostname"), name, names::subdomain(name));
        }
    }
}

fn amounts(status: &Value, field: &str, errors: &mut Errors) {
    for (resource, amount) in status[field].as_object().into_iter().flatten() {
        let parsed = amount.as_str().and_then(|text| text.parse::<Quantity>().ok());
        if parsed.is_some_and(Quantity::is_negative) {
            errors.invalid(format!("status.{field}.{resource}"), amount, AT_LEAST_0);
        }
    }
}
