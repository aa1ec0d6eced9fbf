//! HorizontalPodAutoscaler controller: scales what has a `scale` by metrics of its pods, or of anything else. `pass` decides;
//! it, `conditions`, `messages`, `metric_lists`, `normalize`, `proposals`, `replica_calculator`, `selectors` and
//! `server_errors` are pure and may not import tokio or kube's client; `metrics_client` and `scales` ask the API.
//!
//! Each autoscaler is visited every 15 seconds, and at once when its spec has changed.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::autoscaling::v2::{
    CrossVersionObjectReference, HorizontalPodAutoscaler, HorizontalPodAutoscalerSpec, HorizontalPodAutoscalerStatus,
    MetricSpec,
};
use kube::{
    Api, Client, Resource as _, ResourceExt as _,
    api::{Patch, PatchParams},
};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use windlass_kit::{
    events::Recorder,
    objects::label_selector::{self, Selector},
};

use super::{
    indexes::{PODS_BY_LABEL, selected},
    runtime::{Cache, CachedPod, Context, Controller, Error, Key, Outcome, PerOwner, error},
};

mod conditions;
mod messages;
mod metric_lists;
mod metrics_client;
mod monitor;
mod normalize;
mod pass;
mod proposals;
mod replica_calculator;
mod scales;
mod selectors;
mod server_errors;
#[cfg(test)]
mod tests;

use messages::{Message, SelectorProblem};
use metrics_client::MetricsClient;
use monitor::Monitor;
use normalize::History;
use pass::{Action, Fault, Next, Pass};
use proposals::{Failure, Proposal};
use replica_calculator::Target;
use scales::{Found, Scales};
use selectors::Selectors;

impl crate::runtime::Cached for HorizontalPodAutoscaler {}

/// `--horizontal-pod-autoscaler-sync-period`.
const SYNC_PERIOD: Duration = Duration::from_secs(15);

/// The controller.
pub(super) struct HorizontalController {
    client: Client,
    recorder: Recorder,
    autoscalers: Cache<HorizontalPodAutoscaler>,
    pods: Cache<CachedPod>,
    metrics: MetricsClient,
    scales: Scales,
    states: PerOwner<AutoscalerState>,
    selectors: Mutex<Selectors>,
    monitor: Arc<Monitor>,
    /// From here on, steady time is counted.
    started: Instant,
    clock: Clock,
}

/// Returns the current time, which the ages of pods are compared with.
pub(super) type Clock = fn() -> Timestamp;

/// What is remembered of one autoscaler.
#[derive(Debug, Default)]
struct AutoscalerState {
    history: History,
    /// The end of the last visit, and the spec that it found.
    visited: Option<(Duration, HorizontalPodAutoscalerSpec)>,
}

impl AutoscalerState {
    /// How long to wait for the next visit, if it is not due.
    fn wait(&self, spec: &HorizontalPodAutoscalerSpec, now: Duration) -> Option<Duration> {
        let (at, of) = self.visited.as_ref()?;
        let wait = (*at + SYNC_PERIOD).saturating_sub(now);
        (of == spec && !wait.is_zero()).then_some(wait)
    }
}

impl Controller for HorizontalController {
    const NAME: &'static str = "horizontal-pod-autoscaler-controller";
    const QUEUE: &'static str = "horizontalpodautoscaler";
    type Key = Key;
    type Config = Clock;

    fn subscribe(context: &mut Context<Key>, clock: Clock) -> Self {
        let (autoscalers, pods) = (context.informer::<HorizontalPodAutoscaler>(), context.informer::<CachedPod>());
        pods.index(&PODS_BY_LABEL);
        let queue = context.queue();
        autoscalers.on_change(move |old, new| {
            if let (Some(old), Some(new)) = (old, new)
                && old.spec == new.spec
                && old.metadata.uid == new.metadata.uid
            {
                return;
            }
            if let Some(autoscaler) = new.or(old) {
                queue.add(Key::of(&autoscaler.metadata));
            }
        });
        let monitor: Arc<Monitor> = context.metrics().of();
        monitor.forget_all();
        let client = context.client();
        Self {
            recorder: context.recorder("horizontal-pod-autoscaler"),
            autoscalers: autoscalers.cache(),
            pods: pods.cache(),
            metrics: MetricsClient::new(client.clone()),
            scales: Scales::new(client.clone(), context.discovery()),
            client,
            states: PerOwner::default(),
            selectors: Mutex::default(),
            monitor,
            started: Instant::now(),
            clock,
        }
    }

    async fn prepare(&self, shutdown: &CancellationToken) {
        self.scales.prepare(shutdown).await;
    }

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(autoscaler) = self.autoscalers.get(&key) else {
            self.states.forget(&key);
            self.selectors.lock().forget(&key);
            self.monitor.forget(&key);
            return Ok(Outcome::Done);
        };
        let spec = &autoscaler.spec;
        self.monitor.seen(&key);
        let uid = autoscaler.uid().unwrap_or_default();
        let begun = self.started.elapsed();
        if let Some(wait) = self.states.with(&key, &uid, |state| state.wait(spec, begun)) {
            return Ok(Outcome::After(wait));
        }
        let mut pass = Pass::new(&autoscaler, (self.clock)());
        self.visit(&key, &uid, &spec.scale_target_ref, &mut pass).await;
        if let Err(message) = self.write(&key, &autoscaler, &pass.status).await {
            pass.events.push(message);
            pass.fault = Fault::Internal;
        }
        let about = autoscaler.object_ref(&());
        for Message { severity, reason, text } in pass.events {
            self.recorder.record(&about, severity, reason, text);
        }
        if let Some(size) = pass.decided {
            self.monitor.decided(&key, size);
        }
        let ended = self.started.elapsed();
        self.monitor.reconciled(pass.action, pass.fault, ended.saturating_sub(begun));
        self.states.with(&key, &uid, |state| state.visited = Some((ended, spec.clone())));
        // Also after a failure, as upstream.
        Ok(Outcome::After(SYNC_PERIOD))
    }
}

impl HorizontalController {
    /// Finds out what `pass` asks for, and does it.
    async fn visit(&self, key: &Key, uid: &str, target: &CrossVersionObjectReference, pass: &mut Pass<'_>) {
        let version = target.api_version.as_deref().unwrap_or_default();
        if version.matches('/').count() > 1 {
            return pass.no_scale(&format!("unexpected GroupVersion string: {version}"), Fault::Spec);
        }
        let found = match self.scales.read(&key.namespace, target).await {
            Ok(found) => found,
            Err(why) => return pass.no_scale(&why, Fault::Internal),
        };
        let steady = self.started.elapsed();
        let mut next = self.states.with(key, uid, |state| pass.begin(found.wanted(), &mut state.history, steady));
        let mut statuses = Vec::new();
        if next == Next::Measure {
            let (selector, pods) = match self.select(key, &found) {
                Ok(selected) => selected,
                Err(problem) => return pass.unselectable(&problem),
            };
            let mut proposals = Vec::new();
            for metric in pass.metrics() {
                proposals.push(self.measure(key, metric, pass, &found, &selector, &pods).await);
            }
            (next, statuses) = self.states.with(key, uid, |state| pass.measured(proposals, &mut state.history, steady));
        }
        let Next::Rescale { size, reason } = next else { return };
        match found.resize(size).await {
            Ok(()) => {
                let from = found.wanted();
                tracing::info!(autoscaler = %key, from, to = size, reason, "rescaled");
                self.states.with(key, uid, |state| {
                    pass.rescaled(size, &reason, statuses, &mut state.history, steady);
                });
            }
            Err(why) => pass.not_rescaled(size, &reason, &why, statuses),
        }
    }

    /// The pods of a scale, and their selector: `validateAndParseSelector`.
    fn select(&self, key: &Key, found: &Found) -> Result<(String, Vec<Arc<CachedPod>>), SelectorProblem> {
        let selector = found.selector().ok_or(SelectorProblem::Missing)?;
        // Ordered by key, however the scale writes it.
        let text = label_selector::text(selector);
        let pods = selected(&self.pods, &key.namespace, Selector::from(selector));
        let mut selectors = self.selectors.lock();
        selectors.set(key, selector);
        let autoscalers = selectors.controlling(&key.namespace, &pods);
        if autoscalers.len() > 1 {
            return Err(SelectorProblem::Ambiguous { selector: text, autoscalers });
        }
        Ok((text, pods))
    }

    /// Evaluates one metric.
    async fn measure(
        &self,
        key: &Key,
        metric: &MetricSpec,
        pass: &Pass<'_>,
        found: &Found,
        selector: &str,
        pods: &[Arc<CachedPod>],
    ) -> Result<Proposal, Failure> {
        let begun = Instant::now();
        let answer = match proposals::query(metric) {
            Some(query) => Some(self.metrics.ask(&query, &key.namespace, selector, &self.scales).await),
            None => None,
        };
        let (current, present) = (found.wanted(), found.present());
        let of = Target { pods, current, present, tolerances: pass.tolerances(), now: (self.clock)() };
        let proposal = proposals::propose(metric, &of, &key.namespace, answer);
        let shown = pass.status.current_replicas.unwrap_or(0);
        let (action, fault) = match &proposal {
            Ok(proposal) if proposal.count > shown => (Action::ScaleUp, Fault::None),
            Ok(proposal) if proposal.count < shown => (Action::ScaleDown, Fault::None),
            Ok(_) => (Action::None, Fault::None),
            Err(failure) if failure.spec => (Action::None, Fault::Spec),
            Err(_) => (Action::None, Fault::Internal),
        };
        self.monitor.computed(action, fault, &metric.type_, begun.elapsed());
        proposal
    }

    /// Writes the status if it has changed: `updateStatusIfNeeded`.
    ///
    /// # Errors
    /// The event of a refusal; the next visit writes again.
    async fn write(
        &self,
        key: &Key,
        autoscaler: &HorizontalPodAutoscaler,
        status: &HorizontalPodAutoscalerStatus,
    ) -> Result<(), Message> {
        if pass::same_status(autoscaler.status.as_ref().unwrap_or(&HorizontalPodAutoscalerStatus::default()), status) {
            return Ok(());
        }
        let meta = &autoscaler.metadata;
        let patch = json!({
            "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
            "status": {
                "currentReplicas": status.current_replicas,
                "desiredReplicas": status.desired_replicas,
                "lastScaleTime": status.last_scale_time,
                "currentMetrics": status.current_metrics.as_ref().filter(|metrics| !metrics.is_empty()),
                "conditions": status.conditions,
            },
        });
        let api: Api<HorizontalPodAutoscaler> = Api::namespaced(self.client.clone(), &key.namespace);
        match api.patch_status(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Err(error) if error::is_not_found(&error) => Ok(()),
            written => written.map(drop).map_err(|error| {
                tracing::debug!(autoscaler = %key, %error, "failed to update the status; the next visit writes again");
                messages::failed_update_status(&server_errors::text(&error))
            }),
        }
    }
}
