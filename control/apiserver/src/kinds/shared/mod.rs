//! What several kinds have in common. May not import a kind.

pub(crate) mod cells;
pub(crate) mod conditions;
pub(crate) mod data;
pub(crate) mod endpoints;
pub(crate) mod field;
pub(crate) mod field_path;
pub(crate) mod go_json;
pub(crate) mod internal_version;
pub(crate) mod node_selector;
pub(crate) mod old_volumes;
pub(crate) mod pod_template;
pub(crate) mod posted;
pub(crate) mod resource_names;
pub(crate) mod reviews;
pub(crate) mod selector;
pub(crate) mod tables;
pub(crate) mod template_metadata;
pub(crate) mod tolerance;
pub(crate) mod volume_claims;
pub(crate) mod volume_sources;
pub(crate) mod webhook_client;
pub(crate) mod workload;

use serde_json::{Value, json};
use windlass_kit::quantity::Quantity;

use crate::apiserver::pipeline::validation::{
    errors::{AT_LEAST_0, Errors},
    names,
};

/// Refuses negative amounts of resources in a status.
pub(crate) fn validate_amounts(status: &Value, field: &str, errors: &mut Errors) {
    for (resource, amount) in status[field].as_object().into_iter().flatten() {
        let parsed = amount.as_str().and_then(|text| text.parse::<Quantity>().ok());
        if parsed.is_some_and(Quantity::is_negative) {
            errors.invalid(format!("status.{field}.{resource}"), amount, AT_LEAST_0);
        }
        if parsed.is_some_and(|amount| amount.milli() % 1000 != 0) && resource_names::is_whole(resource) {
            errors.invalid(format!("status.{field}.{resource}"), amount, "must be an integer");
        }
    }
}

/// Refuses an amount of a resource below 0 (upstream: `validateBasicResource`).
pub(crate) fn validate_basic_resource(amount: &field::Field<'_>, errors: &mut Errors) {
    // Upstream shows the number.
    if let Some(units) = amount.quantity().map(Quantity::units).filter(|units| *units < 0) {
        errors.invalid(&amount.path, &json!(units), "must be a valid resource quantity");
    }
}

/// A warning about an amount of a resource that is no whole number of bytes.
pub(crate) fn fractional_bytes(amounts: &field::Field<'_>, resource: &str) -> Option<String> {
    let amount = amounts.at_name(resource).quantity().filter(|amount| amount.milli() % 1000 != 0)?;
    Some(format!("{}[{resource}]: fractional byte value \"{amount}\" is invalid, must be an integer", amounts.path))
}

/// The warnings about the addresses of a load balancer in a status.
pub(crate) fn load_balancer_warnings(object: &Value) -> Vec<String> {
    let addresses = field::Field::root(object).below("status.loadBalancer.ingress");
    addresses.items().filter_map(|one| names::ip_warning(&one.path, one.at("ip").text())).collect()
}

/// Sets the status of a new object.
pub(crate) fn set_status(object: &mut Value, status: Value) {
    if let Some(fields) = object.as_object_mut() {
        fields.insert("status".to_owned(), status);
    }
}

/// Replaces the status of a new object by a phase.
pub(crate) fn set_phase(object: &mut Value, phase: &str) {
    set_status(object, json!({"phase": phase}));
}
