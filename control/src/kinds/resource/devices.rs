//! What a claim requests, and how devices are selected and configured. Pure.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use windlass_kit::objects::pod_defaults::{items, set, unless_zero};

use crate::{
    apiserver::validation::{
        errors::{Cause, Errors},
        names,
    },
    kinds::shared::field::Field,
};

/// Upstream's limits.
const MAX_REQUESTS: usize = 32;
const MAX_SELECTORS: usize = 32;
const MAX_CONSTRAINTS: usize = 32;
const MAX_CONFIGS: usize = 32;
const MAX_SUBREQUESTS: usize = 8;
const MAX_EXPRESSION_BYTES: usize = 10 * 1024;
const MAX_DRIVER_BYTES: usize = 63;
const ONE_OF_CONSTRAINT: &str =
    "exactly one of \"matchAttribute\" or \"distinctAttribute\" is required, but multiple fields are set";
const ONE_OF_REQUEST: &str = "exactly one of `exactly` or `firstAvailable` is required";

/// Sets the defaults of the requests of a claim's spec.
pub(super) fn default_claim(spec: &mut Map<String, Value>) {
    let Some(devices) = spec.get_mut("devices").and_then(Value::as_object_mut) else { return };
    for request in items(devices, "requests") {
        if let Some(exactly) = request.get_mut("exactly").and_then(Value::as_object_mut) {
            default_request(exactly);
        }
        items(request, "firstAvailable").for_each(default_request);
    }
}

fn default_request(request: &mut Map<String, Value>) {
    set(request, "allocationMode", json!("ExactCount"));
    if request["allocationMode"] == "ExactCount" {
        unless_zero(request, "count", json!(1));
    }
    items(request, "tolerations").for_each(|toleration| set(toleration, "operator", json!("Equal")));
}

/// Validates the spec of a claim.
pub(super) fn validate_claim(spec: &Field<'_>, errors: &mut Errors) {
    let devices = spec.at("devices");
    let requests = devices.at("requests");
    requests.max_items(MAX_REQUESTS, errors);
    let mut known = BTreeSet::new();
    for request in requests.items() {
        validate_request(&request, &mut known, errors);
    }
    let constraints = devices.at("constraints");
    constraints.max_items(MAX_CONSTRAINTS, errors);
    for constraint in constraints.items() {
        references(&constraint.at("requests"), &known, errors);
        for field in ["matchAttribute", "distinctAttribute"].map(|field| constraint.at(field)) {
            if field.is_set() {
                qualified(&field, errors);
            }
        }
        if !constraint.at("matchAttribute").is_set() && !constraint.at("distinctAttribute").is_set() {
            constraint.required(ONE_OF_CONSTRAINT, errors);
        }
    }
    let configs = devices.at("config");
    configs.max_items(MAX_CONFIGS, errors);
    for config in configs.items() {
        references(&config.at("requests"), &known, errors);
        validate_config(&config, errors);
    }
}

fn validate_request(request: &Field<'_>, known: &mut BTreeSet<String>, errors: &mut Errors) {
    let name = request.at("name");
    name.fits(names::label, errors);
    if !known.insert(name.text().to_owned()) {
        errors.duplicate(request.path.as_str(), name.value);
    }
    let (exactly, first) = (request.at("exactly"), request.at("firstAvailable"));
    match (exactly.is_set(), !first.is_empty()) {
        (true, false) => validate_amount(&exactly, errors),
        (false, true) => {
            first.max_items(MAX_SUBREQUESTS, errors);
            for each in first.items() {
                let own = each.at("name");
                own.fits(names::label, errors);
                if !known.insert(format!("{}/{}", name.text(), own.text())) {
                    errors.duplicate(each.path.as_str(), own.value);
                }
                validate_amount(&each, errors);
            }
        }
        (true, true) => {
            let why = format!("{ONE_OF_REQUEST}, but multiple fields are set");
            errors.push(request.path.as_str(), Cause::Invalid, format!("Invalid value: null: {why}"));
        }
        (false, false) => request.required(ONE_OF_REQUEST, errors),
    }
}

fn validate_amount(request: &Field<'_>, errors: &mut Errors) {
    let class = request.at("deviceClassName");
    class.named(names::subdomain, errors);
    validate_selectors(&request.at("selectors"), errors);
    let (mode, count) = (request.at("allocationMode"), request.at("count"));
    let number = count.number().unwrap_or(0);
    match mode.text() {
        "All" if number != 0 => count.invalid("must not be specified when allocationMode is 'All'", errors),
        "All" => {}
        "ExactCount" if number <= 0 => count.invalid("must be greater than zero", errors),
        "ExactCount" => {}
        _ => mode.one_of(&["All", "ExactCount"], errors),
    }
    for toleration in request.at("tolerations").items() {
        validate_toleration(&toleration, errors);
    }
}

fn validate_toleration(toleration: &Field<'_>, errors: &mut Errors) {
    let (key, operator, value) = (toleration.at("key"), toleration.at("operator"), toleration.at("value"));
    key.optionally_fits(names::qualified, errors);
    match operator.text() {
        "Exists" => {
            if !value.text().is_empty() {
                value.invalid("must be empty for operator `Exists`", errors);
            }
        }
        "Equal" => value.fits(names::label_value, errors),
        "" => operator.required("", errors),
        _ => operator.one_of(&["Equal", "Exists"], errors),
    }
    toleration.at("effect").optional_one_of(&["NoExecute", "NoSchedule", "None"], errors);
}

/// Validates selectors of devices. Expressions are checked for being there.
pub(super) fn validate_selectors(selectors: &Field<'_>, errors: &mut Errors) {
    selectors.max_items(MAX_SELECTORS, errors);
    for selector in selectors.items() {
        let cel = selector.at("cel");
        if !cel.is_set() {
            cel.required("", errors);
            continue;
        }
        let expression = cel.at("expression");
        if expression.text().is_empty() {
            expression.required("", errors);
        }
        expression.max_bytes(MAX_EXPRESSION_BYTES, errors);
    }
}

/// Validates how devices are configured.
pub(super) fn validate_config(config: &Field<'_>, errors: &mut Errors) {
    let opaque = config.at("opaque");
    if !opaque.is_set() {
        return opaque.required("", errors);
    }
    driver(&opaque.at("driver"), errors);
    let parameters = opaque.at("parameters");
    if !parameters.is_set() {
        parameters.required("", errors);
    } else if !parameters.value.is_object() {
        errors.invalid_text(parameters.path.as_str(), "<value omitted>", "must be a valid JSON object");
    }
}

/// Validates the name of a driver.
pub(super) fn driver(name: &Field<'_>, errors: &mut Errors) {
    if name.text().is_empty() {
        return name.required("", errors);
    }
    name.max_bytes(MAX_DRIVER_BYTES, errors);
    // Upper case is only warned of.
    errors.unless(name.path.as_str(), name.text(), names::subdomain(&name.text().to_lowercase()));
}

/// Validates the name of an attribute, with its domain.
fn qualified(name: &Field<'_>, errors: &mut Errors) {
    match name.text().split_once('/') {
        None => name.invalid("a fully qualified name must be a domain and a name separated by a slash", errors),
        Some((domain, _)) => errors.unless(name.path.as_str(), domain, names::subdomain(domain)),
    }
}

fn references(requests: &Field<'_>, known: &BTreeSet<String>, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for request in requests.items() {
        if !known.contains(request.text()) {
            request.invalid(
                "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'",
                errors,
            );
        }
        if !seen.insert(request.text()) {
            request.duplicate(errors);
        }
    }
}
