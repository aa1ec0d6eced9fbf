//! Selects the API server to dial. The selection is pure: time is passed as a value.

use std::{
    collections::BTreeMap,
    fmt,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use tokio::time::Instant;
use tower::{BoxError, Service};

use super::{access::Shared, resolver::Resolver};

/// A server that failed is tried after all others for this long.
const FAILURE_COOLDOWN: Duration = Duration::from_secs(30);
/// The dial timeout while there are other servers.
const CONFIGURED_DIAL_TIMEOUT: Duration = Duration::from_secs(5);
/// The dial timeout of a learned address, which may be unreachable from this host for good.
const LEARNED_DIAL_TIMEOUT: Duration = Duration::from_secs(2);

/// The endpoint of an API server.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Server {
    scheme: String,
    host: String,
    port: u16,
}

impl Server {
    /// Of a URL such as `https://10.0.0.1:6443`; `None` without a host.
    pub(super) fn of(url: &Uri) -> Option<Self> {
        let scheme = url.scheme_str().unwrap_or("https").to_owned();
        let port = url.port_u16().unwrap_or(if scheme == "http" { 80 } else { 443 });
        Some(Self { scheme, host: url.host()?.to_owned(), port })
    }

    fn learned(at: SocketAddr, scheme: &str) -> Self {
        let host = if at.is_ipv6() { format!("[{}]", at.ip()) } else { at.ip().to_string() };
        Self { scheme: scheme.to_owned(), host, port: at.port() }
    }

    /// The name for certificate verification: without the brackets of an IPv6 address.
    pub(super) fn name(&self) -> &str {
        self.host.trim_start_matches('[').trim_end_matches(']')
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}:{}", self.scheme, self.host, self.port)
    }
}

/// What a request without an answer says of the connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Silence {
    /// Nothing yet: it was the first, and there is no other server.
    Bearable,
    /// New requests go to another server. One slow answer is no reason to end what works: a node's watches would all begin
    /// again, at a server that has just as much to do.
    OfOneServer,
    /// It was not the first in a row: nothing works.
    Again,
}

/// The servers of one API.
#[derive(Debug, Default)]
pub(super) struct ServerPool {
    configured: Vec<Server>,
    learned: Vec<Server>,
    /// The last server that was connected to.
    current: Option<Server>,
    /// Servers that failed, and until when they are avoided.
    failed_until: BTreeMap<Server, Instant>,
    /// Consecutive requests that timed out.
    timeouts: u32,
}

impl ServerPool {
    pub(super) fn new(configured: Vec<Server>) -> Self {
        Self { configured, ..Self::default() }
    }

    /// Replaces the first server.
    pub(super) fn set_first(&mut self, first: Server) {
        match self.configured.first_mut() {
            Some(known) => *known = first,
            None => self.configured.push(first),
        }
    }

    pub(super) fn set_learned(&mut self, addresses: &[SocketAddr]) {
        let scheme = self.configured.first().map_or("https", |first| first.scheme.as_str()).to_owned();
        let learned = addresses.iter().map(|at| Server::learned(*at, &scheme));
        self.learned = learned.filter(|server| !self.configured.contains(server)).collect();
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.configured.iter().map(Server::name)
    }

    /// The servers in the order of dialling, with their dial timeouts (`None`: that of the client). Failed servers come
    /// last, configured ones before learned ones, and the present one is the first of the configured.
    pub(super) fn order(&self, now: Instant) -> Vec<(Server, Option<Duration>)> {
        let alone = self.configured.len() + self.learned.len() < 2;
        let configured = self.configured.iter().map(|s| (s, self.current.as_ref() != Some(s), CONFIGURED_DIAL_TIMEOUT));
        let learned = self.learned.iter().map(|s| (s, true, LEARNED_DIAL_TIMEOUT));
        let mut all: Vec<_> = configured
            .map(|(s, other, limit)| (self.has_failed(s, now), 0, other, s, limit))
            .chain(learned.map(|(s, other, limit)| (self.has_failed(s, now), 1, other, s, limit)))
            .collect();
        all.sort_by_key(|(failed, kind, other, ..)| (*failed, *kind, *other));
        all.into_iter().map(|(.., server, limit)| (server.clone(), (!alone).then_some(limit))).collect()
    }

    fn has_failed(&self, server: &Server, now: Instant) -> bool {
        self.failed_until.get(server).is_some_and(|until| *until > now)
    }

    /// Records a connection; `true` when the server is another one than before.
    pub(super) fn connected(&mut self, server: &Server) -> bool {
        self.failed_until.remove(server);
        let before = self.current.replace(server.clone());
        before.is_some_and(|before| before != *server)
    }

    pub(super) fn failed(&mut self, server: &Server, now: Instant) {
        self.failed_until.retain(|_, until| *until > now);
        self.failed_until.insert(server.clone(), now + FAILURE_COOLDOWN);
    }

    /// The present server failed after it was connected to.
    pub(super) fn current_failed(&mut self, now: Instant) {
        if let Some(current) = self.current.clone() {
            self.failed(&current, now);
        }
    }

    pub(super) fn answered(&mut self) {
        self.timeouts = 0;
    }

    /// A request timed out.
    pub(super) fn response_timed_out(&mut self, now: Instant) -> Silence {
        self.timeouts += 1;
        let others = self.configured.len() + self.learned.len() > 1;
        if others {
            self.current_failed(now);
        }
        match (self.timeouts, others) {
            (2.., _) => Silence::Again,
            (_, true) => Silence::OfOneServer,
            (_, false) => Silence::Bearable,
        }
    }
}

/// Connects to a server of the pool, whatever the URL.
#[derive(Clone)]
pub(super) struct Dial {
    pub(super) http: HttpConnector<Resolver>,
    pub(super) shared: Arc<Shared>,
}

impl Service<Uri> for Dial {
    type Response = <HttpConnector<Resolver> as Service<Uri>>::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.http.poll_ready(cx).map_err(BoxError::from)
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let mut dial = self.clone();
        Box::pin(async move {
            let order = dial.shared.servers().order(Instant::now());
            let mut errors = Vec::new();
            for (server, limit) in order {
                let url: Uri = server.to_string().parse()?;
                let attempt = dial.http.call(url);
                let connected = match limit {
                    Some(limit) => tokio::time::timeout(limit, attempt).await,
                    None => Ok(attempt.await),
                };
                let error_text = match connected {
                    Ok(Ok(stream)) => {
                        if dial.shared.servers().connected(&server) {
                            tracing::info!(%server, "connected to another API server");
                        }
                        return Ok(stream);
                    }
                    Ok(Err(error)) => with_causes(&error),
                    Err(_) => format!("no connection within {limit:?}", limit = limit.unwrap_or_default()),
                };
                dial.shared.servers().failed(&server, Instant::now());
                errors.push(format!("{server}: {error_text}"));
            }
            dial.shared.dial_failed.notify_one();
            Err(errors.join("; ").into())
        })
    }
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(why) = cause {
        text = format!("{text}: {why}");
        cause = why.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(url: &str) -> Server {
        Server::of(&url.parse().unwrap()).unwrap()
    }

    fn pool(configured: &[&str], learned: &[&str]) -> ServerPool {
        let mut pool = ServerPool::new(configured.iter().map(|url| server(url)).collect());
        pool.set_learned(&learned.iter().map(|at| at.parse().unwrap()).collect::<Vec<_>>());
        pool
    }

    fn order(pool: &ServerPool, now: Instant) -> Vec<String> {
        pool.order(now).iter().map(|(server, limit)| format!("{server} {}", limit.map_or(0, |l| l.as_secs()))).collect()
    }

    #[test]
    fn urls_are_servers() {
        for (url, text, name) in [
            ("https://api.example:6443/prefix", "https://api.example:6443", "api.example"),
            ("https://[fd00::1]:6443", "https://[fd00::1]:6443", "fd00::1"),
            ("https://api.example", "https://api.example:443", "api.example"),
            ("http://127.0.0.1", "http://127.0.0.1:80", "127.0.0.1"),
        ] {
            assert_eq!(server(url).to_string(), text);
            assert_eq!(server(url).name(), name);
        }
        assert_eq!(Server::of(&"/only/a/path".parse().unwrap()), None);
    }

    #[tokio::test]
    async fn learned_servers_come_after_configured_ones_and_are_dialled_shortly() {
        let now = Instant::now();
        let pool = pool(&["https://lb:6443", "https://b:6443"], &["10.0.0.1:6443", "[fd00::1]:6443"]);
        let expected = ["https://lb:6443 5", "https://b:6443 5", "https://10.0.0.1:6443 2", "https://[fd00::1]:6443 2"];
        assert_eq!(order(&pool, now), expected);
        // A single server has the timeout of the client.
        assert_eq!(order(&self::pool(&["https://lb:6443"], &[]), now), ["https://lb:6443 0"]);
        // A configured server is not listed again.
        assert_eq!(
            order(&self::pool(&["https://10.0.0.1:6443"], &["10.0.0.1:6443"]), now),
            ["https://10.0.0.1:6443 0"]
        );
    }

    #[tokio::test]
    async fn a_server_in_trouble_is_last_until_it_is_over() {
        let now = Instant::now();
        let mut pool = pool(&["https://a:1", "https://b:1"], &["10.0.0.1:1"]);
        pool.failed(&server("https://a:1"), now);
        assert_eq!(order(&pool, now), ["https://b:1 5", "https://10.0.0.1:1 2", "https://a:1 5"]);
        assert!(!pool.connected(&server("https://b:1")), "the first connection is no change");
        // The present server stays first when another one has recovered.
        let later = now + FAILURE_COOLDOWN;
        assert_eq!(order(&pool, later), ["https://b:1 5", "https://a:1 5", "https://10.0.0.1:1 2"]);
        // A learned one does not: it is never preferred.
        assert!(pool.connected(&server("https://10.0.0.1:1")));
        assert_eq!(order(&pool, later), ["https://a:1 5", "https://b:1 5", "https://10.0.0.1:1 2"]);
    }

    #[tokio::test]
    async fn silence_is_everybodys_where_there_is_somebody_else() {
        let now = Instant::now();
        let mut one = pool(&["https://a:1"], &[]);
        one.connected(&server("https://a:1"));
        assert_eq!(one.response_timed_out(now), Silence::Bearable);
        one.answered();
        assert_eq!(one.response_timed_out(now), Silence::Bearable);
        assert_eq!(one.response_timed_out(now), Silence::Again);
        let mut two = pool(&["https://a:1", "https://b:1"], &[]);
        two.connected(&server("https://a:1"));
        assert_eq!(two.response_timed_out(now), Silence::OfOneServer);
        assert_eq!(order(&two, now)[0], "https://b:1 5");
    }
}
