//! Keeps the condition `Available` of APIServices: when one, its Service or an EndpointSlice of that changes, and every half
//! minute.
//!
//! Upstream's controllers are part of its aggregator, too, which alone has a way to the servers.

use std::{collections::BTreeMap, time::Duration};

use futures::{StreamExt as _, stream::FuturesUnordered};
use kube::{
    Client,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio::{task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;
use windlass_identity::pki::MASTERS_GROUP;
use windlass_kit::backoff::Backoff;

use super::{
    AVAILABILITY_HOOKS, Aggregator, FIELD_MANAGER,
    api_service::{AVAILABLE, ApiService, ServicePort},
    api_services,
    availability::{self, Finding},
    extension_server::{Ask, RemoteServer, get},
    registry::USER,
    wait_until,
    workqueue::WorkQueue,
};
use crate::{
    apiserver::{User, generate::now},
    kinds::shared::conditions,
    store::{Error, Event, Key, Object, Store, Watch},
    webhook::resolver,
};

/// How often each is looked at.
const RESYNC_INTERVAL: Duration = Duration::from_secs(30);
/// The first pause after a failure, and the longest.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(30);
/// How many are looked at at a time.
const WORKERS: usize = 5;
/// How many requests a server is sent to see whether one is answered, and how long they may take.
const ATTEMPTS: usize = 5;
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// What changes conditions.
struct Watches {
    api_services: Watch,
    services: Watch,
    slices: Watch,
}

impl Watches {
    fn begin(aggregator: &Aggregator) -> Result<Self, Error> {
        let store = aggregator.store();
        let from = |name: &str| store.watch(store.resource(name), store.revision());
        Ok(Self {
            api_services: store.watch(aggregator.resource(), store.revision())?,
            services: from("services")?,
            slices: from("endpointslices.discovery.k8s.io")?,
        })
    }

    /// The next changes: of APIServices, or the Services that others are about. Nothing of these is read where no
    /// APIService has one.
    async fn next(&mut self, has_services: bool) -> Result<Changes, Error> {
        tokio::select! {
            events = self.api_services.next() => {
                Ok(Changes::ApiServices(events?.iter().map(|event| event.object.key.name.clone()).collect()))
            }
            events = self.services.next() => {
                Ok(Changes::Services(events?.iter().map(|event| event.object.key.clone()).collect()))
            }
            events = self.slices.next() => {
                let events = events?;
                let all = events.iter().filter(|_| has_services).flat_map(|event| services_of(event));
                Ok(Changes::Services(all.collect()))
            }
        }
    }
}

/// The services that a slice is and was of.
fn services_of(event: &Event) -> impl Iterator<Item = Key> {
    let of = |slice: &Object| {
        let name = resolver::service_of(&slice.bytes)?;
        Some(Key { namespace: slice.key.namespace.clone(), name })
    };
    of(&event.object).into_iter().chain(event.previous.as_deref().and_then(of))
}

enum Changes {
    ApiServices(Vec<String>),
    Services(Vec<Key>),
}

/// Keeps the conditions until `shutdown`. `client` has all rights.
pub(super) async fn run(aggregator: &Aggregator, client: &Client, shutdown: &CancellationToken) {
    let mut queue = WorkQueue::new(RESYNC_INTERVAL, Backoff::new(RETRY_INTERVAL, MAX_RETRY_INTERVAL));
    let mut syncs: JoinSet<(String, bool)> = JoinSet::new();
    // From a full list at first, and after a watch that was too slow.
    while let Ok(mut watches) = Watches::begin(aggregator) {
        let mut services = list(aggregator);
        let now = Instant::now();
        queue.keep(services.keys().cloned(), now);
        queue.add_all(now);
        AVAILABILITY_HOOKS.iter().for_each(|hook| aggregator.api.post_start_hooks().finish(hook));
        loop {
            for name in queue.get(Instant::now(), WORKERS) {
                let (aggregator, client) = (aggregator.clone(), client.clone());
                syncs.spawn(async move {
                    let synced = sync(&aggregator, &client, &name).await;
                    if let Err(why) = &synced {
                        tracing::debug!(name, why, "APIService is not available; retrying");
                    }
                    (name, synced.is_ok())
                });
            }
            let due = queue.next_due();
            tokio::select! {
                () = shutdown.cancelled() => return,
                changes = watches.next(services.values().any(Option::is_some)) => {
                    let now = Instant::now();
                    match changes {
                        Ok(Changes::ApiServices(names)) => {
                            services = list(aggregator);
                            queue.keep(services.keys().cloned(), now);
                            names.iter().for_each(|name| queue.add(name, now));
                        }
                        Ok(Changes::Services(changed)) => {
                            let of = services.iter().filter(|(_, at)| {
                                at.as_ref().is_some_and(|at| changed.contains(&at.service))
                            });
                            of.for_each(|(name, _)| queue.add(name, now));
                        }
                        Err(Error::Closed) => return,
                        Err(error) => {
                            tracing::warn!(%error, "watch of services of APIServices was too slow; listing again");
                            break;
                        }
                    }
                },
                Some(synced) = syncs.join_next() => match synced {
                    Ok((name, has_succeeded)) => queue.done(&name, has_succeeded, Instant::now()),
                    Err(error) => {
                        tracing::warn!(%error, "task that checks an APIService failed; beginning again");
                        syncs = JoinSet::new();
                        queue.keep([], Instant::now());
                        break;
                    }
                },
                () = wait_until(due) => {}
            }
        }
    }
}

/// All APIServices, with the services that serve them.
fn list(aggregator: &Aggregator) -> BTreeMap<String, Option<ServicePort>> {
    let all = aggregator.store().list(aggregator.resource(), None).0;
    all.iter().map(|object| (object.key.name.clone(), ServicePort::of(&object.value()))).collect()
}

/// Looks at one APIService, and writes what was found if that is news.
///
/// # Errors
/// When it is not available, or that could not be written.
async fn sync(aggregator: &Aggregator, client: &Client, name: &str) -> Result<(), String> {
    let key = Key { namespace: String::new(), name: name.to_owned() };
    let Some(stored) = aggregator.store().get(aggregator.resource(), &key) else { return Ok(()) };
    let object = stored.value();
    let finding = match ServicePort::of(&object) {
        None => Finding::local(),
        Some(at) => match check(aggregator.store(), &at) {
            Some(finding) => finding,
            None => match ApiService::read(&object) {
                Some(api_service) => Finding::probed(probe(aggregator, &api_service).await?),
                // A group that nobody else may serve.
                None => Finding::local(),
            },
        },
    };
    let is_retried = finding.reason == "FailedDiscoveryCheck";
    let why = finding.message.clone();
    write(client, object, finding).await.map_err(|error| windlass_kit::client::message(&error))?;
    if is_retried { Err(why) } else { Ok(()) }
}

/// Why a Service cannot be asked.
fn check(store: &Store, at: &ServicePort) -> Option<Finding> {
    let service = store.get(store.resource("services"), &at.service).map(|service| service.value());
    availability::check_service(at, service.as_ref(), &resolver::slices_of(store, &at.service))
}

/// Sends a server some requests at a time, until one is answered.
///
/// # Errors
/// When none can be sent, whatever the server does.
async fn probe(aggregator: &Aggregator, api_service: &ApiService) -> Result<Result<(), String>, String> {
    let config = api_service.config.as_ref().map_err(Clone::clone)?;
    aggregator.clients.pool(config).map_err(|error| error.to_string())?;
    let server = RemoteServer::new(&aggregator.clients, api_service);
    let path = api_service.path();
    let mut attempts: FuturesUnordered<_> = (0..ATTEMPTS).map(|_| attempt(&server, &path)).collect();
    let mut results = Vec::new();
    while let Some(result) = attempts.next().await {
        if result.is_ok() {
            return Ok(Ok(()));
        }
        results.push(result);
    }
    Ok(availability::last_failure(results))
}

/// One request for the list of resources, in the words of Go's client.
async fn attempt(server: &RemoteServer, path: &str) -> Result<(), String> {
    let endpoint = server.endpoint()?;
    let url = format!("https://{}{path}", endpoint.address);
    let failed = |why: &str| format!("failing or missing response from {url}: {why}");
    let user = User { name: USER.to_owned(), groups: vec![MASTERS_GROUP.to_owned()], ..User::default() };
    let ask = Ask { path, user: &user, accept: "*/*", etag: "", max_bytes: 0, timeout: PROBE_TIMEOUT };
    let sent = tokio::time::timeout(ask.timeout, server.send_to(&endpoint, get(&ask)?, false)).await;
    let answer = match sent {
        Err(_) => {
            let why = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)";
            return Err(failed(&format!("Get {url:?}: {why}")));
        }
        Ok(Err(error)) => return Err(failed(&format!("Get {url:?}: {error}"))),
        Ok(Ok(answer)) => answer,
    };
    if answer.status().is_success() {
        return Ok(());
    }
    Err(failed(&format!("bad status from {url}: {}", answer.status().as_u16())))
}

/// Writes a condition if it says something else than before. Those that others have written stay.
async fn write(client: &Client, mut object: Value, finding: Finding) -> Result<(), kube::Error> {
    let before = conditions::get(&object, AVAILABLE).cloned();
    conditions::set(&mut object, AVAILABLE, finding.status, finding.reason, &finding.message, &now());
    if conditions::get(&object, AVAILABLE) == before.as_ref() {
        return Ok(());
    }
    let metadata = &object["metadata"];
    let name = metadata["name"].as_str().unwrap_or("").to_owned();
    tracing::info!(
        name,
        available = finding.status,
        reason = finding.reason,
        message = finding.message,
        "changing APIService availability"
    );
    let patch = json!({
        "metadata": {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]},
        "status": {"conditions": object["status"]["conditions"]},
    });
    let parameters = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    match api_services(client).patch_status(&name, &parameters, &Patch::Merge(patch)).await {
        // Changed or deleted meanwhile: its event follows.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        written => written.map(drop),
    }
}
