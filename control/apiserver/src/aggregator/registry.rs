//! Keeps what the catalog knows of extension API servers: which group versions are theirs, and what they say that they serve.
//! One task owns it. What an extension does takes none of its time: everything is asked for in tasks of their own.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use axum::http::StatusCode;
use tokio::{task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;
use windlass_identity::pki::MASTERS_GROUP;
use windlass_kit::backoff::Backoff;

use super::{
    Aggregator, REGISTRATION_HOOK,
    api_service::{ApiService, ServicePort},
    discovery::{self, VersionDiscovery, Versions},
    extension_server::{Ask, Fetched, RemoteServer},
    openapi::{self, Documents, LegacyDocument},
    wait_until,
    workqueue::WorkQueue,
};
use crate::{
    apiserver::{
        User,
        request::media_type::{self, MediaType},
        types::{Extension, ExtensionServer, OpenApiV3},
    },
    store::Error,
};

/// How often documents are read again.
const REFRESH_INTERVAL: Duration = Duration::from_secs(60);
/// The first pause after a failure.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// Time limit of a request for discovery.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(5);
/// The most bytes of a discovery document. That of a whole cluster has some hundred thousand.
const MAX_DISCOVERY_BYTES: usize = 4 << 20;
/// How many servers are asked at a time.
const WORKERS: usize = 8;

/// As whom discovery is read, and servers are probed.
pub(super) const USER: &str = "system:kube-aggregator";

/// A group version, and what is known of it.
#[derive(Debug)]
struct Known {
    api_service: ApiService,
    server: Arc<RemoteServer>,
    discovery: Option<VersionDiscovery>,
    is_current: bool,
    openapi_v3: Arc<BTreeMap<String, String>>,
    converted: Option<Arc<OpenApiV3>>,
}

impl Known {
    fn published(&self) -> Extension {
        let ApiService { group, version, priority, is_available, .. } = &self.api_service;
        Extension {
            group: group.clone(),
            version: version.clone(),
            priority: *priority,
            is_available: *is_available,
            discovery: Arc::new(discovery::published(version, self.discovery.as_ref(), self.is_current)),
            openapi_v3: Arc::clone(&self.openapi_v3),
            converted: self.converted.clone(),
            server: Arc::clone(&self.server) as Arc<dyn ExtensionServer>,
        }
    }
}

/// What was read of a server.
enum Read {
    Discovery(Result<Discovered, String>),
    OpenApi(Result<Documents, String>),
}

/// What a server serves.
enum Discovered {
    /// What it said before.
    Unchanged,
    /// All that it serves, and the tag of the document.
    All(Versions, String),
    /// What it says of each group version, since it has no document of all.
    Single(BTreeMap<(String, String), Result<VersionDiscovery, String>>),
}

/// All group versions of extension API servers, by the names of their APIServices.
pub(super) struct Registry {
    aggregator: Aggregator,
    known: BTreeMap<String, Known>,
    /// Tags of the documents of servers.
    etags: BTreeMap<ServicePort, String>,
    /// What was last read of servers that have OpenAPI of version 2 alone.
    legacy: BTreeMap<ServicePort, LegacyDocument>,
}

impl Registry {
    /// What is registered now.
    pub(super) fn new(aggregator: &Aggregator) -> Self {
        let mut registry = Self {
            aggregator: aggregator.clone(),
            known: BTreeMap::new(),
            etags: BTreeMap::new(),
            legacy: BTreeMap::new(),
        };
        registry.register();
        registry
    }

    /// Reads the APIServices again; says which servers have changed.
    fn register(&mut self) -> Vec<ServicePort> {
        let all = self.aggregator.store().list(self.aggregator.resource(), None).0;
        let mut old = std::mem::take(&mut self.known);
        let mut changed = Vec::new();
        for object in all {
            let Some(api_service) = ApiService::read(&object.value()) else { continue };
            let known = match old.remove(&object.key.name) {
                Some(known) if known.api_service == api_service => known,
                Some(known) if known.server.is_of(&api_service) => {
                    changed.push(api_service.at.clone());
                    Known { api_service, ..known }
                }
                _ => {
                    changed.push(api_service.at.clone());
                    Known {
                        server: Arc::new(RemoteServer::new(&self.aggregator.clients, &api_service)),
                        api_service,
                        discovery: None,
                        is_current: false,
                        openapi_v3: Arc::default(),
                        converted: None,
                    }
                }
            };
            self.known.insert(object.key.name.clone(), known);
        }
        let used: Vec<ServicePort> = self.servers().collect();
        self.etags.retain(|at, _| used.contains(at));
        self.legacy.retain(|at, _| used.contains(at));
        // What a new group version of it is has to be read.
        changed.iter().for_each(|at| drop(self.etags.remove(at)));
        changed
    }

    /// Lets clients see what is known.
    pub(super) fn publish(&self) {
        let all = self.known.values().map(|known| Arc::new(known.published())).collect();
        self.aggregator.api.catalogs().set_extensions(all);
    }

    fn servers(&self) -> impl Iterator<Item = ServicePort> {
        self.known.values().map(|known| known.api_service.at.clone())
    }

    fn of_server(&mut self, at: &ServicePort) -> impl Iterator<Item = &mut Known> {
        self.known.values_mut().filter(move |known| known.api_service.at == *at)
    }

    /// Takes in what was read of a server. Whether it could be read.
    fn take(&mut self, at: &ServicePort, read: Read) -> bool {
        match read {
            Read::OpenApi(Ok(documents)) => {
                for known in self.of_server(at) {
                    let ApiService { group, version, .. } = &known.api_service;
                    known.openapi_v3 = Arc::new(documents.index_of(group, version));
                    known.converted = documents.converted();
                }
                match documents.legacy() {
                    Some(document) => drop(self.legacy.insert(at.clone(), document)),
                    None => drop(self.legacy.remove(at)),
                }
                true
            }
            Read::OpenApi(Err(why)) => {
                tracing::debug!(service = ?at, why, "failed to read list of OpenAPI documents of extension API server; retrying");
                false
            }
            Read::Discovery(Ok(Discovered::Unchanged)) => {
                self.of_server(at).for_each(|known| known.is_current = true);
                true
            }
            Read::Discovery(Ok(Discovered::All(mut all, etag))) => {
                self.etags.insert(at.clone(), etag);
                for known in self.of_server(at) {
                    let of = &known.api_service;
                    known.discovery = all.remove(&(of.group.clone(), of.version.clone()));
                    known.is_current = true;
                }
                true
            }
            Read::Discovery(Ok(Discovered::Single(mut all))) => {
                let mut is_whole = true;
                for known in self.of_server(at) {
                    let of = &known.api_service;
                    match all.remove(&(of.group.clone(), of.version.clone())) {
                        Some(Ok(found)) => (known.discovery, known.is_current) = (Some(found), true),
                        Some(Err(why)) => {
                            tracing::debug!(service = ?at, why, "failed to discover group version of extension API server; retrying");
                            (is_whole, known.is_current) = (false, false);
                        }
                        None => is_whole = false,
                    }
                }
                is_whole
            }
            Read::Discovery(Err(why)) => {
                tracing::debug!(service = ?at, why, "failed to discover what an extension API server serves; retrying");
                self.of_server(at).for_each(|known| known.is_current = false);
                false
            }
        }
    }
}

/// Follows the APIServices and their servers until `shutdown`.
pub(super) async fn run(aggregator: &Aggregator, shutdown: &CancellationToken) {
    let mut registry = Registry::new(aggregator);
    registry.publish();
    let mut discoveries = WorkQueue::new(REFRESH_INTERVAL, Backoff::new(RETRY_INTERVAL, REFRESH_INTERVAL));
    let mut documents = WorkQueue::new(REFRESH_INTERVAL, Backoff::new(RETRY_INTERVAL, REFRESH_INTERVAL));
    let mut reads: JoinSet<(ServicePort, Read)> = JoinSet::new();
    let (store, resource) = (aggregator.store(), aggregator.resource());
    'listing: while let Ok(mut watch) = store.watch(resource, store.revision()) {
        let mut is_new = true;
        loop {
            let now = Instant::now();
            if std::mem::take(&mut is_new) {
                let changed = registry.register();
                for queue in [&mut discoveries, &mut documents] {
                    queue.keep(registry.servers(), now);
                    changed.iter().for_each(|at| queue.add(at, now));
                }
                registry.publish();
                aggregator.api.post_start_hooks().finish(REGISTRATION_HOOK);
            }
            for at in discoveries.get(now, WORKERS) {
                reads.spawn(discover(&mut registry, at));
            }
            for at in documents.get(now, WORKERS) {
                let known = registry.legacy.get(&at).cloned();
                let server = registry.of_server(&at).next().map(|known| Arc::clone(&known.server));
                reads.spawn(async move {
                    let read = match server {
                        Some(server) => openapi::fetch_v3(&server, known).await,
                        None => Err("it is not registered".to_owned()),
                    };
                    (at, Read::OpenApi(read))
                });
            }
            let due = discoveries.next_due().into_iter().chain(documents.next_due()).min();
            tokio::select! {
                () = shutdown.cancelled() => return,
                events = watch.next() => match events {
                    Ok(_) => is_new = true,
                    Err(Error::Closed) => return,
                    Err(error) => {
                        tracing::warn!(%error, "watch of APIServices was too slow; listing again");
                        continue 'listing;
                    }
                },
                Some(read) = reads.join_next() => match read {
                    Ok((at, read)) => {
                        let is_discovery = matches!(read, Read::Discovery(_));
                        let has_succeeded = registry.take(&at, read);
                        let queue = if is_discovery { &mut discoveries } else { &mut documents };
                        queue.done(&at, has_succeeded, Instant::now());
                        registry.publish();
                    }
                    Err(error) => {
                        tracing::warn!(%error, "task that reads discovery of an extension API server failed; beginning again");
                        reads = JoinSet::new();
                        for queue in [&mut discoveries, &mut documents] {
                            queue.keep([], Instant::now());
                        }
                        continue 'listing;
                    }
                },
                () = wait_until(due) => {}
            }
        }
    }
}

/// Asks a server what it serves.
fn discover(registry: &mut Registry, at: ServicePort) -> impl Future<Output = (ServicePort, Read)> + Send + use<> {
    let etag = registry.etags.get(&at).cloned().unwrap_or_default();
    let of_server = registry.of_server(&at).map(|known| {
        let ApiService { group, version, .. } = &known.api_service;
        (Arc::clone(&known.server), (group.clone(), version.clone()))
    });
    let (servers, versions): (Vec<Arc<RemoteServer>>, Vec<(String, String)>) = of_server.unzip();
    async move {
        let read = match servers.first() {
            Some(server) => discover_all(server, &etag, &versions).await,
            None => Err("it is not registered".to_owned()),
        };
        (at, Read::Discovery(read))
    }
}

async fn discover_all(server: &RemoteServer, etag: &str, versions: &[(String, String)]) -> Result<Discovered, String> {
    let user = User { name: USER.to_owned(), groups: vec![MASTERS_GROUP.to_owned()], ..User::default() };
    let ask = Ask {
        path: "/apis",
        user: &user,
        accept: media_type::ACCEPT_AGGREGATED_DISCOVERY,
        etag,
        max_bytes: MAX_DISCOVERY_BYTES,
        timeout: DISCOVERY_TIMEOUT,
    };
    let Fetched { status, content_type, etag: tag, body } = server.fetch(&ask).await?;
    match status {
        StatusCode::NOT_MODIFIED if !etag.is_empty() => return Ok(Discovered::Unchanged),
        StatusCode::SERVICE_UNAVAILABLE => return Err("non-success response code: 503".to_owned()),
        StatusCode::OK if MediaType::parse(&content_type).is_aggregated_discovery() => {
            return Ok(Discovered::All(discovery::read_aggregated(&body)?, tag));
        }
        _ => {}
    }
    let mut all = BTreeMap::new();
    for (group, version) in versions {
        let read = discover_version(server, group, version).await;
        all.insert((group.clone(), version.clone()), read);
    }
    Ok(Discovered::Single(all))
}

/// Asks for the resources of one group version.
async fn discover_version(server: &RemoteServer, group: &str, version: &str) -> Result<VersionDiscovery, String> {
    let path = format!("/apis/{group}/{version}");
    let ask = Ask {
        path: &path,
        user: &User { name: USER.to_owned(), ..User::default() },
        accept: "application/json",
        etag: "",
        max_bytes: MAX_DISCOVERY_BYTES,
        timeout: DISCOVERY_TIMEOUT,
    };
    let fetched = server.fetch(&ask).await?;
    if fetched.status != StatusCode::OK {
        let status = fetched.status.as_u16();
        return Err(format!("failed to download legacy discovery for {path}: status {status}"));
    }
    discovery::read_legacy(version, &fetched.body)
}
