//! Metrics of work queues, by upstream's names (component-base, `metrics/prometheus/workqueue`).

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;
use windlass_kit::{
    metrics::{Counter, Histogram},
    prometheus::{Kind, Text},
};

/// Buckets in seconds, upstream's: powers of ten from ten nanoseconds.
const BUCKETS: &[f64] = &[1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, 1000.0];

/// What a queue shows of its present state.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Gauges {
    /// Keys that wait for a worker.
    pub(crate) depth: usize,
    /// The time for which all present workers have been at work, together.
    pub(crate) unfinished: Duration,
    /// The longest of them.
    pub(crate) longest: Duration,
}

impl Gauges {
    /// Those of another queue of the same name.
    fn add(&mut self, other: Self) {
        self.depth += other.depth;
        self.unfinished += other.unfinished;
        self.longest = self.longest.max(other.longest);
    }
}

type Observe = Box<dyn Fn(Instant) -> Gauges + Send + Sync>;

/// The metrics of all queues.
pub(crate) struct QueueMetrics {
    adds: Counter<1>,
    retries: Counter<1>,
    waited: Histogram<1>,
    worked: Histogram<1>,
    /// By the names of queue and controller.
    queues: Mutex<BTreeMap<(&'static str, &'static str), Observe>>,
}

impl Default for QueueMetrics {
    fn default() -> Self {
        Self {
            adds: Counter::new("workqueue_adds_total", "Keys added to a work queue.", ["name"]),
            retries: Counter::new("workqueue_retries_total", "Keys added after a delay.", ["name"]),
            waited: Histogram::new(
                "workqueue_queue_duration_seconds",
                "Time from the addition of a key until a worker takes it.",
                ["name"],
                BUCKETS,
            ),
            worked: Histogram::new("workqueue_work_duration_seconds", "Time of a worker on a key.", ["name"], BUCKETS),
            queues: Mutex::default(),
        }
    }
}

impl fmt::Debug for QueueMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueMetrics").finish_non_exhaustive()
    }
}

impl QueueMetrics {
    /// Shows the state of the queue `name` of `controller`, in place of an earlier one.
    pub(crate) fn observe(
        &self,
        name: &'static str,
        controller: &'static str,
        queue: impl Fn(Instant) -> Gauges + Send + Sync + 'static,
    ) {
        self.queues.lock().insert((name, controller), Box::new(queue));
    }

    /// Writes all families.
    pub(crate) fn write(&self, page: &mut Text, now: Instant) {
        self.adds.write(page);
        self.retries.write(page);
        self.waited.write(page);
        self.worked.write(page);
        let queues = self.queues.lock();
        let mut gauges: BTreeMap<&str, Gauges> = BTreeMap::new();
        for ((name, _), observe) in queues.iter() {
            gauges.entry(name).or_default().add(observe(now));
        }
        drop(queues);
        let mut family = |name: &str, help: &str, value: &dyn Fn(&Gauges) -> f64| {
            page.family(name, help, Kind::Gauge);
            gauges.iter().for_each(|(queue, gauges)| page.sample(name, &[("name", queue)], value(gauges)));
        };
        #[allow(clippy::cast_precision_loss, reason = "a gauge")]
        family("workqueue_depth", "Keys that wait in a work queue.", &|g| g.depth as f64);
        family("workqueue_unfinished_work_seconds", "Time spent so far on keys that are worked on.", &|g| {
            g.unfinished.as_secs_f64()
        });
        family(
            "workqueue_longest_running_processor_seconds",
            "Time spent so far by the longest worker on a key.",
            &|g| g.longest.as_secs_f64(),
        );
    }
}

/// What one queue records.
#[derive(Debug, Clone, Default)]
pub(super) struct QueueRecorder {
    pub(super) name: &'static str,
    pub(super) metrics: Arc<QueueMetrics>,
}

impl QueueRecorder {
    pub(super) fn added(&self) {
        self.metrics.adds.add([self.name]);
    }

    pub(super) fn retried(&self) {
        self.metrics.retries.add([self.name]);
    }

    pub(super) fn waited(&self, time: Duration) {
        self.metrics.waited.observe_duration([self.name], time);
    }

    pub(super) fn worked(&self, time: Duration) {
        self.metrics.worked.observe_duration([self.name], time);
    }
}
