//! ValidatingAdmissionPolicyBinding and MutatingAdmissionPolicyBinding. Pure.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::rules;
use crate::{
    apiserver::{
        Strategy,
        pipeline::validation::{errors::Errors, names},
        types::{Definition, Generation, Resource, VersionSpec},
    },
    kinds::{
        shared::{
            cells::text,
            field::Field,
            selector,
            tables::{AGE, column, named},
        },
        types,
    },
};
use windlass_kit::objects::pod_defaults::child;

const EXCLUSIVE: &str = "name and selector are mutually exclusive";
const BOTH: &str = "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)";

/// The resource of ValidatingAdmissionPolicyBindings.
pub(crate) fn validating() -> Definition {
    definition("validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", false)
}

/// The resource of MutatingAdmissionPolicyBindings.
pub(crate) fn mutating() -> Definition {
    definition("mutatingadmissionpolicybindings", "MutatingAdmissionPolicyBinding", true)
}

fn definition(plural: &'static str, kind: &'static str, mutating: bool) -> Definition {
    let mut resource = Resource::new("admissionregistration.k8s.io", plural, kind, PolicyBinding { mutating });
    resource.categories = vec!["api-extensions".into()];
    resource.namespaced = false;
    resource.allow_unconditional_update = false;
    resource.generation = Generation::Counted;
    let mut v1 = VersionSpec::new("v1", types::built_in("admissionregistration.k8s.io/v1", kind));
    let columns = vec![column("PolicyName", "The policy."), column("ParamRef", "The parameters of the policy."), AGE];
    v1.table = named(columns, |object, age| {
        let spec = &object["spec"];
        vec![json!(text(&spec["policyName"])), json!(param_ref(&spec["paramRef"])), json!(age)]
    });
    Definition::single(resource, v1)
}

fn param_ref(reference: &Value) -> String {
    if !reference.is_object() {
        return "<unset>".to_owned();
    }
    if !text(&reference["name"]).is_empty() {
        let (namespace, name) = (text(&reference["namespace"]), text(&reference["name"]));
        return if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") };
    }
    selector::shown(&reference["selector"])
}

#[derive(Debug)]
struct PolicyBinding {
    mutating: bool,
}

impl Strategy for PolicyBinding {
    fn warnings(&self, new: &Value, _old: Option<&Value>) -> Vec<String> {
        super::name_warning(new).into_iter().collect()
    }

    fn default(&self, object: &mut Map<String, Value>) {
        if let Some(resources) = child(object, "spec").get_mut("matchResources").and_then(Value::as_object_mut) {
            rules::default_match(resources);
        }
    }

    fn validate(&self, object: &Value, errors: &mut Errors) {
        let spec = Field::root(object).at("spec");
        spec.at("policyName").named(names::subdomain, errors);
        if spec.at("paramRef").is_set() {
            validate_param_ref(&spec.at("paramRef"), errors);
        }
        if spec.at("matchResources").is_set() {
            rules::match_resources(&spec.at("matchResources"), errors);
            if self.mutating {
                rules::mutable(&spec.at("matchResources"), errors);
            }
        }
        if !self.mutating {
            validate_actions(&spec.at("validationActions"), errors);
        }
    }
}

fn validate_param_ref(reference: &Field<'_>, errors: &mut Errors) {
    let (name, selector) = (reference.at("name"), reference.at("selector"));
    if !name.text().is_empty() {
        name.fits(names::path_segment, errors);
        if selector.is_set() {
            name.forbidden(EXCLUSIVE, errors);
        }
    }
    if selector.is_set() {
        selector::validate(&selector, errors);
        if !name.text().is_empty() {
            selector.forbidden(EXCLUSIVE, errors);
        }
    }
    if name.text().is_empty() && !selector.is_set() {
        reference.required("one of name or selector must be specified", errors);
    }
    reference.at("parameterNotFoundAction").required_one_of(&["Deny", "Allow"], errors);
}

fn validate_actions(actions: &Field<'_>, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for action in actions.items() {
        action.one_of(&["Audit", "Deny", "Warn"], errors);
        if !seen.insert(action.text()) {
            action.duplicate(errors);
        }
    }
    if seen.contains("Deny") && seen.contains("Warn") {
        actions.invalid(BOTH, errors);
    }
    if seen.is_empty() {
        actions.required("at least one validation action is required", errors);
    }
}
