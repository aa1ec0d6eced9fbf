//! ResourceClaim and ResourceClaimTemplate. Pure.

use serde_json::{Map, Value, json};
use windlass_kit::objects::pod_defaults::child;

use super::{allocation, devices};
use crate::{
    apiserver::{
        Strategy,
        pipeline::validation::errors::Errors,
        types::{Definition, Resource, Subresource, VersionSpec, keep_metadata, status_keeps_metadata},
    },
    kinds::{
        shared::{
            field::{Field, immutable},
            tables::{AGE, column, named},
            template_metadata,
        },
        types,
    },
};

/// The resource of claims.
pub(crate) fn claim() -> Definition {
    let mut resource = Resource::new("resource.k8s.io", "resourceclaims", "ResourceClaim", Claim);
    resource.returns_deleted = true;
    let mut v1 = VersionSpec::new("v1", types::built_in("resource.k8s.io/v1", "ResourceClaim"));
    v1.subresources = vec![Subresource::status()];
    v1.table = named(vec![column("State", "Whether it is allocated."), AGE], |object, age| {
        vec![json!(state(object)), json!(age)]
    });
    Definition::single(resource, v1)
}

/// The resource of templates.
pub(crate) fn template() -> Definition {
    let mut resource =
        Resource::new("resource.k8s.io", "resourceclaimtemplates", "ResourceClaimTemplate", ClaimTemplate);
    resource.returns_deleted = true;
    let mut v1 = VersionSpec::new("v1", types::built_in("resource.k8s.io/v1", "ResourceClaimTemplate"));
    v1.table = named(vec![AGE], |_, age| vec![json!(age)]);
    Definition::single(resource, v1)
}

fn state(object: &Value) -> String {
    let status = &object["status"];
    let mut states = Vec::new();
    if !object["metadata"]["deletionTimestamp"].is_null() {
        states.push("deleted");
    }
    if status["allocation"].is_object() {
        states.push("allocated");
        if status["reservedFor"].as_array().is_some_and(|users| !users.is_empty()) {
            states.push("reserved");
        }
    } else if states.is_empty() {
        states.push("pending");
    }
    states.join(",")
}

#[derive(Debug)]
struct Claim;

impl Strategy for Claim {
    /// The spec of one that is there does not change.
    fn validation_takes_long(&self, old: Option<&Value>) -> bool {
        old.is_none()
    }

    fn default(&self, object: &mut Map<String, Value>) {
        devices::default_claim(child(object, "spec"));
    }

    fn prepare_status_update(&self, object: &mut Value, old: &Value) {
        keep_metadata(object, old);
        allocation::drop_deallocated(object, old);
    }

    fn reset_fields(&self, subresource: &str) -> Option<&'static [&'static str]> {
        status_keeps_metadata(subresource)
    }

    fn validate_create(&self, object: &Value, errors: &mut Errors) {
        devices::validate_claim(&Field::root(object).at("spec"), errors);
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut Errors) {
        immutable(new, old, &["spec"], errors);
    }

    fn validate_status(&self, new: &Value, old: &Value, errors: &mut Errors) {
        allocation::validate_status(&Field::root(new), &Field::root(old), errors);
    }
}

#[derive(Debug)]
struct ClaimTemplate;

impl Strategy for ClaimTemplate {
    /// The spec of one that is there does not change.
    fn validation_takes_long(&self, old: Option<&Value>) -> bool {
        old.is_none()
    }

    fn default(&self, object: &mut Map<String, Value>) {
        devices::default_claim(child(child(object, "spec"), "spec"));
    }

    fn validate_create(&self, object: &Value, errors: &mut Errors) {
        let spec = Field::root(object).at("spec");
        template_metadata::validate(&spec.at("metadata"), errors);
        devices::validate_claim(&spec.at("spec"), errors);
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut Errors) {
        immutable(new, old, &["spec"], errors);
    }
}
