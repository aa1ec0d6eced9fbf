//! Which API server is dialled. The book is pure: time is given as a value.

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

use super::access::Shared;

/// A server that failed is tried after all others for this long.
const TROUBLE: Duration = Duration::from_secs(30);
/// How long is dialled while there are other servers to try.
const TO_CONFIGURED: Duration = Duration::from_secs(5);
/// How long an address that the API has told is dialled: it may be out of this machine's reach for good.
const TO_LEARNED: Duration = Duration::from_secs(2);

/// Where an API server listens.
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

    /// As a certificate names it: without the brackets of an IPv6 address.
    pub(super) fn name(&self) -> &str {
        self.host.trim_start_matches('[').trim_end_matches(']')
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}:{}", self.scheme, self.host, self.port)
    }
}

/// What is known of the servers of one API.
#[derive(Debug, Default)]
pub(super) struct Book {
    configured: Vec<Server>,
    learned: Vec<Server>,
    /// The one that was dialled last with success.
    current: Option<Server>,
    /// Those that failed, and until when they are avoided.
    troubled: BTreeMap<Server, Instant>,
    /// Requests in a row that nobody answered.
    silences: u32,
}

impl Book {
    pub(super) fn new(configured: Vec<Server>) -> Self {
        Self { configured, ..Self::default() }
    }

    /// The first server is another one than before.
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

    /// Whom to dial, in this order, and for how long each (none: as long as the client dials at all). Servers in
    /// trouble come last, configured ones before those that the API has told, and among the configured the one that
    /// was connected to last comes first.
    pub(super) fn order(&self, now: Instant) -> Vec<(Server, Option<Duration>)> {
        let alone = self.configured.len() + self.learned.len() < 2;
        let configured = self.configured.iter().map(|s| (s, self.current.as_ref() != Some(s), TO_CONFIGURED));
        let learned = self.learned.iter().map(|s| (s, true, TO_LEARNED));
        let mut all: Vec<_> = configured
            .map(|(s, other, limit)| (self.in_trouble(s, now), 0, other, s, limit))
            .chain(learned.map(|(s, other, limit)| (self.in_trouble(s, now), 1, other, s, limit)))
            .collect();
        all.sort_by_key(|(trouble, kind, other, ..)| (*trouble, *kind, *other));
        all.into_iter().map(|(.., server, limit)| (server.clone(), (!alone).then_some(limit))).collect()
    }

    fn in_trouble(&self, server: &Server, now: Instant) -> bool {
        self.troubled.get(server).is_some_and(|until| *until > now)
    }

    /// `true` when it is another one than before.
    pub(super) fn connected(&mut self, server: &Server) -> bool {
        self.troubled.remove(server);
        let before = self.current.replace(server.clone());
        before.is_some_and(|before| before != *server)
    }

    pub(super) fn failed(&mut self, server: &Server, now: Instant) {
        self.troubled.retain(|_, until| *until > now);
        self.troubled.insert(server.clone(), now + TROUBLE);
    }

    /// What was connected to last has failed in another way than by dialling.
    pub(super) fn current_failed(&mut self, now: Instant) {
        if let Some(current) = self.current.clone() {
            self.failed(&current, now);
        }
    }

    pub(super) fn answered(&mut self) {
        self.silences = 0;
    }

    /// A request was not answered in time. Whether everybody's connections are to be given up: at once where there is
    /// somebody else to ask, else when it happens again.
    pub(super) fn silent(&mut self, now: Instant) -> bool {
        self.silences += 1;
        let others = self.configured.len() + self.learned.len() > 1;
        if others {
            self.current_failed(now);
        }
        others || self.silences > 1
    }
}

/// Connects to a server of the book, whatever URL is asked for.
#[derive(Clone)]
pub(super) struct Dial {
    pub(super) http: HttpConnector,
    pub(super) shared: Arc<Shared>,
}

impl Service<Uri> for Dial {
    type Response = <HttpConnector as Service<Uri>>::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.http.poll_ready(cx).map_err(BoxError::from)
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let mut dial = self.clone();
        Box::pin(async move {
            let order = dial.shared.servers().order(Instant::now());
            let mut reasons = Vec::new();
            for (server, limit) in order {
                let url: Uri = server.to_string().parse()?;
                let attempt = dial.http.call(url);
                let connected = match limit {
                    Some(limit) => tokio::time::timeout(limit, attempt).await,
                    None => Ok(attempt.await),
                };
                let reason = match connected {
                    Ok(Ok(stream)) => {
                        if dial.shared.servers().connected(&server) {
                            tracing::info!(%server, "the API is asked at another server from now on");
                        }
                        return Ok(stream);
                    }
                    Ok(Err(error)) => with_causes(&error),
                    Err(_) => format!("no connection within {limit:?}", limit = limit.unwrap_or_default()),
                };
                dial.shared.servers().failed(&server, Instant::now());
                reasons.push(format!("{server}: {reason}"));
            }
            dial.shared.dial_failed.notify_one();
            Err(reasons.join("; ").into())
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

    fn book(configured: &[&str], learned: &[&str]) -> Book {
        let mut book = Book::new(configured.iter().map(|url| server(url)).collect());
        book.set_learned(&learned.iter().map(|at| at.parse().unwrap()).collect::<Vec<_>>());
        book
    }

    fn order(book: &Book, now: Instant) -> Vec<String> {
        book.order(now).iter().map(|(server, limit)| format!("{server} {}", limit.map_or(0, |l| l.as_secs()))).collect()
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
        let book = book(&["https://lb:6443", "https://b:6443"], &["10.0.0.1:6443", "[fd00::1]:6443"]);
        let expected = ["https://lb:6443 5", "https://b:6443 5", "https://10.0.0.1:6443 2", "https://[fd00::1]:6443 2"];
        assert_eq!(order(&book, now), expected);
        // One alone has as long as it takes.
        assert_eq!(order(&self::book(&["https://lb:6443"], &[]), now), ["https://lb:6443 0"]);
        // What is configured is not told a second time.
        assert_eq!(
            order(&self::book(&["https://10.0.0.1:6443"], &["10.0.0.1:6443"]), now),
            ["https://10.0.0.1:6443 0"]
        );
    }

    #[tokio::test]
    async fn a_server_in_trouble_is_last_until_it_is_over() {
        let now = Instant::now();
        let mut book = book(&["https://a:1", "https://b:1"], &["10.0.0.1:1"]);
        book.failed(&server("https://a:1"), now);
        assert_eq!(order(&book, now), ["https://b:1 5", "https://10.0.0.1:1 2", "https://a:1 5"]);
        assert!(!book.connected(&server("https://b:1")), "the first connection is no change");
        // It is not left again when the first one is well.
        let later = now + TROUBLE;
        assert_eq!(order(&book, later), ["https://b:1 5", "https://a:1 5", "https://10.0.0.1:1 2"]);
        // A learned one is: it is nobody's first choice.
        assert!(book.connected(&server("https://10.0.0.1:1")));
        assert_eq!(order(&book, later), ["https://a:1 5", "https://b:1 5", "https://10.0.0.1:1 2"]);
    }

    #[tokio::test]
    async fn silence_is_everybodys_where_there_is_somebody_else() {
        let now = Instant::now();
        let mut one = book(&["https://a:1"], &[]);
        one.connected(&server("https://a:1"));
        assert!(!one.silent(now));
        one.answered();
        assert!(!one.silent(now));
        assert!(one.silent(now), "twice in a row");
        let mut two = book(&["https://a:1", "https://b:1"], &[]);
        two.connected(&server("https://a:1"));
        assert!(two.silent(now));
        assert_eq!(order(&two, now)[0], "https://b:1 5");
    }
}
