//! Asks the host's name servers for names outside of the cluster, and keeps their answers for a while. `upstreams` says
//! which there are, `health` what is known of each, `plan` how one question goes from one to the other; all of that is
//! pure, as is the cache. `exchange` speaks with them. Imports only `kit` and its siblings.

mod exchange;
mod health;
mod plan;
mod upstreams;

#[cfg(test)]
mod tests;

use std::{
    convert::Infallible,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt as _, stream::FuturesUnordered};
use hickory_proto::{
    op::{Message, Query, ResponseCode},
    rr::{Name, RecordType},
};
use parking_lot::{Mutex, MutexGuard};
use ring::rand::{SecureRandom as _, SystemRandom};
use tokio::{
    sync::Notify,
    time::{Instant, interval, sleep_until, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;
use windlass_kit::{
    blocking::FILES,
    liveness::{HEARTBEAT_INTERVAL, LoopProbe},
    resolv_conf::{self, ResolvConf},
};

use super::{
    answer::Answer,
    cache::{Cache, CacheKey},
    message::{Request, Transport},
    metrics::Metrics,
};
use exchange::{Exchanged, Heard, Talks};
use health::{Check, Health};
use plan::{Plan, Step};
use upstreams::Upstreams;

/// How long a server has for an answer over TCP; CoreDNS's `readTimeout`.
const TCP_TIMEOUT: Duration = Duration::from_secs(2);
/// The pauses after the two packets of a probe: of whether a server answers, and of whether it leads back here, for
/// which it may have to ask others.
const PROBE_PAUSES: [Duration; 2] = [Duration::from_millis(300), Duration::from_millis(600)];
const LOOP_PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(3)];
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
    /// There may be something to find out of a server.
    wake: Notify,
    metrics: Arc<Metrics>,
}

#[derive(Debug)]
struct State {
    read_at: Instant,
    upstreams: Arc<Upstreams>,
    health: Health,
    cache: Cache,
}

impl Forwarder {
    /// Reads the file for the first time.
    pub(super) fn new(resolv_conf: Option<PathBuf>, own: Vec<IpAddr>, metrics: Arc<Metrics>) -> Self {
        let state = State {
            read_at: Instant::now(),
            upstreams: Arc::default(),
            health: Health::default(),
            cache: Cache::default(),
        };
        let forwarder = Self { resolv_conf, own, state: Mutex::new(state), wake: Notify::new(), metrics };
        forwarder.take(resolv_conf::read(forwarder.resolv_conf.as_deref()));
        forwarder
    }

    /// Asks these servers, and never reads a file.
    #[cfg(test)]
    pub(super) fn of_servers(servers: Vec<SocketAddr>) -> Self {
        let forwarder = Self::new(Some(PathBuf::new()), Vec::new(), Arc::new(Metrics::new()));
        {
            let mut state = forwarder.state();
            state.read_at = Instant::now() + Duration::from_secs(86400);
            state.health.set_servers(&servers, Instant::now());
            state.upstreams = Arc::new(Upstreams { servers, ..Upstreams::default() });
        }
        forwarder
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
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

    /// Asks the servers until one answers.
    pub(super) async fn ask(&self, request: &Request, question: &Query) -> Answer {
        let servers = self.servers().await;
        if servers.is_empty() {
            return Answer::of_code(ResponseCode::Refused);
        }
        let forms = Forms::of(request, question);
        let (mut plan, mut talks, mut refused) =
            (Plan::new(servers, Instant::now()), Talks::new(&forms.full), None::<Answer>);
        loop {
            let step = plan.step(&mut self.state().health, Instant::now());
            match step {
                Step::Ask { server, again } => {
                    let edns = self.state().health.edns(server);
                    if let Err(error) = talks.ask(server, forms.form(again, edns)).await {
                        self.unreachable(&mut plan, server, &error);
                    }
                }
                Step::Wait(until) => {
                    let Ok(heard) = timeout_at(until, talks.next()).await else { continue };
                    let server = heard.server;
                    match self.heard(heard, &forms, &mut plan).await {
                        // Another one may be able to.
                        Some((answer, _))
                            if matches!(
                                answer.code,
                                ResponseCode::ServFail | ResponseCode::Refused | ResponseCode::NotImp
                            ) =>
                        {
                            plan.refused_question(server);
                            refused = refused.or(Some(answer));
                        }
                        Some((answer, size)) => return self.keep(request, question, answer, size),
                        None => {}
                    }
                }
                Step::Silent(server) => {
                    tracing::debug!(%server, name = %question.name, "a name server does not answer");
                    self.metrics.forwarded(server, None, Transport::Udp);
                    self.wake.notify_one();
                }
                Step::GiveUp => return refused.unwrap_or_else(|| Answer::of_code(ResponseCode::ServFail)),
            }
        }
    }

    /// What a server has said; `None` if that is no answer.
    async fn heard(&self, heard: Heard, forms: &Forms, plan: &mut Plan) -> Option<(Answer, usize)> {
        let Heard { server, asked_at, result } = heard;
        let (message, size) = match result {
            Ok(exchanged) => exchanged,
            Err(error) => {
                self.unreachable(plan, server, &error);
                return None;
            }
        };
        let code = message.metadata.response_code;
        self.metrics.forwarded(server, Some((code, asked_at.elapsed())), Transport::Udp);
        self.answered(server);
        let (edns, whole) = {
            let mut state = self.state();
            let edns = state.health.edns(server);
            // As of servers from before EDNS, whose answers have none.
            let old = matches!(code, ResponseCode::FormErr | ResponseCode::NotImp) && message.edns.is_none();
            if old && edns && forms.plain.is_some() {
                state.health.refuses_edns(server);
                plan.ask_again(server, Instant::now());
                return None;
            }
            (edns, message.metadata.truncation && state.health.may_use_tcp(server, Instant::now()))
        };
        if whole && let Some(exchanged) = self.whole(server, forms.form(false, edns), plan.ends()).await {
            return Some((Answer::of_message(exchanged.0), exchanged.1));
        }
        // What has arrived of the answer is more than none: its client decides what to do with it.
        Some((Answer::of_message(message), size))
    }

    /// Asks for an answer over TCP that did not fit into a packet.
    async fn whole(&self, server: SocketAddr, form: &Message, ends: Instant) -> Option<Exchanged> {
        let now = Instant::now();
        let result = timeout_at(ends.min(now + TCP_TIMEOUT), exchange::over_tcp(server, form)).await;
        let result = result.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()));
        self.state().health.tcp(server, result.is_ok(), Instant::now());
        match result {
            Ok(exchanged) => {
                let code = exchanged.0.metadata.response_code;
                self.metrics.forwarded(server, Some((code, now.elapsed())), Transport::Tcp);
                // An error code is worse than an answer at hand.
                matches!(code, ResponseCode::NoError | ResponseCode::NXDomain).then_some(exchanged)
            }
            Err(error) => {
                self.metrics.forwarded(server, None, Transport::Tcp);
                tracing::debug!(%server, %error, "a name server does not answer over TCP; its clients get what fits into a packet");
                None
            }
        }
    }

    fn unreachable(&self, plan: &mut Plan, server: SocketAddr, error: &std::io::Error) {
        tracing::debug!(%server, %error, "a name server cannot be asked");
        self.metrics.forwarded(server, None, Transport::Udp);
        plan.refused_packet(&mut self.state().health, server, Instant::now());
        self.wake.notify_one();
    }

    fn answered(&self, server: SocketAddr) {
        if self.state().health.answered(server) {
            tracing::info!(%server, "the host's name server answers again");
        }
    }

    /// Keeps an answer for others, and gives it to who asked.
    fn keep(&self, request: &Request, question: &Query, mut answer: Answer, size: usize) -> Answer {
        self.state().cache.put(key_of(request, question), &answer, size, Instant::now());
        answer.limit_ttl(super::cache::MAX_TTL);
        answer.rename(&question.name);
        answer
    }

    /// A question has come here for a name outside of the cluster. True if it is one of this server's own, by which it
    /// sees that it is asked in a circle.
    pub(super) fn came_back(&self, question: &Query) -> bool {
        question.query_type == RecordType::HINFO && self.state().health.came_back(&question.name)
    }

    /// Probes the servers that do not answer, and looks whether one leads back here, until `shutdown`.
    pub(super) async fn monitor(&self, probe: &LoopProbe, shutdown: &CancellationToken) -> Result<(), Infallible> {
        let mut checks = FuturesUnordered::new();
        let mut heartbeat = interval(HEARTBEAT_INTERVAL);
        loop {
            let (due, next) = self.state().health.due(Instant::now());
            checks.extend(due.into_iter().map(|check| self.check(check)));
            let next = async {
                match next {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                _ = heartbeat.tick() => probe.beat(),
                Some(()) = checks.next(), if !checks.is_empty() => {}
                () = self.wake.notified() => {}
                () = next => {}
            }
        }
    }

    async fn check(&self, check: Check) {
        match check {
            Check::Answers(server) => match probe(server, &of(Name::root(), RecordType::NS), PROBE_PAUSES).await {
                Ok(()) => self.answered(server),
                Err(error) => {
                    self.metrics.probe_failed(server);
                    if self.state().health.probe_silent(server) {
                        tracing::warn!(%server, %error, "the host's name server does not answer; it is asked only when no other one answers, until it does");
                    }
                }
            },
            Check::Loops(server) => {
                let Some(name) = random_name() else { return };
                self.state().health.loop_check(server, name.clone());
                let result = probe(server, &of(name, RecordType::HINFO), LOOP_PAUSES).await;
                let changed = self.state().health.loop_checked(server, result.is_ok(), Instant::now());
                match changed {
                    Some(true) => tracing::warn!(
                        %server,
                        "the host's name server asks the cluster's own DNS for names outside of the cluster; it is not asked, since its questions would go round; let it ask others, or set resolvConf to a file with other name servers"
                    ),
                    Some(false) => {
                        tracing::info!(%server, "the host's name server does not lead back here any more; it is asked")
                    }
                    None => {}
                }
            }
        }
    }

    /// The servers of the file as it is now, without those that lead back here.
    async fn servers(&self) -> Vec<SocketAddr> {
        let upstreams = self.upstreams().await;
        let state = self.state();
        upstreams.servers.iter().copied().filter(|server| !state.health.leads_here(*server)).collect()
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
        self.take(FILES.run(move || resolv_conf::read(file.as_deref()), |e| e.to_string()).await);
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
        state.health.set_servers(&read.servers, Instant::now());
        drop(state);
        self.wake.notify_one();
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

/// One question in the forms in which it is asked; all have one ID.
struct Forms {
    /// With EDNS, so that most answers fit into one packet.
    full: Message,
    /// Without it, where the client can do without.
    plain: Option<Message>,
    client_has_edns: bool,
}

impl Forms {
    fn of(request: &Request, question: &Query) -> Self {
        let full = request.forwarded(question);
        let plain = (!request.dnssec_ok()).then(|| {
            let mut plain = full.clone();
            plain.edns = None;
            plain
        });
        Self { full, plain, client_has_edns: request.has_edns() }
    }

    /// The form for a server that understands EDNS or not. A question that is asked `again` has none if its client's had
    /// none: there are firewalls that drop what they do not know.
    fn form(&self, again: bool, edns: bool) -> &Message {
        self.plain.as_ref().filter(|_| !edns || (again && !self.client_has_edns)).unwrap_or(&self.full)
    }
}

fn of(name: Name, kind: RecordType) -> Message {
    let mut message = Message::query();
    message.metadata.recursion_desired = true;
    message.queries.push(Query::query(name, kind));
    message
}

/// Asks one server, and again after the first pause, until there is any answer.
async fn probe(server: SocketAddr, question: &Message, pauses: [Duration; 2]) -> std::io::Result<()> {
    let mut talks = Talks::new(question);
    for pause in pauses {
        talks.ask(server, question).await?;
        if let Ok(heard) = timeout(pause, talks.next()).await {
            return heard.result.map(|_| ());
        }
    }
    Err(std::io::ErrorKind::TimedOut.into())
}

/// A random name that no client asks for; `None` if the system provides no random numbers.
fn random_name() -> Option<Name> {
    let mut bytes = [0; 16];
    SystemRandom::new().fill(&mut bytes).ok()?;
    let label = format!("{:032x}", u128::from_le_bytes(bytes));
    let mut name = Name::from_labels([label.as_bytes()]).ok()?;
    name.set_fqdn(true);
    Some(name)
}
