//! The address of an API and our credentials, for all clients of it. Both may change while clients use them.

use std::{fmt, io, net::SocketAddr, sync::Arc, time::Duration};

use base64::Engine as _;
use http::Uri;
use jiff::Timestamp;
use kube::{client::ConfigExt as _, config::AuthInfo};
use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tokio_util::task::AbortOnDropHandle;

use super::{
    Limits, NoCredentials,
    connections::Connections,
    credentials::{self, Credentials, Source},
    exec_plugin::PluginError,
    resolver::Resolver,
    servers::{Server, ServerPool, Silence},
    verifier::AnyNameVerifier,
};

/// Names in the certificates of a cluster's API servers, besides their addresses.
const CLUSTER_NAMES: [&str; 2] = ["kubernetes", "kubernetes.default.svc"];

/// Why the configuration of an API cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// An invalid certificate, key, token or header.
    #[error(transparent)]
    Config(#[from] kube::Error),
    /// A file that it names cannot be read.
    #[error("{path} could not be read: {source}")]
    File {
        /// Which file.
        path: String,
        /// Why not.
        source: io::Error,
    },
    /// The certificate authority cannot be used.
    #[error("the certificate authority cannot be used: {0}")]
    Authority(String),
    /// The credentials cannot be used.
    #[error("the credentials cannot be used: {0}")]
    Credentials(String),
    /// The credential plugin gives none.
    #[error(transparent)]
    Plugin(#[from] PluginError),
    /// The URL of a server has no host.
    #[error("{0} names no host")]
    Host(Uri),
}

/// See the module. Clones share one access.
#[derive(Clone)]
pub struct Access(pub(super) Arc<Shared>);

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never the credentials.
        f.write_str("Access")
    }
}

pub(super) struct Shared {
    state: Mutex<State>,
    servers: Mutex<ServerPool>,
    /// Whether certificates are accepted for the cluster's names and those of all configured servers.
    any_name: bool,
    generation: watch::Sender<Generation>,
    pub(super) dial_failed: Notify,
    refused: Notify,
    /// The number of times that the API refused our credentials.
    refusals: watch::Sender<u64>,
    pub(super) resolver: Resolver,
}

/// Which connections are used for requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Generation {
    /// The number of times that all connections of all clients were dropped.
    pub(super) dropped: u64,
    /// The number of times that new requests were moved to new connections. Requests over HTTP/2 continue on the old
    /// ones, whose pings detect a dead peer.
    pub(super) moved: u64,
}

struct State {
    /// The configuration; also while there are no credentials.
    config: kube::Config,
    transport: Result<Arc<Transport>, Missing>,
    /// The number of the source of credentials; those of another one are not taken.
    source: u64,
    /// Fetches credentials, unless they are in the configuration.
    fetching: Option<AbortOnDropHandle<()>>,
}

/// Why there are no credentials.
enum Missing {
    /// They may come while a request waits.
    Awaited(String),
    /// Their source gives none.
    Failed(String),
}

impl Missing {
    fn why(&self) -> &str {
        let (Self::Awaited(why) | Self::Failed(why)) = self;
        why
    }
}

/// What connections are made with.
#[derive(Clone)]
pub(super) struct Transport {
    pub(super) config: kube::Config,
    pub(super) tls: rustls::ClientConfig,
    pub(super) credentials: Credentials,
}

impl Shared {
    pub(super) fn servers(&self) -> MutexGuard<'_, ServerPool> {
        self.servers.lock()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(super) fn generation(&self) -> watch::Receiver<Generation> {
        self.generation.subscribe()
    }

    /// Waits until there are credentials.
    pub(super) async fn transport(&self, until: Instant) -> Result<(Generation, Arc<Transport>), NoCredentials> {
        let mut generation = self.generation();
        loop {
            let now = *generation.borrow_and_update();
            match &self.state().transport {
                Ok(transport) => return Ok((now, Arc::clone(transport))),
                Err(Missing::Failed(why)) => return Err(NoCredentials(why.clone())),
                Err(Missing::Awaited(_)) => {}
            }
            if tokio::time::timeout_at(until, generation.changed()).await.is_err()
                && let Err(missing) = &self.state().transport
            {
                return Err(NoCredentials(missing.why().to_owned()));
            }
        }
    }

    /// Drops all connections of all clients; watches start again over new ones.
    pub(super) fn drop_connections(&self) {
        self.generation.send_modify(|generation| generation.dropped += 1);
    }

    /// New requests go over new connections.
    pub(super) fn move_requests(&self) {
        self.generation.send_modify(|generation| generation.moved += 1);
    }

    /// A response timed out.
    pub(super) fn response_timed_out(&self) {
        let silence = self.servers().response_timed_out(Instant::now());
        match silence {
            Silence::Bearable => {}
            Silence::OfOneServer => self.move_requests(),
            Silence::Again => self.drop_connections(),
        }
    }

    pub(super) fn unauthorized(&self) {
        self.refused.notify_one();
        self.refusals.send_modify(|number| *number += 1);
    }

    /// Changes when the API refuses our credentials.
    pub(super) fn refusals(&self) -> watch::Receiver<u64> {
        self.refusals.subscribe()
    }

    /// Takes the credentials of a source, if that is still the source. Connections are dropped only if they were made with
    /// another certificate, as in client-go: a token is that of each request.
    pub(super) fn publish(&self, source: u64, credentials: Credentials) -> Result<(), AccessError> {
        let (config, old) = {
            let state = self.state();
            (state.config.clone(), state.transport.as_ref().ok().cloned())
        };
        let old = old.filter(|old| old.credentials.identity == credentials.identity);
        let keeps_connections = old.is_some();
        let transport = match old {
            Some(old) => Arc::new(Transport { credentials, ..Transport::clone(&old) }),
            None => self.build_transport(&config, credentials)?,
        };
        let mut state = self.state();
        if state.source != source {
            return Ok(());
        }
        state.transport = Ok(transport);
        drop(state);
        if !keeps_connections {
            self.drop_connections();
        }
        Ok(())
    }

    /// A source gave no credentials. The last ones are used until their end.
    pub(super) fn fetch_failed(&self, source: u64, why: &str, now: Timestamp) {
        let mut state = self.state();
        let good = state.transport.as_ref().is_ok_and(|last| last.credentials.until.is_none_or(|until| until > now));
        if state.source != source || good {
            return;
        }
        state.transport = Err(Missing::Failed(why.to_owned()));
        drop(state);
        self.drop_connections();
    }

    fn build_transport(&self, config: &kube::Config, credentials: Credentials) -> Result<Arc<Transport>, AccessError> {
        // kube would fetch credentials itself, here and now.
        let mut plain = config.clone();
        plain.auth_info = AuthInfo {
            impersonate: config.auth_info.impersonate.clone(),
            impersonate_uid: config.auth_info.impersonate_uid.clone(),
            impersonate_groups: config.auth_info.impersonate_groups.clone(),
            impersonate_user_extra: config.auth_info.impersonate_user_extra.clone(),
            ..AuthInfo::default()
        };
        if let Some((cert, key)) = &credentials.identity {
            plain.auth_info.client_certificate_data = Some(cert.clone());
            plain.auth_info.client_key_data = Some(key.clone().into());
        }
        let mut tls = plain.rustls_client_config()?;
        if let (true, false, None, Some(roots)) =
            (self.any_name, config.accept_invalid_certs, &config.root_cert_file, &config.root_cert)
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
            let verifier = AnyNameVerifier::new(roots, &names).map_err(AccessError::Authority)?;
            tls.dangerous().set_certificate_verifier(Arc::new(verifier));
        }
        // Fail here instead of at each request.
        plain.extra_headers_layer()?;
        Ok(Arc::new(Transport { config: plain, tls, credentials }))
    }
}

impl Access {
    /// Access to one server. Certificates and keys that `config` names by files are read now.
    ///
    /// # Errors
    /// When the configuration is invalid, or names an HTTP proxy.
    pub fn new(config: kube::Config) -> Result<Self, AccessError> {
        let access = Self::build(&config, "", &[], false)?;
        access.replace(config)?;
        Ok(access)
    }

    /// Access to the server of `config`, to `others`, and to those of [`Self::learn`], all of one API, without
    /// credentials until [`Self::replace`]. Until then requests wait, and fail with `why` when they time out.
    ///
    /// # Errors
    /// When a URL has no host.
    pub fn without_credentials(config: &kube::Config, why: &str, others: &[Uri]) -> Result<Self, AccessError> {
        Self::build(config, why, others, true)
    }

    fn build(config: &kube::Config, why: &str, others: &[Uri], any_name: bool) -> Result<Self, AccessError> {
        let of = |url: &Uri| Server::of(url).ok_or_else(|| AccessError::Host(url.clone()));
        let mut servers = vec![of(&config.cluster_url)?];
        for other in others {
            let server = of(other)?;
            if !servers.contains(&server) {
                servers.push(server);
            }
        }
        Ok(Self(Arc::new(Shared {
            state: Mutex::new(State {
                config: config.clone(),
                transport: Err(Missing::Awaited(why.to_owned())),
                source: 0,
                fetching: None,
            }),
            servers: Mutex::new(ServerPool::new(servers)),
            any_name,
            generation: watch::Sender::default(),
            dial_failed: Notify::new(),
            refused: Notify::new(),
            refusals: watch::Sender::default(),
            resolver: Resolver::default(),
        })))
    }

    /// A client with its own connections. Must be called within a runtime.
    #[must_use]
    pub fn client(&self, limits: Limits) -> kube::Client {
        let namespace = self.0.state().config.default_namespace.clone();
        Connections::new(Arc::clone(&self.0), limits).into_client(namespace)
    }

    /// Replaces credentials, authorities or the first server, for all clients. All connections are dropped and no TLS
    /// session is resumed, so that every later request, also of watches, uses the new credentials. Credentials from a
    /// plugin or a file are fetched by a task, and requests wait for them. `false` when nothing
    /// changed. Must be called within a runtime.
    ///
    /// # Errors
    /// When the configuration is invalid; nothing is changed then.
    pub fn replace(&self, config: kube::Config) -> Result<bool, AccessError> {
        if let Some(proxy) = config.proxy_url {
            return Err(AccessError::Config(kube::Error::ProxyProtocolDisabled {
                proxy_url: Box::new(proxy),
                protocol_feature: "kube/http-proxy",
            }));
        }
        let config = inlined(config)?;
        let number = {
            let state = self.0.state();
            if (state.transport.is_ok() || state.fetching.is_some()) && same(&state.config, &config) {
                return Ok(false);
            }
            state.source + 1
        };
        let first = Server::of(&config.cluster_url).ok_or_else(|| AccessError::Host(config.cluster_url.clone()))?;
        let source = Source::of(&config.auth_info)?;
        let known = if let Source::Fixed(credentials) = &source { credentials.clone() } else { Credentials::default() };
        // Also without credentials: other errors of the configuration are reported now.
        let transport = self.0.build_transport(&config, known)?;
        self.0.servers().set_first(first);
        let mut state = self.0.state();
        state.config = config;
        state.source = number;
        (state.transport, state.fetching) = if let Source::Fixed(_) = source {
            (Ok(transport), None)
        } else {
            let why = format!("{} has not answered yet", source.name());
            (Err(Missing::Awaited(why)), Some(credentials::maintain(&self.0, number, source)))
        };
        drop(state);
        self.0.drop_connections();
        Ok(true)
    }

    /// Drops the credentials, until [`Self::replace`]; requests fail with `why` when they time out.
    pub fn forget(&self, why: &str) {
        let mut state = self.0.state();
        state.transport = Err(Missing::Awaited(why.to_owned()));
        state.source += 1;
        state.fetching = None;
        drop(state);
        self.0.drop_connections();
    }

    /// The present configuration, with the last credentials.
    #[must_use]
    pub fn config(&self) -> kube::Config {
        self.0.state().config.clone()
    }

    /// Sets the addresses of API servers that the API itself published: used when no configured server can be reached.
    pub fn learn(&self, addresses: &[SocketAddr]) {
        self.0.servers().set_learned(addresses);
    }

    /// Waits until no server could be reached.
    pub async fn dial_failed(&self) {
        self.0.dial_failed.notified().await;
    }

    /// Waits for a response of 401 (Unauthorized).
    pub async fn unauthorized(&self) {
        self.0.refused.notified().await;
    }

    /// Waits until connections or credentials are replaced.
    pub async fn changed(&self) {
        let mut generation = self.0.generation();
        generation.borrow_and_update();
        let _ = generation.changed().await;
    }

    /// Waits for credentials, at most `limit`.
    ///
    /// # Errors
    /// Why there are none.
    pub async fn wait_for_credentials(&self, limit: Duration) -> Result<(), NoCredentials> {
        self.0.transport(Instant::now() + limit).await.map(drop)
    }
}

/// Reads the certificate and key that are named by files, so that the content is compared and used.
///
/// # Errors
/// When a file cannot be read.
pub fn inlined(mut config: kube::Config) -> Result<kube::Config, AccessError> {
    let read = |path: &str| {
        let text = std::fs::read(path).map_err(|source| AccessError::File { path: path.to_owned(), source })?;
        Ok::<_, AccessError>(base64::engine::general_purpose::STANDARD.encode(text))
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

/// Whether two configurations have the same server, authorities and credentials.
fn same(one: &kube::Config, other: &kube::Config) -> bool {
    let auth = |config: &kube::Config| serde_json::to_value(&config.auth_info).ok();
    one.cluster_url == other.cluster_url
        && one.root_cert == other.root_cert
        && one.tls_server_name == other.tls_server_name
        && one.accept_invalid_certs == other.accept_invalid_certs
        && auth(one) == auth(other)
}
