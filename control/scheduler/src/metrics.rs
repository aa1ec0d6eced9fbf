//! What the scheduler counts, under upstream's names, labels and buckets.
//!
//! Upstream: `pkg/scheduler/metrics`.

use tokio::time::Instant;
use windlass_kit::{
    metrics::{Counter, Gauge, Histogram, Metrics, exponential_buckets},
    prometheus::Text,
};

use super::{
    SCHEDULER_NAME,
    state::{Decided, Decision, Reason, State},
    writer::Outcome,
};

const ATTEMPT_SECONDS: &[f64] = &exponential_buckets::<15>(0.001, 2.0);
const SLI_SECONDS: &[f64] = &exponential_buckets::<20>(0.01, 2.0);
const ATTEMPTS: &[f64] = &exponential_buckets::<5>(1.0, 2.0);
const VICTIMS: &[f64] = &exponential_buckets::<7>(1.0, 2.0);
/// From this number on attempts have one label.
const MANY_ATTEMPTS: u32 = 15;
/// The queues of [`super::queue::SchedulingQueue::pending`].
const QUEUES: [&str; 4] = ["active", "backoff", "unschedulable", "gated"];

/// All families.
#[derive(Debug)]
pub(super) struct SchedulerMetrics {
    attempts: Counter<2>,
    attempt_seconds: Histogram<2>,
    algorithm_seconds: Histogram<0>,
    sli_seconds: Histogram<1>,
    attempts_of_pod: Histogram<0>,
    victims: Histogram<0>,
    preemptions: Counter<0>,
    pending: Gauge<1>,
    cache: Gauge<1>,
}

/// One attempt to schedule a pod.
pub(super) struct Attempt {
    began: Instant,
    /// When the pod was tried first, and how often.
    tried: Option<(Instant, u32)>,
}

impl Default for SchedulerMetrics {
    fn default() -> Self {
        Self {
            attempts: Counter::new(
                "scheduler_schedule_attempts_total",
                "Attempts to schedule pods, by how they ended.",
                ["result", "profile"],
            ),
            attempt_seconds: Histogram::new(
                "scheduler_scheduling_attempt_duration_seconds",
                "How long attempts took, with the binding.",
                ["result", "profile"],
                ATTEMPT_SECONDS,
            ),
            algorithm_seconds: Histogram::new(
                "scheduler_scheduling_algorithm_duration_seconds",
                "How long the decisions took.",
                [],
                ATTEMPT_SECONDS,
            ),
            sli_seconds: Histogram::new(
                "scheduler_pod_scheduling_sli_duration_seconds",
                "From the first attempt for a pod to its binding.",
                ["attempts"],
                SLI_SECONDS,
            ),
            attempts_of_pod: Histogram::new(
                "scheduler_pod_scheduling_attempts",
                "How many attempts pods needed.",
                [],
                ATTEMPTS,
            ),
            victims: Histogram::new(
                "scheduler_preemption_victims",
                "Pods that have to go for another one.",
                [],
                VICTIMS,
            ),
            preemptions: Counter::new(
                "scheduler_preemption_attempts_total",
                "Pods that fit nowhere, for which it was looked whether others can go.",
                [],
            ),
            pending: Gauge::new("scheduler_pending_pods", "Pods that wait, by what they wait for.", ["queue"]),
            cache: Gauge::new(
                "scheduler_cache_size",
                "Nodes, pods, and pods that the scheduler has bound and not seen bound yet.",
                ["type"],
            ),
        }
    }
}

impl Metrics for SchedulerMetrics {
    fn write(&self, page: &mut Text) {
        self.attempts.write(page);
        self.attempt_seconds.write(page);
        self.algorithm_seconds.write(page);
        self.sli_seconds.write(page);
        self.attempts_of_pod.write(page);
        self.victims.write(page);
        self.preemptions.write(page);
        self.pending.write(page);
        self.cache.write(page);
    }
}

impl SchedulerMetrics {
    /// A decision was made; the outcome of a binding is recorded later.
    pub(super) fn decided(&self, state: &State, (pod, _, decision): &Decided, began: Instant) -> Attempt {
        self.algorithm_seconds.observe_duration([], began.elapsed());
        let attempt = Attempt { began, tried: state.queue.tried(&pod.key()) };
        if let Decision::Unschedulable(refusal) = decision {
            let result = match refusal.reason {
                Reason::Unschedulable => "unschedulable",
                Reason::SchedulerError => "error",
            };
            self.ended(result, &attempt);
            if refusal.reason == Reason::Unschedulable {
                self.preemptions.add([]);
            }
            if let Some(preemption) = &refusal.preemption {
                let victims = u32::try_from(preemption.victims.len()).unwrap_or(u32::MAX);
                self.victims.observe([], victims.into());
            }
        }
        attempt
    }

    /// The writes of a decision have ended.
    pub(super) fn written(&self, outcome: &Outcome, attempt: &Attempt) {
        if !matches!(outcome, Outcome::Bound) {
            return;
        }
        self.ended("scheduled", attempt);
        let Some((first, attempts)) = attempt.tried else { return };
        self.attempts_of_pod.observe([], attempts.into());
        let label = if attempts >= MANY_ATTEMPTS { format!("{MANY_ATTEMPTS}+") } else { attempts.to_string() };
        self.sli_seconds.observe_duration([&label], first.elapsed());
    }

    fn ended(&self, result: &str, attempt: &Attempt) {
        self.attempts.add([result, SCHEDULER_NAME]);
        self.attempt_seconds.observe_duration([result, SCHEDULER_NAME], attempt.began.elapsed());
    }

    /// Takes over how much the scheduler knows.
    pub(super) fn known(&self, state: &State) {
        let signed = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        for (queue, count) in QUEUES.into_iter().zip(state.queue.pending()) {
            self.pending.set([queue], signed(count));
        }
        for (kind, count) in ["nodes", "pods", "assumed_pods"].into_iter().zip(state.sizes()) {
            self.cache.set([kind], signed(count));
        }
    }
}
