//! The loop that owns one certificate.

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
    Clients, Requester,
    pair::{Pair, Purpose, Wanted},
    plan::{self, Next},
    request::{Request, Verdict, advice, judge},
    store::Store,
};
use crate::metrics::Metrics;

/// The clock is looked at this often while nothing is to be done: it may be set.
const LOOK: Duration = Duration::from_secs(60);
/// A request that waits for somebody is told of after this, and again each so often.
const PATIENCE: Duration = Duration::from_secs(10);
const REMIND: Duration = Duration::from_secs(600);

/// How it stands with a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// Nothing was looked at yet, or nothing is wanted.
    Idle,
    /// It is good until then, in seconds since 1970.
    Good {
        /// When it ends.
        ends: i64,
    },
    /// A request of this name is at the API.
    Requested(String),
    /// It waits for somebody to approve it.
    Pending {
        /// The request's name.
        name: String,
        /// What an administrator can do.
        advice: String,
    },
    /// It is approved and not signed yet.
    Approved(String),
    /// It could not be had; it is tried again.
    Failed {
        /// Why.
        reason: String,
        /// Somebody has said no to this very request.
        refused: bool,
    },
}

/// What a try came to that brought no certificate.
#[derive(Debug)]
struct Setback {
    reason: String,
    /// Somebody said no: what is asked for next is a new object.
    refused: bool,
}

impl From<std::io::Error> for Setback {
    fn from(error: std::io::Error) -> Self {
        Self { reason: format!("the files of certificates cannot be used: {error}"), refused: false }
    }
}

/// Owns one certificate: reads it, asks for it, renews it.
pub struct Manager {
    purpose: Purpose,
    store: Store,
    clients: Clients,
    renew: bool,
    metrics: Arc<Metrics>,
    current: Option<Pair>,
    tell: watch::Sender<Option<Pair>>,
    standing: watch::Sender<Standing>,
}

impl std::fmt::Debug for Manager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Manager").field("purpose", &self.purpose).finish_non_exhaustive()
    }
}

impl Manager {
    /// With the certificate that is in the files, if there is one. Without `renew` one is asked for when there is none
    /// that is good, and no other before it ends.
    ///
    /// # Errors
    /// When the files cannot be used.
    pub fn open(
        dir: &Path,
        purpose: Purpose,
        clients: Clients,
        renew: bool,
        metrics: Arc<Metrics>,
    ) -> std::io::Result<Self> {
        let store = Store::new(dir, purpose);
        let current = store.current()?;
        let (tell, standing) = (watch::Sender::new(current.clone()), watch::Sender::new(Standing::Idle));
        Ok(Self { purpose, store, clients, renew, metrics, current, tell, standing })
    }

    /// The certificate to be used, also one that is over; none before there is one.
    #[must_use]
    pub fn pairs(&self) -> watch::Receiver<Option<Pair>> {
        self.tell.subscribe()
    }

    /// How it stands.
    #[must_use]
    pub fn standing(&self) -> watch::Receiver<Standing> {
        self.standing.subscribe()
    }

    /// The file that always holds the current certificate and its key.
    #[must_use]
    pub fn current_path(&self) -> PathBuf {
        self.store.current_path()
    }

    /// Has a certificate for what is wanted until `shutdown`; none while nothing is. `given` is one that somebody else
    /// keeps, which is used while it is the better one.
    pub async fn run(
        mut self,
        mut wanted: watch::Receiver<Option<Wanted>>,
        mut given: watch::Receiver<Option<Pair>>,
        shutdown: CancellationToken,
    ) {
        let (mut failures, mut was_refused, mut issued) = (0, false, 0);
        loop {
            let want = wanted.borrow_and_update().clone();
            let from_others = given.borrow_and_update().clone();
            let now = Timestamp::now().as_second();
            let wait = match &want {
                None => LOOK,
                Some(want) => {
                    self.take(plan::better(self.current.clone(), from_others, want, now));
                    let chance = plan::chance_of(self.current.as_ref().map_or("", |pair| &pair.cert));
                    match plan::next(self.current.as_ref(), want, self.renew, chance, now) {
                        Next::Rest => LOOK,
                        Next::Wait(until) => {
                            issued = 0;
                            LOOK.min(Duration::from_secs(u64::try_from(until - now).unwrap_or_default().max(1)))
                        }
                        Next::Ask(reason) => {
                            if issued > 0 {
                                // The API is not asked without an end for what is over as soon as it is issued.
                                let wait = plan::delay(issued, true, 0.0);
                                tracing::warn!(
                                    purpose = ?self.purpose,
                                    reason,
                                    again_in_seconds = wait.as_secs(),
                                    "the certificate that was just issued is to be renewed at once; are the clocks of this machine and of the cluster right?"
                                );
                                tokio::select! {
                                    () = shutdown.cancelled() => return,
                                    () = tokio::time::sleep(wait) => {}
                                }
                            }
                            tracing::info!(purpose = ?self.purpose, reason, "asking for a certificate");
                            let asked = tokio::select! {
                                () = shutdown.cancelled() => return,
                                _ = wanted.changed() => continue,
                                asked = self.obtain(want) => asked,
                            };
                            match asked {
                                Ok(()) => {
                                    (failures, was_refused) = (0, false);
                                    issued += 1;
                                    continue;
                                }
                                Err(setback) => {
                                    was_refused |= setback.refused;
                                    let random = plan::chance_of(&Timestamp::now().to_string());
                                    let wait = plan::delay(failures, was_refused, random);
                                    failures += 1;
                                    self.complain(setback, wait);
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

    /// Uses a certificate from now on, and tells of it if it is another one.
    fn take(&mut self, pair: Option<Pair>) {
        let life = pair.as_ref().and_then(|pair| pair.life().ok());
        if self.purpose == Purpose::Client {
            self.metrics.client_certificate_ends(life.map(|life| life.ends));
        }
        if let Some(life) = life {
            let good = Standing::Good { ends: life.ends };
            self.standing.send_if_modified(|now| {
                let changed = !matches!(now, Standing::Failed { .. } | Standing::Pending { .. }) && *now != good;
                if changed {
                    *now = good;
                }
                changed
            });
        }
        self.current.clone_from(&pair);
        self.tell.send_if_modified(|told| {
            let changed = *told != pair;
            if changed {
                *told = pair;
            }
            changed
        });
    }

    fn complain(&self, Setback { reason, refused }: Setback, wait: Duration) {
        self.metrics.certificate_failed(self.purpose);
        let good = self.current.as_ref().and_then(|pair| pair.life().ok());
        let ends = good.and_then(|life| Timestamp::from_second(life.ends).ok()).map(|at| at.to_string());
        tracing::warn!(
            purpose = ?self.purpose,
            reason,
            present_one_ends = ends.unwrap_or_else(|| "there is none".to_owned()),
            again_in_seconds = wait.as_secs(),
            "no certificate could be had; it is tried again"
        );
        self.standing.send_replace(Standing::Failed { reason, refused });
    }

    /// Asks for a certificate and waits for it.
    async fn obtain(&mut self, wanted: &Wanted) -> Result<(), Setback> {
        let began = Timestamp::now().as_second();
        let own = self.current.as_ref().is_some_and(|pair| pair.check(&Wanted::client(&wanted.node), began).is_ok());
        // A serving certificate is asked for by the node itself, whose own certificate is another loop's.
        let requester = if own || self.purpose == Purpose::Serving { Requester::Node } else { Requester::Bootstrap };
        let client = (self.clients)(requester).await.map_err(|reason| Setback { reason, refused: false })?;
        let request = match self.store.pending(wanted)? {
            Some(request) => request,
            None => {
                let made = Request::new(wanted);
                let request = made.map_err(|e| Setback {
                    reason: format!("a request for {} cannot be made: {e}", wanted.user()),
                    refused: false,
                })?;
                // Kept before it is sent: whatever happens from here on, the same one is asked for again.
                self.store.keep_pending(&request)?;
                request
            }
        };
        let outcome = self.follow(client, wanted, &request, requester).await;
        match outcome {
            Ok(pair) => {
                let life = pair.check(wanted, Timestamp::now().as_second()).map_err(|why| {
                    let _ = self.store.forget_pending();
                    Setback { reason: format!("the certificate that was issued cannot be used: {why}"), refused: true }
                })?;
                self.store.put(&pair, &jiff::Zoned::now().datetime())?;
                self.store.forget_pending()?;
                tracing::info!(
                    purpose = ?self.purpose,
                    ends = %Timestamp::from_second(life.ends).unwrap_or_default(),
                    file = %self.store.current_path().display(),
                    "a certificate was issued; it is used from now on"
                );
                let replaced = self.current.as_ref().and_then(|pair| pair.life().ok());
                self.metrics.certificate_issued(self.purpose, replaced.map(|old| began - old.begins));
                self.standing.send_replace(Standing::Good { ends: life.ends });
                self.take(Some(pair));
                Ok(())
            }
            Err(setback) => {
                if setback.refused {
                    self.store.forget_pending()?;
                }
                Err(setback)
            }
        }
    }

    /// Sends a request, unless it is there, and waits for what comes of it.
    async fn follow(
        &self,
        client: Client,
        wanted: &Wanted,
        request: &Request,
        requester: Requester,
    ) -> Result<Pair, Setback> {
        let api: Api<CertificateSigningRequest> = Api::all(client);
        let name = request.name(self.purpose);
        match api.create(&PostParams::default(), &request.object(wanted)).await {
            Ok(_) => tracing::info!(request = name, signer = self.purpose.signer(), "a certificate was asked for"),
            // It was sent before, by us: before a crash, or an answer was lost.
            Err(kube::Error::Api(answer)) if answer.code == 409 => {}
            Err(error) => return Err(Setback { reason: why(&error, requester), refused: false }),
        }
        self.standing.send_replace(Standing::Requested(name.clone()));
        let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let mut events = pin!(reflect(api, config, Extent::Few).default_backoff());
        let (mut remind_at, mut seen) = (Instant::now() + PATIENCE, false);
        loop {
            let event = tokio::select! {
                event = events.try_next() => event,
                () = tokio::time::sleep_until(remind_at) => {
                    let advice = advice(&name, self.purpose, requester == Requester::Bootstrap);
                    tracing::warn!(request = name, "the certificate request waits to be approved: {advice}");
                    self.standing.send_replace(Standing::Pending { name: name.clone(), advice });
                    remind_at = Instant::now() + REMIND;
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
                    return Err(Setback { reason: format!("the request {name} was deleted"), refused: true });
                }
                Err(error) if is_final(&error) => {
                    return Err(Setback {
                        reason: format!("the request {name} cannot be watched: {error}"),
                        refused: false,
                    });
                }
                Err(error) => {
                    tracing::debug!(request = name, %error, "the certificate request could not be watched; it is tried again");
                    continue;
                }
            };
            match judge(request, &object) {
                Verdict::Pending => {}
                Verdict::Approved => {
                    self.standing.send_replace(Standing::Approved(name.clone()));
                }
                Verdict::Issued(pair) => return Ok(pair),
                Verdict::Refused(reason) => {
                    return Err(Setback {
                        reason: format!("the request {name} came to nothing: {reason}"),
                        refused: true,
                    });
                }
                Verdict::Another => {
                    return Err(Setback { reason: format!("another request has the name {name}"), refused: true });
                }
            }
        }
    }
}

/// Whether another try by the same client would fail alike: it is not known, or may not read the request.
fn is_final(error: &watcher::Error) -> bool {
    let (watcher::Error::InitialListFailed(cause) | watcher::Error::WatchStartFailed(cause)) = error else {
        return false;
    };
    matches!(cause, kube::Error::Api(answer) if matches!(answer.code, 401 | 403))
}

/// Why a request could not be sent, and what to do.
fn why(error: &kube::Error, requester: Requester) -> String {
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
