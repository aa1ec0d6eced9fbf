//! Calls to programs that extend the API: webhooks of admission and conversion, and extension API servers. `tls` says
//! which certificates are trusted, `resolver` which address a Service has, `connection_pool` keeps connections, `port_forward` finds a
//! way to pods of other nodes, `response_error` reads answers that refuse, and `review_version` has what reviews have in common
//! (both pure). Reviews are posted by [`ExtensionClients::post`]; the aggregator sends requests over [`Pool`]s.
//!
//! Upstream: `k8s.io/apiserver/pkg/util/webhook`.

pub(crate) mod connection_pool;
mod port_forward;
pub(crate) mod resolver;
mod response_error;
mod review_version;
mod tls;

use std::{fmt, sync::Arc};

use axum::body::{Body, Bytes};
use http::{HeaderValue, Request, header};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use parking_lot::{Mutex, RwLock};
use rustls::sign::CertifiedKey;
use serde_json::Value;
use tokio::time::Instant;
use windlass_kit::{client::resolver::Resolver, lru::Lru};

use crate::{
    apiserver::{KubeletClient, handlers::proxy::head::cleaned},
    store::{Key, Store},
};
use connection_pool::Pool;
use resolver::{Endpoint, ResolveError};
pub(crate) use review_version::ReviewVersion;

/// The most clients that are kept, as upstream.
const MAX_CLIENTS: usize = 200;
/// The most bytes of an answer to a review of one object: a patch that replaces all of the largest one, in base64.
pub(crate) const MAX_REVIEW_BYTES: usize = 6 << 20;
/// How often a server that asks to be called again is called again, as upstream's client does.
const MAX_RETRIES: usize = 10;
/// The port of a Service or URL that names none.
const HTTPS_PORT: u16 = 443;

/// Where a webhook or an extension API server is, and who vouches for it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ClientConfig {
    pub(crate) location: Location,
    /// Certificates in PEM; empty for those of this machine.
    pub(crate) ca_bundle: Vec<u8>,
    /// Whether anybody may be the server.
    pub(crate) skips_verification: bool,
    /// Whether the server is shown the certificate of the front proxy, by which it believes whom a request is from.
    pub(crate) is_front_proxy: bool,
}

/// Where a webhook is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Location {
    /// A host outside of the cluster, or of this machine.
    Url { host: String, port: u16, authority: String, path: String },
    /// A Service.
    Service { service: Key, port: u16, path: String },
}

impl ClientConfig {
    /// The `clientConfig` of a webhook, or of a CustomResourceDefinition.
    ///
    /// # Errors
    /// When it is none that a server can be found by.
    pub(crate) fn read(config: &Value) -> Result<Self, String> {
        use base64::{Engine as _, engine::general_purpose::STANDARD};
        let bundle = config["caBundle"].as_str().unwrap_or("");
        let ca_bundle = STANDARD.decode(bundle).map_err(|error| format!("caBundle is not in base64: {error}"))?;
        let service = &config["service"];
        let location = match config["url"].as_str() {
            Some(url) => Location::of_url(url)?,
            None if service.is_object() => Location::of_service(service),
            None => return Err("webhook configuration must have either service or URL".to_owned()),
        };
        Ok(Self { location, ca_bundle, skips_verification: false, is_front_proxy: false })
    }
}

impl Location {
    fn of_url(text: &str) -> Result<Self, String> {
        let url: http::Uri = text.parse().map_err(|error| format!("Unparsable URL: {error}"))?;
        let authority = url.authority().ok_or_else(|| format!("Unparsable URL: {text:?} has no host"))?;
        Ok(Self::Url {
            host: authority.host().trim_matches(['[', ']']).to_owned(),
            port: authority.port_u16().unwrap_or(HTTPS_PORT),
            authority: authority.as_str().to_owned(),
            path: sent_path(url.path()),
        })
    }

    fn of_service(service: &Value) -> Self {
        let text = |field: &str| service[field].as_str().unwrap_or("").to_owned();
        Self::Service {
            service: Key { namespace: text("namespace"), name: text("name") },
            port: service["port"].as_u64().and_then(|port| u16::try_from(port).ok()).unwrap_or(HTTPS_PORT),
            path: sent_path(&text("path")),
        }
    }

    /// What URLs name, whatever address is dialled.
    fn authority(&self) -> String {
        match self {
            Self::Url { authority, .. } => authority.clone(),
            Self::Service { port, .. } => format!("{}:{port}", self.server_name()),
        }
    }

    /// The name that the server's certificate must have.
    fn server_name(&self) -> String {
        match self {
            Self::Url { host, .. } => host.clone(),
            Self::Service { service, .. } => format!("{}.{}.svc", service.name, service.namespace),
        }
    }

    fn path(&self) -> &str {
        match self {
            Self::Url { path, .. } | Self::Service { path, .. } => path,
        }
    }
}

/// A path as client-go sends it: without a slash at its end, too (Go's `path.Join`). Servers redirect others, and redirects are not
/// followed.
fn sent_path(path: &str) -> String {
    let cleaned = cleaned(path);
    match cleaned.strip_suffix('/') {
        Some(kept) if !kept.is_empty() => kept.to_owned(),
        _ => cleaned,
    }
}

/// Why a call had no answer, in the words of Go's client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct CallError {
    message: String,
    /// The code of the answer, if there was one.
    pub(crate) code: Option<u16>,
    /// Whether nobody could be asked, since the Service has no endpoint that is ready.
    pub(crate) is_unserved: bool,
}

impl CallError {
    fn of(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: None, is_unserved: false }
    }
}

/// Clients of webhooks and extension API servers, by where they are.
pub(crate) struct ExtensionClients {
    store: Store,
    kubelet: Option<KubeletClient>,
    resolver: Resolver,
    pools: Mutex<Lru<ClientConfig, Arc<Pool>>>,
    /// What extension API servers are shown; `None` where there is no PKI.
    front_proxy: RwLock<Option<CertifiedKey>>,
}

impl fmt::Debug for ExtensionClients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ExtensionClients")
    }
}

impl ExtensionClients {
    /// Clients that find Services in `store`, and reach pods of other nodes through `kubelet`.
    pub(crate) fn new(store: &Store, kubelet: Option<KubeletClient>) -> Self {
        Self {
            store: store.clone(),
            kubelet,
            resolver: Resolver::default(),
            pools: Mutex::new(Lru::new(MAX_CLIENTS)),
            front_proxy: RwLock::default(),
        }
    }

    /// Shows extension API servers this certificate from now on.
    pub(crate) fn set_front_proxy(&self, certificate: CertifiedKey) {
        *self.front_proxy.write() = Some(certificate);
        *self.pools.lock() = Lru::new(MAX_CLIENTS);
    }

    /// The endpoint of a Service that a request is sent to.
    ///
    /// # Errors
    /// When it has none.
    pub(crate) fn endpoint(&self, service: &Key, port: u16) -> Result<Endpoint, ResolveError> {
        let all = resolver::resolve(&self.store, service, port)?;
        all.into_iter().next().ok_or_else(|| ResolveError::NoEndpoints(service.name.clone()))
    }

    /// The pool of a client; the one that was used least recently goes when there are too many.
    ///
    /// # Errors
    /// When its certificates cannot be read.
    pub(crate) fn pool(&self, config: &ClientConfig) -> Result<Arc<Pool>, CallError> {
        let mut pools = self.pools.lock();
        if let Some(pool) = pools.get(config) {
            return Ok(Arc::clone(pool));
        }
        let certificate = if config.is_front_proxy { self.front_proxy.read().clone() } else { None };
        let pool = Arc::new(Pool::new(config, certificate).map_err(CallError::of)?);
        pools.entry(config, 1, || Arc::clone(&pool));
        Ok(pool)
    }

    /// Posts a body in JSON, and returns the body of the answer, up to `max_bytes` of it. The URL says how much time is left.
    ///
    /// # Errors
    /// When nobody could be asked, there was no answer until `deadline`, or one that refuses or is larger.
    pub(crate) async fn post(
        &self,
        config: &ClientConfig,
        body: Bytes,
        max_bytes: usize,
        deadline: Instant,
    ) -> Result<Bytes, CallError> {
        let location = &config.location;
        let path = format!("{}?timeout={}s", location.path(), seconds_left(deadline));
        let url = format!("https://{}{path}", location.authority());
        let failed = |why: &str| CallError::of(format!("Post {url:?}: {why}"));
        let pool = self.pool(config)?;
        for _ in 0..MAX_RETRIES {
            let request = request(&path, location, body.clone()).map_err(|why| failed(&why))?;
            let sent = tokio::time::timeout_at(deadline, pool.post(self, location, request)).await;
            let answer = match sent {
                Err(_) => return Err(failed("context deadline exceeded")),
                Ok(Err(refused)) => {
                    return Err(CallError { is_unserved: refused.is_unserved, ..failed(&refused.message) });
                }
                Ok(Ok(answer)) => answer,
            };
            let (parts, body) = answer.into_parts();
            let read = tokio::time::timeout_at(deadline, read(body, max_bytes)).await;
            let body = read.map_err(|_| failed("context deadline exceeded"))?.map_err(|why| failed(&why))?;
            if parts.status.is_success() {
                return Ok(body);
            }
            let error = response_error::error_of(parts.status, &parts.headers, &body);
            // A server may ask to be called once more.
            let Some(wait) = response_error::retry_after(parts.status, &parts.headers) else { return Err(error) };
            let at = Instant::now() + wait;
            if at >= deadline {
                return Err(error);
            }
            tokio::time::sleep_until(at).await;
        }
        Err(failed("the server asked to be called again too often"))
    }
}

/// The seconds until then, rounded up.
fn seconds_left(deadline: Instant) -> u64 {
    let left = deadline.saturating_duration_since(Instant::now());
    left.as_secs() + u64::from(left.subsec_nanos() > 0)
}

fn request(path: &str, location: &Location, body: Bytes) -> Result<Request<Body>, String> {
    const JSON: HeaderValue = HeaderValue::from_static("application/json");
    let accept = HeaderValue::from_static("application/json, */*");
    let agent = HeaderValue::from_static("kube-apiserver-admission");
    let request = Request::post(path)
        .header(header::HOST, location.authority())
        .header(header::CONTENT_TYPE, JSON)
        .header(header::ACCEPT, accept)
        .header(header::USER_AGENT, agent);
    request.body(Body::from(body)).map_err(|error| error.to_string())
}

/// The body of an answer, up to `max_bytes` of it.
///
/// # Errors
/// When it is larger or ends too early.
pub(crate) async fn read(body: Incoming, max_bytes: usize) -> Result<Bytes, String> {
    match Limited::new(body, max_bytes).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => {
            Err(format!("the answer has more than {max_bytes} bytes"))
        }
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// controller-runtime's envtest writes URLs with two slashes.
    #[test]
    fn paths_are_sent_as_client_go_sends_them() {
        let path = |config: Value| ClientConfig::read(&config).unwrap().location.path().to_owned();
        for (url, sent) in [
            ("https://h:1//failing", "/failing"),
            ("https://h", "/"),
            ("https://h/", "/"),
            ("https://h/a/./b//../c/", "/a/c"),
        ] {
            assert_eq!(path(json!({"url": url})), sent, "{url}");
        }
        for (written, sent) in [("/a//b/", "/a/b"), ("a", "/a"), ("", "/")] {
            assert_eq!(path(json!({"service": {"namespace": "n", "name": "s", "path": written}})), sent, "{written}");
        }
    }
}
