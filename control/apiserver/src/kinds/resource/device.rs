//! A device of a ResourceSlice. Pure.

use serde_json::{Value, json};
use windlass_kit::quantity::Quantity;

use super::{lists, names, request_policy};
use crate::{
    apiserver::pipeline::validation::{
        errors::{Cause, Errors},
        names::{label, label_value, subdomain},
    },
    kinds::shared::{field::Field, node_selector},
};

/// Upstream's limits.
const MAX_ATTRIBUTES_AND_CAPACITIES: usize = 32;
const MAX_ATTRIBUTE_VALUES: usize = 48;
const MAX_VALUE_BYTES: usize = 64;
const MAX_TAINTS: usize = 16;
const MAX_CONSUMPTIONS: usize = 2;
/// The most counters of a set, and of what a device uses of it.
pub(super) const MAX_COUNTERS: usize = 32;
const ONE_PLACE: &str = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
const NO_PLACE: &str = "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
/// The values that an attribute may have, as Go's type and as the API names them.
const ATTRIBUTE: [(&str, &str); 8] = [
    ("IntValue", "int"),
    ("BoolValue", "bool"),
    ("StringValue", "string"),
    ("VersionValue", "version"),
    ("IntValues", "ints"),
    ("BoolValues", "bools"),
    ("StringValues", "strings"),
    ("VersionValues", "versions"),
];

/// Validates a device; `old` is the one of the same name in the stored slice.
pub(super) fn validate(device: &Field<'_>, old: Option<&Value>, per_device: bool, errors: &mut Errors) {
    device.at("name").fits(label, errors);
    let (attributes, capacity) = (device.at("attributes"), device.at("capacity"));
    let (entries, values) = (attributes.len() + capacity.len(), attribute_values(&attributes));
    for (what, count, max) in [
        ("attributes and capacities", entries, MAX_ATTRIBUTES_AND_CAPACITIES),
        ("attribute values", values, MAX_ATTRIBUTE_VALUES),
    ] {
        if count > max {
            let why = format!("the total number of {what} must not exceed {max}");
            errors.invalid(&device.path, &json!(count), &why);
        }
    }
    lists::map(&attributes, None, names::MAX_KEY_BYTES, errors, names::qualified, validate_attribute);
    let multiple = *device.at("allowMultipleAllocations").value == true;
    lists::map(&capacity, None, names::MAX_KEY_BYTES, errors, names::qualified, |capacity, errors| {
        validate_capacity(capacity, multiple, errors);
    });
    if old.is_none_or(|old| old["taints"] != *device.at("taints").value) {
        lists::slice(&device.at("taints"), MAX_TAINTS, errors, validate_taint);
    }
    let consumptions = device.at("consumesCounters");
    lists::set(&consumptions, MAX_CONSUMPTIONS, lists::by("counterSet"), errors, |consumption, errors| {
        names::counter_set(&consumption.at("counterSet"), errors);
        validate_counters(&consumption.at("counters"), errors);
    });
    validate_place(device, per_device, errors);
    names::binding_conditions(device, errors);
}

/// Validates the names of counters, of which there must be some.
pub(super) fn validate_counters(counters: &Field<'_>, errors: &mut Errors) {
    if counters.is_empty() {
        return counters.required("", errors);
    }
    lists::map(counters, Some(MAX_COUNTERS), names::MAX_COUNTER_BYTES, errors, names::counter, |_, _| {});
}

/// The number of values of all attributes; each item of a list is one.
fn attribute_values(attributes: &Field<'_>) -> usize {
    let lists = |attribute: &Field<'_>| {
        ATTRIBUTE
            .iter()
            .map(|(_, name)| attribute.at(name))
            .filter(|field| field.value.is_array())
            .map(|list| list.len())
            .sum::<usize>()
    };
    attributes.entries().map(|(_, attribute)| lists(&attribute).max(1)).sum()
}

fn validate_attribute(attribute: &Field<'_>, errors: &mut Errors) {
    const ONE_VALUE: &str = "exactly one value must be specified";
    let (text, version) = (attribute.at("string"), attribute.at("version"));
    text.max_bytes(MAX_VALUE_BYTES, errors);
    if version.is_set() {
        if !is_semantic_version(version.text()) {
            version.invalid("must be a string compatible with semver.org spec 2.0.0", errors);
        }
        version.max_bytes(MAX_VALUE_BYTES, errors);
    }
    match ATTRIBUTE.iter().filter(|(_, name)| attribute.at(name).is_set()).count() {
        1 => {}
        0 => errors.invalid_text(&attribute.path, "", ONE_VALUE),
        _ => attribute.invalid_as(&attribute.internal(&ATTRIBUTE), ONE_VALUE, errors),
    }
}

/// Whether a text is a version by semver.org 2.0.0.
fn is_semantic_version(text: &str) -> bool {
    let (rest, build) = text.split_once('+').map_or((text, None), |(rest, build)| (rest, Some(build)));
    let (core, early) = rest.split_once('-').map_or((rest, None), |(core, early)| (core, Some(early)));
    let is_numeric = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let is_number = |part: &str| is_numeric(part) && (part == "0" || !part.starts_with('0'));
    let is_word = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    core.split('.').count() == 3
        && core.split('.').all(is_number)
        && early
            .is_none_or(|early| early.split('.').all(|part| is_word(part) && (is_number(part) || !is_numeric(part))))
        && build.is_none_or(|build| build.split('.').all(is_word))
}

fn validate_capacity(capacity: &Field<'_>, multiple: bool, errors: &mut Errors) {
    let policy = capacity.at("requestPolicy");
    if !policy.is_set() {
        return;
    }
    if !multiple {
        return policy.forbidden("allowMultipleAllocations must be true", errors);
    }
    request_policy::validate(&policy, capacity.at("value").quantity().unwrap_or(Quantity::from_units(0)), errors);
}

fn validate_taint(taint: &Field<'_>, errors: &mut Errors) {
    taint.at("key").label_key(errors);
    taint.at("value").optionally_fits(label_value, errors);
    taint.at("effect").required_one_of(&["NoExecute", "NoSchedule", "None"], errors);
}

/// Refuses a device that does not say in exactly one way where it is, or says it where the slice does.
fn validate_place(device: &Field<'_>, per_device: bool, errors: &mut Errors) {
    if !per_device {
        if ["nodeName", "nodeSelector", "allNodes"].iter().any(|field| device.at(field).is_set()) {
            errors.push(&device.path, Cause::Invalid, format!("Invalid value: null: {NO_PLACE}"));
        }
        return;
    }
    let given = places(device, "must not be empty", &["allNodes"], |_, _| {}, errors);
    one_place(device, &given, ONE_PLACE, ONE_PLACE, errors);
}

/// In which ways a device or a slice says where it is, each of which is validated: the name of a node, which is refused with
/// these words where it is empty, a selector of nodes, of which there may be more rules, and fields that are unset or true.
pub(super) fn places(
    at: &Field<'_>,
    empty: &str,
    flags: &[&'static str],
    selector_rules: impl FnOnce(&Field<'_>, &mut Errors),
    errors: &mut Errors,
) -> Vec<&'static str> {
    let (name, selector) = (at.at("nodeName"), at.at("nodeSelector"));
    let mut given = Vec::new();
    if name.is_set() && name.is_empty() {
        name.invalid(empty, errors);
    } else if name.is_set() {
        given.push("nodeName");
        name.fits(subdomain, errors);
    }
    if selector.is_set() {
        given.push("nodeSelector");
        node_selector::validate(&selector, errors);
        selector_rules(&selector, errors);
    }
    for flag in flags {
        let value = at.at(flag);
        match value.value {
            Value::Bool(true) => given.push(*flag),
            Value::Bool(false) => value.invalid("must be either unset or set to true", errors),
            _ => {}
        }
    }
    given
}

/// Refuses a place that is given in no way, or in several.
pub(super) fn one_place(at: &Field<'_>, given: &[&str], none: &str, several: &str, errors: &mut Errors) {
    match given.len() {
        1 => {}
        0 => at.required(none, errors),
        _ => {
            let shown: Vec<String> = given.iter().map(|field| format!("`{field}`")).collect();
            errors.invalid_text(&at.path, &format!("{{{}}}", shown.join(", ")), several);
        }
    }
}
