//! The conversion of a definition, and the webhook that it may name.

use std::collections::BTreeSet;

use base64::Engine as _;
use serde_json::Value;
use x509_parser::pem::Pem;

use crate::apiserver::validation::{
    errors::{Errors, list, text},
    names,
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
    match (config["url"].as_str(), config["service"].is_object()) {
        _ if !config.is_object() => errors.required(here, "required when strategy is set to Webhook"),
        (Some(url), false) => validate_url(url, &format!("{here}.url"), errors),
        (None, true) => validate_service(&config["service"], &format!("{here}.service"), errors),
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

/// Validates the URL of a webhook. Upstream: `ValidateWebhookURL`.
fn validate_url(url: &str, here: &str, errors: &mut Errors) {
    const FORM: &str = "; desired format: https://host[/path]";
    if let Some(escape) = bad_escape(url) {
        let why = format!("url must be a valid URL: parse {url:?}: invalid URL escape {escape:?}{FORM}");
        return errors.required(here, &why);
    }
    let (rest, fragment) = url.split_once('#').unwrap_or((url, ""));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let is_scheme = |scheme: &str| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'))
    };
    let (scheme, rest) = rest.split_once(':').filter(|(scheme, _)| is_scheme(scheme)).unwrap_or(("", rest));
    let authority = rest.strip_prefix("//").map_or("", |rest| rest.split('/').next().unwrap_or(""));
    let (user, host) = authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
    if !scheme.eq_ignore_ascii_case("https") {
        let why = format!("'https' is the only allowed URL scheme{FORM}");
        errors.invalid_text(here, &scheme.to_lowercase(), &why);
    }
    if host.is_empty() {
        errors.invalid_text(here, host, &format!("host must be specified{FORM}"));
    }
    if let Some(user) = user {
        errors.invalid_text(here, user, "user information is not permitted in the URL");
    }
    if !fragment.is_empty() {
        errors.invalid_text(here, fragment, "fragments are not permitted in the URL");
    }
    if !query.is_empty() {
        errors.invalid_text(here, query, "query parameters are not permitted in the URL");
    }
}

/// The first `%` of a URL that no two hexadecimal digits follow, with what stands there.
fn bad_escape(url: &str) -> Option<String> {
    let mut rest = url;
    while let Some(at) = rest.find('%') {
        let escape: String = rest[at..].chars().take(3).collect();
        if escape.len() != 3 || !escape[1..].bytes().all(|b| b.is_ascii_hexdigit()) {
            return Some(escape);
        }
        rest = &rest[at + 1..];
    }
    None
}

/// Validates the Service of a webhook. Upstream: `ValidateWebhookService`.
fn validate_service(service: &Value, here: &str, errors: &mut Errors) {
    // As upstream, which takes one for the other.
    for (field, told) in [("namespace", "name"), ("name", "namespace")] {
        if text(service, field).is_empty() {
            errors.required(format!("{here}.{told}"), "");
        }
    }
    let port = &service["port"];
    if !port.as_i64().is_some_and(|port| (1..=65535).contains(&port)) {
        errors.invalid(format!("{here}.port"), port, "port is not valid: must be between 1 and 65535, inclusive");
    }
    let path = text(service, "path");
    if path.is_empty() || path == "/" {
        return;
    }
    let here = format!("{here}.path");
    if !path.starts_with('/') {
        errors.invalid_text(here.as_str(), path, "must start with a '/'");
    }
    let mut rest = path.chars();
    rest.next();
    let rest = rest.as_str();
    let steps = rest.strip_suffix('/').unwrap_or(rest);
    for (at, step) in steps.split('/').enumerate() {
        if step.is_empty() {
            errors.invalid_text(here.as_str(), path, &format!("segment[{at}] may not be empty"));
        } else if let Some(why) = names::subdomain(step) {
            errors.invalid_text(here.as_str(), path, &format!("segment[{at}]: {why}"));
        }
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
