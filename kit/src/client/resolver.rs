//! Resolves names of API servers, for all clients of an API: one query per name at a time, on dedicated threads, and
//! the last good answer while name servers give none.

use std::{
    collections::BTreeMap,
    fmt, io,
    net::{SocketAddr, ToSocketAddrs as _},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use hyper_util::client::legacy::connect::dns::Name;
use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};
use tower::Service;

use crate::blocking::RESOLVE;

/// How long an answer is used without asking again. The system's resolver does not report its TTL.
const FRESH: Duration = Duration::from_secs(30);
/// How long a new answer is waited for where there is an older one.
const PATIENCE: Duration = Duration::from_secs(2);

type Answer = Result<Vec<SocketAddr>, String>;

#[derive(Default)]
struct Entry {
    last: Option<(Instant, Vec<SocketAddr>)>,
    /// The question that is on its way.
    asked: Option<watch::Receiver<Option<Answer>>>,
}

/// See the module. Clones share their answers.
#[derive(Clone)]
pub struct Resolver {
    entries: Arc<Mutex<BTreeMap<String, Entry>>>,
    ask: fn(&str) -> Answer,
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Resolver")
    }
}

impl Default for Resolver {
    fn default() -> Self {
        Self { entries: Arc::default(), ask: system }
    }
}

/// What the system says; the port is not a question's.
fn system(host: &str) -> Answer {
    (host, 0).to_socket_addrs().map(Iterator::collect).map_err(|e| e.to_string())
}

impl Resolver {
    fn entry<T>(&self, host: &str, with: impl FnOnce(&mut Entry) -> T) -> T {
        with(self.entries.lock().entry(host.to_owned()).or_default())
    }

    /// The addresses of a host, each with port 0.
    ///
    /// # Errors
    /// When no name server has one, now or before.
    pub async fn resolve(&self, host: String) -> io::Result<Vec<SocketAddr>> {
        let (old, mut answered) = match self.entry(&host, |entry| self.look_up(&host, entry)) {
            Ok(fresh) => return Ok(fresh),
            Err(asked) => asked,
        };
        let answer = async { answered.wait_for(Option::is_some).await.ok().and_then(|answer| answer.clone()) };
        let answer = match &old {
            Some(_) => tokio::time::timeout(PATIENCE, answer).await.ok().flatten(),
            None => answer.await,
        };
        match (answer, old) {
            (Some(Ok(found)), _) => Ok(found),
            (_, Some(old)) => Ok(old),
            (Some(Err(reason)), None) => Err(io::Error::other(reason)),
            (None, None) => Err(io::Error::other("the name was not looked up")),
        }
    }

    /// A fresh answer, or the older one and the question that is on its way.
    #[allow(clippy::type_complexity, reason = "read by the one caller above")]
    fn look_up(
        &self,
        host: &str,
        entry: &mut Entry,
    ) -> Result<Vec<SocketAddr>, (Option<Vec<SocketAddr>>, watch::Receiver<Option<Answer>>)> {
        if let Some((at, found)) = &entry.last
            && at.elapsed() < FRESH
        {
            return Ok(found.clone());
        }
        let asked = entry.asked.clone().unwrap_or_else(|| {
            let (sender, receiver) = watch::channel(None);
            let (resolver, host) = (self.clone(), host.to_owned());
            tokio::spawn(async move {
                let (ask, name) = (resolver.ask, host.clone());
                let answer = RESOLVE.run(move || ask(&name), |error| error.to_string()).await;
                resolver.entry(&host, |entry| {
                    entry.asked = None;
                    if let Ok(found) = &answer
                        && !found.is_empty()
                    {
                        entry.last = Some((Instant::now(), found.clone()));
                    }
                });
                sender.send_replace(Some(answer));
            });
            entry.asked = Some(receiver.clone());
            receiver
        });
        Err((entry.last.as_ref().map(|(_, found)| found.clone()), asked))
    }
}

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let (resolver, host) = (self.clone(), name.as_str().to_owned());
        Box::pin(async move { resolver.resolve(host).await.map(Vec::into_iter) })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    static ASKED: AtomicUsize = AtomicUsize::new(0);

    /// A name server that answers the first question and none after it.
    fn once(_: &str) -> Answer {
        match ASKED.fetch_add(1, Ordering::SeqCst) {
            0 => Ok(vec!["192.0.2.1:0".parse().unwrap()]),
            _ => Err("temporary failure in name resolution".to_owned()),
        }
    }

    #[tokio::test]
    async fn one_question_serves_all_and_its_answer_outlives_the_name_servers() {
        let resolver = Resolver { ask: once, ..Resolver::default() };
        let all = (0..50).map(|_| {
            let resolver = resolver.clone();
            tokio::spawn(async move { resolver.resolve("api.example".to_owned()).await.unwrap() })
        });
        let expected: Vec<SocketAddr> = vec!["192.0.2.1:0".parse().unwrap()];
        for one in all.collect::<Vec<_>>() {
            assert_eq!(one.await.unwrap(), expected);
        }
        assert_eq!(ASKED.load(Ordering::SeqCst), 1);
        let old = Instant::now() - FRESH;
        resolver.entry("api.example", |entry| entry.last = Some((old, expected.clone())));
        assert_eq!(resolver.resolve("api.example".to_owned()).await.unwrap(), expected, "the last good answer");
        assert_eq!(ASKED.load(Ordering::SeqCst), 2);
        let why = resolver.resolve("other.example".to_owned()).await.unwrap_err().to_string();
        assert!(why.contains("temporary failure"), "{why}");
    }
}
