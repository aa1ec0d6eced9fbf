//! Nodes, and what they report by: Leases and Events.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    errors::{Errors, list, text},
    names,
};

pub(super) fn node(spec: &Value, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (at, taint) in list(spec, "taints") {
        // As upstream names it, whose check is that of the metadata.
        let here = format!("metadata.taints[{at}]");
        let (key, effect) = (text(taint, "key"), text(taint, "effect"));
        errors.unless(format!("{here}.key"), key, names::qualified(key));
        errors.unless(format!("{here}.value"), text(taint, "value"), names::label_value(text(taint, "value")));
        if effect.is_empty() {
            errors.required(format!("{here}.effect"), "");
        } else {
            errors.one_of(format!("{here}.effect"), &taint["effect"], &["NoSchedule", "PreferNoSchedule", "NoExecute"]);
        }
        if !seen.insert((key, effect)) {
            errors.duplicate(here, taint);
        }
    }
    for (at, cidr) in list(spec, "podCIDRs") {
        if !is_cidr(cidr.as_str().unwrap_or_default()) {
            errors.invalid(
                format!("spec.podCIDRs[{at}]"),
                cidr,
                "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
            );
        }
    }
}

fn is_cidr(text: &str) -> bool {
    let Some((ip, length)) = text.split_once('/') else { return false };
    match (ip.parse::<std::net::IpAddr>(), length.parse::<u8>()) {
        (Ok(ip), Ok(length)) => length <= if ip.is_ipv4() { 32 } else { 128 },
        _ => false,
    }
}

pub(super) fn change(new: &Value, old: &Value, errors: &mut Errors) {
    let (new, old) = (&new["spec"], &old["spec"]);
    let set = |value: &Value| value.as_array().is_some_and(|all| !all.is_empty());
    if set(&old["podCIDRs"]) && new["podCIDRs"] != old["podCIDRs"] {
        errors.forbidden("spec.podCIDRs", "node updates may not change podCIDR except from \"\" to valid");
    }
    if !text(old, "providerID").is_empty() && new["providerID"] != old["providerID"] {
        errors.forbidden("spec.providerID", "node updates may not change providerID except from \"\" to valid");
    }
}

pub(super) fn lease(spec: &Value, errors: &mut Errors) {
    if spec["leaseDurationSeconds"].as_i64().is_some_and(|n| n <= 0) {
        errors.invalid("spec.leaseDurationSeconds", &spec["leaseDurationSeconds"], "must be greater than 0");
    }
    errors.at_least_0("spec.leaseTransitions", &spec["leaseTransitions"]);
}

pub(super) fn event(object: &Value, errors: &mut Errors) {
    let about = text(&object["involvedObject"], "namespace");
    if !about.is_empty() && about != text(&object["metadata"], "namespace") {
        errors.invalid_text("involvedObject.namespace", about, "does not match event.namespace");
    }
}
