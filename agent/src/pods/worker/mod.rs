//! One task per pod: it alone knows what runs of the pod, decides by `lifecycle`, starts `steps` and writes the pod's
//! status.
//!
//! Its `impl` is cut by subject: [`actions`], [`outcomes`], [`updates`] of the object, [`runtime_events`],
//! [`status_sync`], [`resize`], [`kill`], [`metrics`]. Imports `steps`, `admission`, `container` and `lifecycle`, never
//! `dispatcher`.

mod actions;
mod clock;
mod kill;
mod metrics;
mod outcomes;
pub(crate) mod pod_killer;
mod resize;
mod runtime_events;
mod status_sync;
mod updates;

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{
    StreamExt as _,
    future::BoxFuture,
    stream::{FuturesUnordered, SelectAll},
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::wrappers::WatchStream;
use tokio_util::sync::CancellationToken;
use windlass_cadvisor::Target;
use windlass_kit::{backoff::Backoff, events::Severity, liveness::STUCK_AFTER};

use self::{
    clock::Clock,
    metrics::StartTimes,
    outcomes::{API_RETRY, UNCHANGED_STATUS_RETRY},
    pod_killer::{KillRequest, KillResult},
};
use super::{
    lifecycle::{
        action::{Action, Plan},
        kill::KillReason,
        observed::{Observed, ResizeDecision},
        plan::{Desired, plan},
        reasons,
        resize::{with_actual_resources, with_limits_of_containers},
        spec,
        step_key::StepKey,
        time::{normalize_times, saturating_add, shift},
        volumes::MOUNT_TIMEOUT,
    },
    steps::{self, context::PodContext, host_files, outcome::Outcome},
};
use crate::{
    engine::{
        containers::Listed,
        events::Changed,
        inspect::{Instance, State},
    },
    network::Readiness,
    volumes::{
        MountSource,
        object_watch::{ObjectRef, ObjectWatch},
    },
};

/// Runtime events that wait for a worker at most; when more are lost, the next list makes up for them.
pub(crate) const EVENT_QUEUE_CAPACITY: usize = 64;

/// What a source of pods says of a pod.
#[derive(Debug, Clone)]
pub(crate) enum PodUpdate {
    /// The pod as the API has it, and when the list began that it belongs to, with the watch after it.
    Run { pod: Arc<Pod>, list: Option<Instant> },
    /// A static pod, and its mirror pod in the API.
    RunStatic { pod: Arc<Pod>, mirror: Option<Arc<Pod>> },
    /// No source has the pod any more.
    Deleted,
}

/// An event from the container engine, routed to the worker of the pod that it belongs to.
#[derive(Debug)]
pub(crate) enum RuntimeEvent {
    Changed(Changed),
    /// All containers of this pod, after events may have been lost.
    Listed(Vec<Listed>),
    /// The disk is under pressure: exited containers of a terminal pod may be removed.
    GcExited,
}

/// Why a worker returned.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum WorkerExit {
    /// Nothing is left of the pod.
    Finished,
    /// The agent shuts down; the pod keeps running.
    Shutdown,
}

pub(crate) struct Worker {
    context: Arc<PodContext>,
    uid: String,
    pod: Option<Arc<Pod>>,
    /// When the list began that the pod is of, with the watch after it.
    list: Option<Instant>,
    /// When a write to the API last returned the pod.
    responded_at: Option<Instant>,
    /// Of a static pod: its mirror pod, which shows its status in the API.
    mirror: Option<Arc<Pod>>,
    /// No source has the pod any more.
    deleted: bool,
    observed: Observed,
    volumes: Arc<BTreeMap<String, MountSource>>,
    steps: FuturesUnordered<BoxFuture<'static, (StepKey, Outcome)>>,
    /// The tokens of steps in flight that can be cancelled.
    cancellations: BTreeMap<StepKey, CancellationToken>,
    /// Watches of the ConfigMaps and Secrets that the pod references.
    object_watches: BTreeMap<ObjectRef, ObjectWatch>,
    object_changes: SelectAll<WatchStream<u64>>,
    /// The running containers as they were last published.
    published: Vec<Arc<Target>>,
    /// No status is patched before.
    patch_after: Option<Timestamp>,
    /// Since when a change of the status that no client waits for is batched.
    batched_since: Option<Timestamp>,
    /// The back-off of status patches that the API refuses, until the pod is next updated.
    refused_patches: Backoff,
    /// Why the API rejected the status as invalid, as it was last logged.
    logged_invalid: Option<String>,
    /// Since when the pod waits for its volumes; counted again with each event about that.
    volumes_awaited_since: Option<Timestamp>,
    /// When a deferred resize is evaluated again.
    resize_retry_at: Option<Timestamp>,
    /// When the resize was first deferred.
    resize_deferred_at: Option<Timestamp>,
    /// The pod has no reservation any more.
    reservation_released: bool,
    clock: Clock,
    /// The machine's clock was set since this worker started.
    clock_was_set: bool,
    /// Until the pod has started, the times of its start; `None` for an adopted pod.
    start: Option<StartTimes>,
    /// The engine did not answer: no step is started before.
    pause_until: Option<Timestamp>,
    /// Requests to kill the pod, each with when it times out.
    kill_waiters: Vec<(oneshot::Sender<KillResult>, Timestamp)>,
}

impl Worker {
    /// A worker that adopts `instances`, empty for a new pod; a rejected pod has a reason to be killed.
    pub(crate) fn new(
        context: Arc<PodContext>,
        uid: String,
        instances: Vec<Instance>,
        kill: Option<KillReason>,
    ) -> Self {
        let start = instances.is_empty().then(StartTimes::new);
        let adopted_at = (!instances.is_empty()).then(Timestamp::now);
        let mut observed = Observed { kill, adopted_at, ..Observed::default() };
        for instance in instances {
            let instance = host_files::with_written_message(&context, instance);
            observed.upsert(normalize_times(instance, None, false, Timestamp::now()));
        }
        let sandboxes = observed.instances.iter().filter(|i| i.is_sandbox() && i.is_running());
        // A sandbox that runs was attached by the agent that started it; `reattach` makes sure.
        let network_ready = sandboxes.map(|i| i.id.clone()).collect();
        observed.network_ready = network_ready;
        observed.addresses = observed.sandbox().map(|s| s.addresses.clone()).unwrap_or_default();
        if observed.addresses.is_empty() {
            observed.addresses = context.node.network.addresses_of(&uid);
        }
        Self {
            context,
            uid,
            pod: None,
            list: None,
            responded_at: None,
            mirror: None,
            deleted: false,
            observed,
            volumes: Arc::default(),
            steps: FuturesUnordered::new(),
            cancellations: BTreeMap::new(),
            object_watches: BTreeMap::new(),
            object_changes: SelectAll::new(),
            published: Vec::new(),
            patch_after: None,
            batched_since: None,
            refused_patches: Backoff::new(API_RETRY, UNCHANGED_STATUS_RETRY),
            logged_invalid: None,
            volumes_awaited_since: None,
            resize_retry_at: None,
            resize_deferred_at: None,
            reservation_released: false,
            clock: Clock::new(),
            clock_was_set: false,
            start,
            pause_until: None,
            kill_waiters: Vec::new(),
        }
    }

    /// Runs until nothing is left of the pod, or the agent shuts down.
    pub(crate) async fn run(
        mut self,
        mut updates: watch::Receiver<PodUpdate>,
        mut events: mpsc::Receiver<RuntimeEvent>,
        mut kills: mpsc::UnboundedReceiver<KillRequest>,
        shutdown: CancellationToken,
    ) -> WorkerExit {
        self.apply_update(&updates.borrow_and_update().clone());
        self.reattach();
        let mut engine_health = self.context.engine_health.clone();
        let mut capacity_freed = self.context.capacity_freed.subscribe();
        let mut images_changed = self.context.images_changed.subscribe();
        let mut network = self.context.node.network.readiness();
        let heart = self.context.node.heartbeats.begin("pod worker", self.uid.clone(), STUCK_AFTER);
        loop {
            heart.beat();
            let wake_at = self.sync();
            self.publish_running().await;
            if self.is_finished() {
                self.context.change_reservation(&self.uid, None);
                let _ = self.context.running.send((self.uid.clone(), Vec::new())).await;
                self.context.node.containers.remove(&self.uid);
                heart.end();
                return WorkerExit::Finished;
            }
            // Until something happens to the pod nothing is to be done.
            heart.rest();
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return WorkerExit::Shutdown,
                Some((key, outcome)) = self.steps.next(), if !self.steps.is_empty() => self.step_done(key, outcome),
                changed = updates.changed() => match changed {
                    Ok(()) => { let latest = updates.borrow_and_update().clone(); self.apply_update(&latest); }
                    Err(_) => return WorkerExit::Shutdown,
                },
                Some(request) = kills.recv() => self.handle_kill(request),
                Some(event) = events.recv() => self.on_runtime_event(event),
                Some(_) = self.object_changes.next(), if !self.object_changes.is_empty() => self.objects_changed(),
                changed = engine_health.changed() => {
                    if changed.is_ok() && self.context.is_engine_up() { self.pause_until = None; }
                }
                changed = network.changed(), if self.waits_for_network() => {
                    if changed.is_ok() && *network.borrow_and_update() == Readiness::Ready { self.retry_sandbox(); }
                }
                Ok(()) = images_changed.changed() => self.observed.doubt_images(),
                _ = capacity_freed.changed(), if matches!(self.observed.resize, Some(ResizeDecision::Deferred(_))) => {
                    self.resize_retry_at = None;
                }
                () = sleep_until(wake_at) => {}
            }
        }
    }

    /// Starts what is due, patches the status and answers kill requests; gives when to do so again.
    fn sync(&mut self) -> Option<Timestamp> {
        let now = self.now();
        let plan = self.start_due(now);
        let status = self.sync_status(now);
        let kills = self.answer_kills(now);
        plan.into_iter().chain(status).chain(kills).min()
    }

    fn step_done(&mut self, key: StepKey, outcome: Outcome) {
        self.observed.in_flight.remove(&key);
        self.cancellations.remove(&key);
        self.observe_outcome(&outcome);
        self.apply_outcome(outcome);
        if matches!(key, StepKey::Container(_) | StepKey::Create(_) | StepKey::Resize) {
            self.observed.pod_limits = self.context.node.cgroups.pod(&self.uid).and_then(|is| is.limits());
        }
    }

    /// Whether no sandbox could be created since the node's network was not ready.
    fn waits_for_network(&self) -> bool {
        self.observed.sandbox_failure.as_ref().is_some_and(|failure| failure.reason == reasons::NETWORK_NOT_READY)
    }

    fn retry_sandbox(&mut self) {
        let now = self.now();
        if let Some(failure) = &mut self.observed.sandbox_failure {
            failure.retry_at = now;
        }
    }

    /// Whether nothing is left of the pod, neither on the node nor in the API.
    fn is_finished(&self) -> bool {
        let deleted = self.observed.deleted_from_api || (self.deleted && self.observed.cleaned_up);
        deleted && self.observed.instances.is_empty()
    }

    /// Whether the pod was deleted.
    fn is_terminating(&self) -> bool {
        self.deleted || self.pod.as_ref().is_some_and(|pod| pod.metadata.deletion_timestamp.is_some())
    }

    /// The time. When the clock was set, all remembered times are shifted.
    fn now(&mut self) -> Timestamp {
        let (now, jump) = self.clock.read();
        if let Some(by) = jump {
            self.clock_was_set = true;
            self.observed.shift_times(by);
            let started = self.pod.as_ref().and_then(|pod| pod.status.as_ref()?.start_time.as_ref());
            if started.is_some() {
                self.observed.start_shift = self.observed.start_shift.saturating_add(by);
            }
            let own = [
                &mut self.patch_after,
                &mut self.batched_since,
                &mut self.volumes_awaited_since,
                &mut self.resize_retry_at,
                &mut self.resize_deferred_at,
                &mut self.pause_until,
            ];
            let own = own.into_iter().flatten().chain(self.kill_waiters.iter_mut().map(|(_, until)| until));
            own.for_each(|at| *at = shift(*at, by));
        }
        now
    }

    fn desired(&self) -> Option<Desired<'_>> {
        if self.deleted {
            let grace = self.observed.instances.iter().filter_map(|i| i.grace).max().unwrap_or(30);
            let asked = self.pod.as_deref().and_then(spec::deletion_grace);
            return Some(Desired::Deleted { grace: asked.unwrap_or(grace), pod: self.pod.as_deref() });
        }
        self.pod.as_deref().map(Desired::Run)
    }

    /// Starts the steps of the plan and gives when to plan again.
    fn start_due(&mut self, now: Timestamp) -> Option<Timestamp> {
        if let Some(at) = self.pause_until.filter(|at| *at > now) {
            return Some(at);
        }
        if !self.context.is_engine_up() {
            return None;
        }
        self.inspect_due();
        let resize_at = self.sync_resize(now);
        let mount_timeout = self.report_unmounted(now);
        let Plan { actions, wake_at, terminates } = plan(self.desired()?, &self.observed, now);
        if terminates {
            let cancelled = self.cancellations.iter().filter(|(key, _)| key.is_cancelled_on_termination());
            cancelled.for_each(|(_, token)| token.cancel());
        }
        for action in actions {
            self.start(action);
        }
        wake_at.into_iter().chain(resize_at).chain(mount_timeout).min()
    }

    /// Records an event of a pod that waits too long for its volumes; gives when the next one is due.
    fn report_unmounted(&mut self, now: Timestamp) -> Option<Timestamp> {
        let pod = self.pod.clone().filter(|pod| !self.is_terminating() && !spec::is_terminal(pod))?;
        let waited_for = pod.spec.as_ref().filter(|spec| !self.observed.are_volumes_ready(spec));
        let Some(spec) = waited_for.filter(|_| self.observed.kill.is_none()) else {
            self.volumes_awaited_since = None;
            return None;
        };
        let due = saturating_add(*self.volumes_awaited_since.get_or_insert(now), MOUNT_TIMEOUT);
        if due > now {
            return Some(due);
        }
        let message = self.observed.unmounted_message(spec);
        self.context.event(&pod, None, Severity::Warning, reasons::FAILED_MOUNT, message);
        self.volumes_awaited_since = Some(now);
        Some(saturating_add(now, MOUNT_TIMEOUT))
    }

    /// After a restart of the agent: makes sure of the network of an adopted sandbox, of hooks, and of termination messages.
    fn reattach(&mut self) {
        let without_message = self.observed.instances.iter().filter(|i| host_files::needs_log_tail(i));
        let without_message: Vec<String> = without_message.map(|i| i.id.clone()).collect();
        for id in without_message {
            self.inspect(id);
        }
        // The agent that started them may have been killed right after that.
        let begun = self.observed.instances.iter().filter(|i| !i.is_sandbox() && i.state != State::Created);
        begun.for_each(|instance| self.begun(instance));
        self.observed.adopt(self.pod.as_deref());
        let Some(pod) = self.pod.clone().filter(|p| p.metadata.deletion_timestamp.is_none()) else { return };
        let Some(sandbox) = self.observed.sandbox().filter(|s| s.is_running()).cloned() else { return };
        if self.context.is_engine_up() {
            // What the spec asks for is evaluated first.
            let allocated = Arc::new(with_actual_resources(&pod, &self.observed));
            let running = with_limits_of_containers(&allocated, &self.observed);
            let key = Action::StartSandbox { id: sandbox.id.clone() }.key();
            self.push(key, steps::reattach_sandbox(Arc::clone(&self.context), allocated, running, sandbox));
        }
    }
}

/// Sleeps until a wall-clock time; for ever if `None`.
async fn sleep_until(at: Option<Timestamp>) {
    match at {
        Some(at) => {
            let left = Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or(Duration::ZERO);
            tokio::time::sleep(left).await;
        }
        None => std::future::pending().await,
    }
}
