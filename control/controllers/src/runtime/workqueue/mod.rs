//! A work queue of keys: one pending entry per key, never two workers on one key, per-key back-off
//! and delayed entries. `State` decides and knows no clock; `WorkQueue` lets tasks wait for it.

use std::{
    collections::{BTreeMap, HashMap, VecDeque, hash_map::Entry},
    fmt,
    future::Future,
    hash::Hash,
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt, stream::FuturesUnordered};
use parking_lot::{Mutex, MutexGuard};
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;
use windlass_kit::backoff::delay_after;

mod metrics;
#[cfg(test)]
mod tests;

pub(crate) use metrics::{Gauges, QueueMetrics};

use metrics::QueueRecorder;

/// First delay after a failure, doubling with each further one (client-go's item back-off).
const RETRY_BASE: Duration = Duration::from_millis(5);
/// The longest delay after failures (client-go's item back-off).
const RETRY_CAP: Duration = Duration::from_secs(1000);
/// First delay after a refusal by others, doubling as above (that of upstream's certificate controllers).
const REFUSED_BASE: Duration = Duration::from_millis(200);

/// The pending, processing and delayed keys.
#[derive(Debug)]
pub(crate) struct State<K> {
    ready: VecDeque<K>,
    /// When each of `ready` was added.
    queued: HashMap<K, Instant>,
    /// Since when each key is worked on.
    processing: HashMap<K, Instant>,
    /// Added, at that time, while being worked on: queued again when done.
    again: HashMap<K, Instant>,
    timers: BTreeMap<(Instant, u64), K>,
    due: HashMap<K, (Instant, u64)>,
    failures: HashMap<K, u32>,
    serial: u64,
    recorder: QueueRecorder,
}

impl<K> Default for State<K> {
    fn default() -> Self {
        Self {
            ready: VecDeque::new(),
            queued: HashMap::new(),
            processing: HashMap::new(),
            again: HashMap::new(),
            timers: BTreeMap::new(),
            due: HashMap::new(),
            failures: HashMap::new(),
            serial: 0,
            recorder: QueueRecorder::default(),
        }
    }
}

impl<K: Clone + Eq + Hash> State<K> {
    /// Queues `key` unless it already waits; a key being worked on is queued again afterwards.
    pub(crate) fn add(&mut self, key: K, now: Instant) {
        let is_processing = self.processing.contains_key(&key);
        let waiting = if is_processing { &mut self.again } else { &mut self.queued };
        let Entry::Vacant(entry) = waiting.entry(key.clone()) else { return };
        entry.insert(now);
        self.recorder.added();
        if !is_processing {
            self.ready.push_back(key);
        }
    }

    /// Queues `key` at `at`; of two such requests the earlier one stays.
    pub(crate) fn add_at(&mut self, key: K, at: Instant) {
        if let Some(earlier) = self.due.get(&key).copied() {
            if earlier.0 <= at {
                return;
            }
            self.timers.remove(&earlier);
        }
        self.recorder.retried();
        self.serial += 1;
        let slot = (at, self.serial);
        self.timers.insert(slot, key.clone());
        self.due.insert(key, slot);
    }

    /// Moves what is due to the ready keys; returns when the next delayed key is due.
    pub(crate) fn advance(&mut self, now: Instant) -> Option<Instant> {
        while let Some(entry) = self.timers.first_entry() {
            if entry.key().0 > now {
                return Some(entry.key().0);
            }
            let key = entry.remove();
            self.due.remove(&key);
            self.add(key, now);
        }
        None
    }

    /// Takes the next ready key for a worker.
    pub(crate) fn take(&mut self, now: Instant) -> Option<K> {
        let key = self.ready.pop_front()?;
        if let Some(added) = self.queued.remove(&key) {
            self.recorder.waited(now.saturating_duration_since(added));
        }
        self.processing.insert(key.clone(), now);
        Some(key)
    }

    /// The worker on `key` has ended; with `outcome` it says what comes next.
    pub(crate) fn done(&mut self, key: K, outcome: Outcome, now: Instant) {
        if let Some(started) = self.processing.remove(&key) {
            self.recorder.worked(now.saturating_duration_since(started));
        }
        match outcome {
            Outcome::Done => {
                self.failures.remove(&key);
            }
            Outcome::After(delay) => {
                self.failures.remove(&key);
                self.add_at(key.clone(), now + delay);
            }
            Outcome::Failed | Outcome::Refused => {
                let base = if outcome == Outcome::Failed { RETRY_BASE } else { REFUSED_BASE };
                let failures = self.failures.entry(key.clone()).or_default();
                let delay = delay_after(base, RETRY_CAP, *failures);
                *failures = failures.saturating_add(1);
                self.add_at(key.clone(), now + delay);
            }
        }
        if let Some(added) = self.again.remove(&key)
            && let Entry::Vacant(entry) = self.queued.entry(key.clone())
        {
            entry.insert(added);
            self.ready.push_back(key);
        }
    }

    pub(crate) fn gauges(&self, now: Instant) -> Gauges {
        let times = || self.processing.values().map(|started| now.saturating_duration_since(*started));
        Gauges { depth: self.ready.len(), unfinished: times().sum(), longest: times().max().unwrap_or_default() }
    }
}

/// The result of reconciling a key.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Nothing more to do until something changes.
    Done,
    /// Reconcile again after this time.
    After(Duration),
    /// Retry with back-off.
    Failed,
    /// Retry with a longer one: what others refuse now, they may grant later.
    Refused,
}

/// A shared work queue; clones are the same queue. Its size is bounded by the number of keys.
pub(crate) struct WorkQueue<K> {
    inner: Arc<(Mutex<State<K>>, Notify)>,
}

impl<K> Clone for WorkQueue<K> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<K> fmt::Debug for WorkQueue<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkQueue").finish_non_exhaustive()
    }
}

impl<K: Clone + Eq + Hash + Send + 'static> WorkQueue<K> {
    /// An empty queue of `controller` that is shown as `name` in `metrics`, where several may have one name.
    pub(crate) fn new(name: &'static str, controller: &'static str, metrics: &Arc<QueueMetrics>) -> Self {
        let recorder = QueueRecorder { name, metrics: Arc::clone(metrics) };
        let inner = Arc::new((Mutex::new(State { recorder, ..State::default() }), Notify::new()));
        let weak = Arc::downgrade(&inner);
        metrics.observe(name, controller, move |now| {
            weak.upgrade().map_or_else(Gauges::default, |inner| inner.0.lock().gauges(now))
        });
        Self { inner }
    }

    fn state(&self) -> MutexGuard<'_, State<K>> {
        self.inner.0.lock()
    }

    /// Queues a key; never waits.
    pub(crate) fn add(&self, key: K) {
        self.state().add(key, Instant::now());
        self.inner.1.notify_one();
    }

    /// Queues a key after a delay; never waits.
    pub(crate) fn add_after(&self, key: K, delay: Duration) {
        if delay.is_zero() {
            return self.add(key);
        }
        self.state().add_at(key, Instant::now() + delay);
        self.inner.1.notify_one();
    }

    /// Waits for the next key and takes it.
    async fn next(&self) -> K {
        loop {
            let notified = self.inner.1.notified();
            let due = {
                let (mut state, now) = (self.state(), Instant::now());
                let due = state.advance(now);
                if let Some(key) = state.take(now) {
                    return key;
                }
                due
            };
            match due {
                Some(at) => {
                    tokio::select! {
                        () = notified => {}
                        () = tokio::time::sleep_until(at) => {}
                    }
                }
                None => notified.await,
            }
        }
    }

    fn done(&self, key: K, outcome: Outcome) {
        self.state().done(key, outcome, Instant::now());
    }

    /// Calls `work` for each key, at most `workers` keys at a time, until `shutdown`.
    ///
    /// All calls run within this one future. An error is logged with `name` and the key; retrying with back-off.
    pub(crate) async fn run<F, Fut, E>(&self, name: &'static str, workers: usize, shutdown: CancellationToken, work: F)
    where
        F: Fn(K) -> Fut,
        Fut: Future<Output = Result<Outcome, E>>,
        E: fmt::Display,
        K: fmt::Display,
    {
        let mut running = FuturesUnordered::new();
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                Some((key, result)) = running.next(), if !running.is_empty() => {
                    let key: K = key;
                    let result: Result<Outcome, E> = result;
                    let outcome = result.unwrap_or_else(|error| {
                        tracing::debug!(controller = name, %key, %error, "failed to reconcile; retrying");
                        Outcome::Failed
                    });
                    self.done(key, outcome);
                }
                key = self.next(), if running.len() < workers => {
                    let future = work(key.clone());
                    running.push(async move { (key, future.await) });
                }
            }
        }
    }
}
