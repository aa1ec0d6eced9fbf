//! Threads for the file-system calls of volumes. A mount whose server is away keeps whoever asks it in a system call,
//! which nobody can be taken out of: so such calls are made on threads of their own. One that does not come back is left
//! behind and counted; it costs its pod this call, and other pods nothing.
//!
//! Imports nothing of Windlass but the metrics that count them.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::metrics::Metrics;

/// Bounds of the threads.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    /// Calls that run at once, unless they take long; more wait for their turn.
    at_once: usize,
    /// What takes longer holds up nobody's turn: walks over large volumes, and what may not come back.
    brief: Duration,
    /// Of those that take longer there may be so many before they hold up others all the same.
    long: usize,
    /// Without progress for so long a call is left behind.
    patience: Duration,
    /// Calls of one pod that may be left behind; more are not begun.
    of_one_pod: usize,
}

const BOUNDS: Bounds =
    Bounds { at_once: 16, brief: Duration::from_secs(1), long: 256, patience: Duration::from_secs(15), of_one_pod: 4 };

/// One call in progress, as the thread sees it that makes it.
#[derive(Debug, Default)]
pub(crate) struct Call {
    steps: AtomicU64,
    unwanted: AtomicBool,
}

impl Call {
    /// Says that there is progress: a walk is not a hung call, however long it takes.
    pub(crate) fn progress(&self) {
        self.steps.fetch_add(1, Ordering::Relaxed);
    }

    /// Nobody waits for it any more.
    pub(super) fn give_up(&self) {
        self.unwanted.store(true, Ordering::Release);
    }

    /// To be asked after whatever may have hung: once nobody waits for the call it must change nothing any more.
    ///
    /// # Errors
    /// When nobody waits.
    pub(crate) fn still_wanted(&self) -> Result<(), String> {
        if self.unwanted.load(Ordering::Acquire) {
            return Err("nobody waits for it any more".to_owned());
        }
        Ok(())
    }
}

/// What whoever waits for a call holds: when he goes away, with or without its result, the call is unwanted, and one that
/// still runs is left behind.
struct Waiting {
    call: Arc<Call>,
    threads: Threads,
    number: u64,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.call.give_up();
        self.threads.takes_long(self.number);
        let mut state = self.threads.lock();
        if let Some(running) = state.calls.get_mut(&self.number) {
            running.left_behind = true;
            self.threads.count(&state);
        }
    }
}

/// A call that runs or waits for its turn.
struct Running {
    pod: String,
    what: String,
    since: Instant,
    left_behind: bool,
    /// Its turn, while it has not taken long yet.
    turn: Option<OwnedSemaphorePermit>,
}

#[derive(Default)]
struct State {
    calls: BTreeMap<u64, Running>,
    begun: u64,
}

/// The threads of a node's volumes; clones share them.
#[derive(Clone)]
pub(crate) struct Threads {
    bounds: Bounds,
    metrics: Arc<Metrics>,
    turns: Arc<Semaphore>,
    state: Arc<Mutex<State>>,
}

impl fmt::Debug for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Threads").field("bounds", &self.bounds).finish_non_exhaustive()
    }
}

impl Threads {
    /// Threads whose hung calls are counted in `metrics`.
    pub(super) fn new(metrics: Arc<Metrics>) -> Self {
        Self::bounded(BOUNDS, metrics)
    }

    fn bounded(bounds: Bounds, metrics: Arc<Metrics>) -> Self {
        Self { bounds, metrics, turns: Arc::new(Semaphore::new(bounds.at_once)), state: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells how many threads do not come back.
    fn count(&self, state: &State) {
        let hung = state.calls.values().filter(|c| c.left_behind).count();
        self.metrics.hung_volume_calls.store(i64::try_from(hung).unwrap_or(i64::MAX), Ordering::Relaxed);
    }

    /// Makes the calls of `work` on a thread, for a pod. `what` is that part of the pod which it is about, such as
    /// `volume data`: while a call about it does not come back no other is begun.
    ///
    /// # Errors
    /// Those of `work`, or that it does not come back.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        pod: &str,
        what: &str,
        work: impl FnOnce(&Call) -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        self.refuse(pod, what)?;
        let turn = tokio::time::timeout(self.bounds.patience, Arc::clone(&self.turns).acquire_owned()).await;
        let turn = turn
            .map_err(|_| "the file-system calls of other volumes do not come back, and there are too many".to_owned())?
            .map_err(|e| e.to_string())?;
        let number = {
            let mut state = self.lock();
            state.begun += 1;
            let (number, what) = (state.begun, what.to_owned());
            let running =
                Running { pod: pod.to_owned(), what, since: Instant::now(), left_behind: false, turn: Some(turn) };
            state.calls.insert(number, running);
            number
        };
        let (tell, mut told) = oneshot::channel();
        let entry = Entry { threads: self.clone(), number };
        let waiting = Waiting { call: Arc::default(), threads: self.clone(), number };
        let call = Arc::clone(&waiting.call);
        let made = std::thread::Builder::new().name("volumes".to_owned()).spawn(move || {
            let result = work(&call);
            drop(entry);
            let _ = tell.send(result);
        });
        made.map_err(|e| format!("no thread could be started for it: {e}"))?;
        let ended = |told: Result<Result<T, String>, _>| told.unwrap_or_else(|_| Err("its thread ended".to_owned()));
        if let Ok(result) = tokio::time::timeout(self.bounds.brief, &mut told).await {
            return ended(result);
        }
        self.takes_long(number);
        loop {
            let seen = waiting.call.steps.load(Ordering::Relaxed);
            if let Ok(result) = tokio::time::timeout(self.bounds.patience, &mut told).await {
                return ended(result);
            }
            if waiting.call.steps.load(Ordering::Relaxed) == seen {
                return Err(self.leave_behind(number));
            }
        }
    }

    /// Refuses what would only hang too.
    fn refuse(&self, pod: &str, what: &str) -> Result<(), String> {
        let state = self.lock();
        let of_pod: Vec<&Running> = state.calls.values().filter(|c| c.pod == pod && c.left_behind).collect();
        let same = of_pod.iter().find(|c| c.what == what);
        match same.or_else(|| of_pod.first().filter(|_| of_pod.len() >= self.bounds.of_one_pod)) {
            Some(hung) => Err(complaint(hung)),
            None => Ok(()),
        }
    }

    /// Others need not wait for a call that takes long.
    fn takes_long(&self, number: u64) {
        let mut state = self.lock();
        let long = state.calls.values().filter(|c| c.turn.is_none()).count();
        if long < self.bounds.long
            && let Some(call) = state.calls.get_mut(&number)
        {
            call.turn = None;
        }
    }

    fn leave_behind(&self, number: u64) -> String {
        let mut state = self.lock();
        let Some(call) = state.calls.get_mut(&number) else { return "it came back too late".to_owned() };
        // Before its future ends, so that there is no moment at which another is begun.
        call.left_behind = true;
        let complaint = complaint(call);
        tracing::warn!(
            pod = call.pod,
            what = call.what,
            "a file-system call of a pod's volumes has not come back, its thread is left behind; is the server of a mount away?"
        );
        self.count(&state);
        complaint
    }
}

fn complaint(hung: &Running) -> String {
    format!(
        "a file-system call for {} has not come back for {} s: the server of a mount may be away, or a disk",
        hung.what,
        hung.since.elapsed().as_secs()
    )
}

/// The thread's own entry among the calls: it goes when the call has come back, however it ended.
struct Entry {
    threads: Threads,
    number: u64,
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut state = self.threads.lock();
        let ended = state.calls.remove(&self.number);
        self.threads.count(&state);
        drop(state);
        if let Some(call) = ended.filter(|c| c.left_behind) {
            let seconds = call.since.elapsed().as_secs();
            tracing::info!(pod = call.pod, what = call.what, seconds, "a file-system call that had hung has come back");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const SHORT: Duration = Duration::from_millis(30);

    fn threads(at_once: usize, patience: Duration) -> Threads {
        let bounds = Bounds { at_once, brief: SHORT, long: 16, patience, of_one_pod: 2 };
        Threads::bounded(bounds, Arc::default())
    }

    fn left_behind(threads: &Threads) -> i64 {
        threads.metrics.hung_volume_calls.load(Ordering::Relaxed)
    }

    /// A call that hangs until the sender is dropped.
    fn hung() -> (mpsc::Sender<()>, impl FnOnce(&Call) -> Result<(), String> + Send + 'static) {
        let (release, held) = mpsc::channel::<()>();
        (release, move |call: &Call| {
            let _ = held.recv();
            call.still_wanted()
        })
    }

    #[tokio::test]
    async fn what_hangs_costs_its_pod_alone() {
        let threads = threads(2, SHORT * 8);
        let (releases, calls): (Vec<_>, Vec<_>) = (0..6).map(|_| hung()).unzip();
        let whats = [("a", "v"), ("a", "w"), ("b", "v"), ("c", "v"), ("d", "v"), ("e", "v")];
        let all = whats.iter().zip(calls).map(|((pod, what), call)| threads.run(pod, what, call));
        let ended = futures::future::join_all(all).await;
        assert!(ended.iter().all(|r| r.as_ref().is_err_and(|why| why.contains("has not come back"))), "{ended:?}");
        assert_eq!(left_behind(&threads), 6);
        // No thread more for the same, nor for a pod that has enough of them; others go on.
        for (pod, what) in [("b", "v"), ("a", "x")] {
            let refused = threads.run(pod, what, |_| Ok(())).await;
            assert!(refused.is_err_and(|why| why.contains("has not come back")), "{pod} {what}");
        }
        assert_eq!(threads.run("b", "w", |_| Ok(1)).await, Ok(1));
        assert_eq!(threads.run("f", "v", |_| Ok(2)).await, Ok(2));
        drop(releases);
        for _ in 0..100 {
            tokio::time::sleep(Duration::from_millis(5)).await;
            if left_behind(&threads) == 0 {
                break;
            }
        }
        assert_eq!((left_behind(&threads), threads.lock().calls.len()), (0, 0));
        assert_eq!(threads.run("a", "v", |_| Ok(3)).await, Ok(3));
    }

    #[tokio::test]
    async fn progress_is_waited_for_and_holds_up_nobody() {
        let threads = threads(1, SHORT * 8);
        let walked = Arc::new(AtomicBool::new(false));
        let done = Arc::clone(&walked);
        let walk = threads.run("a", "teardown", move |call| {
            for _ in 0..60 {
                std::thread::sleep(SHORT / 2);
                call.progress();
            }
            done.store(true, Ordering::Relaxed);
            Ok("done")
        });
        let other = async {
            tokio::time::sleep(SHORT / 2).await;
            let result = threads.run("b", "v", |_| Ok("quick")).await;
            (result, walked.load(Ordering::Relaxed))
        };
        let (slow, quick) = tokio::join!(walk, other);
        assert_eq!((slow, quick), (Ok("done"), (Ok("quick"), false)));
    }

    #[tokio::test]
    async fn a_call_that_nobody_waits_for_is_told_so() {
        let threads = threads(4, SHORT * 2);
        let (tell, told) = mpsc::channel();
        let (release, held) = mpsc::channel::<()>();
        let call = threads.run("a", "v", move |call| {
            let _ = held.recv();
            let _ = tell.send(call.still_wanted());
            Ok(())
        });
        // Given up by whoever waited, as a step of a pod that ends is.
        let _ = tokio::time::timeout(SHORT / 2, call).await;
        release.send(()).unwrap();
        assert!(told.recv().unwrap().is_err());
    }

    #[tokio::test]
    async fn errors_and_panics_come_back() {
        let threads = threads(1, Duration::from_secs(30));
        assert_eq!(threads.run("a", "v", |_| Err::<(), _>("why".to_owned())).await, Err("why".to_owned()));
        let ended = threads.run("a", "v", |_| -> Result<(), String> { panic!("on purpose") }).await;
        assert_eq!(ended, Err("its thread ended".to_owned()));
        assert_eq!(threads.run("a", "v", |_| Ok(1)).await, Ok(1));
    }
}
