//! ValidatingWebhookConfiguration and MutatingWebhookConfiguration. Pure.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use windlass_kit::objects::pod_defaults::{items, set, set_pointer};

use super::rules;
use crate::{
    apiserver::{
        FieldError, Strategy, Tolerance,
        pipeline::validation::{errors::Errors, names},
        types::{Definition, Generation, Resource, VersionSpec},
    },
    kinds::{
        shared::{
            field::Field,
            selector,
            tables::{AGE, count, named},
            tolerance, webhook_client,
        },
        types,
    },
};

/// The versions of reviews that the server can send.
const REVIEW_VERSIONS: [&str; 2] = ["v1", "v1beta1"];

/// The resource of ValidatingWebhookConfigurations.
pub(crate) fn validating() -> Definition {
    definition("validatingwebhookconfigurations", "ValidatingWebhookConfiguration", false)
}

/// The resource of MutatingWebhookConfigurations.
pub(crate) fn mutating() -> Definition {
    definition("mutatingwebhookconfigurations", "MutatingWebhookConfiguration", true)
}

fn definition(plural: &'static str, kind: &'static str, mutating: bool) -> Definition {
    let mut resource = Resource::new("admissionregistration.k8s.io", plural, kind, WebhookConfiguration { mutating });
    resource.categories = vec!["api-extensions".into()];
    resource.namespaced = false;
    resource.allow_unconditional_update = false;
    resource.generation = Generation::Counted;
    let mut v1 = VersionSpec::new("v1", types::built_in("admissionregistration.k8s.io/v1", kind));
    v1.table = named(vec![count("Webhooks", "Its webhooks."), AGE], |object, age| {
        vec![json!(object["webhooks"].as_array().map_or(0, Vec::len)), json!(age)]
    });
    Definition::single(resource, v1)
}

#[derive(Debug)]
struct WebhookConfiguration {
    mutating: bool,
}

impl Strategy for WebhookConfiguration {
    fn validation_takes_long(&self, _: Option<&Value>) -> bool {
        true
    }

    fn tolerates(&self, _object: &Value, error: &FieldError) -> Option<Tolerance> {
        const RULES: [(&str, &str); 3] = [
            ("webhooks.sideEffects", "side effects"),
            ("webhooks.admissionReviewVersions", "versions of reviews"),
            ("webhooks.name", "unique names"),
        ];
        let is_known = !error.field.ends_with(".name") || error.cause == crate::apiserver::Cause::Duplicate;
        let values = tolerance::label_values(error, &["webhooks["]);
        values.or_else(|| tolerance::rule_of(error, &RULES).filter(|_| is_known))
    }

    fn warnings(&self, new: &Value, _old: Option<&Value>) -> Vec<String> {
        super::name_warning(new).into_iter().collect()
    }

    fn default(&self, object: &mut Map<String, Value>) {
        for webhook in items(object, "webhooks") {
            set_pointer(webhook, "failurePolicy", json!("Fail"));
            set_pointer(webhook, "matchPolicy", json!("Equivalent"));
            set(webhook, "namespaceSelector", json!({}));
            set(webhook, "objectSelector", json!({}));
            set(webhook, "timeoutSeconds", json!(10));
            if self.mutating {
                set_pointer(webhook, "reinvocationPolicy", json!("Never"));
            }
            rules::default_scopes(webhook, "rules");
            let service = webhook.get_mut("clientConfig").and_then(|config| config.get_mut("service"));
            if let Some(service) = service.and_then(Value::as_object_mut) {
                set(service, "port", json!(443));
            }
        }
    }

    fn validate(&self, object: &Value, errors: &mut Errors) {
        let mut seen = BTreeSet::new();
        for webhook in Field::root(object).at("webhooks").items() {
            self.validate_webhook(&webhook, errors);
            review_versions(&webhook.at("admissionReviewVersions"), errors);
            let name = webhook.at("name");
            if !name.text().is_empty() && !seen.insert(name.text()) {
                name.duplicate(errors);
            }
        }
    }
}

impl WebhookConfiguration {
    fn validate_webhook(&self, webhook: &Field<'_>, errors: &mut Errors) {
        let name = webhook.at("name");
        name.named(names::subdomain, errors);
        if !name.text().is_empty() && name.text().split('.').count() < 3 {
            name.invalid("should be a domain with at least three segments separated by dots", errors);
        }
        for rule in webhook.at("rules").items() {
            rules::validate_rule(&rule, errors);
        }
        webhook.at("failurePolicy").optional_one_of(&["Fail", "Ignore"], errors);
        webhook.at("matchPolicy").optional_one_of(&["Equivalent", "Exact"], errors);
        let effects = webhook.at("sideEffects");
        if !effects.is_set() {
            effects.required("must specify one of None, NoneOnDryRun", errors);
        }
        effects.optional_one_of(&["None", "NoneOnDryRun"], errors);
        if self.mutating {
            webhook.at("reinvocationPolicy").optional_one_of(&["IfNeeded", "Never"], errors);
        }
        let timeout = webhook.at("timeoutSeconds");
        if timeout.number().is_some_and(|seconds| !(1..=30).contains(&seconds)) {
            timeout.invalid("the timeout value must be between 1 and 30 seconds", errors);
        }
        for field in ["namespaceSelector", "objectSelector"] {
            selector::validate(&webhook.at(field), errors);
        }
        client_config(&webhook.at("clientConfig"), errors);
        rules::match_conditions(&webhook.at("matchConditions"), false, errors);
    }
}

fn review_versions(versions: &Field<'_>, errors: &mut Errors) {
    if versions.is_empty() {
        return versions.required(&format!("must specify one of {}", REVIEW_VERSIONS.join(", ")), errors);
    }
    let mut seen = BTreeSet::new();
    for version in versions.items() {
        if !seen.insert(version.text()) {
            version.invalid("duplicate version", errors);
            continue;
        }
        version.fits(names::dns1035_label, errors);
    }
    if !REVIEW_VERSIONS.iter().any(|version| seen.contains(version)) {
        versions.invalid(&format!("must include at least one of {}", REVIEW_VERSIONS.join(", ")), errors);
    }
}

fn client_config(config: &Field<'_>, errors: &mut Errors) {
    let (url, service) = (config.at("url"), config.at("service"));
    match (url.is_set(), service.is_set()) {
        (true, true) | (false, false) => config.required("exactly one of url or service is required", errors),
        (true, false) => webhook_client::validate_url(&url, errors),
        (false, true) => webhook_client::validate_service(&service, errors),
    }
}
