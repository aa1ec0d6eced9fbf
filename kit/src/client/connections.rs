//! The connections of one client, below its requests.

use std::{
    fmt,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use http::{Request, Response, StatusCode, Uri};
use hyper::body::{Bytes, Frame, Incoming, SizeHint};
use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client as HttpClient, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use kube::client::{Body, ConfigExt as _, retry::RetryPolicy};
use tokio::time::{Instant, Sleep};
use tower::{BoxError, Service, ServiceBuilder, ServiceExt as _, retry::RetryLayer, util::BoxCloneService};

use super::{
    Limits,
    access::{Shared, Way},
    servers::Dial,
};

/// The kernel asks a silent peer after 30 s and gives it up 15 s later, as Go's HTTP/2 client, which kubelet uses, does
/// with its pings.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(30);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(5);
const KEEPALIVE_TRIES: u32 = 3;
/// What was sent and not acknowledged for this long ends the connection.
const UNACKNOWLEDGED: Duration = Duration::from_secs(30);

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

/// Connections that were made by one identity.
struct Pool {
    /// How often all clients' connections were given up before.
    generation: u64,
    /// Adds what each request carries, and sends it.
    service: Mutex<BoxCloneService<Request<Body>, Response<Incoming>, BoxError>>,
    /// The API has known us on it.
    known: AtomicBool,
}

impl Pool {
    fn new(generation: u64, way: &Way, shared: &Arc<Shared>) -> Result<Self, BoxError> {
        let config = &way.config;
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(config.connect_timeout);
        http.set_keepalive(Some(KEEPALIVE_AFTER));
        http.set_keepalive_interval(Some(KEEPALIVE_EVERY));
        http.set_keepalive_retries(Some(KEEPALIVE_TRIES));
        http.set_tcp_user_timeout(Some(UNACKNOWLEDGED));
        let mut https = HttpsConnectorBuilder::new().with_tls_config(way.tls.clone()).https_or_http();
        if let Some(name) = &config.tls_server_name {
            https = https.with_server_name_resolver(FixedServerNameResolver::new(name.clone().try_into()?));
        }
        let connector = https.enable_http1().wrap_connector(Dial { http, shared: Arc::clone(shared) });
        let sender = HttpClient::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(connector);
        let service = ServiceBuilder::new()
            .layer(config.base_uri_layer())
            .option_layer(config.auth_layer()?)
            .layer(config.extra_headers_layer()?)
            .map_err(BoxError::from)
            .service(sender);
        Ok(Self {
            generation,
            service: Mutex::new(service.map_err(BoxError::from).boxed_clone()),
            known: AtomicBool::new(false),
        })
    }
}

/// The connections that the requests of one client share at the moment; clones share them.
#[derive(Clone)]
pub(super) struct Connections(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    limits: Limits,
    pool: Mutex<Option<Arc<Pool>>>,
}

impl Connections {
    pub(super) fn new(shared: Arc<Shared>, limits: Limits) -> Self {
        Self(Arc::new(Inner { shared, limits, pool: Mutex::new(None) }))
    }

    pub(super) fn into_client(self, namespace: String) -> kube::Client {
        let retry = self.0.limits.retry.then(|| RetryLayer::new(RetryPolicy::server_retry()));
        let service = ServiceBuilder::new().option_layer(retry).service(self);
        kube::Client::new(service, namespace)
    }
}

impl Inner {
    async fn pool(&self, until: Instant) -> Result<Arc<Pool>, BoxError> {
        let (generation, way) = self.shared.way(until).await?;
        let mut current = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        match &*current {
            Some(pool) if pool.generation == generation => Ok(Arc::clone(pool)),
            _ => {
                let pool = Arc::new(Pool::new(generation, &way, &self.shared)?);
                *current = Some(Arc::clone(&pool));
                Ok(pool)
            }
        }
    }

    /// Gives up the pool that failed, unless another request has done so. Requests on their way end by their own limits.
    fn give_up(&self, failed: &Arc<Pool>) {
        let mut current = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        if current.as_ref().is_some_and(|pool| Arc::ptr_eq(pool, failed)) {
            *current = None;
        }
    }

    /// An answer on a pool is overdue.
    fn silent(&self, pool: &Arc<Pool>) {
        self.give_up(pool);
        // What began before everybody dialled anew says nothing of the connections of now.
        if pool.generation == *self.shared.generation().borrow() {
            self.shared.silent();
        }
    }

    async fn ask(self: Arc<Self>, request: Request<Body>) -> Result<Response<Bounded>, BoxError> {
        let until = Instant::now() + self.limits.answer;
        let again = copy(&request);
        let pool = self.pool(until).await?;
        let answer = Arc::clone(&self).send(&pool, request, until).await?;
        if answer.status() != StatusCode::UNAUTHORIZED {
            pool.known.store(true, Ordering::Relaxed);
            return Ok(answer);
        }
        self.shared.refused();
        self.give_up(&pool);
        let was_known = pool.known.load(Ordering::Relaxed) || pool.generation != *self.shared.generation().borrow();
        match again {
            // Certificates or tokens were changed, and the connection was made with the old ones.
            Some(request) if was_known => {
                let pool = self.pool(until).await?;
                self.send(&pool, request, until).await
            }
            _ => Ok(answer),
        }
    }

    async fn send(
        self: Arc<Self>,
        pool: &Arc<Pool>,
        request: Request<Body>,
        until: Instant,
    ) -> Result<Response<Bounded>, BoxError> {
        let asked = Asked { method: request.method().clone(), uri: request.uri().clone() };
        let mut service = pool.service.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let answer = tokio::time::timeout_at(until, async { service.ready().await?.call(request).await });
        match answer.await {
            Ok(Ok(answer)) => {
                self.shared.servers().answered();
                Ok(answer.map(|body| Bounded::new(body, asked, Arc::clone(&self), Arc::clone(pool))))
            }
            Ok(Err(error)) => {
                self.give_up(pool);
                if let Some(error) = error.downcast_ref::<hyper_util::client::legacy::Error>()
                    && error.is_connect()
                {
                    // One that can be dialled, but whose TLS fails. Those that cannot are known already.
                    self.shared.servers().current_failed(Instant::now());
                }
                Err(error)
            }
            Err(_) => {
                self.silent(pool);
                Err(NoAnswer { asked, limit: self.limits.answer }.into())
            }
        }
    }
}

/// The same request, if its body is not a stream.
fn copy(request: &Request<Body>) -> Option<Request<Body>> {
    let mut copy = Request::new(request.body().try_clone()?);
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.version_mut() = request.version();
    *copy.headers_mut() = request.headers().clone();
    *copy.extensions_mut() = request.extensions().clone();
    Some(copy)
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
        Box::pin(Arc::clone(&self.0).ask(request))
    }
}

/// The body of an answer, whose pieces must come in time. A watch that is silent for too long has ended, as those do
/// that the API server ends, and so has one whose connection all clients have given up: who watches goes on from where
/// he was, over a new connection.
pub(super) struct Bounded {
    body: Incoming,
    silence: Pin<Box<Sleep>>,
    limit: Duration,
    /// Of a watch: comes when everybody dials anew.
    given_up: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    asked: Asked,
    inner: Arc<Inner>,
    pool: Arc<Pool>,
    over: bool,
}

impl Bounded {
    fn new(body: Incoming, asked: Asked, inner: Arc<Inner>, pool: Arc<Pool>) -> Self {
        let watch = is_watch(&asked.uri);
        let limit = if watch { inner.limits.watch } else { inner.limits.answer };
        let given_up = watch.then(|| {
            let (mut generation, ours) = (inner.shared.generation(), pool.generation);
            let future = async move { drop(generation.wait_for(|now| *now != ours).await) };
            Box::pin(future) as Pin<Box<dyn Future<Output = ()> + Send>>
        });
        Self { body, silence: Box::pin(tokio::time::sleep(limit)), limit, given_up, asked, inner, pool, over: false }
    }
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
        if self.given_up.as_mut().is_some_and(|given_up| given_up.as_mut().poll(cx).is_ready()) {
            self.over = true;
            return Poll::Ready(None);
        }
        if self.silence.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        self.over = true;
        self.inner.silent(&self.pool);
        if self.given_up.is_some() {
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
mod tests {
    use super::*;

    #[test]
    fn which_answers_have_no_end() {
        for (uri, watch) in [
            ("/api/v1/pods?limit=500&watch=true", true),
            ("/api/v1/pods?watch=1", true),
            ("/api/v1/namespaces/n/pods/p/log?follow=true", true),
            ("/api/v1/pods?watch=false", false),
            ("/api/v1/pods?fieldSelector=watch", false),
            ("/api/v1/pods", false),
        ] {
            assert_eq!(is_watch(&uri.parse().unwrap()), watch, "{uri}");
        }
    }
}
