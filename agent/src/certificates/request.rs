//! Certificate signing requests (certificates.k8s.io/v1) and their status. Pure.

use k8s_openapi::{
    ByteString,
    api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use rcgen::{CertificateSigningRequestParams, KeyPair, SanType};
use windlass_kit::{private_key::PrivateKey, subject::Subject};
use x509_parser::{certification_request::X509CertificationRequest, prelude::FromDer as _};

use super::certified_key::{CertificateTemplate, CertifiedKey, NODES_GROUP, Purpose};

impl Purpose {
    /// The signer name.
    pub(super) fn signer(self) -> &'static str {
        match self {
            Self::Client => "kubernetes.io/kube-apiserver-client-kubelet",
            Self::Serving => "kubernetes.io/kubelet-serving",
        }
    }

    /// The key usages: exactly these, or the signer refuses. Keys are P-256, which have no key encipherment.
    fn usages(self) -> [&'static str; 2] {
        ["digital signature", if self == Self::Client { "client auth" } else { "server auth" }]
    }
}

/// A signing request and its private key, which never leaves the node, in PEM.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct SigningRequest {
    pub(super) key: String,
    pub(super) csr: String,
}

impl std::fmt::Debug for SigningRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Never the key.
        f.write_str("SigningRequest")
    }
}

impl SigningRequest {
    /// Makes a request with a fresh key.
    ///
    /// # Errors
    /// When a name is not valid in a certificate.
    pub(super) fn new(wanted: &CertificateTemplate) -> Result<Self, rcgen::Error> {
        let key = KeyPair::generate()?;
        let csr = wanted.params()?.serialize_request(&key)?.pem()?;
        Ok(Self { key: key.serialize_pem(), csr })
    }

    /// Both as one PEM text, for the file of the pending request.
    pub(super) fn text(&self) -> String {
        format!("{}\n{}\n", self.csr.trim_end(), self.key.trim_end())
    }

    /// Parses such a text; `None` unless it matches the template.
    pub(super) fn parse_pending(text: &str, wanted: &CertificateTemplate) -> Option<Self> {
        let begin = text.find("-----BEGIN PRIVATE KEY-----")?;
        let (csr, key) = text.split_at(begin);
        let request = Self { key: key.to_owned(), csr: csr.to_owned() };
        let csr_params = CertificateSigningRequestParams::from_pem(&request.csr).ok()?;
        let own_key = PrivateKey::from_pem(&request.key).ok()?;
        let (_, pem) = x509_parser::pem::parse_x509_pem(request.csr.as_bytes()).ok()?;
        let (_, parsed) = X509CertificationRequest::from_der(&pem.contents).ok()?;
        let subject = Subject::read(&parsed.certification_request_info.subject).ok()?;
        let is_for_it = subject == Subject::of_user(&wanted.user(), &[NODES_GROUP]);
        let mut names = std::collections::BTreeSet::new();
        let mut addresses = std::collections::BTreeSet::new();
        for name in &csr_params.params.subject_alt_names {
            match name {
                SanType::DnsName(name) => drop(names.insert(name.as_str().to_owned())),
                SanType::IpAddress(at) => drop(addresses.insert(*at)),
                _ => return None,
            }
        }
        let is_own = own_key.public_key() == parsed.certification_request_info.subject_pki.raw;
        (is_own && is_for_it && names == wanted.names && addresses == wanted.addresses).then_some(request)
    }

    /// The name of its object, derived from the request, so that one that was created before a crash is found again.
    pub(super) fn name(&self, purpose: Purpose) -> String {
        use std::fmt::Write as _;
        let digest = ring::digest::digest(&ring::digest::SHA256, self.csr.as_bytes());
        let prefix = if purpose == Purpose::Client { "node-csr-" } else { "csr-" };
        digest.as_ref().iter().take(16).fold(prefix.to_owned(), |mut name, byte| {
            let _ = write!(name, "{byte:02x}");
            name
        })
    }

    pub(super) fn object(&self, wanted: &CertificateTemplate) -> CertificateSigningRequest {
        CertificateSigningRequest {
            metadata: ObjectMeta { name: Some(self.name(wanted.purpose)), ..ObjectMeta::default() },
            spec: CertificateSigningRequestSpec {
                request: ByteString(self.csr.clone().into_bytes()),
                signer_name: wanted.purpose.signer().to_owned(),
                usages: Some(wanted.purpose.usages().map(str::to_owned).to_vec()),
                ..CertificateSigningRequestSpec::default()
            },
            status: None,
        }
    }
}

/// The status of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RequestStatus {
    /// Not decided yet.
    Pending,
    /// Approved but not signed yet.
    Approved,
    /// The certificate was issued.
    Issued(CertifiedKey),
    /// Denied, or signing failed; with the reason.
    Denied(String),
    /// The object is another request.
    Foreign,
}

/// The status of a request from its object.
pub(super) fn status_of(request: &SigningRequest, object: &CertificateSigningRequest) -> RequestStatus {
    if object.spec.request.0 != request.csr.as_bytes() {
        return RequestStatus::Foreign;
    }
    let Some(status) = &object.status else { return RequestStatus::Pending };
    let condition = |kind: &str| status.conditions.iter().flatten().find(|c| c.type_ == kind);
    let denial = |kind: &str, condition: &k8s_openapi::api::certificates::v1::CertificateSigningRequestCondition| {
        let parts = [condition.reason.as_deref(), condition.message.as_deref()];
        let parts: Vec<&str> = parts.into_iter().flatten().filter(|part| !part.is_empty()).collect();
        RequestStatus::Denied(if parts.is_empty() { kind.to_owned() } else { format!("{kind}: {}", parts.join(": ")) })
    };
    if let Some(denied) = condition("Denied") {
        return denial("it was denied", denied);
    }
    if let Some(failed) = condition("Failed") {
        return denial("it was approved, but not signed", failed);
    }
    match &status.certificate {
        Some(ByteString(pem)) if !pem.is_empty() => RequestStatus::Issued(CertifiedKey {
            cert: String::from_utf8_lossy(pem).into_owned(),
            key: request.key.clone(),
        }),
        _ if condition("Approved").is_some() => RequestStatus::Approved,
        _ => RequestStatus::Pending,
    }
}

/// What an administrator can do about a pending request.
pub(super) fn advice(name: &str, purpose: Purpose, is_first: bool) -> String {
    let approve = format!("approve it with: kubectl certificate approve {name}");
    let (binding, role, group) = match (purpose, is_first) {
        (Purpose::Serving, _) => {
            return format!(
                "{approve} (requests of this kind are approved by nobody else, unless the cluster has an approver)"
            );
        }
        (Purpose::Client, true) => {
            ("kubeadm:node-autoapprove-bootstrap", "nodeclient", "system:bootstrappers:kubeadm:default-node-token")
        }
        (Purpose::Client, false) => ("kubeadm:node-autoapprove-certificate-rotation", "selfnodeclient", NODES_GROUP),
    };
    format!(
        "{approve}; such requests are approved without you once this is there: kubectl create clusterrolebinding {binding} \
         --clusterrole=system:certificates.k8s.io:certificatesigningrequests:{role} --group={group}"
    )
}
