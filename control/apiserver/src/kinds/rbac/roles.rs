//! Role and ClusterRole. Pure.

use crate::{
    apiserver::{
        Strategy,
        pipeline::validation::{errors::Errors, names},
        types::{Definition, Resource, VersionSpec},
    },
    kinds::{
        shared::{field::Field, selector, tables::created_at},
        types,
    },
};
use serde_json::Value;

const GROUP: &str = "rbac.authorization.k8s.io";

/// The resource of ClusterRoles.
pub(crate) fn cluster_role() -> Definition {
    definition("clusterroles", "ClusterRole", false)
}

/// The resource of Roles.
pub(crate) fn role() -> Definition {
    definition("roles", "Role", true)
}

fn definition(plural: &'static str, kind: &'static str, namespaced: bool) -> Definition {
    let mut resource = Resource::new(GROUP, plural, kind, Role { namespaced });
    resource.namespaced = namespaced;
    resource.create_on_update = true;
    let mut v1 = VersionSpec::new("v1", types::built_in("rbac.authorization.k8s.io/v1", kind));
    v1.table = created_at();
    Definition::single(resource, v1)
}

#[derive(Debug)]
struct Role {
    namespaced: bool,
}

impl Strategy for Role {
    fn validate_name(&self, name: &str) -> Option<String> {
        names::path_segment(name)
    }

    fn validate(&self, object: &Value, errors: &mut Errors) {
        let root = Field::root(object);
        for rule in root.at("rules").items() {
            validate_rule(&rule, self.namespaced, errors);
        }
        let aggregation = root.at("aggregationRule");
        if !aggregation.is_set() {
            return;
        }
        let selectors = aggregation.at("clusterRoleSelectors");
        if selectors.is_empty() {
            selectors.required("at least one clusterRoleSelector required if aggregationRule is non-nil", errors);
        }
        for each in selectors.items() {
            let before = errors.0.len();
            selector::validate(&each, errors);
            if errors.0.len() > before {
                each.invalid_as("null", "invalid label selector.", errors);
            }
        }
    }
}

fn validate_rule(rule: &Field<'_>, namespaced: bool, errors: &mut Errors) {
    if rule.at("verbs").is_empty() {
        rule.at("verbs").required("verbs must contain at least one value", errors);
    }
    let urls = rule.at("nonResourceURLs");
    if !urls.is_empty() {
        if namespaced {
            urls.invalid("namespaced rules cannot apply to non-resource URLs", errors);
        }
        if ["apiGroups", "resources", "resourceNames"].iter().any(|field| !rule.at(field).is_empty()) {
            urls.invalid("rules cannot apply to both regular resources and non-resource URLs", errors);
        }
        return;
    }
    for (field, why) in [
        ("apiGroups", "resource rules must supply at least one api group"),
        ("resources", "resource rules must supply at least one resource"),
    ] {
        if rule.at(field).is_empty() {
            rule.at(field).required(why, errors);
        }
    }
}
