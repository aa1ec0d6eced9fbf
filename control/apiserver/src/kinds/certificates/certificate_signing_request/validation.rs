//! Which requests are good, and what each path may change.

use std::{cmp::Ordering, collections::BTreeSet};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::Value;
use x509_parser::{
    certification_request::X509CertificationRequest,
    error::X509Error,
    pem::Pem,
    prelude::{FromDer as _, X509Certificate},
};

use super::conditions::of_kind;
use crate::{
    apiserver::pipeline::validation::{errors::Errors, names},
    kinds::shared::{conditions::get, field::Field},
};

const USAGES: [&str; 23] = [
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];
const LEGACY_SIGNER: &str = "kubernetes.io/legacy-unknown";
/// The longest domain of a signer, and the longest path: a resource name of the longest namespace and name.
const MAX_DOMAIN: usize = 253;
const MAX_PATH: usize = 253 + 1 + 63;
const LEAST_SECONDS: i64 = 600;

/// What a path may change.
#[derive(Debug, Clone, Copy)]
pub(super) struct Allowed {
    /// The conditions `Approved` and `Denied`.
    pub(super) decisions: bool,
    /// The certificate, once.
    pub(super) certificate: bool,
}

pub(super) fn validate(object: &Value, errors: &mut Errors) {
    let root = Field::root(object);
    let spec = root.at("spec");
    if let Err(why) = read_request(spec.at("request").text()) {
        errors.invalid("spec.request", spec.at("request").value, &why);
    }
    let usages = spec.at("usages");
    if usages.is_empty() {
        usages.required("", errors);
    }
    let mut seen = BTreeSet::new();
    for usage in usages.items() {
        usage.one_of(&USAGES, errors);
        if !seen.insert(usage.text()) {
            usage.duplicate(errors);
        }
    }
    if spec.at("signerName").text() == LEGACY_SIGNER {
        spec.at("signerName").invalid("the legacy signerName is not allowed via this API version", errors);
    } else {
        signer(&spec.at("signerName"), errors);
    }
    let seconds = spec.at("expirationSeconds");
    if seconds.number().is_some_and(|seconds| seconds < LEAST_SECONDS) {
        seconds.invalid("may not specify a duration less than 600 seconds (10 minutes)", errors);
    }
    validate_conditions(&root.below("status.conditions"), object, errors);
    let certificate = root.below("status.certificate");
    if !certificate.text().is_empty()
        && let Err(why) = read_certificates(certificate.text())
    {
        errors.invalid_text(&certificate.path, "<certificate data>", &why);
    }
}

fn validate_conditions(conditions: &Field<'_>, object: &Value, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for condition in conditions.items() {
        let kind = condition.at("type");
        if kind.text().is_empty() {
            kind.required("", errors);
        }
        let status = condition.at("status");
        if matches!(kind.text(), "Approved" | "Denied" | "Failed") {
            status.required_one_of(&["True"], errors);
        } else {
            status.required_one_of(&["False", "True", "Unknown"], errors);
        }
        let other = match kind.text() {
            "Approved" => "Denied",
            "Denied" => "Approved",
            _ => "",
        };
        if seen.contains(other) && get(object, other).is_some() {
            let why = "Approved and Denied conditions are mutually exclusive";
            errors.invalid_text(&conditions.path, kind.text(), why);
        }
        if !seen.insert(kind.text()) {
            kind.duplicate(errors);
        }
    }
}

/// Refuses what a path may not change.
pub(super) fn validate_update(new: &Value, old: &Value, allowed: Allowed, errors: &mut Errors) {
    const FIELD: &str = "status.conditions";
    for kind in ["Approved", "Denied", "Failed"] {
        let (now, before) = (of_kind(new, kind), of_kind(old, kind));
        let free = kind == "Failed" || allowed.decisions;
        let done = match now.len().cmp(&before.len()) {
            Ordering::Less => "remove",
            Ordering::Greater if !free => "add",
            Ordering::Equal if !free && now != before => "modify",
            _ => continue,
        };
        errors.forbidden(FIELD, &format!("updates may not {done} a condition of type {kind:?}"));
    }
    let (now, before) = (&new["status"]["certificate"], &old["status"]["certificate"]);
    if now != before {
        if !allowed.certificate {
            errors.forbidden("status.certificate", "updates may not set certificate content");
        } else if before.as_str().is_some_and(|text| !text.is_empty()) {
            errors.forbidden("status.certificate", "updates may not modify existing certificate content");
        }
    }
}

/// Validates the name of a signer, such as `example.com/signer`.
fn signer(name: &Field<'_>, errors: &mut Errors) {
    if name.text().is_empty() {
        return name.required("", errors);
    }
    let segments: Vec<&str> = name.text().split('/').collect();
    let [domain, path] = segments[..] else {
        return name.invalid("must be a fully qualified domain and path of the form 'example.com/signer-name'", errors);
    };
    if domain.len() > MAX_DOMAIN {
        errors.too_long(&name.path, MAX_DOMAIN);
    }
    let labels: Vec<&str> = domain.split('.').collect();
    for label in &labels {
        if let Some(why) = names::label(label) {
            errors.invalid_text(&name.path, domain, &format!("validating label {label:?}: {why}"));
        }
    }
    if labels.len() < 2 {
        errors.invalid_text(&name.path, domain, "should be a domain with at least two segments separated by dots");
    }
    for label in path.split('.') {
        if let Some(why) = names::subdomain(label) {
            errors.invalid_text(&name.path, path, &format!("validating label {label:?}: {why}"));
        }
    }
    let most = MAX_DOMAIN + MAX_PATH + 1;
    if name.text().len() > most {
        errors.too_long(&name.path, most);
    }
}

/// Reads a request, which is PEM in base64.
fn read_request(request: &str) -> Result<(), String> {
    let bytes = STANDARD.decode(request).unwrap_or_default();
    let block = Pem::iter_from_buffer(&bytes).next().and_then(Result::ok);
    let block = block.filter(|pem| pem.label == "CERTIFICATE REQUEST");
    let block = block.ok_or("PEM block type must be CERTIFICATE REQUEST")?;
    let (_, request) = X509CertificationRequest::from_der(&block.contents)
        .map_err(|why| format!("the certificate request cannot be read: {why}"))?;
    match request.verify_signature() {
        // What is signed in another way is for its signer to judge.
        Ok(()) | Err(X509Error::SignatureUnsupportedAlgorithm) => Ok(()),
        Err(_) => Err(unverified(&request).to_owned()),
    }
}

/// The error for a request whose signature does not match its key, in Go's words.
fn unverified(request: &X509CertificationRequest<'_>) -> &'static str {
    let key = &request.certification_request_info.subject_pki.algorithm.algorithm;
    match key.to_id_string().as_str() {
        "1.2.840.113549.1.1.1" => "crypto/rsa: verification error",
        "1.2.840.10045.2.1" => "x509: ECDSA verification failure",
        _ => "x509: Ed25519 verification failure",
    }
}

/// Reads certificates, which are PEM in base64.
fn read_certificates(certificate: &str) -> Result<(), String> {
    let bytes = STANDARD.decode(certificate).unwrap_or_default();
    let mut found = 0;
    for block in Pem::iter_from_buffer(&bytes) {
        let block = block.map_err(|why| format!("the certificate cannot be read: {why}"))?;
        if block.label != "CERTIFICATE" {
            return Err(format!("only CERTIFICATE PEM blocks are allowed, found {:?}", block.label));
        }
        X509Certificate::from_der(&block.contents).map_err(|_| "x509: malformed certificate".to_owned())?;
        found += 1;
    }
    if found == 0 { Err("must contain at least one CERTIFICATE PEM block".to_owned()) } else { Ok(()) }
}
