//! What a pod's status says of its claims of devices. Pure.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::{
    apiserver::pipeline::validation::{
        errors::{Errors, list, text},
        names,
    },
    kinds::shared::field::Field,
};

/// Validates the claims that were made for a pod.
pub(super) fn validate(status: &Field<'_>, spec: &Value, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for claim in status.at("resourceClaimStatuses").items() {
        let name = claim.at("name");
        if !list(spec, "resourceClaims").any(|(_, own)| text(own, "name") == name.text()) {
            let why = "must match the name of an entry in `spec.resourceClaims`";
            errors.invalid_text(&name.path, name.text(), why);
        }
        if !seen.insert(name.text()) {
            name.duplicate(errors);
        }
        let made = claim.at("resourceClaimName");
        if made.is_set() {
            made.fits(names::subdomain, errors);
        }
    }
    let extended = status.at("extendedResourceClaimStatus");
    if extended.is_set() {
        validate_extended(&extended, spec, errors);
    }
}

/// Validates the claim that stands for extended resources.
fn validate_extended(status: &Field<'_>, spec: &Value, errors: &mut Errors) {
    let mappings = status.at("requestMappings");
    if mappings.is_empty() {
        mappings.required("at least one request mapping is required", errors);
    }
    let mut seen = BTreeSet::new();
    for mapping in mappings.items() {
        let [container, resource, request] =
            ["containerName", "resourceName", "requestName"].map(|field| mapping.at(field));
        let of_spec = ["containers", "initContainers"].into_iter().flat_map(|all| list(spec, all));
        match of_spec.map(|(_, each)| each).find(|each| text(each, "name") == container.text()) {
            Some(found) if found["resources"]["requests"].get(resource.text()).is_some() => {}
            Some(_) => {
                let why = "must match the extended resource name of an entry in spec.initContainers.resources.requests or spec.containers.resources.requests";
                errors.invalid_text(&resource.path, resource.text(), why);
            }
            None => {
                let why = "must match the name of an entry in spec.initContainers.name or spec.containers.name";
                errors.invalid_text(&container.path, container.text(), why);
            }
        }
        // The path is upstream's.
        errors.unless(status.at("requestName").path, request.text(), names::label(request.text()));
        if !seen.insert([container.text(), resource.text(), request.text()]) {
            [&container, &resource, &request].iter().for_each(|field| field.duplicate(errors));
        }
    }
    status.at("resourceClaimName").named(names::subdomain, errors);
}
