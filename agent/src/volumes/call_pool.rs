//! A thread pool for file-system calls of volumes that may hang. A call on a mount whose server is away blocks in the
//! kernel and cannot be interrupted, so such calls run on threads of their own. One that stalls is abandoned and
//! counted; it fails its pod's call, and blocks no other pod.
//!
//! Imports nothing of Windlass but the metrics that count them.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::metrics::Metrics;

/// Limits of the pool.
#[derive(Debug, Clone, Copy)]
struct PoolLimits {
    /// Concurrent calls; more wait for a slot.
    concurrency: usize,
    /// A call that takes longer releases its slot: scans of large volumes, and calls that may hang.
    slow_after: Duration,
    /// Most slow calls without a slot.
    max_slow: usize,
    /// A call without progress for this long is stalled and abandoned.
    stall_timeout: Duration,
    /// Most stalled calls of one pod; beyond that new ones are refused.
    max_stalled_per_pod: usize,
}

const DEFAULT_LIMITS: PoolLimits = PoolLimits {
    concurrency: 16,
    slow_after: Duration::from_secs(1),
    max_slow: 256,
    stall_timeout: Duration::from_secs(15),
    max_stalled_per_pod: 4,
};

/// A running call, as seen by its thread.
#[derive(Debug, Default)]
pub(crate) struct Call {
    steps: AtomicU64,
    cancelled: AtomicBool,
}

impl Call {
    /// Reports progress: a long scan is not stalled.
    pub(crate) fn progress(&self) {
        self.steps.fetch_add(1, Ordering::Relaxed);
    }

    /// Cancels the call.
    pub(super) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
    }

    /// Must be checked after anything that may hang: a cancelled call must change nothing any more.
    ///
    /// # Errors
    /// When the call was cancelled.
    pub(crate) fn check_cancelled(&self) -> Result<(), String> {
        if self.cancelled.load(Ordering::Acquire) {
            return Err("the call was cancelled".to_owned());
        }
        Ok(())
    }
}

/// The caller's guard: when it is dropped, with or without a result, the call is cancelled, and abandoned if it still
/// runs.
struct CallGuard {
    call: Arc<Call>,
    pool: VolumeCallPool,
    number: u64,
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        self.call.cancel();
        self.pool.release_slot(self.number);
        let mut state = self.pool.lock();
        if let Some(running) = state.calls.get_mut(&self.number) {
            running.stalled = true;
            self.pool.update_metric(&state);
        }
    }
}

/// A running call.
struct RunningCall {
    pod: String,
    target: String,
    since: Instant,
    stalled: bool,
    /// Its slot, until it is slow.
    slot: Option<OwnedSemaphorePermit>,
}

#[derive(Default)]
struct State {
    calls: BTreeMap<u64, RunningCall>,
    started: u64,
}

/// The pool of the node; clones share it.
#[derive(Clone)]
pub(crate) struct VolumeCallPool {
    limits: PoolLimits,
    metrics: Arc<Metrics>,
    slots: Arc<Semaphore>,
    state: Arc<Mutex<State>>,
}

impl fmt::Debug for VolumeCallPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VolumeCallPool").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl VolumeCallPool {
    /// A pool whose stalled calls are counted in `metrics`.
    pub(super) fn new(metrics: Arc<Metrics>) -> Self {
        Self::bounded(DEFAULT_LIMITS, metrics)
    }

    fn bounded(limits: PoolLimits, metrics: Arc<Metrics>) -> Self {
        Self { limits, metrics, slots: Arc::new(Semaphore::new(limits.concurrency)), state: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Updates the metric of stalled calls.
    fn update_metric(&self, state: &State) {
        let hung = state.calls.values().filter(|c| c.stalled).count();
        self.metrics.hung_volume_calls.store(i64::try_from(hung).unwrap_or(i64::MAX), Ordering::Relaxed);
    }

    /// Runs `work` on a thread, for a pod. `target` names what it works on, such as `volume data`: while a call on a
    /// target is stalled, no other is started on it.
    ///
    /// # Errors
    /// Those of `work`, and when it stalls, or when too many calls of the pod already have.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        pod: &str,
        target: &str,
        work: impl FnOnce(&Call) -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        self.check_stalled(pod, target)?;
        let slot = tokio::time::timeout(self.limits.stall_timeout, Arc::clone(&self.slots).acquire_owned()).await;
        let slot = slot
            .map_err(|_| "the file-system calls of other volumes do not come back, and there are too many".to_owned())?
            .map_err(|e| e.to_string())?;
        let number = {
            let mut state = self.lock();
            state.started += 1;
            let (number, target) = (state.started, target.to_owned());
            let running =
                RunningCall { pod: pod.to_owned(), target, since: Instant::now(), stalled: false, slot: Some(slot) };
            state.calls.insert(number, running);
            number
        };
        let (sender, mut receiver) = oneshot::channel();
        let entry = CallEntry { pool: self.clone(), number };
        let waiting = CallGuard { call: Arc::default(), pool: self.clone(), number };
        let call = Arc::clone(&waiting.call);
        let spawned = std::thread::Builder::new().name("volumes".to_owned()).spawn(move || {
            let result = work(&call);
            drop(entry);
            let _ = sender.send(result);
        });
        spawned.map_err(|e| format!("no thread could be started for it: {e}"))?;
        let result_of =
            |receiver: Result<Result<T, String>, _>| receiver.unwrap_or_else(|_| Err("its thread ended".to_owned()));
        if let Ok(result) = tokio::time::timeout(self.limits.slow_after, &mut receiver).await {
            return result_of(result);
        }
        self.release_slot(number);
        loop {
            let seen = waiting.call.steps.load(Ordering::Relaxed);
            if let Ok(result) = tokio::time::timeout(self.limits.stall_timeout, &mut receiver).await {
                return result_of(result);
            }
            if waiting.call.steps.load(Ordering::Relaxed) == seen {
                return Err(self.mark_stalled(number));
            }
        }
    }

    /// Refuses calls that would stall too.
    fn check_stalled(&self, pod: &str, target: &str) -> Result<(), String> {
        let state = self.lock();
        let of_pod: Vec<&RunningCall> = state.calls.values().filter(|c| c.pod == pod && c.stalled).collect();
        let same = of_pod.iter().find(|c| c.target == target);
        match same.or_else(|| of_pod.first().filter(|_| of_pod.len() >= self.limits.max_stalled_per_pod)) {
            Some(hung) => Err(stall_error(hung)),
            None => Ok(()),
        }
    }

    /// Releases the slot of a slow call.
    fn release_slot(&self, number: u64) {
        let mut state = self.lock();
        let slow = state.calls.values().filter(|c| c.slot.is_none()).count();
        if slow < self.limits.max_slow
            && let Some(call) = state.calls.get_mut(&number)
        {
            call.slot = None;
        }
    }

    fn mark_stalled(&self, number: u64) -> String {
        let mut state = self.lock();
        let Some(call) = state.calls.get_mut(&number) else { return "it returned too late".to_owned() };
        // Before its future ends, so that no other call is started in between.
        call.stalled = true;
        let error = stall_error(call);
        tracing::warn!(
            pod = call.pod,
            target = call.target,
            "file-system call of a volume stalled, abandoning its thread; is the server of a mount away?"
        );
        self.update_metric(&state);
        error
    }
}

fn stall_error(hung: &RunningCall) -> String {
    format!(
        "a file-system call for {} has not come back for {} s: the server of a mount may be away, or a disk",
        hung.target,
        hung.since.elapsed().as_secs()
    )
}

/// The thread's entry among the calls, removed when the call returns, however it ended.
struct CallEntry {
    pool: VolumeCallPool,
    number: u64,
}

impl Drop for CallEntry {
    fn drop(&mut self) {
        let mut state = self.pool.lock();
        let call = state.calls.remove(&self.number);
        self.pool.update_metric(&state);
        drop(state);
        if let Some(call) = call.filter(|c| c.stalled) {
            let seconds = call.since.elapsed().as_secs();
            tracing::info!(pod = call.pod, target = call.target, seconds, "stalled file-system call returned");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const SHORT: Duration = Duration::from_millis(30);

    fn pool(concurrency: usize, stall_timeout: Duration) -> VolumeCallPool {
        let limits = PoolLimits { concurrency, slow_after: SHORT, max_slow: 16, stall_timeout, max_stalled_per_pod: 2 };
        VolumeCallPool::bounded(limits, Arc::default())
    }

    fn stalled(pool: &VolumeCallPool) -> i64 {
        pool.metrics.hung_volume_calls.load(Ordering::Relaxed)
    }

    /// A call that hangs until the sender is dropped.
    fn hung() -> (mpsc::Sender<()>, impl FnOnce(&Call) -> Result<(), String> + Send + 'static) {
        let (release, held) = mpsc::channel::<()>();
        (release, move |call: &Call| {
            let _ = held.recv();
            call.check_cancelled()
        })
    }

    #[tokio::test]
    async fn a_stalled_call_fails_its_pod_alone() {
        let pool = pool(2, SHORT * 8);
        let (releases, calls): (Vec<_>, Vec<_>) = (0..6).map(|_| hung()).unzip();
        let targets = [("a", "v"), ("a", "w"), ("b", "v"), ("c", "v"), ("d", "v"), ("e", "v")];
        let all = targets.iter().zip(calls).map(|((pod, target), call)| pool.run(pod, target, call));
        let results = futures::future::join_all(all).await;
        assert!(results.iter().all(|r| r.as_ref().is_err_and(|why| why.contains("has not come back"))), "{results:?}");
        assert_eq!(stalled(&pool), 6);
        // No thread more for the same, nor for a pod that has enough of them; others go on.
        for (pod, target) in [("b", "v"), ("a", "x")] {
            let refused = pool.run(pod, target, |_| Ok(())).await;
            assert!(refused.is_err_and(|why| why.contains("has not come back")), "{pod} {target}");
        }
        assert_eq!(pool.run("b", "w", |_| Ok(1)).await, Ok(1));
        assert_eq!(pool.run("f", "v", |_| Ok(2)).await, Ok(2));
        drop(releases);
        for _ in 0..100 {
            tokio::time::sleep(Duration::from_millis(5)).await;
            if stalled(&pool) == 0 {
                break;
            }
        }
        assert_eq!((stalled(&pool), pool.lock().calls.len()), (0, 0));
        assert_eq!(pool.run("a", "v", |_| Ok(3)).await, Ok(3));
    }

    #[tokio::test]
    async fn a_slow_call_with_progress_is_waited_for_and_blocks_no_other() {
        let pool = pool(1, SHORT * 8);
        let walked = Arc::new(AtomicBool::new(false));
        let done = Arc::clone(&walked);
        let walk = pool.run("a", "teardown", move |call| {
            for _ in 0..60 {
                std::thread::sleep(SHORT / 2);
                call.progress();
            }
            done.store(true, Ordering::Relaxed);
            Ok("done")
        });
        let other = async {
            tokio::time::sleep(SHORT / 2).await;
            let result = pool.run("b", "v", |_| Ok("quick")).await;
            (result, walked.load(Ordering::Relaxed))
        };
        let (slow, quick) = tokio::join!(walk, other);
        assert_eq!((slow, quick), (Ok("done"), (Ok("quick"), false)));
    }

    #[tokio::test]
    async fn a_dropped_call_is_cancelled() {
        let pool = pool(4, SHORT * 2);
        let (sender, receiver) = mpsc::channel();
        let (release, held) = mpsc::channel::<()>();
        let call = pool.run("a", "v", move |call| {
            let _ = held.recv();
            let _ = sender.send(call.check_cancelled());
            Ok(())
        });
        // Abandoned by its caller, as by a step of a terminating pod.
        let _ = tokio::time::timeout(SHORT / 2, call).await;
        release.send(()).unwrap();
        assert!(receiver.recv().unwrap().is_err());
    }

    #[tokio::test]
    async fn errors_and_panics_come_back() {
        let pool = pool(1, Duration::from_secs(30));
        assert_eq!(pool.run("a", "v", |_| Err::<(), _>("why".to_owned())).await, Err("why".to_owned()));
        let result = pool.run("a", "v", |_| -> Result<(), String> { panic!("on purpose") }).await;
        assert_eq!(result, Err("its thread ended".to_owned()));
        assert_eq!(pool.run("a", "v", |_| Ok(1)).await, Ok(1));
    }
}
