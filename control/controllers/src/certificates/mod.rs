//! Requests for certificates: those of nodes are approved, approved ones are signed by the cluster's CA, and old ones are
//! deleted. Upstream has a controller for each.

mod cleaner;
mod decisions;
#[cfg(test)]
mod tests;

use k8s_openapi::{
    ByteString,
    api::{
        authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
        certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition},
    },
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;

use windlass_identity::pki::{CertificateRequest, ClusterSigner};
use windlass_kit::blocking::COMPUTE;

use super::runtime::{Cache, Context, Controller, During as _, Error, Key, Outcome, Step, error};
pub(crate) use cleaner::CertificateCleaner;
use decisions::{is_approved, is_decided, is_failed, recognized_by_nodes, validate_for_signer};

impl crate::runtime::Cached for CertificateSigningRequest {}

/// Approves the requests of nodes.
pub(crate) struct CertificateApprover {
    client: Client,
    requests: Cache<CertificateSigningRequest>,
}

/// The request in a CertificateSigningRequest; `None` if it cannot be read, which stays so.
fn parse(request: &CertificateSigningRequest, key: &Key) -> Option<CertificateRequest> {
    let unreadable =
        |why: &String| tracing::debug!(request = key.name, why, "request for a certificate cannot be read");
    CertificateRequest::from_pem(&request.spec.request.0).inspect_err(unreadable).ok()
}

/// A condition of now: the API sets its times.
fn condition(type_: &str, reason: &str, message: String) -> CertificateSigningRequestCondition {
    CertificateSigningRequestCondition {
        type_: type_.to_owned(),
        status: "True".to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_update_time: None,
        last_transition_time: None,
    }
}

impl Controller for CertificateApprover {
    const NAME: &'static str = "certificatesigningrequest-approving-controller";
    const QUEUE: &'static str = "certificate";
    type Key = Key;
    type Config = ();

    fn subscribe(context: &mut Context<Key>, (): ()) -> Self {
        let requests = subscribe(context, |request| !is_decided(request));
        Self { client: context.client(), requests }
    }

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(request) = self.requests.get(&key).filter(|request| !is_decided(request)) else {
            return Ok(Outcome::Done);
        };
        let Some(parsed) = parse(&request, &key) else { return Ok(Outcome::Done) };
        let recognized = recognized_by_nodes(&request, &parsed);
        // Its sender may get the right later, as when the binding is made after the node was started.
        let undecided = if recognized.is_empty() { Step::Done } else { Step::Refused };
        for (subresource, message) in recognized {
            if self.may(&request, subresource).await.during("review the sender of certificate signing request", &key)? {
                return self.approve(&key, &request, message).await;
            }
        }
        Ok(undecided.into())
    }
}

impl CertificateApprover {
    /// Whether the sender of a request may create its kind of requests.
    async fn may(&self, request: &CertificateSigningRequest, subresource: &str) -> Result<bool, kube::Error> {
        let spec = &request.spec;
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                extra: spec.extra.clone(),
                groups: spec.groups.clone(),
                uid: spec.uid.clone(),
                user: spec.username.clone(),
                resource_attributes: Some(ResourceAttributes {
                    group: Some("certificates.k8s.io".to_owned()),
                    resource: Some("certificatesigningrequests".to_owned()),
                    subresource: Some(subresource.to_owned()),
                    verb: Some("create".to_owned()),
                    version: Some("*".to_owned()),
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let api: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let answer = api.create(&PostParams::default(), &review).await?;
        Ok(answer.status.is_some_and(|status| status.allowed))
    }

    async fn approve(&self, key: &Key, request: &CertificateSigningRequest, message: &str) -> Result<Outcome, Error> {
        let approved = condition("Approved", "AutoApproved", message.to_owned());
        let api: Api<CertificateSigningRequest> = Api::all(self.client.clone());
        let patch = with_condition(request, approved);
        let approved = api.patch_subresource("approval", &key.name, &PatchParams::default(), &patch).await;
        error::ignore_deleted(approved).during("approve certificate signing request", key)?;
        Ok(Outcome::Done)
    }
}

/// A patch that adds a condition, unless the request has changed since.
fn with_condition(
    request: &CertificateSigningRequest,
    condition: CertificateSigningRequestCondition,
) -> Patch<serde_json::Value> {
    let mut conditions = request.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
    conditions.push(condition);
    Patch::Merge(json!({
        "metadata": {"resourceVersion": request.metadata.resource_version},
        "status": {"conditions": conditions},
    }))
}

/// Follows requests; those that `wants` are worked on.
fn subscribe(
    context: &mut Context<Key>,
    wants: fn(&CertificateSigningRequest) -> bool,
) -> Cache<CertificateSigningRequest> {
    let requests = context.informer::<CertificateSigningRequest>();
    requests.queue_where(context.queue(), wants);
    requests.cache()
}

/// Signs approved requests of the signers that the cluster itself has.
pub(crate) struct CertificateSigner {
    client: Client,
    requests: Cache<CertificateSigningRequest>,
    signer: ClusterSigner,
}

fn is_to_be_signed(request: &CertificateSigningRequest) -> bool {
    let issued = request.status.as_ref().is_some_and(|status| status.certificate.is_some());
    is_approved(request) && !is_failed(request) && !issued
}

impl Controller for CertificateSigner {
    const NAME: &'static str = "certificatesigningrequest-signing-controller";
    const QUEUE: &'static str = "certificate";
    type Key = Key;
    type Config = ClusterSigner;

    fn subscribe(context: &mut Context<Key>, signer: ClusterSigner) -> Self {
        let requests = subscribe(context, is_to_be_signed);
        Self { client: context.client(), requests, signer }
    }

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(request) = self.requests.get(&key).filter(|request| is_to_be_signed(request)) else {
            return Ok(Outcome::Done);
        };
        let Some(parsed) = parse(&request, &key) else { return Ok(Outcome::Done) };
        let Some(valid) =
            validate_for_signer(&request.spec.signer_name, &parsed, &request.spec.usages.clone().unwrap_or_default())
        else {
            // That of another signer.
            return Ok(Outcome::Done);
        };
        let patch = match valid {
            Err(why) => with_condition(&request, condition("Failed", "SignerValidationFailure", why)),
            Ok(()) => match self.sign(request.as_ref().clone(), parsed).await {
                Ok(pem) => Patch::Merge(json!({
                    "metadata": {"resourceVersion": request.metadata.resource_version},
                    "status": {"certificate": ByteString(pem.into_bytes())},
                })),
                Err(why) => {
                    tracing::warn!(request = key.name, why, "certificate could not be signed; retrying");
                    return Ok(Outcome::Failed);
                }
            },
        };
        let api: Api<CertificateSigningRequest> = Api::all(self.client.clone());
        let signed = api.patch_status(&key.name, &PatchParams::default(), &patch).await;
        error::ignore_deleted(signed).during("sign certificate signing request", &key)?;
        Ok(Outcome::Done)
    }
}

impl CertificateSigner {
    /// Signs on a thread that may read files.
    async fn sign(&self, request: CertificateSigningRequest, parsed: CertificateRequest) -> Result<String, String> {
        let signer = self.signer.clone();
        let usages = request.spec.usages.unwrap_or_default();
        let seconds = request.spec.expiration_seconds;
        let sign = move || signer.sign(&parsed, &usages, seconds).map_err(|e| e.to_string());
        COMPUTE.run(sign, |error| error.to_string()).await
    }
}
