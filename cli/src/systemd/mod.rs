//! What systemd is told (sd_notify): when the node is Ready, what goes on, that settings are read again, and, for its
//! watchdog, that the loops move. What is said is decided in [`tell`] and [`script`]; one task of the runtime looks and
//! sends, so that a runtime that does not get to it is one that hangs. Without `NOTIFY_SOCKET` nothing is sent.

mod script;
mod tell;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::Pod;
use sd_notify::NotifyState;
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};
use tokio_util::task::AbortOnDropHandle;
use windlass_agent::engine::Health;
use windlass_control::LoopbackProbe;
use windlass_kit::liveness::Heartbeats;

use script::{Message, Script};
pub(crate) use tell::Kind;
use tell::{Facts, Phase, tell};

/// It is looked this often whether there is something new to tell.
const LOOK: Duration = Duration::from_secs(5);
/// A start is given this much longer each time, so long as it moves.
const EXTENSION: Duration = Duration::from_secs(60);
/// Our own API is asked this often, and has this long to answer.
const ASK: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(10);

/// The pods of the node.
pub(crate) type Pods = watch::Receiver<Arc<Vec<Arc<Pod>>>>;

/// What is looked at.
pub(crate) struct Vitals {
    pub(crate) heartbeats: Heartbeats,
    /// How long a loop may be silent.
    pub(crate) patience: Duration,
    /// Whether Docker answers, and the pods of the node; a proxy and an API alone have neither.
    pub(crate) node: Option<(watch::Receiver<Health>, Pods)>,
    /// The way to our own API that others have too, over its socket.
    pub(crate) api: Option<LoopbackProbe>,
}

impl Vitals {
    pub(crate) fn new(patience: Duration) -> Self {
        Self { heartbeats: Heartbeats::default(), patience, node: None, api: None }
    }
}

enum News {
    Started(Vitals),
    Ready,
    Reloading,
    Reloaded,
    Ending,
}

/// The way to tell systemd. Dropping it ends the task.
#[derive(Debug)]
pub(crate) struct Manager {
    news: mpsc::UnboundedSender<News>,
    _task: AbortOnDropHandle<()>,
}

impl Manager {
    /// Begins to tell; a process that was not started by systemd tells nobody.
    pub(crate) fn start(kind: Kind) -> Self {
        let (news, told) = mpsc::unbounded_channel();
        let every = sd_notify::watchdog_enabled().map(|limit| limit / 2);
        let task: JoinHandle<()> = match std::env::var_os("NOTIFY_SOCKET") {
            Some(_) => tokio::spawn(Teller::new(kind, every).run(told)),
            None => tokio::spawn(std::future::ready(())),
        };
        Self { news, _task: AbortOnDropHandle::new(task) }
    }

    /// All parts run.
    pub(crate) fn started(&self, vitals: Vitals) {
        self.say(News::Started(vitals));
    }

    /// The node is Ready, or whatever else there is serves.
    pub(crate) fn ready(&self) {
        self.say(News::Ready);
    }

    /// The settings are read again.
    pub(crate) fn reloading(&self) {
        self.say(News::Reloading);
    }

    /// They were.
    pub(crate) fn reloaded(&self) {
        self.say(News::Reloaded);
    }

    /// It ends.
    pub(crate) fn ending(&self) {
        self.say(News::Ending);
    }

    fn say(&self, news: News) {
        // Nobody listens where there is no systemd.
        let _ = self.news.send(news);
    }
}

/// The task's own.
struct Teller {
    kind: Kind,
    phase: Phase,
    begun: Instant,
    vitals: Option<Vitals>,
    /// When our own API answered last.
    answered: Option<(watch::Receiver<Instant>, AbortOnDropHandle<()>)>,
    every: Option<Duration>,
    script: Script,
    failed: bool,
}

impl Teller {
    fn new(kind: Kind, every: Option<Duration>) -> Self {
        Self {
            kind,
            phase: Phase::Opening,
            begun: Instant::now(),
            vitals: None,
            answered: None,
            every,
            script: Script::new(every),
            failed: false,
        }
    }

    async fn run(mut self, mut told: mpsc::UnboundedReceiver<News>) {
        // Twice in the time of a ping: one that is a moment too early comes with the next look.
        let often = self.every.map_or(LOOK, |every| (every / 2).clamp(Duration::from_millis(1), LOOK));
        let mut look = tokio::time::interval(often);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                news = told.recv() => match news {
                    Some(news) => self.take(news),
                    None => return,
                },
                _ = look.tick() => {}
            }
            let words = tell(&self.facts());
            let messages = self.script.next(self.phase, &words, self.begun.elapsed());
            self.send(&messages);
        }
    }

    fn take(&mut self, news: News) {
        match news {
            News::Started(vitals) => {
                self.answered = vitals.api.clone().map(|api| {
                    let (tell_answered, answered) = watch::channel(Instant::now());
                    (answered, AbortOnDropHandle::new(tokio::spawn(ask(api, tell_answered))))
                });
                (self.vitals, self.phase) = (Some(vitals), Phase::Waiting);
            }
            News::Ready => {
                self.script.ready();
                self.phase = Phase::Ready;
            }
            News::Reloading => self.phase = Phase::Reloading,
            News::Reloaded => self.phase = if self.script.is_ready() { Phase::Ready } else { Phase::Waiting },
            News::Ending => self.phase = Phase::Ending,
        }
    }

    fn facts(&self) -> Facts {
        let node = self.vitals.as_ref().and_then(|vitals| vitals.node.as_ref());
        Facts {
            kind: self.kind,
            phase: self.phase,
            age: self.begun.elapsed(),
            docker: node.map_or(Health::Unknown, |(docker, _)| docker.borrow().clone()),
            pods: node.map_or(0, |(_, pods)| pods.borrow().len()),
            api_silent: self.answered.as_ref().map(|(answered, _)| answered.borrow().elapsed()),
            stuck: self.vitals.as_ref().map(|vitals| vitals.heartbeats.stuck(Instant::now())).unwrap_or_default(),
            patience: self.vitals.as_ref().map_or(Duration::MAX, |vitals| vitals.patience),
        }
    }

    fn send(&mut self, messages: &[Message]) {
        let mut states = Vec::new();
        for message in messages {
            match message {
                Message::Ready => states.push(NotifyState::Ready),
                Message::Reloading => {
                    states.push(NotifyState::Reloading);
                    states.extend(NotifyState::monotonic_usec_now());
                }
                Message::Stopping => states.push(NotifyState::Stopping),
                Message::Status(status) => states.push(NotifyState::Status(status)),
                Message::Alive => states.push(NotifyState::Watchdog),
                Message::Longer => states
                    .push(NotifyState::ExtendTimeoutUsec(u32::try_from(EXTENSION.as_micros()).unwrap_or(u32::MAX))),
            }
        }
        if states.is_empty() {
            return;
        }
        if let Err(error) = sd_notify::notify(&states)
            && !std::mem::replace(&mut self.failed, true)
        {
            tracing::warn!(%error, "systemd could not be told of the state; its watchdog may end this process");
        }
    }
}

/// Notes when our own API answers, for as long as somebody looks.
async fn ask(api: LoopbackProbe, answered: watch::Sender<Instant>) {
    loop {
        match tokio::time::timeout(ANSWER, api.probe()).await {
            Ok(Ok(())) => drop(answered.send_replace(Instant::now())),
            Ok(Err(error)) => tracing::debug!(%error, "the API did not answer this process itself"),
            Err(_) => tracing::debug!("the API did not answer this process itself in time"),
        }
        tokio::time::sleep(ASK).await;
    }
}
