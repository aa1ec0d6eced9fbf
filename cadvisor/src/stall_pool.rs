//! Threads for reads that may stall. One thread executes them one after the other; when a read does not return in time,
//! it keeps its thread, and another thread continues with the rest. A thread cannot be interrupted in a system call, so
//! a stalled read costs its thread and its own row, and nothing else.

use std::{
    collections::VecDeque,
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex, MutexGuard};

type Run<J, R> = Box<dyn Fn(J) -> R + Send + Sync>;

struct State<K, J, R> {
    queue: VecDeque<(K, J)>,
    /// The workers that execute a read, and since when.
    in_flight: Vec<(u64, Instant)>,
    done: Vec<(K, R)>,
    workers: u64,
    started: u64,
    idle: u64,
    closed: bool,
}

struct Shared<K, J, R> {
    state: Mutex<State<K, J, R>>,
    /// Wakes workers.
    work: Condvar,
    /// Wakes the owner.
    finished: Condvar,
    run: Run<J, R>,
    stall_timeout: Duration,
}

pub(crate) struct StallTolerantPool<K, J, R> {
    name: &'static str,
    max_threads: u64,
    shared: Arc<Shared<K, J, R>>,
}

impl<K, J, R> fmt::Debug for StallTolerantPool<K, J, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StallTolerantPool")
            .field("name", &self.name)
            .field("max_threads", &self.max_threads)
            .finish_non_exhaustive()
    }
}

impl<K, J, R> Shared<K, J, R> {
    fn lock(&self) -> MutexGuard<'_, State<K, J, R>> {
        self.state.lock()
    }
}

impl<K: Send + 'static, J: Send + 'static, R: Send + 'static> StallTolerantPool<K, J, R> {
    /// `stall_timeout` is how long one read may take before others continue without it, `max_threads` the maximal
    /// number of threads.
    pub(crate) fn new(
        name: &'static str,
        max_threads: u64,
        stall_timeout: Duration,
        run: impl Fn(J) -> R + Send + Sync + 'static,
    ) -> Self {
        let state = State {
            queue: VecDeque::new(),
            in_flight: Vec::new(),
            done: Vec::new(),
            workers: 0,
            started: 0,
            idle: 0,
            closed: false,
        };
        let shared = Shared {
            state: Mutex::new(state),
            work: Condvar::new(),
            finished: Condvar::new(),
            run: Box::new(run),
            stall_timeout,
        };
        Self { name, max_threads, shared: Arc::new(shared) }
    }

    /// Runs all jobs, except those that stall. Adds all results to `done`, also those of jobs of earlier calls. Returns
    /// the jobs that could not be started because the maximal number of threads is stalled.
    pub(crate) fn run_all(&self, jobs: impl IntoIterator<Item = (K, J)>, done: &mut Vec<(K, R)>) -> Vec<(K, J)> {
        let stall_timeout = self.shared.stall_timeout;
        let mut state = self.shared.lock();
        state.queue.extend(jobs);
        loop {
            let fresh =
                state.in_flight.iter().map(|(_, since)| since.elapsed()).filter(|age| *age < stall_timeout).max();
            let wait = match fresh {
                // A worker is at work, and not stalled yet.
                Some(age) => stall_timeout.saturating_sub(age),
                None if state.queue.is_empty() => break,
                None if state.idle > 0 => {
                    self.shared.work.notify_one();
                    stall_timeout
                }
                None if state.workers < self.max_threads && self.spawn(&mut state) => stall_timeout,
                None => break,
            };
            self.shared.finished.wait_for(&mut state, wait);
        }
        // Both lists keep their allocations.
        done.append(&mut state.done);
        state.queue.drain(..).collect()
    }

    fn spawn(&self, state: &mut State<K, J, R>) -> bool {
        let (shared, number) = (Arc::clone(&self.shared), state.started);
        let made = std::thread::Builder::new().name(self.name.to_owned()).spawn(move || work(&shared, number));
        if let Err(error) = &made {
            tracing::warn!(%error, "failed to start a thread that reads usage; reporting stale usage");
        }
        state.started += 1;
        state.workers += u64::from(made.is_ok());
        made.is_ok()
    }
}

impl<K, J, R> Drop for StallTolerantPool<K, J, R> {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.work.notify_all();
    }
}

fn work<K, J, R>(shared: &Shared<K, J, R>, number: u64) {
    let mut state = shared.lock();
    while !state.closed {
        let Some((key, job)) = state.queue.pop_front() else {
            // Another worker is idle already: this one was only needed while that one was stalled.
            if state.idle > 0 {
                break;
            }
            state.idle += 1;
            shared.work.wait(&mut state);
            state.idle -= 1;
            continue;
        };
        state.in_flight.push((number, Instant::now()));
        drop(state);
        let result = (shared.run)(job);
        state = shared.lock();
        state.in_flight.retain(|(worker, _)| *worker != number);
        state.done.push((key, result));
        if state.queue.is_empty() {
            shared.finished.notify_one();
        }
    }
    state.workers -= 1;
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn what_hangs_holds_up_nothing_else_and_comes_late() {
        let (release, blocker) = mpsc::channel::<()>();
        let blocker = Mutex::new(blocker);
        let pool = StallTolerantPool::new("test", 3, Duration::from_millis(50), move |job: u32| {
            if job == 7 {
                let _ = blocker.lock().recv();
            }
            job * 2
        });
        let begun = Instant::now();
        let mut done = Vec::new();
        assert!(pool.run_all((0..100).map(|n| (n, n)), &mut done).is_empty());
        done.sort_unstable();
        assert_eq!(done.len(), 99);
        assert!(done.iter().all(|(key, result)| *key != 7 && *result == key * 2));
        assert!(begun.elapsed() < Duration::from_secs(5));
        // The next call does not wait for it.
        let begun = Instant::now();
        done.clear();
        pool.run_all([(200, 200)], &mut done);
        assert_eq!(done, [(200, 400)]);
        done.clear();
        assert!(begun.elapsed() < Duration::from_millis(45), "{:?}", begun.elapsed());
        release.send(()).unwrap();
        let late = (0..100).find_map(|_| {
            std::thread::sleep(Duration::from_millis(10));
            pool.run_all([], &mut done);
            done.pop()
        });
        assert_eq!(late, Some((7, 14)));
    }

    #[test]
    fn there_are_no_more_threads_than_allowed() {
        let (release, blocker) = mpsc::channel::<()>();
        let blocker = Mutex::new(blocker);
        let pool = StallTolerantPool::new("test", 2, Duration::from_millis(20), move |job: u32| {
            let _ = blocker.lock().recv();
            job
        });
        let mut late = Vec::new();
        assert_eq!(pool.run_all([(1, 1), (2, 2), (3, 3), (4, 4)], &mut late), [(3, 3), (4, 4)]);
        assert!(late.is_empty());
        drop(release);
        for _ in 0..100 {
            pool.run_all([], &mut late);
            std::thread::sleep(Duration::from_millis(5));
        }
        late.sort_unstable();
        assert_eq!(late, [(1, 1), (2, 2)]);
        late.clear();
        pool.run_all([(5, 5)], &mut late);
        assert_eq!(late, [(5, 5)]);
    }
}
