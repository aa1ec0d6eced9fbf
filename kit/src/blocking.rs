//! Blocking work, which must not run on the runtime's worker threads. Each kind has a lane of its own: so many threads, and so
//! much work that waits for one. What hangs in one lane, a name server that is away or a disk, holds up nothing in another.

use std::{
    collections::BTreeMap,
    io,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::{sync::Semaphore, task::JoinError};

/// Names of hosts.
pub static RESOLVE: Lane = Lane::new("resolve", 2, 64);

/// All lanes.
pub static LANES: [&Lane; 1] = [&RESOLVE];

/// Threads for one kind of blocking work.
#[derive(Debug)]
pub struct Lane {
    name: &'static str,
    threads: usize,
    queue: usize,
    slots: Semaphore,
    waiting: Mutex<Waiting>,
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

/// How a lane is used at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneUse {
    /// Its name.
    pub name: &'static str,
    /// Its threads that work.
    pub busy: usize,
    /// How much work waits for one.
    pub waiting: usize,
    /// For how long the oldest of it has waited.
    pub age: Duration,
}

/// A place among those that wait, given up when it is dropped.
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
    /// A lane of so many threads, for which so much work may wait.
    const fn new(name: &'static str, threads: usize, queue: usize) -> Self {
        let waiting = Mutex::new(Waiting { next: 0, since: BTreeMap::new() });
        Self { name, threads, queue, slots: Semaphore::const_new(threads), waiting }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
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
        let place = match self.queued() {
            Ok(place) => place,
            Err(busy) => return Err(lost(busy)),
        };
        // Closed by nobody.
        let slot = self.slots.acquire().await.ok();
        drop(place);
        let work = move || {
            // Held until the work has ended, whether or not somebody waits for it.
            let _slot = slot;
            work()
        };
        tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(lost(error.into())))
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
            busy: self.threads.saturating_sub(self.slots.available_permits()),
            waiting: waiting.since.len(),
            age: waiting.since.values().next().map(Instant::elapsed).unwrap_or_default(),
        }
    }
}

/// The threads of all lanes.
#[must_use]
pub fn threads() -> usize {
    LANES.iter().map(|lane| lane.threads).sum()
}

/// Runs `work` on a thread for blocking work. When it does not end, because it panicked or the runtime stops, the
/// error is that of `lost`.
///
/// # Errors
/// Those of the work, and of `lost`.
pub async fn run<T, E>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
    lost: impl FnOnce(JoinError) -> E,
) -> Result<T, E>
where
    T: Send + 'static,
    E: Send + 'static,
{
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(lost(error)))
}

/// [`run`] for I/O.
///
/// # Errors
/// Those of the work; [`io::ErrorKind::Other`] when it did not end.
pub async fn io<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    run(work, io::Error::other).await
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
