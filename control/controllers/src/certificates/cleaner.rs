//! Old requests for certificates are deleted.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::{Api, Client, api::DeleteParams};
use x509_parser::pem::Pem;

use super::{
    super::runtime::{Cache, Context, Controller, During as _, Error, Key, Outcome, error, same_version},
    subscribe,
};

const DECIDED_LIFE: SignedDuration = SignedDuration::from_hours(1);
const PENDING_LIFE: SignedDuration = SignedDuration::from_hours(24);

/// Deletes old requests. Upstream looks every hour; here each has its own time.
pub(crate) struct CertificateCleaner {
    client: Client,
    requests: Cache<CertificateSigningRequest>,
}

impl Controller for CertificateCleaner {
    const NAME: &'static str = "certificatesigningrequest-cleaner-controller";
    type Key = Key;
    type Config = ();

    fn subscribe(context: &mut Context<Key>, (): ()) -> Self {
        let requests = subscribe(context, |_| true);
        Self { client: context.client(), requests }
    }

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(request) = self.requests.get(&key) else { return Ok(Outcome::Done) };
        let now = Timestamp::now();
        match end_of(&request) {
            Some(end) if end <= now => self.delete(&request, &key).await.map(|()| Outcome::Done),
            Some(end) => Ok(Outcome::After(end.duration_since(now).try_into().unwrap_or_default())),
            None => Ok(Outcome::Done),
        }
    }
}

impl CertificateCleaner {
    /// Deletes a request, unless it has changed since.
    async fn delete(&self, request: &CertificateSigningRequest, key: &Key) -> Result<(), Error> {
        let api: Api<CertificateSigningRequest> = Api::all(self.client.clone());
        let params = DeleteParams::default().preconditions(same_version(&request.metadata));
        let deleted = api.delete(&key.name, &params).await;
        error::ignore_deleted(deleted).during("delete certificate signing request", key)?;
        Ok(())
    }
}

/// When a request can be deleted: an hour after the last decision about it, or when its certificate expires, or a
/// day after its creation without a decision. Pure.
pub(super) fn end_of(request: &CertificateSigningRequest) -> Option<Timestamp> {
    let status = request.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    if conditions.is_empty() {
        return request.metadata.creation_timestamp.as_ref()?.0.checked_add(PENDING_LIFE).ok();
    }
    let decided = conditions
        .iter()
        .filter(|condition| matches!(condition.type_.as_str(), "Approved" | "Denied" | "Failed"))
        .filter_map(|condition| condition.last_update_time.as_ref()?.0.checked_add(DECIDED_LIFE).ok());
    let expires = status.and_then(|status| expiry(&status.certificate.as_ref()?.0));
    decided.chain(expires).min()
}

/// When the first certificate of a chain expires.
fn expiry(pem: &[u8]) -> Option<Timestamp> {
    let pem = Pem::iter_from_buffer(pem).next()?.ok()?;
    Timestamp::from_second(pem.parse_x509().ok()?.validity().not_after.timestamp()).ok()
}
