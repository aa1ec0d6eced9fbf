//! Amounts of resources: of a container, of a pod as a whole, and what a pod costs besides them. Pure.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use windlass_kit::{
    objects::{
        pod_defaults::is_of_pods,
        resource_names::{is_extended, is_native},
        sums::of_containers,
    },
    quantity::Quantity,
};

use super::{container::Pod, containers, leniency::Broken};
use crate::{
    apiserver::pipeline::validation::{
        errors::{AT_LEAST_0, Cause, Errors},
        names,
    },
    kinds::shared::{
        field::Field,
        resource_names::{is_of_containers, is_overcommittable, is_standard, is_whole},
    },
};

const HUGE_PAGES: &str = "hugepages-";
const NO_QUANTITY: &str = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";

/// Whose amounts they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    Container,
    Pod,
}

/// Validates the resources of a container.
pub(super) fn validate_container(resources: &Field<'_>, pod: &Pod<'_>, errors: &mut Errors) {
    validate(resources, Of::Container, pod, errors);
}

/// Validates what a pod costs besides its containers.
pub(super) fn validate_overhead(overhead: &Field<'_>, pod: &Pod<'_>, errors: &mut Errors) {
    if overhead.is_set() {
        let limits = json!({"limits": overhead.value});
        validate(&Field { value: &limits, path: overhead.path.clone() }, Of::Container, pod, errors);
    }
}

/// Validates the resources of a pod as a whole.
pub(super) fn validate_pod(spec: &Field<'_>, pod: &Pod<'_>, errors: &mut Errors) {
    let whole = spec.at("resources");
    if !whole.is_set() {
        return;
    }
    if spec.value["os"]["name"] == "windows" {
        return whole.forbidden("may not be set for a windows pod", errors);
    }
    if whole.at("claims").is_set() {
        whole.at("claims").forbidden("claims may not be set for Resources at pod-level", errors);
    }
    validate(&whole, Of::Pod, pod, errors);
    for (list, all) in [("requests", true), ("limits", false)] {
        let amounts = whole.at(list);
        for (name, sum) in of_containers(spec.value, list) {
            // More limits than the pod has are fine where they are not promises.
            let Some(own) = amounts.value[&name].as_str().and_then(|text| text.parse::<Quantity>().ok()) else {
                continue;
            };
            if sum > own && (all || name.starts_with(HUGE_PAGES)) {
                let why = format!("must be greater than or equal to aggregate container {list} of {sum}");
                errors.invalid_text(format!("{}[{name}]", amounts.path), &own.to_string(), &why);
            }
        }
    }
    for (at, container) in spec.at("containers").items().enumerate() {
        for (name, limit) in container.below("resources.limits").entries() {
            let (Some(of_pod), Some(own)) = (quantity(&whole.value["limits"][name]), quantity(limit.value)) else {
                continue;
            };
            if own > of_pod {
                // The path is upstream's.
                let path = format!("{}.containers[{at}][{name}].limits", whole.path);
                let why = format!("must be less than or equal to pod limits of {of_pod}");
                errors.invalid_text(path, &own.to_string(), &why);
            }
        }
    }
}

fn validate(resources: &Field<'_>, of: Of, pod: &Pod<'_>, errors: &mut Errors) {
    let (limits, requests) = (resources.at("limits"), resources.at("requests"));
    for (name, amount) in limits.entries() {
        validate_amount(name, &amount, of, errors);
        huge_pages(name, &amount, pod, errors);
    }
    for (name, amount) in requests.entries() {
        let Some(request) = validate_amount(name, &amount, of, errors) else { continue };
        match quantity(&limits.value[name]) {
            Some(limit) if request != limit && !is_overcommittable(name) => {
                let why = format!("must be equal to {name} limit of {limit}");
                errors.invalid_text(&requests.path, &request.to_string(), &why);
            }
            Some(limit) if request > limit => {
                let why = format!("must be less than or equal to {name} limit of {limit}");
                errors.invalid_text(&requests.path, &request.to_string(), &why);
            }
            None if !is_overcommittable(name) => {
                limits.required("Limit must be set for non overcommitable resources", errors);
            }
            _ => {}
        }
        huge_pages(name, &amount, pod, errors);
    }
    let names: Vec<&str> = limits.entries().chain(requests.entries()).map(|(name, _)| name).collect();
    let has_basics = names.iter().any(|name| matches!(*name, "cpu" | "memory"));
    if !has_basics && names.iter().any(|name| name.starts_with(HUGE_PAGES)) {
        resources.forbidden("HugePages require cpu or memory", errors);
    }
    validate_claims(&resources.at("claims"), pod, errors);
}

/// Checks the name of a resource and its amount, which is returned if it can be read.
fn validate_amount(name: &str, amount: &Field<'_>, of: Of, errors: &mut Errors) -> Option<Quantity> {
    validate_name(name, amount, of, errors);
    let Some(quantity) = quantity(amount.value) else {
        amount.invalid(NO_QUANTITY, errors);
        return None;
    };
    if quantity.is_negative() {
        amount.invalid(AT_LEAST_0, errors);
    }
    if is_whole(name) && quantity.milli() % 1000 != 0 {
        amount.invalid("must be an integer", errors);
    }
    Some(quantity)
}

fn validate_name(name: &str, amount: &Field<'_>, of: Of, errors: &mut Errors) {
    let mut problems = names::qualified_problems(name);
    if problems.is_empty() && !name.contains('/') && !is_standard(name) {
        problems.push("must be a standard resource type or fully qualified".to_owned());
    }
    let is_named = problems.is_empty();
    if of == Of::Container && !name.contains('/') && !is_of_containers(name) {
        problems.push("must be a standard resource for containers".to_owned());
    } else if of == Of::Container && name.contains('/') && !is_native(name) && !is_extended(name) {
        problems.push("doesn't follow extended resource name standard".to_owned());
    }
    problems.iter().for_each(|why| errors.invalid_text(&amount.path, name, why));
    if of == Of::Pod && is_named && !is_of_pods(name) {
        errors.not_supported(&amount.path, &Value::from(name), &["cpu", HUGE_PAGES, "memory"]);
    }
}

fn huge_pages(name: &str, amount: &Field<'_>, pod: &Pod<'_>, errors: &mut Errors) {
    if pod.leniency.allows(Broken::WholeHugePages) || !are_torn(name, amount.value) {
        return;
    }
    if let Some(quantity) = quantity(amount.value) {
        let why = format!("{quantity} is not positive integer multiple of {name}");
        errors.invalid_text(&amount.path, &quantity.to_string(), &why);
    }
}

/// Whether this is an amount of huge pages that is no number of pages.
fn are_torn(name: &str, amount: &Value) -> bool {
    let (Some(size), Some(amount)) = (name.strip_prefix(HUGE_PAGES), quantity(amount)) else { return false };
    let Ok(size) = size.parse::<Quantity>() else { return true };
    size.is_zero() || size.is_negative() || size.milli() % 1000 != 0 || amount.units() % size.units() != 0
}

/// Whether a spec names huge pages that are no whole pages.
pub(super) fn has_torn_huge_pages(spec: &Field<'_>) -> bool {
    let lists =
        containers(spec).flat_map(|container| ["limits", "requests"].map(|list| container.at("resources").at(list)));
    lists.chain([spec.at("overhead")]).any(|list| list.entries().any(|(name, amount)| are_torn(name, amount.value)))
}

/// Refuses claims of a container that its pod does not have, and those that stand twice.
fn validate_claims(claims: &Field<'_>, pod: &Pod<'_>, errors: &mut Errors) {
    let mut seen: BTreeSet<String> = BTreeSet::new();
    for claim in claims.items() {
        let (name, request) = (claim.at("name").text(), claim.at("request"));
        if name.is_empty() {
            claim.required("", errors);
            continue;
        }
        let duplicate = |key: &str, errors: &mut Errors| errors.duplicate(&claim.path, &Value::from(key));
        if seen.contains(name) {
            duplicate(name, errors);
        } else {
            let mut key = name.to_owned();
            if !request.is_empty() {
                request.fits(names::label, errors);
                key = format!("{name}/{}", request.text());
            }
            if seen.contains(&key) {
                duplicate(&key, errors);
            } else if request.is_empty() {
                // All of a claim, of which parts stand before.
                for _ in seen.iter().filter(|other| other.split_once('/').is_some_and(|(other, _)| other == name)) {
                    duplicate(name, errors);
                }
            }
            seen.insert(key);
        }
        if !pod.claims.contains(name) {
            let all: Vec<&str> = pod.claims.iter().copied().collect();
            let which = if all.is_empty() { " which is empty".to_owned() } else { format!(": {}", all.join(", ")) };
            let detail = format!("Not found: {name:?}: must be one of the names in pod.spec.resourceClaims{which}");
            errors.push(&claim.path, Cause::NotFound, detail);
        }
    }
}

fn quantity(value: &Value) -> Option<Quantity> {
    match value {
        Value::String(text) => text.parse().ok(),
        Value::Number(number) => number.to_string().parse().ok(),
        _ => None,
    }
}
