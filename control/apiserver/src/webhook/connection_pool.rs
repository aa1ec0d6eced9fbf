//! Connections to one webhook or extension API server, which are kept: by HTTP/1.1, so that all replicas of a Service have a share. One whose
//! endpoint is not ready any more is not used again.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use axum::body::Body;
use http::{Request, Response};
use hyper::{body::Incoming, client::conn::http1::SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::{
    ClientConfig as TlsConfig,
    sign::{CertifiedKey, SingleCertAndKey},
};
use rustls_pki_types::ServerName;
use tokio_rustls::TlsConnector;

use super::{CallError, ClientConfig, ExtensionClients, Location, resolver, tls};
use crate::apiserver::handlers::proxy::backend::{self, Stream};

/// The most idle connections that are kept, as client-go does.
const MAX_IDLE: usize = 25;
/// How long a connection that nobody uses is kept, as Go's client does.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// How long a direct connection to a pod of another node is waited for before the node is asked to forward one as well.
const FORWARD_AFTER: Duration = Duration::from_millis(500);

/// The connections to one server.
pub(crate) struct Pool {
    tls: Arc<TlsConfig>,
    server_name: ServerName<'static>,
    idle: Mutex<Vec<Idle>>,
}

struct Idle {
    sender: SendRequest<Body>,
    /// The endpoint of a Service that it leads to.
    address: Option<SocketAddr>,
    since: Instant,
}

/// Where a connection may lead.
enum Candidates<'a> {
    Host(&'a str, u16),
    Endpoints(Vec<resolver::Endpoint>),
}

impl Candidates<'_> {
    fn has(&self, address: Option<SocketAddr>) -> bool {
        match self {
            Self::Host(..) => address.is_none(),
            Self::Endpoints(all) => all.iter().any(|endpoint| Some(endpoint.address) == address),
        }
    }
}

impl Pool {
    pub(super) fn new(config: &ClientConfig, front_proxy: Option<CertifiedKey>) -> Result<Self, String> {
        let name = config.location.server_name();
        let server_name = ServerName::try_from(name.clone()).map_err(|error| format!("{name:?}: {error}"))?;
        let mut tls = match config.skips_verification {
            true => tls::unverified_config(),
            false => tls::client_config(&config.ca_bundle)?,
        };
        if let Some(certificate) = front_proxy {
            tls.client_auth_cert_resolver = Arc::new(SingleCertAndKey::from(certificate));
        }
        Ok(Self { tls: Arc::new(tls), server_name, idle: Mutex::default() })
    }

    /// Sends a request to a host or to any endpoint of a Service, and waits for the head of the answer.
    pub(super) async fn post(
        &self,
        clients: &ExtensionClients,
        location: &Location,
        request: Request<Body>,
    ) -> Result<Response<Incoming>, CallError> {
        let candidates = match location {
            Location::Url { host, port, .. } => Candidates::Host(host, *port),
            Location::Service { service, port, .. } => {
                let unserved =
                    |why: resolver::ResolveError| CallError { is_unserved: true, ..CallError::of(why.to_string()) };
                Candidates::Endpoints(resolver::resolve(&clients.store, service, *port).map_err(unserved)?)
            }
        };
        self.exchange(clients, &candidates, request, true).await
    }

    /// Sends a request to one endpoint, and waits for the head of the answer. The connection of one that `lasts` or is
    /// upgraded is used for nothing else.
    pub(crate) async fn send(
        &self,
        clients: &ExtensionClients,
        endpoint: &resolver::Endpoint,
        request: Request<Body>,
        lasts: bool,
    ) -> Result<Response<Incoming>, CallError> {
        self.exchange(clients, &Candidates::Endpoints(vec![endpoint.clone()]), request, !lasts).await
    }

    /// What could not be sent over a kept connection, which its other end may have closed meanwhile, is sent over a new one.
    async fn exchange(
        &self,
        clients: &ExtensionClients,
        candidates: &Candidates<'_>,
        mut request: Request<Body>,
        is_kept: bool,
    ) -> Result<Response<Incoming>, CallError> {
        while let Some(mut kept) = if is_kept { self.take(candidates) } else { None } {
            match kept.sender.try_send_request(request).await {
                Ok(answer) => return Ok(self.keeping(answer, kept)),
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(CallError::of(backend::reason(&error.into_error()))),
                },
            }
        }
        let (stream, address) = open(clients, candidates).await.map_err(CallError::of)?;
        let connecting = TlsConnector::from(Arc::clone(&self.tls)).connect(self.server_name.clone(), stream);
        let connected = tokio::time::timeout(backend::TLS_TIMEOUT, connecting).await;
        let stream = connected.map_err(|_| CallError::of("net/http: TLS handshake timeout"))?;
        let stream = stream.map_err(|error| CallError::of(tls_words(&error)))?;
        let handshake = backend::client_builder().handshake(TokioIo::new(stream)).await;
        let (sender, connection) = handshake.map_err(|error| CallError::of(backend::reason(&error)))?;
        tokio::spawn(connection.with_upgrades());
        let mut fresh = Idle { sender, address, since: Instant::now() };
        let answer = fresh.sender.send_request(request).await;
        let answer = answer.map_err(|error| CallError::of(backend::reason(&error)))?;
        Ok(if is_kept { self.keeping(answer, fresh) } else { answer })
    }

    /// A connection that was kept, to one of the candidates.
    fn take(&self, candidates: &Candidates<'_>) -> Option<Idle> {
        let mut idle = self.idle.lock();
        idle.retain(|one| one.since.elapsed() < IDLE_TIMEOUT && !one.sender.is_closed() && candidates.has(one.address));
        let at = idle.iter().position(|one| one.sender.is_ready())?;
        Some(idle.swap_remove(at))
    }

    /// The answer; its connection is kept for the next request.
    fn keeping(&self, answer: Response<Incoming>, used: Idle) -> Response<Incoming> {
        let mut idle = self.idle.lock();
        if idle.len() < MAX_IDLE {
            idle.push(Idle { since: Instant::now(), ..used });
        }
        answer
    }
}

/// Opens a connection, and says to which endpoint.
async fn open(clients: &ExtensionClients, candidates: &Candidates<'_>) -> Result<(Stream, Option<SocketAddr>), String> {
    match candidates {
        Candidates::Host(host, port) => Ok((open_host(clients, host, *port).await?, None)),
        Candidates::Endpoints(all) => {
            let endpoint = all.first().ok_or("no endpoint")?;
            Ok((open_endpoint(clients, endpoint).await?, Some(endpoint.address)))
        }
    }
}

/// Connects to a host by its name or address.
async fn open_host(clients: &ExtensionClients, host: &str, port: u16) -> Result<Stream, String> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return backend::connect(SocketAddr::new(address, port)).await;
    }
    let found = clients.resolver.resolve(host.to_owned()).await;
    let mut why = format!("dial tcp: lookup {host}: no such host");
    for address in found.unwrap_or_default() {
        match backend::connect(SocketAddr::new(address.ip(), port)).await {
            Ok(stream) => return Ok(stream),
            Err(error) => why = error,
        }
    }
    Err(why)
}

/// Connects to an endpoint: directly, or where this machine has no way to pods of other nodes, through the node.
async fn open_endpoint(clients: &ExtensionClients, endpoint: &resolver::Endpoint) -> Result<Stream, String> {
    let direct = backend::connect(endpoint.address);
    let Some(forward) = clients.forwarding(endpoint) else { return direct.await };
    tokio::pin!(direct);
    match tokio::time::timeout(FORWARD_AFTER, &mut direct).await {
        Ok(Ok(stream)) => return Ok(stream),
        Ok(Err(why)) => return forward.await.map_err(|_| why),
        // It may still come.
        Err(_) => {}
    }
    tokio::pin!(forward);
    tokio::select! {
        stream = &mut direct => match stream {
            Ok(stream) => Ok(stream),
            Err(why) => forward.await.map_err(|_| why),
        },
        stream = &mut forward => match stream {
            Ok(stream) => Ok(stream),
            Err(_) => direct.await,
        },
    }
}

/// Why a handshake failed: of a certificate in Go's words, which the verifier has found.
fn tls_words(error: &std::io::Error) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match inner {
        Some(rustls::Error::InvalidCertificate(rustls::CertificateError::Other(why))) => why.0.to_string(),
        Some(other) => format!("tls: {other}"),
        None => backend::words(error),
    }
}
