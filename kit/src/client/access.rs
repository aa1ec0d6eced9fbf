//! How an API is reached and who we are there, for all clients of it. Both may change while clients are in use.

use std::{
    fmt, io,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use base64::Engine as _;
use http::Uri;
use kube::client::ConfigExt as _;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use super::{
    Limits, NoIdentity,
    connections::Connections,
    names::AnyName,
    servers::{Book, Server},
};

/// Names that the certificates of a cluster's API servers have beside their addresses.
const CLUSTER_NAMES: [&str; 2] = ["kubernetes", "kubernetes.default.svc"];

/// Why an API cannot be reached as configured.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// A certificate, key, token or header of it.
    #[error(transparent)]
    Config(#[from] kube::Error),
    /// A file that it names.
    #[error("{path} could not be read: {source}")]
    File {
        /// Which file.
        path: String,
        /// Why not.
        source: io::Error,
    },
    /// Its authority.
    #[error("the certificate authority cannot be used: {0}")]
    Authority(String),
    /// The address of a server.
    #[error("{0} names no host")]
    Host(Uri),
}

/// See the module. Clones are the same access.
#[derive(Clone)]
pub struct Access(Arc<Shared>);

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never what credentials are made of.
        f.write_str("Access")
    }
}

pub(super) struct Shared {
    state: Mutex<State>,
    servers: Mutex<Book>,
    /// Whether certificates are good under the cluster's names and those of all configured servers.
    many: bool,
    /// How often all connections of all clients were given up.
    generation: watch::Sender<u64>,
    pub(super) dial_failed: Notify,
    refused: Notify,
}

struct State {
    /// How to reach the API; also while nobody is known to us.
    config: kube::Config,
    way: Result<Arc<Way>, String>,
}

/// What connections are made with.
pub(super) struct Way {
    pub(super) config: kube::Config,
    pub(super) tls: rustls::ClientConfig,
}

impl Shared {
    pub(super) fn servers(&self) -> MutexGuard<'_, Book> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn generation(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }

    /// Waits until there is a way to show who we are.
    pub(super) async fn way(&self, until: Instant) -> Result<(u64, Arc<Way>), NoIdentity> {
        let mut generation = self.generation();
        loop {
            let now = *generation.borrow_and_update();
            let why = match &self.state().way {
                Ok(way) => return Ok((now, Arc::clone(way))),
                Err(why) => why.clone(),
            };
            if tokio::time::timeout_at(until, generation.changed()).await.is_err() {
                return Err(NoIdentity(why));
            }
        }
    }

    /// Gives up all connections of all clients; watches begin again over new ones.
    pub(super) fn give_up(&self) {
        self.generation.send_modify(|generation| *generation += 1);
    }

    /// An answer is overdue.
    pub(super) fn silent(&self) {
        if self.servers().silent(Instant::now()) {
            self.give_up();
        }
    }

    pub(super) fn refused(&self) {
        self.refused.notify_one();
    }

    fn way_of(&self, config: &kube::Config) -> Result<Arc<Way>, Unusable> {
        let mut tls = config.rustls_client_config()?;
        if let (true, false, None, Some(roots)) =
            (self.many, config.accept_invalid_certs, &config.root_cert_file, &config.root_cert)
        {
            let names: Vec<String> = match &config.tls_server_name {
                Some(only) => vec![only.clone()],
                None => {
                    let servers = self.servers();
                    let all = servers.names().chain(CLUSTER_NAMES).map(str::to_owned).collect();
                    drop(servers);
                    all
                }
            };
            let verifier = AnyName::new(roots, &names).map_err(Unusable::Authority)?;
            tls.dangerous().set_certificate_verifier(Arc::new(verifier));
        }
        // What would fail at each request fails here.
        config.auth_layer()?;
        config.extra_headers_layer()?;
        Ok(Arc::new(Way { config: config.clone(), tls }))
    }
}

impl Access {
    /// Access to one server. Certificates and keys that `config` names by files are read now.
    ///
    /// # Errors
    /// When what `config` says cannot be used, or it names an HTTP proxy.
    pub fn new(config: kube::Config) -> Result<Self, Unusable> {
        let access = Self::without_identity(&config, "", &[], false)?;
        access.replace(config)?;
        Ok(access)
    }

    /// Access to the server of `config`, to `others`, and to those that [`Self::learn`] names, all of one API. Nobody
    /// is known to them until [`Self::replace`] says who we are; until then requests wait, and those whose time is over
    /// fail with `why`.
    ///
    /// # Errors
    /// When a URL names no host.
    pub fn waiting(config: &kube::Config, why: &str, others: &[Uri]) -> Result<Self, Unusable> {
        Self::without_identity(config, why, others, true)
    }

    fn without_identity(config: &kube::Config, why: &str, others: &[Uri], many: bool) -> Result<Self, Unusable> {
        let of = |url: &Uri| Server::of(url).ok_or_else(|| Unusable::Host(url.clone()));
        let mut servers = vec![of(&config.cluster_url)?];
        for other in others {
            let server = of(other)?;
            if !servers.contains(&server) {
                servers.push(server);
            }
        }
        Ok(Self(Arc::new(Shared {
            state: Mutex::new(State { config: config.clone(), way: Err(why.to_owned()) }),
            servers: Mutex::new(Book::new(servers)),
            many,
            generation: watch::Sender::new(0),
            dial_failed: Notify::new(),
            refused: Notify::new(),
        })))
    }

    /// A client with connections of its own. Must be made inside a runtime.
    #[must_use]
    pub fn client(&self, limits: Limits) -> kube::Client {
        let namespace = self.0.state().config.default_namespace.clone();
        Connections::new(Arc::clone(&self.0), limits).into_client(namespace)
    }

    /// Other credentials, authorities or another first server from now on, for all clients. All connections are given
    /// up and no session of TLS is resumed, so that everything asked from now on, watches too, is asked by the new
    /// identity. `false` when nothing is different.
    ///
    /// # Errors
    /// When they cannot be used; nothing is changed then.
    pub fn replace(&self, config: kube::Config) -> Result<bool, Unusable> {
        if let Some(proxy) = config.proxy_url {
            return Err(Unusable::Config(kube::Error::ProxyProtocolDisabled {
                proxy_url: Box::new(proxy),
                protocol_feature: "kube/http-proxy",
            }));
        }
        let config = inlined(config)?;
        if self.0.state().way.as_ref().is_ok_and(|way| same(&way.config, &config)) {
            return Ok(false);
        }
        let first = Server::of(&config.cluster_url).ok_or_else(|| Unusable::Host(config.cluster_url.clone()))?;
        let way = self.0.way_of(&config)?;
        self.0.servers().set_first(first);
        *self.0.state() = State { config, way: Ok(way) };
        self.0.give_up();
        Ok(true)
    }

    /// Nobody is known to the API any more, until [`Self::replace`]; requests fail with `why` when their time is over.
    pub fn forget(&self, why: &str) {
        self.0.state().way = Err(why.to_owned());
        self.0.give_up();
    }

    /// How the API is reached, with the identity that was last in use.
    #[must_use]
    pub fn config(&self) -> kube::Config {
        self.0.state().config.clone()
    }

    /// Addresses of API servers that the API itself has told: tried when no configured one can be connected to.
    pub fn learn(&self, addresses: &[SocketAddr]) {
        self.0.servers().set_learned(addresses);
    }

    /// Waits until no server could be connected to.
    pub async fn dial_failed(&self) {
        self.0.dial_failed.notified().await;
    }

    /// Waits until the API has said that it does not know us (401).
    pub async fn refused(&self) {
        self.0.refused.notified().await;
    }

    /// Waits until requests are asked by another identity or over other connections than at the time of the call.
    pub async fn changed(&self) {
        let mut generation = self.0.generation();
        generation.borrow_and_update();
        let _ = generation.changed().await;
    }

    /// Waits for somebody to be known to the API, but not longer than `limit`.
    ///
    /// # Errors
    /// Says why nobody is.
    pub async fn known(&self, limit: Duration) -> Result<(), NoIdentity> {
        self.0.way(Instant::now() + limit).await.map(drop)
    }
}

/// Reads the certificate and key that are named by files, so that what is used and what is compared are the same.
///
/// # Errors
/// When a file cannot be read.
pub fn inlined(mut config: kube::Config) -> Result<kube::Config, Unusable> {
    let read = |path: &str| {
        let text = std::fs::read(path).map_err(|source| Unusable::File { path: path.to_owned(), source })?;
        Ok::<_, Unusable>(base64::engine::general_purpose::STANDARD.encode(text))
    };
    let auth = &mut config.auth_info;
    if auth.client_certificate_data.is_none()
        && let Some(path) = auth.client_certificate.take()
    {
        auth.client_certificate_data = Some(read(&path)?);
    }
    if auth.client_key_data.is_none()
        && let Some(path) = auth.client_key.take()
    {
        auth.client_key_data = Some(read(&path)?.into());
    }
    Ok(config)
}

/// Whether two say the same of where the API is, whom to trust and who we are.
fn same(one: &kube::Config, other: &kube::Config) -> bool {
    let auth = |config: &kube::Config| serde_json::to_value(&config.auth_info).ok();
    one.cluster_url == other.cluster_url
        && one.root_cert == other.root_cert
        && one.tls_server_name == other.tls_server_name
        && one.accept_invalid_certs == other.accept_invalid_certs
        && auth(one) == auth(other)
}
