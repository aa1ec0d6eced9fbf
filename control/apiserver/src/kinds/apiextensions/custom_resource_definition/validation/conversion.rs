//! The conversion of a definition, and the webhook that it may name.

use std::collections::BTreeSet;

use base64::Engine as _;
use serde_json::Value;
use x509_parser::pem::Pem;

use crate::{
    apiserver::pipeline::validation::{
        errors::{Errors, list, text},
        names,
    },
    kinds::shared::{field::Field, webhook_client},
};

/// The review versions that upstream knows.
const REVIEW_VERSIONS: [&str; 2] = ["v1", "v1beta1"];

/// Validates `spec.conversion`.
pub(super) fn validate(conversion: &Value, errors: &mut Errors) {
    if text(conversion, "strategy").is_empty() {
        errors.required("spec.conversion.strategy", "");
    } else {
        errors.one_of("spec.conversion.strategy", &conversion["strategy"], &["None", "Webhook"]);
    }
    let config = &conversion["webhook"]["clientConfig"];
    let reviews = list(&conversion["webhook"], "conversionReviewVersions").count();
    if conversion["strategy"] != "Webhook" {
        let why = "should not be set when strategy is not set to Webhook";
        if config.is_object() {
            errors.forbidden("spec.conversion.webhookClientConfig", why);
        }
        if reviews > 0 {
            errors.forbidden("spec.conversion.conversionReviewVersions", why);
        }
        return;
    }
    let here = "spec.conversion.webhookClientConfig";
    let of_client = Field { value: config, path: here.to_owned().into() };
    match (config["url"].as_str(), config["service"].is_object()) {
        _ if !config.is_object() => errors.required(here, "required when strategy is set to Webhook"),
        (Some(_), false) => webhook_client::validate_url(&of_client.at("url"), errors),
        (None, true) => webhook_client::validate_service(&of_client.at("service"), errors),
        _ => errors.required(here, "exactly one of url or service is required"),
    }
    let here = "spec.conversion.conversionReviewVersions";
    if reviews == 0 {
        return errors.required(here, "");
    }
    let mut seen = BTreeSet::new();
    for (at, version) in list(&conversion["webhook"], "conversionReviewVersions") {
        let version = version.as_str().unwrap_or("");
        if seen.insert(version) {
            errors.unless(format!("{here}[{at}]"), version, names::dns1035_label(version));
        } else {
            errors.invalid_text(format!("{here}[{at}]"), version, "duplicate version");
        }
    }
    if !REVIEW_VERSIONS.iter().any(|version| seen.contains(version)) {
        let why = format!("must include at least one of {}", REVIEW_VERSIONS.join(", "));
        errors.invalid(here, &conversion["webhook"]["conversionReviewVersions"], &why);
    }
}

/// What is wrong with the certificates that a definition trusts its webhook by.
pub(crate) fn ca_bundle_fault(definition: &Value) -> Option<String> {
    let bundle = definition["spec"]["conversion"]["webhook"]["clientConfig"]["caBundle"].as_str()?;
    let bytes = base64::engine::general_purpose::STANDARD.decode(bundle).unwrap_or_default();
    if bundle.is_empty() {
        return None;
    }
    let mut count = 0;
    for pem in Pem::iter_from_buffer(&bytes).map_while(Result::ok).filter(|pem| pem.label == "CERTIFICATE") {
        if pem.parse_x509().is_err() {
            return Some(
                "unable to load root certificates: failed to parse certificate: x509: malformed certificate".to_owned(),
            );
        }
        count += 1;
    }
    (count == 0).then(|| "unable to load root certificates: unable to parse bytes as PEM block".to_owned())
}
