//! CertificateApproval, CertificateSigning and CertificateSubjectRestriction: who may approve and sign certificate
//! signing requests, and that none grants administrator rights.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;
use windlass_identity::pki::{CLIENT_SIGNER, CertificateRequest, MASTERS_GROUP};

use crate::apiserver::{AdmissionAttributes, AdmissionPlugin, ApiError, Attributes, Authorizers, Operation, User};

const GROUP: &str = "certificates.k8s.io";

/// Whether a write is about a part of requests for certificates.
fn is_about(attributes: &AdmissionAttributes<'_>, subresource: Option<&str>) -> bool {
    attributes.target.is(GROUP, "certificatesigningrequests") && attributes.target.subresource.as_deref() == subresource
}

/// Whether somebody may do something in the name of a signer, or of all signers of its domain.
fn may(authorizers: &Authorizers, user: &User, verb: &str, signer: &str) -> bool {
    let all = format!("{}/*", signer.split('/').next().unwrap_or(""));
    [signer, &all].into_iter().any(|name| {
        let signers = Attributes {
            verb,
            is_resource: true,
            group: GROUP,
            version: "*",
            resource: "signers",
            name,
            ..Attributes::default()
        };
        authorizers.authorize(user, &signers).is_ok()
    })
}

fn signer_of(object: &Value) -> &str {
    object["spec"]["signerName"].as_str().unwrap_or("")
}

/// Who approves must be allowed to.
#[derive(Debug)]
pub(super) struct CertificateApproval {
    pub(super) authorizers: Authorizers,
}

#[async_trait]
impl AdmissionPlugin for CertificateApproval {
    fn name(&self) -> &'static str {
        "CertificateApproval"
    }

    fn handles(&self, operation: Operation) -> bool {
        operation == Operation::Update
    }

    async fn validate(&self, attributes: &AdmissionAttributes<'_>, object: &Value) -> Result<(), ApiError> {
        let signer = signer_of(object);
        if !is_about(attributes, Some("approval")) || may(&self.authorizers, attributes.user, "approve", signer) {
            return Ok(());
        }
        let why = format!("user not permitted to approve requests with signerName {signer:?}");
        Err(attributes.forbidden(object, &why))
    }
}

/// Who signs must be allowed to.
#[derive(Debug)]
pub(super) struct CertificateSigning {
    pub(super) authorizers: Authorizers,
}

#[async_trait]
impl AdmissionPlugin for CertificateSigning {
    fn name(&self) -> &'static str {
        "CertificateSigning"
    }

    fn handles(&self, operation: Operation) -> bool {
        operation == Operation::Update
    }

    async fn validate(&self, attributes: &AdmissionAttributes<'_>, object: &Value) -> Result<(), ApiError> {
        let Some(old) = attributes.old.filter(|_| is_about(attributes, Some("status"))) else { return Ok(()) };
        let signs = ["certificate", "conditions"].iter().any(|field| object["status"][field] != old["status"][field]);
        let signer = signer_of(old);
        if !signs || may(&self.authorizers, attributes.user, "sign", signer) {
            return Ok(());
        }
        let why = format!("user not permitted to sign requests with signerName {signer:?}");
        Err(attributes.forbidden(object, &why))
    }
}

/// Certificates of clients are not for the group that has all rights.
#[derive(Debug)]
pub(super) struct CertificateSubjectRestriction;

#[async_trait]
impl AdmissionPlugin for CertificateSubjectRestriction {
    fn name(&self) -> &'static str {
        "CertificateSubjectRestriction"
    }

    fn handles(&self, operation: Operation) -> bool {
        operation == Operation::Create
    }

    async fn validate(&self, attributes: &AdmissionAttributes<'_>, object: &Value) -> Result<(), ApiError> {
        if !is_about(attributes, None) || signer_of(object) != CLIENT_SIGNER {
            return Ok(());
        }
        let request = CertificateRequest::from_base64(object["spec"]["request"].as_str().unwrap_or(""))
            .map_err(|why| attributes.forbidden(object, &format!("failed to parse CSR: {why}")))?;
        if request.subject.organizations().any(|group| group == MASTERS_GROUP) {
            let why = format!("use of {CLIENT_SIGNER} signer with {MASTERS_GROUP} group is not allowed");
            return Err(attributes.forbidden(object, &why));
        }
        Ok(())
    }
}

/// The three, in upstream's order.
pub(super) fn plugins(authorizers: &Authorizers) -> [Arc<dyn AdmissionPlugin>; 3] {
    [
        Arc::new(CertificateApproval { authorizers: authorizers.clone() }),
        Arc::new(CertificateSigning { authorizers: authorizers.clone() }),
        Arc::new(CertificateSubjectRestriction),
    ]
}
