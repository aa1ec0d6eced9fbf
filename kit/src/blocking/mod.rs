//! Blocking work, which must not run on the runtime's worker threads. Each kind has a lane: a fixed number of threads
//! and a bounded queue. What hangs in one lane, a name server that is away or a disk, holds up nothing in another.

mod owners;

use std::{
    collections::BTreeMap,
    io,
    time::{Duration, Instant},
};

use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::Semaphore,
    task::{JoinError, JoinHandle},
};

use self::owners::Owners;
use crate::prometheus::{Kind, Text};

/// Names of API servers.
pub static RESOLVE: Lane = Lane::new("resolve", 2, 64);
/// Names that probes of pods give.
pub static PROBE_NAMES: Lane = Lane::new("probe names", 2, 256);
/// Files of logs, for those who read them.
pub static LOGS: Lane = Lane::new("logs", 4, 256);
/// How full disks and volumes are, and what is removed when they are.
pub static DISK: Lane = Lane::new("disk", 3, 64);
/// Records of images.
pub static RECORDS: Lane = Lane::new("records", 2, 1024);
/// Directories of volumes, manifests and other small files.
pub static FILES: Lane = Lane::new("files", 3, 256);
/// Rules of services, and what the kernel is asked for them.
pub static RULES: Lane = Lane::new("rules", 6, 64);
/// Interfaces, chains and conntrack entries of pods.
pub static NETWORK: Lane = Lane::new("network", 4, 1024);
/// Pages and signatures, which take processor time.
pub static COMPUTE: Lane = Lane::new("compute", 2, 256);

/// Expressions and schemas that others have written, which take as long as those want.
pub static EXPRESSIONS: Lane = Lane::new("expressions", 2, 256);

/// All lanes.
pub static LANES: [&Lane; 10] =
    [&RESOLVE, &PROBE_NAMES, &LOGS, &DISK, &RECORDS, &FILES, &RULES, &NETWORK, &COMPUTE, &EXPRESSIONS];
/// Threads besides those of lanes: for tokio's own files, each of which is one short call, and for the samplers of usage, which
/// have theirs for as long as the process lives.
const OTHER_THREADS: usize = 8;

/// Threads for one kind of blocking work.
#[derive(Debug)]
pub struct Lane {
    name: &'static str,
    threads: usize,
    queue: usize,
    slots: Semaphore,
    waiting: Mutex<Waiting>,
    owners: Owners,
}

/// What waits for a thread, oldest first, with the time since when.
#[derive(Debug)]
struct Waiting {
    next: u64,
    since: BTreeMap<u64, Instant>,
}

/// Why work was not done.
#[derive(Debug, thiserror::Error)]
pub enum LaneError {
    /// Too much other work of its kind waits already.
    #[error("{waiting} others wait for the {threads} threads that do such work ({lane}); try again later")]
    Busy {
        /// The lane's name.
        lane: &'static str,
        /// How many wait.
        waiting: usize,
        /// How many threads there are.
        threads: usize,
    },
    /// It panicked, or the runtime stopped.
    #[error(transparent)]
    Lost(#[from] JoinError),
}

impl From<LaneError> for io::Error {
    fn from(error: LaneError) -> Self {
        let kind =
            if matches!(error, LaneError::Busy { .. }) { io::ErrorKind::ResourceBusy } else { io::ErrorKind::Other };
        Self::new(kind, error)
    }
}

/// The current use of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneUse {
    /// Its name.
    pub name: &'static str,
    /// All of its threads.
    pub threads: usize,
    /// Those that work.
    pub busy: usize,
    /// How much work waits for one.
    pub waiting: usize,
    /// For how long the oldest of it has waited.
    pub age: Duration,
}

/// A place in the queue, released when dropped.
struct Place {
    lane: &'static Lane,
    number: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.lane.waiting().since.remove(&self.number);
    }
}

impl Lane {
    /// A lane with this number of threads and this queue length.
    const fn new(name: &'static str, threads: usize, queue: usize) -> Self {
        let waiting = Mutex::new(Waiting { next: 0, since: BTreeMap::new() });
        Self { name, threads, queue, slots: Semaphore::const_new(threads), waiting, owners: Owners::new() }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock()
    }

    fn queued(&'static self) -> Result<Place, LaneError> {
        let mut waiting = self.waiting();
        if waiting.since.len() >= self.queue {
            return Err(LaneError::Busy { lane: self.name, waiting: waiting.since.len(), threads: self.threads });
        }
        let number = waiting.next;
        waiting.next += 1;
        waiting.since.insert(number, Instant::now());
        Ok(Place { lane: self, number })
    }

    /// Runs `work` on a thread of this lane. When it does not end, because the lane is full, it panicked or the runtime stops,
    /// the error is that of `lost`.
    ///
    /// # Errors
    /// Those of the work, and of `lost`.
    pub async fn run<T, E>(
        &'static self,
        work: impl FnOnce() -> Result<T, E> + Send + 'static,
        lost: impl FnOnce(LaneError) -> E,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: Send + 'static,
    {
        self.run_for(None, work, lost).await
    }

    async fn run_for<T, E>(
        &'static self,
        owner: Option<&str>,
        work: impl FnOnce() -> Result<T, E> + Send + 'static,
        lost: impl FnOnce(LaneError) -> E,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: Send + 'static,
    {
        let busy = |waiting| LaneError::Busy { lane: self.name, waiting, threads: self.threads };
        let turn = owner.map(|owner| self.owners.join(owner, self.threads, self.queue).map_err(busy)).transpose();
        let (mut turn, place) = match turn.and_then(|turn| Ok((turn, self.queued()?))) {
            Ok(admitted) => admitted,
            Err(busy) => return Err(lost(busy)),
        };
        if let Some(turn) = &mut turn {
            turn.begin().await;
        }
        // The semaphore is never closed.
        let slot = self.slots.acquire().await.ok();
        drop(place);
        let work = move || {
            // Held until the work has ended, whether or not somebody waits for it.
            let _held = (turn, slot);
            work()
        };
        tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(lost(error.into())))
    }

    /// [`Self::run`] for work that cannot fail itself.
    ///
    /// # Errors
    /// When it did not end.
    pub async fn call<T: Send + 'static>(
        &'static self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, LaneError> {
        self.run(move || Ok(work()), |error| error).await
    }

    /// [`Self::call`] for an owner, who has all threads but one at most, and half of the queue.
    ///
    /// # Errors
    /// When it did not end.
    pub async fn call_for<T: Send + 'static>(
        &'static self,
        owner: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, LaneError> {
        self.run_for(Some(owner), move || Ok(work()), |error| error).await
    }

    /// [`Self::call`], but detached: the work continues even if its result is not awaited.
    pub fn spawn<T: Send + 'static>(
        &'static self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<Result<T, LaneError>> {
        tokio::spawn(self.call(work))
    }

    /// [`Self::run`] for I/O.
    ///
    /// # Errors
    /// Those of the work; of kind `ResourceBusy` when the lane is full, `Other` when the work did not end.
    pub async fn io<T: Send + 'static>(
        &'static self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        self.run(work, io::Error::from).await
    }

    /// How it is used now.
    #[must_use]
    pub fn usage(&self) -> LaneUse {
        let waiting = self.waiting();
        LaneUse {
            name: self.name,
            threads: self.threads,
            busy: self.threads.saturating_sub(self.slots.available_permits()),
            waiting: waiting.since.len(),
            age: waiting.since.values().next().map(Instant::elapsed).unwrap_or_default(),
        }
    }
}

/// The most threads for blocking work of a runtime in which no lane takes another's.
#[must_use]
pub fn threads() -> usize {
    LANES.iter().map(|lane| lane.threads).sum::<usize>() + OTHER_THREADS
}

/// Writes how lanes are used. What waits for long is what hangs.
pub fn write(page: &mut Text) {
    type Value = fn(&LaneUse) -> f64;
    #[allow(clippy::cast_precision_loss, reason = "a few hundred")]
    let families: [(&str, &str, Value); 3] = [
        ("windlass_blocking_busy_threads", "Threads of a kind of blocking work that do it.", |of| of.busy as f64),
        ("windlass_blocking_waiting", "Blocking work that waits for a thread of its kind.", |of| of.waiting as f64),
        ("windlass_blocking_oldest_waiting_seconds", "For how long the oldest of it has waited.", |of| {
            of.age.as_secs_f64()
        }),
    ];
    let all = LANES.map(Lane::usage);
    for (name, help, value) in families {
        page.family(name, help, Kind::Gauge);
        for lane in &all {
            page.sample(name, &[("lane", lane.name)], value(lane));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn a_panic_is_an_error() {
        static LANE: Lane = Lane::new("panic", 1, 1);
        assert_eq!(LANE.run(|| Ok::<_, String>(1), |error| error.to_string()).await, Ok(1));
        assert_eq!(LANE.run(|| Err::<(), _>("no".to_owned()), |error| error.to_string()).await, Err("no".to_owned()));
        let lost = LANE.io(|| -> io::Result<()> { std::panic::panic_any(()) }).await;
        assert_eq!(lost.unwrap_err().kind(), io::ErrorKind::Other);
        assert_eq!(LANE.usage().busy, 0, "its thread is free again");
    }

    #[test]
    fn lanes_are_shown_by_name() {
        let mut page = Text::new();
        write(&mut page);
        let page = page.finish();
        assert!(page.contains("windlass_blocking_oldest_waiting_seconds{lane=\"resolve\"} 0"), "{page}");
        assert!(threads() > LANES.len());
    }

    #[tokio::test]
    async fn one_owner_does_not_take_all_threads() {
        static SHARED: Lane = Lane::new("shared", 2, 4);
        let (release, held) = mpsc::channel::<()>();
        let (began, begun) = tokio::sync::oneshot::channel();
        let first = tokio::spawn(SHARED.call_for("one", move || {
            let _ = began.send(());
            let _ = held.recv();
        }));
        begun.await.unwrap();
        let mut second = tokio::spawn(SHARED.call_for("one", || 2));
        while SHARED.usage().waiting == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(SHARED.call_for("other", || 3).await.unwrap(), 3);
        assert!(!second.is_finished(), "it waits for the owner's first, though a thread is free");
        let third = tokio::spawn(SHARED.call_for("one", || 3));
        while SHARED.usage().waiting < 2 {
            tokio::task::yield_now().await;
        }
        let refused = SHARED.call_for("one", || 4).await.unwrap_err();
        assert!(refused.to_string().starts_with("3 others wait"), "{refused}");
        assert_eq!(SHARED.call(|| 5).await.unwrap(), 5);
        third.abort();
        release.send(()).unwrap();
        assert_eq!((&mut second).await.unwrap().unwrap(), 2);
        first.await.unwrap().unwrap();
        assert!(third.await.is_err_and(|error| error.is_cancelled()));
        while SHARED.usage().busy > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(SHARED.owners.len(), 0, "owners without work are forgotten");
    }

    #[tokio::test]
    async fn a_full_lane_says_so_and_leaves_the_others_alone() {
        static FULL: Lane = Lane::new("full", 1, 1);
        static OTHER: Lane = Lane::new("other", 1, 1);
        let (release, held) = mpsc::channel::<()>();
        let (began, begun) = mpsc::channel();
        let work = FULL.io(move || {
            began.send(()).map_err(io::Error::other)?;
            held.recv().map_err(io::Error::other)
        });
        let first = tokio::spawn(work);
        OTHER.io(move || begun.recv().map_err(io::Error::other)).await.unwrap();
        let second = tokio::spawn(FULL.io(|| Ok(2)));
        while FULL.usage().waiting == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!((FULL.usage().busy, FULL.usage().waiting), (1, 1));
        let third = FULL.io(|| Ok(3)).await.unwrap_err();
        assert_eq!(third.kind(), io::ErrorKind::ResourceBusy);
        assert!(third.to_string().contains("(full)"), "{third}");
        assert_eq!(OTHER.io(|| Ok(4)).await.unwrap(), 4);
        release.send(()).unwrap();
        first.await.unwrap().unwrap();
        assert_eq!(second.await.unwrap().unwrap(), 2);
        assert_eq!((FULL.usage().busy, FULL.usage().waiting), (0, 0));
    }
}
