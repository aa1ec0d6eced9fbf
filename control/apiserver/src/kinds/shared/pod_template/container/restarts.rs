//! When containers are restarted: after their end, and to be resized. Pure.

use std::collections::BTreeSet;

use crate::{apiserver::pipeline::validation::errors::Errors, kinds::shared::field::Field};

const MAX_RULES: usize = 20;
const MAX_CODES: usize = 255;

/// Validates whether the container is restarted, by its own word.
pub(super) fn validate_policy(container: &Field<'_>, errors: &mut Errors) {
    let (policy, rules) = (container.at("restartPolicy"), container.at("restartPolicyRules"));
    if policy.is_set() {
        policy.one_of(&["Always", "Never", "OnFailure"], errors);
    } else if !rules.is_empty() {
        policy.required("must specify restartPolicy when restart rules are used", errors);
        // Upstream stops here for init containers alone.
        if container.path.is_in("initContainers") {
            return;
        }
    }
    rules.max_items(MAX_RULES, errors);
    for rule in rules.items() {
        rule.at("action").one_of(&["Restart", "RestartAllContainers"], errors);
        let codes = rule.at("exitCodes");
        if codes.is_set() {
            codes.at("operator").one_of(&["In", "NotIn"], errors);
            codes.at("values").max_items(MAX_CODES, errors);
        } else {
            codes.required("must be specified", errors);
        }
    }
}

/// Validates whether a container is restarted when its resources change.
pub(super) fn validate_resize_policy(policies: &Field<'_>, restart_policy: &str, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for policy in policies.items() {
        let (resource, restart) = (policy.at("resourceName"), policy.at("restartPolicy"));
        if !seen.insert(resource.text()) {
            errors.duplicate(&policy.path, resource.value);
        }
        of_list(&resource, policies).required_one_of(&["cpu", "memory"], errors);
        of_list(&restart, policies).required_one_of(&["NotRequired", "RestartContainer"], errors);
        if restart_policy == "Never" && restart.text() != "NotRequired" {
            let why = "must be 'NotRequired' when pod `restartPolicy` is 'Never'";
            errors.invalid_text(&policies.path, restart.text(), why);
        }
    }
}

/// Refuses to restart what runs once.
pub(super) fn validate_resize_of_init_container(policies: &Field<'_>, errors: &mut Errors) {
    for restart in policies.items().map(|policy| policy.at("restartPolicy")) {
        if restart.text() == "RestartContainer" {
            restart.invalid("must not be set to 'RestartContainer' for non-sidecar initContainers", errors);
        }
    }
}

/// The field with the path of its list, as upstream reports it.
fn of_list<'a>(field: &Field<'a>, list: &Field<'_>) -> Field<'a> {
    Field { value: field.value, path: list.path.clone() }
}
