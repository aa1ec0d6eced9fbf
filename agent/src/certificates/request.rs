//! Requests for certificates (certificates.k8s.io/v1) and what came of them. Pure.

use k8s_openapi::{
    ByteString,
    api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use rcgen::{CertificateSigningRequestParams, DnType, KeyPair, SanType};

use super::pair::{NODES, Pair, Purpose, Wanted};

impl Purpose {
    /// Who signs.
    pub(super) fn signer(self) -> &'static str {
        match self {
            Self::Client => "kubernetes.io/kube-apiserver-client-kubelet",
            Self::Serving => "kubernetes.io/kubelet-serving",
        }
    }

    /// What the key may be used for: exactly this, or the signer refuses. Keys are P-256, which encipher nothing.
    fn usages(self) -> [&'static str; 2] {
        ["digital signature", if self == Self::Client { "client auth" } else { "server auth" }]
    }
}

/// A request that was made or is to be: the key, which stays here, and what is sent, both in PEM.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) key: String,
    pub(super) csr: String,
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Never the key.
        f.write_str("Request")
    }
}

impl Request {
    /// With a fresh key.
    ///
    /// # Errors
    /// When a name of the node is none that a certificate may have.
    pub(super) fn new(wanted: &Wanted) -> Result<Self, rcgen::Error> {
        let key = KeyPair::generate()?;
        let csr = wanted.params()?.serialize_request(&key)?.pem()?;
        Ok(Self { key: key.serialize_pem(), csr })
    }

    /// One text of both, for the file that keeps them.
    pub(super) fn text(&self) -> String {
        format!("{}\n{}\n", self.csr.trim_end(), self.key.trim_end())
    }

    /// Of such a text, if it asks for just what is wanted now.
    pub(super) fn kept(text: &str, wanted: &Wanted) -> Option<Self> {
        let begin = text.find("-----BEGIN PRIVATE KEY-----")?;
        let (csr, key) = text.split_at(begin);
        let request = Self { key: key.to_owned(), csr: csr.to_owned() };
        let asked = CertificateSigningRequestParams::from_pem(&request.csr).ok()?;
        let own = KeyPair::from_pem(&request.key).ok()?;
        let subject = asked.params.distinguished_name.iter().find(|(kind, _)| **kind == DnType::CommonName)?.1;
        let user = match subject {
            rcgen::DnValue::Utf8String(name) => name.clone(),
            rcgen::DnValue::PrintableString(name) => name.as_str().to_owned(),
            _ => return None,
        };
        let mut names = std::collections::BTreeSet::new();
        let mut addresses = std::collections::BTreeSet::new();
        for name in &asked.params.subject_alt_names {
            match name {
                SanType::DnsName(name) => drop(names.insert(name.as_str().to_owned())),
                SanType::IpAddress(at) => drop(addresses.insert(*at)),
                _ => return None,
            }
        }
        let is_own = rcgen::PublicKeyData::der_bytes(&own) == rcgen::PublicKeyData::der_bytes(&asked.public_key);
        (is_own && user == wanted.user() && names == wanted.names && addresses == wanted.addresses).then_some(request)
    }

    /// The name of its object: always the same for the same request, so that one that was sent before a crash is found
    /// again instead of a second one being made.
    pub(super) fn name(&self, purpose: Purpose) -> String {
        use std::fmt::Write as _;
        let digest = ring::digest::digest(&ring::digest::SHA256, self.csr.as_bytes());
        let prefix = if purpose == Purpose::Client { "node-csr-" } else { "csr-" };
        digest.as_ref().iter().take(16).fold(prefix.to_owned(), |mut name, byte| {
            let _ = write!(name, "{byte:02x}");
            name
        })
    }

    pub(super) fn object(&self, wanted: &Wanted) -> CertificateSigningRequest {
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

/// What came of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nobody has decided.
    Pending,
    /// It is approved, and will be signed.
    Approved,
    /// Here is the certificate.
    Issued(Pair),
    /// Somebody said no, or the signer could not sign; with the reason.
    Refused(String),
    /// Another request has this name.
    Another,
}

/// Reads what came of a request from its object.
pub(super) fn judge(request: &Request, object: &CertificateSigningRequest) -> Verdict {
    if object.spec.request.0 != request.csr.as_bytes() {
        return Verdict::Another;
    }
    let Some(status) = &object.status else { return Verdict::Pending };
    let condition = |kind: &str| status.conditions.iter().flatten().find(|c| c.type_ == kind);
    let said = |kind: &str, condition: &k8s_openapi::api::certificates::v1::CertificateSigningRequestCondition| {
        let parts = [condition.reason.as_deref(), condition.message.as_deref()];
        let parts: Vec<&str> = parts.into_iter().flatten().filter(|part| !part.is_empty()).collect();
        Verdict::Refused(if parts.is_empty() { kind.to_owned() } else { format!("{kind}: {}", parts.join(": ")) })
    };
    if let Some(denied) = condition("Denied") {
        return said("it was denied", denied);
    }
    if let Some(failed) = condition("Failed") {
        return said("it was approved, but not signed", failed);
    }
    match &status.certificate {
        Some(ByteString(pem)) if !pem.is_empty() => {
            Verdict::Issued(Pair { cert: String::from_utf8_lossy(pem).into_owned(), key: request.key.clone() })
        }
        _ if condition("Approved").is_some() => Verdict::Approved,
        _ => Verdict::Pending,
    }
}

/// What an administrator can do about a request that nobody approves.
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
        (Purpose::Client, false) => ("kubeadm:node-autoapprove-certificate-rotation", "selfnodeclient", NODES),
    };
    format!(
        "{approve}; such requests are approved without you once this is there: kubectl create clusterrolebinding {binding} \
         --clusterrole=system:certificates.k8s.io:certificatesigningrequests:{role} --group={group}"
    )
}
