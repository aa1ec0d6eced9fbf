//! What a claim requests, and how devices are selected and configured. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use windlass_kit::objects::pod_defaults::{items, set, unless_zero};

use super::{
    lists::{self, by, itself},
    names::{driver, fully_qualified},
};
use crate::{
    apiserver::pipeline::validation::{
        errors::{Cause, Errors},
        names,
    },
    cel::{SelectorError, check_selector},
    kinds::shared::field::Field,
};

/// Upstream's limits.
pub(super) const MAX_REQUESTS: usize = 32;
pub(super) const MAX_CONFIGS: usize = 32;
const MAX_SELECTORS: usize = 32;
const MAX_CONSTRAINTS: usize = 32;
const MAX_SUBREQUESTS: usize = 8;
const MAX_EXPRESSION_BYTES: usize = 10 * 1024;
const MAX_PARAMETERS_BYTES: usize = 10 * 1024;
const ONE_OF_CONSTRAINT: &str =
    "exactly one of \"matchAttribute\" or \"distinctAttribute\" is required, but multiple fields are set";
const ONE_OF_REQUEST: &str = "exactly one of `exactly` or `firstAvailable` is required";
const REFERENCE: &str =
    "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";

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

/// The names of a claim's requests, each with those of its subrequests.
#[derive(Debug)]
pub(super) struct RequestNames<'a>(BTreeMap<&'a str, BTreeSet<&'a str>>);

impl<'a> RequestNames<'a> {
    /// The names in the spec of a claim.
    pub(super) fn of(spec: &Field<'a>) -> Self {
        let requests = spec.below("devices.requests");
        let subrequests =
            |request: &Field<'a>| request.at("firstAvailable").items().map(|each| each.at("name").text()).collect();
        Self(requests.items().map(|request| (request.at("name").text(), subrequests(&request))).collect())
    }

    fn has(&self, request: &str, subrequest: Option<&str>) -> bool {
        self.0.get(request).is_some_and(|known| subrequest.is_none_or(|subrequest| known.contains(subrequest)))
    }

    /// Validates a reference to a request.
    pub(super) fn validate_reference(&self, reference: &Field<'_>, errors: &mut Errors) {
        let segments: Vec<&str> = reference.text().split('/').collect();
        let known = match segments[..] {
            [request] => self.has(request, None),
            [request, subrequest] => self.has(request, Some(subrequest)),
            _ => return reference.invalid(REFERENCE, errors),
        };
        for segment in segments {
            errors.unless(&reference.path, segment, names::label(segment));
        }
        if !known {
            reference.invalid(REFERENCE, errors);
        }
    }

    /// Validates a list of references.
    pub(super) fn validate_references(&self, requests: &Field<'_>, errors: &mut Errors) {
        lists::set(requests, MAX_REQUESTS, itself, errors, |reference, errors| {
            self.validate_reference(reference, errors)
        });
    }
}

/// Validates the spec of a claim.
pub(super) fn validate_claim(spec: &Field<'_>, errors: &mut Errors) {
    let devices = spec.at("devices");
    let known = RequestNames::of(spec);
    lists::set(&devices.at("requests"), MAX_REQUESTS, by("name"), errors, validate_request);
    lists::slice(&devices.at("constraints"), MAX_CONSTRAINTS, errors, |constraint, errors| {
        known.validate_references(&constraint.at("requests"), errors);
        let (same, distinct) = (constraint.at("matchAttribute"), constraint.at("distinctAttribute"));
        match [same, distinct].into_iter().find(Field::is_set) {
            Some(attribute) => fully_qualified(&attribute, errors),
            None => constraint.required(ONE_OF_CONSTRAINT, errors),
        }
    });
    lists::slice(&devices.at("config"), MAX_CONFIGS, errors, |config, errors| {
        known.validate_references(&config.at("requests"), errors);
        validate_config(config, false, errors);
    });
}

fn validate_request(request: &Field<'_>, errors: &mut Errors) {
    request.at("name").fits(names::label, errors);
    let (exactly, first) = (request.at("exactly"), request.at("firstAvailable"));
    match (exactly.is_set(), !first.is_empty()) {
        (true, false) => validate_amount(&exactly, errors),
        (false, true) => {
            lists::set(&first, MAX_SUBREQUESTS, by("name"), errors, |each, errors| {
                each.at("name").fits(names::label, errors);
                validate_amount(each, errors);
            });
        }
        (true, true) => {
            let why = format!("{ONE_OF_REQUEST}, but multiple fields are set");
            errors.push(&request.path, Cause::Invalid, format!("Invalid value: null: {why}"));
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
        "ExactCount" if number <= 0 => {
            errors.invalid(&count.path, &json!(number), "must be greater than zero");
        }
        "All" | "ExactCount" => {}
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

/// Validates selectors of devices. What is too long is not compiled.
pub(super) fn validate_selectors(selectors: &Field<'_>, errors: &mut Errors) {
    lists::slice(selectors, MAX_SELECTORS, errors, |selector, errors| {
        let cel = selector.at("cel");
        if !cel.is_set() {
            return cel.required("", errors);
        }
        let expression = cel.at("expression");
        if expression.len() > MAX_EXPRESSION_BYTES {
            return expression.max_bytes(MAX_EXPRESSION_BYTES, errors);
        }
        let text = expression.text();
        match check_selector(text) {
            Ok(()) => {}
            Err(SelectorError::Invalid(why)) => errors.invalid_text(&expression.path, text, &why),
            Err(SelectorError::TooComplex) => expression.forbidden("too complex, exceeds cost limit", errors),
            Err(SelectorError::Internal(why)) => errors.internal(&expression.path, &why),
        }
    });
}

/// Validates how devices are configured; parameters that are `stored` already may be of any length.
pub(super) fn validate_config(config: &Field<'_>, stored: bool, errors: &mut Errors) {
    let opaque = config.at("opaque");
    if !opaque.is_set() {
        return opaque.required("", errors);
    }
    driver(&opaque.at("driver"), errors);
    validate_raw(&opaque.at("parameters"), if stored { usize::MAX } else { MAX_PARAMETERS_BYTES }, errors);
}

/// Validates an object of somebody else's.
pub(super) fn validate_raw(object: &Field<'_>, max_bytes: usize, errors: &mut Errors) {
    if !object.is_set() {
        object.required("", errors);
    } else if object.value.to_string().len() > max_bytes {
        errors.too_long(&object.path, max_bytes);
    } else if !object.value.is_object() {
        errors.invalid_text(&object.path, "<value omitted>", "must be a valid JSON object");
    }
}
