//! The certificate manager: obtains one certificate and rotates it.

use std::{path::Path, path::PathBuf, pin::pin, sync::Arc, time::Duration};

use futures::TryStreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::{
    Api, Client,
    api::PostParams,
    runtime::{WatchStreamExt as _, watcher},
};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;
use windlass_kit::reflector::{Extent, reflect};

use super::{
    ClientProvider, Requester,
    certified_key::{CertificateTemplate, CertifiedKey, Purpose},
    request::{RequestStatus, SigningRequest, advice, status_of},
    rotation::{self, Next},
    store::Store,
};
use crate::metrics::Metrics;

/// The longest sleep: the clock may be set meanwhile.
const CLOCK_CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// A pending request is logged after this delay, and again at this interval.
const PENDING_WARNING_DELAY: Duration = Duration::from_secs(10);
const PENDING_WARNING_INTERVAL: Duration = Duration::from_secs(600);

/// The state of a managed certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CertificateState {
    /// Not checked yet, or not wanted.
    Idle,
    /// It is valid until then, in seconds since 1970.
    Valid {
        /// When it expires.
        not_after: i64,
    },
    /// A CertificateSigningRequest of this name exists.
    Requested(String),
    /// The request waits for approval.
    Pending {
        /// The request's name.
        name: String,
        /// What an administrator can do.
        advice: String,
    },
    /// The request is approved but not signed yet.
    Approved(String),
    /// Requesting it failed; it is retried.
    Failed {
        /// Why.
        reason: String,
        /// This request was denied.
        denied: bool,
    },
}

/// A failed attempt.
#[derive(Debug)]
struct RequestFailure {
    reason: String,
    /// It was denied: the next request is a new object.
    denied: bool,
}

impl From<std::io::Error> for RequestFailure {
    fn from(error: std::io::Error) -> Self {
        Self { reason: format!("the files of certificates cannot be used: {error}"), denied: false }
    }
}

/// Obtains one certificate and rotates it.
pub struct CertificateManager {
    purpose: Purpose,
    store: Store,
    clients: ClientProvider,
    renew: bool,
    metrics: Arc<Metrics>,
    current: Option<CertifiedKey>,
    publish: watch::Sender<Option<CertifiedKey>>,
    state: watch::Sender<CertificateState>,
}

impl std::fmt::Debug for CertificateManager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CertificateManager").field("purpose", &self.purpose).finish_non_exhaustive()
    }
}

impl CertificateManager {
    /// Opens the stored certificate, if there is one. Without `renew` one is only requested when there is no valid one.
    ///
    /// # Errors
    /// When the files cannot be used.
    pub fn open(
        dir: &Path,
        purpose: Purpose,
        clients: ClientProvider,
        renew: bool,
        metrics: Arc<Metrics>,
    ) -> std::io::Result<Self> {
        let store = Store::new(dir, purpose);
        let current = store.current()?;
        let (publish, state) = (watch::Sender::new(current.clone()), watch::Sender::new(CertificateState::Idle));
        Ok(Self { purpose, store, clients, renew, metrics, current, publish, state })
    }

    /// The current certificate, even if expired; `None` before the first.
    #[must_use]
    pub fn pairs(&self) -> watch::Receiver<Option<CertifiedKey>> {
        self.publish.subscribe()
    }

    /// The state of the certificate.
    #[must_use]
    pub fn state(&self) -> watch::Receiver<CertificateState> {
        self.state.subscribe()
    }

    /// The file of the current certificate and key.
    #[must_use]
    pub fn current_path(&self) -> PathBuf {
        self.store.current_path()
    }

    /// Maintains a certificate for the wanted template until `shutdown`; none while there is no template. `given` is
    /// one from another source, which is used while it is preferable.
    pub async fn run(
        mut self,
        mut wanted: watch::Receiver<Option<CertificateTemplate>>,
        mut given: watch::Receiver<Option<CertifiedKey>>,
        shutdown: CancellationToken,
    ) {
        let (mut failures, mut was_denied, mut issued) = (0, false, 0);
        loop {
            let want = wanted.borrow_and_update().clone();
            let from_others = given.borrow_and_update().clone();
            let now = Timestamp::now().as_second();
            let wait = match &want {
                None => CLOCK_CHECK_INTERVAL,
                Some(want) => {
                    self.set_current(rotation::preferred(self.current.clone(), from_others, want, now));
                    let chance = rotation::jitter_of(self.current.as_ref().map_or("", |pair| &pair.cert));
                    match rotation::next_step(self.current.as_ref(), want, self.renew, chance, now) {
                        Next::Keep => CLOCK_CHECK_INTERVAL,
                        Next::Wait(until) => {
                            issued = 0;
                            CLOCK_CHECK_INTERVAL
                                .min(Duration::from_secs(u64::try_from(until - now).unwrap_or_default().max(1)))
                        }
                        Next::Request(reason) => {
                            if issued > 0 {
                                // Back off if certificates are to be renewed as soon as they are issued.
                                let wait = rotation::retry_delay(issued, true, 0.0);
                                tracing::warn!(
                                    purpose = ?self.purpose,
                                    reason,
                                    again_in_seconds = wait.as_secs(),
                                    "newly issued certificate is due for renewal at once; check the clocks of this machine and of the cluster"
                                );
                                tokio::select! {
                                    () = shutdown.cancelled() => return,
                                    () = tokio::time::sleep(wait) => {}
                                }
                            }
                            tracing::info!(purpose = ?self.purpose, reason, "requesting certificate");
                            let asked = tokio::select! {
                                () = shutdown.cancelled() => return,
                                _ = wanted.changed() => continue,
                                asked = self.request_certificate(want) => asked,
                            };
                            match asked {
                                Ok(()) => {
                                    (failures, was_denied) = (0, false);
                                    issued += 1;
                                    continue;
                                }
                                Err(failure) => {
                                    was_denied |= failure.denied;
                                    let random = rotation::jitter_of(&Timestamp::now().to_string());
                                    let wait = rotation::retry_delay(failures, was_denied, random);
                                    failures += 1;
                                    self.report_failure(failure, wait);
                                    wait
                                }
                            }
                        }
                    }
                }
            };
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
                changed = wanted.changed() => if changed.is_err() { shutdown.cancelled().await; return },
                _ = given.changed(), if given.has_changed().is_ok() => {}
            }
        }
    }

    /// Makes a certificate the current one, and publishes it if it changed.
    fn set_current(&mut self, pair: Option<CertifiedKey>) {
        let life = pair.as_ref().and_then(|pair| pair.validity().ok());
        if self.purpose == Purpose::Client {
            self.metrics.set_client_certificate_expiration(life.map(|life| life.not_after));
        }
        if let Some(life) = life {
            let good = CertificateState::Valid { not_after: life.not_after };
            self.state.send_if_modified(|now| {
                let changed =
                    !matches!(now, CertificateState::Failed { .. } | CertificateState::Pending { .. }) && *now != good;
                if changed {
                    *now = good;
                }
                changed
            });
        }
        self.current.clone_from(&pair);
        self.publish.send_if_modified(|published| {
            let changed = *published != pair;
            if changed {
                *published = pair;
            }
            changed
        });
    }

    fn report_failure(&self, RequestFailure { reason, denied }: RequestFailure, wait: Duration) {
        self.metrics.count_certificate_failure(self.purpose);
        let good = self.current.as_ref().and_then(|pair| pair.validity().ok());
        let not_after = good.and_then(|life| Timestamp::from_second(life.not_after).ok()).map(|at| at.to_string());
        tracing::warn!(
            purpose = ?self.purpose,
            reason,
            present_one_ends = not_after.unwrap_or_else(|| "there is none".to_owned()),
            again_in_seconds = wait.as_secs(),
            "failed to obtain certificate; retrying"
        );
        self.state.send_replace(CertificateState::Failed { reason, denied });
    }

    /// Requests a certificate and waits until it is issued.
    async fn request_certificate(&mut self, wanted: &CertificateTemplate) -> Result<(), RequestFailure> {
        let began = Timestamp::now().as_second();
        let own = self
            .current
            .as_ref()
            .is_some_and(|pair| pair.check(&CertificateTemplate::client(&wanted.node), began).is_ok());
        // Serving certificates are requested as the node, whose client certificate has its own manager.
        let requester = if own || self.purpose == Purpose::Serving { Requester::Node } else { Requester::Bootstrap };
        let client = (self.clients)(requester).await.map_err(|reason| RequestFailure { reason, denied: false })?;
        let request = match self.store.pending(wanted)? {
            Some(request) => request,
            None => {
                let made = SigningRequest::new(wanted);
                let request = made.map_err(|e| RequestFailure {
                    reason: format!("a request for {} cannot be made: {e}", wanted.user()),
                    denied: false,
                })?;
                // Saved before it is sent, so that after a crash the same request is used again.
                self.store.save_pending(&request)?;
                request
            }
        };
        let outcome = self.wait_issued(client, wanted, &request, requester).await;
        match outcome {
            Ok(pair) => {
                let life = pair.check(wanted, Timestamp::now().as_second()).map_err(|why| {
                    let _ = self.store.remove_pending();
                    RequestFailure {
                        reason: format!("the certificate that was issued cannot be used: {why}"),
                        denied: true,
                    }
                })?;
                self.store.save(&pair, &jiff::Zoned::now().datetime())?;
                self.store.remove_pending()?;
                tracing::info!(
                    purpose = ?self.purpose,
                    not_after = %Timestamp::from_second(life.not_after).unwrap_or_default(),
                    file = %self.store.current_path().display(),
                    "certificate issued"
                );
                let replaced = self.current.as_ref().and_then(|pair| pair.validity().ok());
                self.metrics.record_certificate(self.purpose, replaced.map(|old| began - old.not_before));
                self.state.send_replace(CertificateState::Valid { not_after: life.not_after });
                self.set_current(Some(pair));
                Ok(())
            }
            Err(failure) => {
                if failure.denied {
                    self.store.remove_pending()?;
                }
                Err(failure)
            }
        }
    }

    /// Creates the request, unless it exists, and waits for its outcome.
    async fn wait_issued(
        &self,
        client: Client,
        wanted: &CertificateTemplate,
        request: &SigningRequest,
        requester: Requester,
    ) -> Result<CertifiedKey, RequestFailure> {
        let api: Api<CertificateSigningRequest> = Api::all(client);
        let name = request.name(self.purpose);
        match api.create(&PostParams::default(), &request.object(wanted)).await {
            Ok(_) => {
                tracing::info!(request = name, signer = self.purpose.signer(), "certificate signing request created")
            }
            // It was created by us before a crash, or the response was lost.
            Err(kube::Error::Api(answer)) if answer.code == 409 => {}
            Err(error) => return Err(RequestFailure { reason: submission_error(&error, requester), denied: false }),
        }
        self.state.send_replace(CertificateState::Requested(name.clone()));
        let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let mut events = pin!(reflect(api, config, Extent::Few).default_backoff());
        let (mut remind_at, mut seen) = (Instant::now() + PENDING_WARNING_DELAY, false);
        loop {
            let event = tokio::select! {
                event = events.try_next() => event,
                () = tokio::time::sleep_until(remind_at) => {
                    let advice = advice(&name, self.purpose, requester == Requester::Bootstrap);
                    tracing::warn!(request = name, "certificate signing request is pending: {advice}");
                    self.state.send_replace(CertificateState::Pending { name: name.clone(), advice });
                    remind_at = Instant::now() + PENDING_WARNING_INTERVAL;
                    continue;
                }
            };
            let object = match event {
                Ok(Some(watcher::Event::Apply(object) | watcher::Event::InitApply(object))) => {
                    seen = true;
                    object
                }
                Ok(Some(watcher::Event::Init)) => {
                    seen = false;
                    continue;
                }
                Ok(Some(watcher::Event::InitDone)) if seen => continue,
                Ok(Some(watcher::Event::InitDone | watcher::Event::Delete(_)) | None) => {
                    return Err(RequestFailure { reason: format!("the request {name} was deleted"), denied: true });
                }
                Err(error) if is_final(&error) => {
                    return Err(RequestFailure {
                        reason: format!("the request {name} cannot be watched: {error}"),
                        denied: false,
                    });
                }
                Err(error) => {
                    tracing::debug!(request = name, %error, "failed to watch certificate signing request; retrying");
                    continue;
                }
            };
            match status_of(request, &object) {
                RequestStatus::Pending => {}
                RequestStatus::Approved => {
                    self.state.send_replace(CertificateState::Approved(name.clone()));
                }
                RequestStatus::Issued(pair) => return Ok(pair),
                RequestStatus::Denied(reason) => {
                    return Err(RequestFailure {
                        reason: format!("the request {name} was not granted: {reason}"),
                        denied: true,
                    });
                }
                RequestStatus::Foreign => {
                    return Err(RequestFailure {
                        reason: format!("another request has the name {name}"),
                        denied: true,
                    });
                }
            }
        }
    }
}

/// Whether retrying by the same client is pointless: it is not authenticated, or may not read the request.
fn is_final(error: &watcher::Error) -> bool {
    let (watcher::Error::InitialListFailed(cause) | watcher::Error::WatchStartFailed(cause)) = error else {
        return false;
    };
    matches!(cause, kube::Error::Api(answer) if matches!(answer.code, 401 | 403))
}

/// Why a request could not be created, and what to do.
fn submission_error(error: &kube::Error, requester: Requester) -> String {
    let kube::Error::Api(answer) = error else {
        return format!("the API could not be asked for a certificate: {error}");
    };
    match (answer.code, requester) {
        (401, Requester::Bootstrap) => "the API does not know the bootstrap credentials (a token ends after a day by default); make another with `kubeadm token create`, and put it into the bootstrap kubeconfig or join again".to_owned(),
        (401, Requester::Node) => "the API does not know this node's certificate".to_owned(),
        (403, Requester::Bootstrap) => format!("the bootstrap credentials may not ask for certificates ({}); allow it with: kubectl create clusterrolebinding kubeadm:kubelet-bootstrap --clusterrole=system:node-bootstrapper --group=system:bootstrappers:kubeadm:default-node-token", answer.message),
        (404, _) => "the API has no CertificateSigningRequests (certificates.k8s.io/v1); give this node its certificate by hand".to_owned(),
        _ => format!("the API did not take the request for a certificate: {}", answer.message),
    }
}
