//! Asks the host's name servers for names outside of the cluster, and keeps their answers for a while. `upstreams` says
//! which are asked and is pure, as is the cache; `exchange` speaks with one server. Imports only `kit` and its siblings.

mod exchange;
mod upstreams;

#[cfg(test)]
mod tests;

use std::{
    net::IpAddr,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use hickory_proto::op::{Query, ResponseCode};
use tokio::time::{Instant, timeout_at};
use windlass_kit::{
    blocking,
    resolv_conf::{self, ResolvConf},
};

use super::{
    answer::Answer,
    cache::{Cache, CacheKey},
    message::Request,
    metrics::Metrics,
};
use upstreams::{Failures, Upstreams};

/// How long one server has for an answer; CoreDNS's `readTimeout`.
const SERVER_TIMEOUT: Duration = Duration::from_secs(2);
/// How long all servers have: clients wait for five seconds.
const TIMEOUT: Duration = Duration::from_millis(4500);
/// For so long the servers are taken as they were read.
const REREAD_AFTER: Duration = Duration::from_secs(1);

/// Asks the host's name servers.
#[derive(Debug)]
pub(super) struct Forwarder {
    /// As the setting for pods: `None` is detected, an empty path is none.
    resolv_conf: Option<PathBuf>,
    /// The addresses under which this server is reached.
    own: Vec<IpAddr>,
    state: Mutex<State>,
    metrics: Arc<Metrics>,
}

#[derive(Debug)]
struct State {
    read_at: Instant,
    upstreams: Arc<Upstreams>,
    failures: Failures,
    cache: Cache,
}

impl Forwarder {
    /// Reads the file for the first time.
    pub(super) fn new(resolv_conf: Option<PathBuf>, own: Vec<IpAddr>, metrics: Arc<Metrics>) -> Self {
        let state = State {
            read_at: Instant::now(),
            upstreams: Arc::default(),
            failures: Failures::default(),
            cache: Cache::default(),
        };
        let forwarder = Self { resolv_conf, own, state: Mutex::new(state), metrics };
        forwarder.take(resolv_conf::read(forwarder.resolv_conf.as_deref()));
        forwarder
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of answers that are kept.
    pub(super) fn cached(&self) -> usize {
        self.state().cache.len()
    }

    /// An answer that is kept.
    pub(super) fn kept(&self, request: &Request, question: &Query) -> Option<Answer> {
        let mut answer = self.state().cache.get(&key_of(request, question), Instant::now())?;
        answer.rename(&question.name);
        Some(answer)
    }

    /// Asks one server after the other until one answers.
    pub(super) async fn ask(&self, request: &Request, question: &Query) -> Answer {
        let upstreams = self.upstreams().await;
        if upstreams.servers.is_empty() {
            return Answer::of_code(ResponseCode::Refused);
        }
        let end = Instant::now() + TIMEOUT;
        let mut refused = None;
        let order = self.state().failures.order(&upstreams.servers, Instant::now());
        for server in order {
            let now = Instant::now();
            if now >= end {
                break;
            }
            let message = request.forwarded(question);
            let result = timeout_at(end.min(now + SERVER_TIMEOUT), exchange::exchange(server, &message)).await;
            let (answer, size) = match result.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into())) {
                Ok((message, size)) => (Answer::of_message(message), size),
                Err(error) => {
                    tracing::debug!(%server, %error, name = %question.name, "a name server did not answer");
                    self.metrics.forwarded(server, None, now.elapsed());
                    self.state().failures.failed(server, Instant::now());
                    continue;
                }
            };
            self.metrics.forwarded(server, Some(answer.code), now.elapsed());
            // Another one may be able to.
            if matches!(answer.code, ResponseCode::ServFail | ResponseCode::Refused | ResponseCode::NotImp) {
                refused = refused.or(Some(answer));
                continue;
            }
            let mut state = self.state();
            state.failures.answered(server);
            state.cache.put(key_of(request, question), &answer, size, Instant::now());
            drop(state);
            let mut answer = answer;
            answer.limit_ttl(super::cache::MAX_TTL);
            answer.rename(&question.name);
            return answer;
        }
        refused.unwrap_or_else(|| Answer::of_code(ResponseCode::ServFail))
    }

    /// The servers of the file as it is now.
    async fn upstreams(&self) -> Arc<Upstreams> {
        let now = Instant::now();
        {
            let mut state = self.state();
            if now.saturating_duration_since(state.read_at) < REREAD_AFTER {
                return Arc::clone(&state.upstreams);
            }
            // One reads; others go on with what is known.
            state.read_at = now;
        }
        let file = self.resolv_conf.clone();
        self.take(blocking::run(move || resolv_conf::read(file.as_deref()), |e| e.to_string()).await);
        Arc::clone(&self.state().upstreams)
    }

    /// Takes the servers of a file, and says once what of it cannot be used.
    fn take(&self, text: Result<Option<String>, String>) {
        let conf = match text {
            Ok(text) => ResolvConf::parse(text.as_deref().unwrap_or_default()),
            Err(error) => {
                tracing::debug!(error, "the host's name servers stay as they were");
                return;
            }
        };
        let read = Upstreams::of(&conf, &self.own, |name| nix::net::if_::if_nametoindex(name).ok());
        let mut state = self.state();
        let known = std::mem::replace(&mut state.upstreams, Arc::new(read.clone()));
        drop(state);
        if read.own != known.own && !read.own.is_empty() {
            tracing::warn!(
                addresses = ?read.own,
                "the host's resolv.conf names the cluster's own DNS, which is not asked for names outside of the cluster; set resolvConf to a file with other name servers"
            );
        }
        if read.unreadable != known.unreadable && !read.unreadable.is_empty() {
            tracing::warn!(servers = ?read.unreadable, "the host's resolv.conf has name servers that are no addresses; they are not asked");
        }
        if read.servers != known.servers {
            tracing::info!(servers = ?read.servers, "these name servers are asked for names outside of the cluster");
        }
    }
}

fn key_of(request: &Request, question: &Query) -> CacheKey {
    CacheKey::new(question, request.dnssec_ok(), request.checking_disabled())
}
