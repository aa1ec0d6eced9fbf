//! Which requests for certificates are those of nodes, and which are good for their signers. Pure.

use std::collections::BTreeSet;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use windlass_identity::pki::{CLIENT_SIGNER, CertificateRequest, KUBELET_CLIENT_SIGNER, KUBELET_SERVING_SIGNER};

const LEGACY_SIGNER: &str = "kubernetes.io/legacy-unknown";

const DIGITAL_SIGNATURE: &str = "digital signature";
const KEY_ENCIPHERMENT: &str = "key encipherment";
const CLIENT_AUTH: &str = "client auth";
const SERVER_AUTH: &str = "server auth";

fn has(request: &CertificateSigningRequest, kind: &str) -> bool {
    let conditions = request.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|condition| condition.type_ == kind)
}

pub(super) fn is_decided(request: &CertificateSigningRequest) -> bool {
    has(request, "Approved") || has(request, "Denied")
}

pub(super) fn is_approved(request: &CertificateSigningRequest) -> bool {
    has(request, "Approved") && !has(request, "Denied")
}

pub(super) fn is_failed(request: &CertificateSigningRequest) -> bool {
    has(request, "Failed")
}

/// As what a request is one of a node: the subresource that its sender must be allowed to create, and the message of the
/// approval.
pub(super) fn recognized_by_nodes(
    request: &CertificateSigningRequest,
    parsed: &CertificateRequest,
) -> Vec<(&'static str, &'static str)> {
    let usages = request.spec.usages.as_deref().unwrap_or_default();
    if request.spec.signer_name != KUBELET_CLIENT_SIGNER || validate_kubelet_client(parsed, usages).is_err() {
        return Vec::new();
    }
    let mut found = Vec::new();
    if request.spec.username.as_deref() == Some(parsed.subject.common_name()) {
        found.push(("selfnodeclient", "Auto approving self kubelet client certificate after SubjectAccessReview."));
    }
    found.push(("nodeclient", "Auto approving kubelet client certificate after SubjectAccessReview."));
    found
}

/// Whether a request is good for its signer; `None` for the signers of others.
pub(super) fn validate_for_signer(
    signer: &str,
    request: &CertificateRequest,
    usages: &[String],
) -> Option<Result<(), String>> {
    match signer {
        CLIENT_SIGNER => Some(validate_client_usages(usages)),
        KUBELET_CLIENT_SIGNER => Some(validate_kubelet_client(request, usages)),
        KUBELET_SERVING_SIGNER => Some(validate_kubelet_serving(request, usages)),
        LEGACY_SIGNER => Some(Ok(())),
        _ => None,
    }
}

fn validate_client_usages(usages: &[String]) -> Result<(), String> {
    let known = [DIGITAL_SIGNATURE, KEY_ENCIPHERMENT, CLIENT_AUTH];
    if let Some(usage) = usages.iter().find(|usage| !known.contains(&usage.as_str())) {
        return Err(format!("invalid usage for client certificate: {usage}"));
    }
    if usages.iter().any(|usage| usage == CLIENT_AUTH) {
        return Ok(());
    }
    Err(format!("missing required usage for client certificate: {CLIENT_AUTH}"))
}

/// Refuses usages other than both of these lists; the second is for keys that encipher nothing.
fn validate_usages(usages: &[String], purpose: &'static str) -> Result<(), String> {
    let set: BTreeSet<&str> = usages.iter().map(String::as_str).collect();
    let full = BTreeSet::from([DIGITAL_SIGNATURE, KEY_ENCIPHERMENT, purpose]);
    if set == full || set == BTreeSet::from([DIGITAL_SIGNATURE, purpose]) {
        return Ok(());
    }
    let full: Vec<&str> = full.into_iter().collect();
    Err(format!("usages did not match [{}]", full.join(" ")))
}

fn validate_kubelet_client(request: &CertificateRequest, usages: &[String]) -> Result<(), String> {
    validate_organization(request)?;
    refuse(request.dns_names, "DNS")?;
    refuse(request.email_addresses, "Email")?;
    refuse(request.ip_addresses, "IP")?;
    refuse(request.uris, "URI")?;
    validate_usages(usages, CLIENT_AUTH)?;
    validate_common_name(request)
}

fn validate_kubelet_serving(request: &CertificateRequest, usages: &[String]) -> Result<(), String> {
    validate_organization(request)?;
    if request.dns_names == 0 && request.ip_addresses == 0 {
        return Err("DNS or IP subjectAltName is required".to_owned());
    }
    refuse(request.email_addresses, "Email")?;
    refuse(request.uris, "URI")?;
    validate_usages(usages, SERVER_AUTH)?;
    validate_common_name(request)
}

fn validate_organization(request: &CertificateRequest) -> Result<(), String> {
    let good = request.subject.organizations().eq(["system:nodes"]);
    if good { Ok(()) } else { Err("subject organization is not system:nodes".to_owned()) }
}

fn validate_common_name(request: &CertificateRequest) -> Result<(), String> {
    let good = request.subject.common_name().starts_with("system:node:");
    if good { Ok(()) } else { Err("subject common name does not begin with system:node: ".to_owned()) }
}

fn refuse(number: usize, kind: &str) -> Result<(), String> {
    if number == 0 { Ok(()) } else { Err(format!("{kind} subjectAltNames are not allowed")) }
}
