//! A client of a Kubernetes API over a network, in which nothing waits without an end.
//!
//! A machine that vanishes sends no RST: the kernel would go on sending a request again for a quarter of an hour, and a
//! watch would be silent for ever. So every answer has a time limit, and so has the silence between two events of a
//! watch. When a limit is passed, all connections are given up and the next request dials anew: what swallowed one
//! request swallows those on the other connections of the pool too.
//!
//! kube's own client has neither limit, and its connector cannot be told about keep-alive.

use std::{
    fmt,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use http::{Request, Response, Uri};
use hyper::body::{Bytes, Frame, Incoming, SizeHint};
use hyper_util::{
    client::legacy::{Client as HttpClient, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use kube::client::{Body, ConfigExt as _, retry::RetryPolicy};
use tokio::time::{Instant, Sleep};
use tower::{BoxError, Service, ServiceBuilder, retry::RetryLayer};

/// How long is waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// For the head of an answer, dialling included, and for each further piece of its body.
    pub answer: Duration,
    /// For the next event of a watch.
    pub watch: Duration,
}

impl Limits {
    /// For most requests: kube-apiserver's own limit on a request (`--request-timeout`), after which there is no
    /// answer any more. A watch gets a bookmark each minute.
    pub const USUAL: Self = Self { answer: Duration::from_secs(60), watch: Duration::from_secs(90) };
    /// For lease and node status: kubelet's, which is the period of its node status.
    pub const HEARTBEAT: Self = Self { answer: Duration::from_secs(10), ..Self::USUAL };
}

/// The kernel asks a silent peer after 30 s and gives it up 15 s later, as Go's HTTP/2 client, which kubelet uses, does
/// with its pings.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(30);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(5);
const KEEPALIVE_TRIES: u32 = 3;
/// What was sent and not acknowledged for this long ends the connection.
const UNACKNOWLEDGED: Duration = Duration::from_secs(45);

/// A client with connections of its own. Must be made inside a runtime.
///
/// # Errors
/// When certificates or credentials of `config` cannot be used, or it names an HTTP proxy.
pub fn client(config: kube::Config, limits: Limits) -> kube::Result<kube::Client> {
    if let Some(proxy) = config.proxy_url {
        return Err(kube::Error::ProxyProtocolDisabled {
            proxy_url: Box::new(proxy),
            protocol_feature: "kube/http-proxy",
        });
    }
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_keepalive(Some(KEEPALIVE_AFTER));
    connector.set_keepalive_interval(Some(KEEPALIVE_EVERY));
    connector.set_keepalive_retries(Some(KEEPALIVE_TRIES));
    connector.set_tcp_user_timeout(Some(UNACKNOWLEDGED));
    let connector = config.rustls_https_connector_with_connector(connector)?;
    let connections = Connections(Arc::new(Shared { current: Mutex::new((0, dial(&connector))), connector, limits }));
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.default_retry.then_some(RetryLayer::new(RetryPolicy::server_retry())))
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(connections);
    Ok(kube::Client::new(service, config.default_namespace))
}

type Connector = hyper_rustls::HttpsConnector<HttpConnector>;
type Http = HttpClient<Connector, Body>;

fn dial(connector: &Connector) -> Http {
    HttpClient::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(connector.clone())
}

/// No answer, or no more of it, within a time limit.
#[derive(Debug, thiserror::Error)]
#[error("no answer to {asked} within {limit:?}; its connection is given up")]
struct NoAnswer {
    asked: Asked,
    limit: Duration,
}

/// What was asked for, without the query, which is long.
#[derive(Debug, Clone)]
struct Asked {
    method: http::Method,
    uri: Uri,
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, self.uri.path())
    }
}

/// The connections that requests share at the moment; clones share them.
#[derive(Clone)]
struct Connections(Arc<Shared>);

struct Shared {
    connector: Connector,
    limits: Limits,
    /// The pool of connections, and how many were given up before it.
    current: Mutex<(u64, Http)>,
}

impl Shared {
    fn current(&self) -> (u64, Http) {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Gives up the pool that failed, unless another request has done so. Requests on its way end by their own limits.
    fn give_up(&self, failed: u64) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.0 == failed {
            *current = (failed + 1, dial(&self.connector));
        }
    }
}

/// Whether an answer has no end of its own.
fn is_watch(uri: &Uri) -> bool {
    let pairs = || uri.query().unwrap_or_default().split('&');
    pairs().any(|pair| matches!(pair.split_once('='), Some(("watch" | "follow", "true" | "1"))))
}

impl Service<Request<Body>> for Connections {
    type Response = Response<Bounded>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let shared = Arc::clone(&self.0);
        Box::pin(async move {
            let (pool, http) = shared.current();
            let asked = Asked { method: request.method().clone(), uri: request.uri().clone() };
            let answer = tokio::time::timeout(shared.limits.answer, http.request(request)).await;
            let failed = match answer {
                Ok(Ok(answer)) => {
                    let watch = is_watch(&asked.uri);
                    let limit = if watch { shared.limits.watch } else { shared.limits.answer };
                    let silence = Box::pin(tokio::time::sleep(limit));
                    let bound = move |body| Bounded { body, silence, limit, watch, asked, shared, pool, over: false };
                    return Ok(answer.map(bound));
                }
                Ok(Err(error)) => BoxError::from(error),
                Err(_) => NoAnswer { asked, limit: shared.limits.answer }.into(),
            };
            shared.give_up(pool);
            Err(failed)
        })
    }
}

/// The body of an answer, whose pieces must come in time. A watch that is silent for too long has ended, as those do
/// that the API server ends: who watches goes on from where he was, over a new connection.
struct Bounded {
    body: Incoming,
    silence: Pin<Box<Sleep>>,
    limit: Duration,
    watch: bool,
    asked: Asked,
    shared: Arc<Shared>,
    pool: u64,
    over: bool,
}

impl hyper::body::Body for Bounded {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.over {
            return Poll::Ready(None);
        }
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            let next = Instant::now() + self.limit;
            self.silence.as_mut().reset(next);
            return Poll::Ready(frame.map(|piece| piece.map_err(BoxError::from)));
        }
        if self.silence.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        self.over = true;
        self.shared.give_up(self.pool);
        if self.watch {
            tracing::debug!(asked = %self.asked, limit = ?self.limit, "a watch is silent; it is begun again over a new connection");
            return Poll::Ready(None);
        }
        Poll::Ready(Some(Err(NoAnswer { asked: self.asked.clone(), limit: self.limit }.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.over || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests;
