//! The connections of one client.

use std::{
    fmt,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use http::{Request, Response, StatusCode, Uri, Version, header::AUTHORIZATION};
use hyper::body::{Bytes, Frame, Incoming, SizeHint};
use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client as HttpClient, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use kube::client::{Body, ConfigExt as _};
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep};
use tower::{BoxError, Service, ServiceBuilder, ServiceExt as _, retry::RetryLayer, util::BoxCloneService};

use super::{
    Limits,
    access::{Generation, Shared, Transport},
    retry::RetryAfter,
    servers::Dial,
};
use crate::rest_client;

/// The most concurrent requests per connection: kube-apiserver's default limit
/// (`--http2-max-streams-per-connection`). Further ones would queue behind watches, which do not end.
const MAX_STREAMS: usize = 100;
/// A peer that says nothing is pinged after this time, and given up after the other, with or without requests; as Go's client
/// does (`HTTP2_READ_IDLE_TIMEOUT_SECONDS`, `HTTP2_PING_TIMEOUT_SECONDS`).
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(15);
/// What a server may send before it is read, for one request and for all: Go's. A watch that is read slowly must not hold up
/// the others.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 1 << 30;
/// The kernel probes an idle peer after 30 s and drops it 15 s later, as Go's HTTP/2 client, which kubelet uses, does
/// with its pings.
const KEEPALIVE_TIME: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 3;
/// Unacknowledged data ends the connection after this time (TCP_USER_TIMEOUT).
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(30);

/// There was no response, or no more of it, within the timeout.
#[derive(Debug, thiserror::Error)]
#[error("no answer to {request_line} within {limit:?}; dropping its connection")]
struct ResponseTimeout {
    request_line: RequestLine,
    limit: Duration,
}

/// Method and path of a request, without the query, which is long.
#[derive(Debug, Clone)]
struct RequestLine {
    method: http::Method,
    uri: Uri,
}

impl fmt::Display for RequestLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, self.uri.path())
    }
}

/// A connection with HTTP/2, or as many as there are requests without it, all of one generation.
struct Pool {
    generation: Generation,
    /// Requests whose answers have not ended.
    in_flight: AtomicUsize,
    /// Adds headers to each request, and sends it.
    service: Mutex<BoxCloneService<Request<Body>, Response<Incoming>, BoxError>>,
    /// Host and port of the API, for metrics.
    host: String,
    /// The API has accepted our credentials on it.
    known: AtomicBool,
}

impl Pool {
    fn new(generation: Generation, transport: &Transport, shared: &Arc<Shared>) -> Result<Self, BoxError> {
        let config = &transport.config;
        let mut http = HttpConnector::new_with_resolver(shared.resolver.clone());
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(config.connect_timeout);
        http.set_keepalive(Some(KEEPALIVE_TIME));
        http.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
        http.set_keepalive_retries(Some(KEEPALIVE_PROBES));
        http.set_tcp_user_timeout(Some(TCP_USER_TIMEOUT));
        let mut https = HttpsConnectorBuilder::new().with_tls_config(transport.tls.clone()).https_or_http();
        if let Some(name) = &config.tls_server_name {
            https = https.with_server_name_resolver(FixedServerNameResolver::new(name.clone().try_into()?));
        }
        let connector = https.enable_all_versions().wrap_connector(Dial { http, shared: Arc::clone(shared) });
        let sender = HttpClient::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            // A connection with nothing but watches is not idle, and servers close those that are.
            .pool_idle_timeout(None)
            .http2_keep_alive_interval(PING_INTERVAL)
            .http2_keep_alive_timeout(PING_TIMEOUT)
            .http2_keep_alive_while_idle(true)
            .http2_initial_stream_window_size(STREAM_WINDOW)
            .http2_initial_connection_window_size(CONNECTION_WINDOW)
            .build(connector);
        let service = ServiceBuilder::new()
            .layer(config.base_uri_layer())
            .layer(config.extra_headers_layer()?)
            .map_err(BoxError::from)
            .service(sender);
        Ok(Self {
            generation,
            in_flight: AtomicUsize::new(0),
            service: Mutex::new(service.map_err(BoxError::from).boxed_clone()),
            host: config.cluster_url.authority().map(ToString::to_string).unwrap_or_default(),
            known: AtomicBool::new(false),
        })
    }
}

/// A request on a pool, until its answer has ended.
struct InFlight(Arc<Pool>);

impl InFlight {
    fn new(pool: &Arc<Pool>) -> Self {
        pool.in_flight.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(pool))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The present connections of one client; clones share them.
#[derive(Clone)]
pub(super) struct Connections(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    limits: Limits,
    /// The pools of the present generation.
    pools: Mutex<Vec<Arc<Pool>>>,
}

impl Connections {
    pub(super) fn new(shared: Arc<Shared>, limits: Limits) -> Self {
        Self(Arc::new(Inner { shared, limits, pools: Mutex::default() }))
    }

    pub(super) fn into_client(self, namespace: String) -> kube::Client {
        let retry = self.0.limits.retry.then(|| RetryLayer::new(RetryAfter::new(self.0.limits.response)));
        let service = ServiceBuilder::new().option_layer(retry).service(self);
        kube::Client::new(service, namespace)
    }
}

impl Inner {
    /// A pool with room for a request, and what the request is to be authorized with.
    async fn pool(&self, until: Instant) -> Result<(InFlight, Arc<Transport>), BoxError> {
        let (generation, transport) = self.shared.transport(until).await?;
        let mut pools = self.pools.lock();
        pools.retain(|pool| pool.generation == generation);
        let has_room = |pool: &&Arc<Pool>| pool.in_flight.load(Ordering::Relaxed) < MAX_STREAMS;
        let pool = match pools.iter().find(has_room) {
            Some(pool) => Arc::clone(pool),
            None => {
                let pool = Arc::new(Pool::new(generation, &transport, &self.shared)?);
                pools.push(Arc::clone(&pool));
                pool
            }
        };
        Ok((InFlight::new(&pool), transport))
    }

    /// Drops the pool that failed, unless another request has done so. Its other requests end by their own timeouts.
    fn drop_pool(&self, failed: &Arc<Pool>) {
        let mut pools = self.pools.lock();
        pools.retain(|pool| !Arc::ptr_eq(pool, failed));
    }

    /// A response on a pool timed out.
    fn response_timed_out(&self, pool: &Arc<Pool>) {
        self.drop_pool(pool);
        // A pool from before the connections of all clients were dropped says nothing about the present ones.
        if pool.generation == *self.shared.generation().borrow() {
            self.shared.response_timed_out();
        }
    }

    async fn request(self: Arc<Self>, request: Request<Body>) -> Result<Response<TimedBody>, BoxError> {
        let until = Instant::now() + self.limits.response;
        let again = copy(&request);
        let (in_flight, transport) = self.pool(until).await?;
        let pool = Arc::clone(&in_flight.0);
        let answer = Arc::clone(&self).send(in_flight, &transport, request, until).await?;
        if answer.status() != StatusCode::UNAUTHORIZED {
            pool.known.store(true, Ordering::Relaxed);
            return Ok(answer);
        }
        self.shared.unauthorized();
        self.drop_pool(&pool);
        let was_known = pool.known.load(Ordering::Relaxed) || pool.generation != *self.shared.generation().borrow();
        match again {
            // Credentials were replaced, and the connection was made with the old ones.
            Some(request) if was_known => {
                let (in_flight, transport) = self.pool(until).await?;
                self.send(in_flight, &transport, request, until).await
            }
            _ => Ok(answer),
        }
    }

    async fn send(
        self: Arc<Self>,
        in_flight: InFlight,
        transport: &Transport,
        mut request: Request<Body>,
        until: Instant,
    ) -> Result<Response<TimedBody>, BoxError> {
        let pool = &in_flight.0;
        if let Some(authorization) = &transport.credentials.authorization {
            request.headers_mut().entry(AUTHORIZATION).or_insert_with(|| authorization.clone());
        }
        let request_line = RequestLine { method: request.method().clone(), uri: request.uri().clone() };
        let asked_at = Instant::now();
        let mut service = pool.service.lock().clone();
        let answer = tokio::time::timeout_at(until, async { service.ready().await?.call(request).await });
        let answer = answer.await;
        let code = answer.as_ref().ok().and_then(|answer| answer.as_ref().ok()).map(|answer| answer.status().as_u16());
        rest_client::record(&pool.host, request_line.method.as_str(), code, asked_at.elapsed());
        match answer {
            Ok(Ok(answer)) => {
                self.shared.servers().answered();
                let version = answer.version();
                Ok(answer.map(|body| TimedBody::new(body, request_line, version, Arc::clone(&self), in_flight)))
            }
            Ok(Err(error)) => {
                self.drop_pool(pool);
                if let Some(error) = error.downcast_ref::<hyper_util::client::legacy::Error>()
                    && error.is_connect()
                {
                    // A server that accepts connections, but fails in TLS. Those that refuse them are recorded already.
                    self.shared.servers().current_failed(Instant::now());
                }
                Err(error)
            }
            Err(_) => {
                self.response_timed_out(pool);
                Err(ResponseTimeout { request_line, limit: self.limits.response }.into())
            }
        }
    }
}

/// A copy of a request whose body is no stream.
pub(super) fn copy(request: &Request<Body>) -> Option<Request<Body>> {
    let mut copy = Request::new(request.body().try_clone()?);
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.version_mut() = request.version();
    *copy.headers_mut() = request.headers().clone();
    *copy.extensions_mut() = request.extensions().clone();
    Some(copy)
}

/// Whether a request is a watch or follows a log: its response ends only on a timeout or disconnect.
fn is_watch(uri: &Uri) -> bool {
    let pairs = || uri.query().unwrap_or_default().split('&');
    pairs().any(|pair| matches!(pair.split_once('='), Some(("watch" | "follow", "true" | "1"))))
}

impl Service<Request<Body>> for Connections {
    type Response = Response<TimedBody>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(Arc::clone(&self.0).request(request))
    }
}

/// The body of a response with a timeout for each frame. A watch that times out ends, like those that the API server
/// ends, and so does one whose connections were dropped: the watcher continues over a new connection.
pub(super) struct TimedBody {
    body: Incoming,
    timer: Pin<Box<Sleep>>,
    limit: Duration,
    /// Of a watch: completes when the connections of all clients are dropped; over HTTP/1.1, where nothing else detects
    /// a dead server, also when requests move to other connections.
    connections_dropped: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    request_line: RequestLine,
    inner: Arc<Inner>,
    in_flight: InFlight,
    ended: bool,
}

impl TimedBody {
    fn new(
        body: Incoming,
        request_line: RequestLine,
        version: Version,
        inner: Arc<Inner>,
        in_flight: InFlight,
    ) -> Self {
        let watch = is_watch(&request_line.uri);
        let limit = if watch { inner.limits.watch } else { inner.limits.response };
        let connections_dropped = watch.then(|| {
            let (mut generation, ours) = (inner.shared.generation(), in_flight.0.generation);
            let is_other = move |now: &Generation| match version {
                Version::HTTP_2 => now.dropped != ours.dropped,
                _ => *now != ours,
            };
            let future = async move { drop(generation.wait_for(is_other).await) };
            Box::pin(future) as Pin<Box<dyn Future<Output = ()> + Send>>
        });
        Self {
            body,
            timer: Box::pin(tokio::time::sleep(limit)),
            limit,
            connections_dropped,
            request_line,
            inner,
            in_flight,
            ended: false,
        }
    }
}

impl hyper::body::Body for TimedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            let next = Instant::now() + self.limit;
            self.timer.as_mut().reset(next);
            return Poll::Ready(frame.map(|frame| frame.map_err(BoxError::from)));
        }
        if self.connections_dropped.as_mut().is_some_and(|dropped| dropped.as_mut().poll(cx).is_ready()) {
            self.ended = true;
            return Poll::Ready(None);
        }
        if self.timer.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        self.ended = true;
        self.inner.response_timed_out(&self.in_flight.0);
        if self.connections_dropped.is_some() {
            tracing::debug!(request = %self.request_line, limit = ?self.limit, "watch timed out; restarting it over a new connection");
            return Poll::Ready(None);
        }
        Poll::Ready(Some(Err(ResponseTimeout { request_line: self.request_line.clone(), limit: self.limit }.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.ended || self.body.is_end_stream()
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
