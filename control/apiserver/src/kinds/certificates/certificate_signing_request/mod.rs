//! CertificateSigningRequest; the times of its conditions are taken from the clock.

mod conditions;
mod validation;

use std::sync::Arc;

use serde_json::{Value, json};
use windlass_apimachinery::selectors::SelectableField;

use crate::{
    apiserver::{
        FieldError, Strategy, Tolerance, User,
        generate::now,
        pipeline::validation::{errors::Errors, names},
        types::{Definition, FieldResult, Part, Resource, Serves, Subresource, VersionSpec, duration, keep_field},
    },
    kinds::{
        shared::{
            cells::text,
            conditions::get,
            tables::{AGE, column, named},
            tolerance,
        },
        types,
    },
};
use validation::Allowed;

/// The resource.
pub(crate) fn definition() -> Definition {
    let mut resource = Resource::new(
        "certificates.k8s.io",
        "certificatesigningrequests",
        "CertificateSigningRequest",
        CertificateSigningRequest,
    );
    resource.short_names = vec!["csr".into()];
    resource.namespaced = false;
    let mut v1 = VersionSpec::new("v1", types::built_in("certificates.k8s.io/v1", "CertificateSigningRequest"));
    v1.selectable = vec![SelectableField::path("spec.signerName")];
    let approval = Subresource::of_object("approval", &["get", "patch", "update"], Serves::Part(Arc::new(Approval)));
    v1.subresources = vec![approval, Subresource::status()];
    let columns = vec![
        AGE,
        column("SignerName", "Who is to sign it."),
        column("Requestor", "Who has made it."),
        column("RequestedDuration", "How long the certificate should last."),
        column("Condition", "What has become of it."),
    ];
    v1.table = named(columns, cells_of);
    Definition::single(resource, v1)
}

fn cells_of(object: &Value, age: &str) -> Vec<Value> {
    let spec = &object["spec"];
    let lasts = spec["expirationSeconds"].as_i64().map_or_else(|| "<none>".to_owned(), duration);
    let signer = spec["signerName"].as_str().filter(|name| !name.is_empty()).unwrap_or("<none>");
    let has = |condition: &str| get(object, condition).is_some();
    let mut state = match (has("Denied"), has("Approved")) {
        (true, _) => "Denied",
        (false, true) => "Approved",
        (false, false) => "Pending",
    }
    .to_owned();
    if has("Failed") {
        state.push_str(",Failed");
    }
    if !text(&object["status"]["certificate"]).is_empty() {
        state.push_str(",Issued");
    }
    vec![json!(age), json!(signer), json!(text(&spec["username"])), json!(lasts), json!(state)]
}

#[derive(Debug)]
struct CertificateSigningRequest;

impl Strategy for CertificateSigningRequest {
    fn tolerates(&self, _object: &Value, error: &FieldError) -> Option<Tolerance> {
        // The spec does not change.
        tolerance::rule_of(error, &[("spec.usages", "usages"), ("spec.signerName", "signer")])
    }

    fn record_requester(&self, object: &mut Value, requester: &User) {
        let Some(spec) = object["spec"].as_object_mut() else { return };
        for field in ["username", "uid", "groups", "extra"] {
            spec.remove(field);
        }
        spec.insert("username".to_owned(), json!(requester.name));
        if !requester.uid.is_empty() {
            spec.insert("uid".to_owned(), json!(requester.uid));
        }
        if !requester.groups.is_empty() {
            spec.insert("groups".to_owned(), json!(requester.groups));
        }
        if !requester.extra.is_empty() {
            spec.insert("extra".to_owned(), json!(requester.extra));
        }
    }

    fn prepare_for_update(&self, object: &mut Value, old: &Value) {
        keep_field(object, old, "spec");
    }

    fn prepare_status_update(&self, object: &mut Value, old: &Value) {
        conditions::keep_decisions(object, old);
        conditions::fill_times(object, old, &now());
    }

    fn reset_fields(&self, subresource: &str) -> Option<&'static [&'static str]> {
        match subresource {
            "" => Some(&["spec", "status"]),
            "status" => Some(&["spec", "status.conditions"]),
            "approval" => Some(&["spec", "status.certificate"]),
            _ => None,
        }
    }

    fn validate_name(&self, name: &str) -> Option<String> {
        names::path_segment(name)
    }

    fn validate(&self, object: &Value, errors: &mut Errors) {
        validation::validate(object, errors);
    }

    fn validate_status(&self, new: &Value, old: &Value, errors: &mut Errors) {
        validation::validate(new, errors);
        validation::validate_update(new, old, Allowed { decisions: false, certificate: true }, errors);
    }
}

/// `approval`: the conditions that say whether it is approved.
#[derive(Debug)]
struct Approval;

impl Part for Approval {
    fn apply(&self, mut new: Value, old: &Value) -> FieldResult<Value> {
        keep_field(&mut new, old, "spec");
        if !new["status"].is_object() {
            new["status"] = json!({});
        }
        keep_field(&mut new["status"], &old["status"], "certificate");
        conditions::fill_times(&mut new, old, &now());
        Ok(new)
    }

    fn validate(&self, new: &Value, old: &Value, errors: &mut Errors) -> bool {
        validation::validate(new, errors);
        validation::validate_update(new, old, Allowed { decisions: true, certificate: false }, errors);
        true
    }
}
