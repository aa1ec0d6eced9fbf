//! Notifies systemd (sd_notify): readiness, status, reloads, and the watchdog while all loops make progress. [`state`]
//! and [`notify`] decide what is sent; a task of the runtime sends it, so that a runtime that no longer schedules it is
//! one that hangs. Without `NOTIFY_SOCKET` nothing is sent.

mod notify;
mod state;

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

use crate::assemble::{NodeReadiness, Started, WatchedNode};
use notify::{Message, SentState};
pub(crate) use state::ServiceKind;
use state::{Phase, StateInputs, evaluate};

/// How often the state is evaluated at least.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// The start timeout is extended by this much at a time, as long as startup makes progress.
const START_TIMEOUT_EXTENSION: Duration = Duration::from_secs(60);
/// The interval and timeout of probes of the API in this process.
const API_PROBE_INTERVAL: Duration = Duration::from_secs(5);
const API_PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// The pods of the node.
pub(crate) type Pods = watch::Receiver<Arc<Vec<Arc<Pod>>>>;

/// What shows that the process makes progress.
pub(crate) struct Liveness {
    pub(crate) heartbeats: Heartbeats,
    /// A loop without a heartbeat for longer is stuck.
    pub(crate) stuck_after: Duration,
    /// `None` for a proxy or an API alone.
    pub(crate) node: Option<NodeParts>,
    /// The API of this process, over its socket as for any client.
    pub(crate) api: Option<LoopbackProbe>,
}

/// The sources of a node's status line.
pub(crate) struct NodeParts {
    pub(crate) docker: watch::Receiver<Health>,
    pub(crate) pods: Pods,
    /// The Node in the API, from the first report of this process on.
    pub(crate) object: WatchedNode,
}

impl NodeParts {
    /// Waits for a change of what the status mentions first: whether Docker answers, and the Node.
    async fn changed(&mut self) {
        // An error is the end of the task, after which nothing changes.
        tokio::select! {
            Ok(()) = self.docker.changed() => {}
            Ok(()) = self.object.changed() => {}
            else => std::future::pending().await,
        }
    }
}

impl Liveness {
    pub(crate) fn new(stuck_after: Duration) -> Self {
        Self { heartbeats: Heartbeats::default(), stuck_after, node: None, api: None }
    }
}

enum Event {
    Started(Started),
    Reloading,
    Reloaded,
    Stopping,
}

/// The handle of the notify task, which ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Notifier {
    event: mpsc::UnboundedSender<Event>,
    _task: AbortOnDropHandle<()>,
}

impl Notifier {
    /// Starts the task; without systemd it does nothing.
    pub(crate) fn start(kind: ServiceKind) -> Self {
        let (event, events) = mpsc::unbounded_channel();
        let watchdog_interval = sd_notify::watchdog_enabled().map(|limit| limit / 2);
        let task: JoinHandle<()> = match std::env::var_os("NOTIFY_SOCKET") {
            Some(_) => tokio::spawn(NotifyTask::new(kind, watchdog_interval).run(events)),
            None => tokio::spawn(std::future::ready(())),
        };
        Self { event, _task: AbortOnDropHandle::new(task) }
    }

    /// All parts run: systemd calls the unit active and releases what waits for it. Whether the Node is Ready is shown
    /// in the status: that may take until an administrator has installed a network plugin.
    pub(crate) fn started(&self, started: Started) {
        self.post(Event::Started(started));
    }

    /// The settings are being reloaded.
    pub(crate) fn reloading(&self) {
        self.post(Event::Reloading);
    }

    /// The reload has ended.
    pub(crate) fn reloaded(&self) {
        self.post(Event::Reloaded);
    }

    /// The process is stopping.
    pub(crate) fn stopping(&self) {
        self.post(Event::Stopping);
    }

    fn post(&self, event: Event) {
        // Without systemd the receiver is dropped.
        let _ = self.event.send(event);
    }
}

/// The notify task.
struct NotifyTask {
    kind: ServiceKind,
    phase: Phase,
    started_at: Instant,
    liveness: Option<Liveness>,
    /// When the API of this process last answered, and its probes.
    api_answered_at: Option<(watch::Receiver<Instant>, AbortOnDropHandle<()>)>,
    watchdog_interval: Option<Duration>,
    sent: SentState,
    failed: bool,
}

impl NotifyTask {
    fn new(kind: ServiceKind, watchdog_interval: Option<Duration>) -> Self {
        Self {
            kind,
            phase: Phase::Starting,
            started_at: Instant::now(),
            liveness: None,
            api_answered_at: None,
            watchdog_interval,
            sent: SentState::new(watchdog_interval),
            failed: false,
        }
    }

    async fn run(mut self, mut events: mpsc::UnboundedReceiver<Event>) {
        // Twice per watchdog ping: one that is slightly too early is sent at the next tick.
        let period = self
            .watchdog_interval
            .map_or(POLL_INTERVAL, |interval| (interval / 2).clamp(Duration::from_millis(1), POLL_INTERVAL));
        let mut ticks = tokio::time::interval(period);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                event = events.recv() => match event {
                    Some(event) => self.handle(event),
                    None => return,
                },
                _ = ticks.tick() => {}
                // The status is updated as soon as the API calls the node Ready.
                () = node_changed(self.liveness.as_mut()) => {}
            }
            let state = evaluate(&self.inputs());
            let messages = self.sent.next(self.phase, &state, self.started_at.elapsed());
            self.send(&messages);
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Started(started) => {
                let liveness = started.into_liveness();
                self.api_answered_at = liveness.api.clone().map(|api| {
                    let (tell_answered, api_answered_at) = watch::channel(Instant::now());
                    (api_answered_at, AbortOnDropHandle::new(tokio::spawn(probe_api(api, tell_answered))))
                });
                (self.liveness, self.phase) = (Some(liveness), Phase::Started);
            }
            Event::Reloading => self.phase = Phase::Reloading,
            Event::Reloaded => self.phase = if self.liveness.is_some() { Phase::Started } else { Phase::Starting },
            Event::Stopping => self.phase = Phase::Stopping,
        }
    }

    fn inputs(&self) -> StateInputs {
        let node = self.liveness.as_ref().and_then(|liveness| liveness.node.as_ref());
        StateInputs {
            kind: self.kind,
            phase: self.phase,
            age: self.started_at.elapsed(),
            docker: node.map_or(Health::Unknown, |node| node.docker.borrow().clone()),
            pods: node.map_or(0, |node| node.pods.borrow().len()),
            readiness: NodeReadiness::of(node.and_then(|node| node.object.borrow().clone()).as_deref()),
            api_unanswered_for: self.api_answered_at.as_ref().map(|(answered_at, _)| answered_at.borrow().elapsed()),
            stuck: self.liveness.as_ref().map(|liveness| liveness.heartbeats.stuck(Instant::now())).unwrap_or_default(),
            stuck_after: self.liveness.as_ref().map_or(Duration::MAX, |liveness| liveness.stuck_after),
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
                Message::Watchdog => states.push(NotifyState::Watchdog),
                Message::ExtendTimeout => states.push(NotifyState::ExtendTimeoutUsec(
                    u32::try_from(START_TIMEOUT_EXTENSION.as_micros()).unwrap_or(u32::MAX),
                )),
            }
        }
        if states.is_empty() {
            return;
        }
        if let Err(error) = sd_notify::notify(&states)
            && !std::mem::replace(&mut self.failed, true)
        {
            tracing::warn!(%error, "failed to notify systemd; its watchdog may kill this process");
        }
    }
}

async fn node_changed(liveness: Option<&mut Liveness>) {
    match liveness.and_then(|liveness| liveness.node.as_mut()) {
        Some(node) => node.changed().await,
        None => std::future::pending().await,
    }
}

/// Probes the API of this process and records when it answers.
async fn probe_api(api: LoopbackProbe, api_answered_at: watch::Sender<Instant>) {
    loop {
        match tokio::time::timeout(API_PROBE_TIMEOUT, api.probe()).await {
            Ok(Ok(())) => drop(api_answered_at.send_replace(Instant::now())),
            Ok(Err(error)) => tracing::debug!(%error, "probe of the own API failed"),
            Err(_) => tracing::debug!("probe of the own API timed out"),
        }
        tokio::time::sleep(API_PROBE_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use k8s_openapi::api::core::v1::Node;

    use super::*;

    #[tokio::test]
    async fn the_status_follows_docker_and_the_node() {
        let (docker, object) = (watch::Sender::new(Health::Unknown), watch::Sender::new(None));
        let pods = watch::Sender::new(Arc::default());
        let node = NodeParts { docker: docker.subscribe(), pods: pods.subscribe(), object: object.subscribe() };
        let mut liveness = Liveness { node: Some(node), ..Liveness::new(Duration::MAX) };
        assert_eq!(node_changed(Some(&mut liveness)).now_or_never(), None);
        docker.send_replace(Health::Down { reason: "no socket".to_owned() });
        assert_eq!(node_changed(Some(&mut liveness)).now_or_never(), Some(()));
        assert_eq!(node_changed(Some(&mut liveness)).now_or_never(), None);
        object.send_replace(Some(Arc::new(Node::default())));
        assert_eq!(node_changed(Some(&mut liveness)).now_or_never(), Some(()));
        // A closed channel does not cause repeated wake-ups.
        drop(docker);
        assert_eq!(node_changed(Some(&mut liveness)).now_or_never(), None);
        object.send_replace(None);
        assert_eq!(node_changed(Some(&mut liveness)).now_or_never(), Some(()));
        drop(object);
        assert_eq!(node_changed(Some(&mut liveness)).now_or_never(), None);
        assert_eq!(node_changed(None).now_or_never(), None);
    }
}
