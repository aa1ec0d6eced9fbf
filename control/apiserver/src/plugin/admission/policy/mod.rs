//! Admission policies: expressions that change or refuse what is written, as bindings say for which requests.
//!
//! `configuration` has policies with their bindings, each compiled once; `policy_matcher` says which of them are for a request, with
//! which parameters. `validating` and `mutating` decide and change (`validator`, `patch` and `apply_configuration` are pure), and
//! `type_checking` compares expressions with the types of what they are about.
//!
//! Upstream: `k8s.io/apiserver/pkg/admission/plugin/policy`.

mod configuration;
mod metrics;
mod mutating;
mod policy_matcher;
pub(crate) mod type_checking;
mod validating;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde_json::{Value, json};

pub(crate) use metrics::PolicyMetrics;
pub(super) use mutating::MutatingAdmissionPolicy;
pub(super) use validating::ValidatingAdmissionPolicy;

use crate::{
    apiserver::{AdmissionAttributes, ApiError, Authorizers},
    store::Store,
};

/// What both kinds of policies are evaluated with.
#[derive(Debug, Clone)]
pub(crate) struct PolicyContext {
    pub(crate) store: Store,
    pub(crate) authorizers: Authorizers,
    pub(crate) metrics: Arc<PolicyMetrics>,
}

/// The refusal of a request, with all that is against it.
fn refused(
    attributes: &AdmissionAttributes<'_>,
    object: &Value,
    (code, reason): (u16, String),
    message: &str,
    causes: &[String],
) -> ApiError {
    let version = &attributes.target.version;
    let causes: Vec<Value> = causes.iter().map(|message| json!({"message": message})).collect();
    ApiError::new(code, reason, message).with_details(json!({
        "name": attributes.name(object),
        "group": version.group,
        "kind": version.plural,
        "causes": causes,
    }))
}
