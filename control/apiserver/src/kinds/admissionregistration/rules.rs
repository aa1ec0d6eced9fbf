//! Which requests a webhook or policy is for: rules, selectors and conditions. Pure.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use windlass_kit::objects::pod_defaults::{items, set, set_pointer};

use crate::{
    apiserver::pipeline::validation::{errors::Errors, names},
    cel::compile_condition,
    kinds::shared::{field::Field, selector},
};

const OPERATIONS: [&str; 5] = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
const MAX_CONDITIONS: usize = 64;

/// Sets the scope of rules.
pub(super) fn default_scopes(holder: &mut Map<String, Value>, key: &str) {
    items(holder, key).for_each(|rule| set_pointer(rule, "scope", json!("*")));
}

/// Sets the defaults of what a policy matches.
pub(super) fn default_match(resources: &mut Map<String, Value>) {
    set_pointer(resources, "matchPolicy", json!("Equivalent"));
    set(resources, "namespaceSelector", json!({}));
    set(resources, "objectSelector", json!({}));
    default_scopes(resources, "resourceRules");
    default_scopes(resources, "excludeResourceRules");
}

/// Validates what a policy or its binding matches.
pub(super) fn match_resources(resources: &Field<'_>, errors: &mut Errors) {
    resources.at("matchPolicy").pointer_one_of(&["Equivalent", "Exact"], errors);
    for field in ["namespaceSelector", "objectSelector"].map(|field| resources.at(field)) {
        if field.is_set() {
            selector::validate(&field, errors);
        } else {
            field.required("", errors);
        }
    }
    for list in ["resourceRules", "excludeResourceRules"] {
        for rule in resources.at(list).items() {
            let mut seen = BTreeSet::new();
            for name in rule.at("resourceNames").items() {
                name.fits(names::path_segment, errors);
                if !seen.insert(name.text()) {
                    name.duplicate(errors);
                }
            }
            validate_rule(&rule, errors);
        }
    }
}

/// Validates a rule: operations, groups, versions and resources, with their subresources.
pub(super) fn validate_rule(rule: &Field<'_>, errors: &mut Errors) {
    let operations = rule.at("operations");
    all_or_some(&operations, "operations", errors);
    operations.items().for_each(|operation| operation.one_of(&OPERATIONS, errors));
    all_or_some(&rule.at("apiGroups"), "API groups", errors);
    all_or_some(&rule.at("apiVersions"), "API versions", errors);
    none_empty(&rule.at("apiVersions"), errors);
    validate_resources(&rule.at("resources"), errors);
    rule.at("scope").optional_one_of(&["*", "Cluster", "Namespaced"], errors);
}

/// Refuses a list without items, and one where `*` is not alone.
fn all_or_some(list: &Field<'_>, what: &str, errors: &mut Errors) {
    if list.is_empty() {
        list.required("", errors);
    }
    if list.len() > 1 && list.texts().contains(&"*") {
        list.invalid(&format!("if '*' is present, must not specify other {what}"), errors);
    }
}

fn none_empty(list: &Field<'_>, errors: &mut Errors) {
    for item in list.items().filter(|item| item.text().is_empty()) {
        item.required("", errors);
    }
}

fn validate_resources(resources: &Field<'_>, errors: &mut Errors) {
    if resources.is_empty() {
        resources.required("", errors);
    }
    // The resources whose subresources are all named, and the subresources that are named of all.
    let (mut wholes, mut everywhere) = (BTreeSet::new(), BTreeSet::new());
    let (mut all, mut all_resources, mut plain) = (false, false, false);
    for item in resources.items() {
        let text = item.text();
        match text {
            "" => {
                item.required("", errors);
                continue;
            }
            "*/*" => all = true,
            "*" => all_resources = true,
            _ => {}
        }
        let Some((resource, sub)) = text.split_once('/') else {
            plain |= text != "*";
            continue;
        };
        if wholes.contains(resource) {
            item.invalid(&format!("if '{resource}/*' is present, must not specify {text}"), errors);
        }
        if everywhere.contains(sub) {
            item.invalid(&format!("if '*/{sub}' is present, must not specify {text}"), errors);
        }
        if sub == "*" {
            wholes.insert(resource);
        }
        if resource == "*" {
            everywhere.insert(sub);
        }
    }
    if resources.len() > 1 && all {
        resources.invalid("if '*/*' is present, must not specify other resources", errors);
    }
    if all_resources && plain {
        resources.invalid("if '*' is present, must not specify other resources without subresources", errors);
    }
}

/// Validates the conditions of a webhook or policy.
pub(super) fn match_conditions(conditions: &Field<'_>, has_params: bool, errors: &mut Errors) {
    conditions.max_items(MAX_CONDITIONS, errors);
    let mut seen = BTreeSet::new();
    for condition in conditions.items() {
        let expression = condition.at("expression");
        if expression.text().trim().is_empty() {
            expression.required("", errors);
        } else if let Err(why) = compile_condition(expression.text().trim(), has_params) {
            expression.invalid(&why, errors);
        }
        let name = condition.at("name");
        name.named(names::qualified, errors);
        if !name.text().is_empty() && !seen.insert(name.text()) {
            name.duplicate(errors);
        }
    }
}

/// Refuses what cannot be mutated: a deletion has no object.
pub(super) fn mutable(resources: &Field<'_>, errors: &mut Errors) {
    const MUTABLE: [&str; 4] = ["*", "CONNECT", "CREATE", "UPDATE"];
    for rule in resources.at("resourceRules").items() {
        for operation in rule.at("operations").texts() {
            errors.one_of(resources.below("resourceRules.operations").path, &json!(operation), &MUTABLE);
        }
    }
}
