//! Reads that may hang, done elsewhere: one thread does them one after the other, and when one does not come back in
//! time it keeps its thread and another goes on with the rest. Nobody can take a thread out of a system call, so what
//! hangs costs that thread and its own row, and nothing else.

use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

type Work<J, R> = Box<dyn Fn(J) -> R + Send + Sync>;

struct State<K, J, R> {
    queue: VecDeque<(K, J)>,
    /// Since when which worker is at something.
    at_work: Vec<(u64, Instant)>,
    done: Vec<(K, R)>,
    workers: u64,
    started: u64,
    idle: u64,
    closed: bool,
}

struct Shared<K, J, R> {
    state: Mutex<State<K, J, R>>,
    /// Workers wait here.
    work: Condvar,
    /// The owner waits here.
    finished: Condvar,
    run: Work<J, R>,
    patience: Duration,
}

pub(crate) struct Lane<K, J, R> {
    name: &'static str,
    most: u64,
    shared: Arc<Shared<K, J, R>>,
}

impl<K, J, R> fmt::Debug for Lane<K, J, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane").field("name", &self.name).field("most", &self.most).finish_non_exhaustive()
    }
}

impl<K, J, R> Shared<K, J, R> {
    fn lock(&self) -> MutexGuard<'_, State<K, J, R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Send + 'static, J: Send + 'static, R: Send + 'static> Lane<K, J, R> {
    /// `patience` is what one piece of work may take before others go on without it, `most` how many threads there
    /// are at most.
    pub(crate) fn new(
        name: &'static str,
        most: u64,
        patience: Duration,
        run: impl Fn(J) -> R + Send + Sync + 'static,
    ) -> Self {
        let state = State {
            queue: VecDeque::new(),
            at_work: Vec::new(),
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
            patience,
        };
        Self { name, most, shared: Arc::new(shared) }
    }

    /// Does all of it, as far as it does not hang. What has ended is added to `done`, some of it perhaps begun in an
    /// earlier round. Answers with what could not even be begun, since as many threads hang as there may be.
    pub(crate) fn round(&self, jobs: impl IntoIterator<Item = (K, J)>, done: &mut Vec<(K, R)>) -> Vec<(K, J)> {
        let patience = self.shared.patience;
        let mut state = self.shared.lock();
        state.queue.extend(jobs);
        loop {
            let fresh = state.at_work.iter().map(|(_, since)| since.elapsed()).filter(|age| *age < patience).max();
            let wait = match fresh {
                // Somebody works, and not for too long yet.
                Some(age) => patience.saturating_sub(age),
                None if state.queue.is_empty() => break,
                None if state.idle > 0 => {
                    self.shared.work.notify_one();
                    patience
                }
                None if state.workers < self.most && self.spawn(&mut state) => patience,
                None => break,
            };
            state = self.shared.finished.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
        // Both lists keep their room.
        done.append(&mut state.done);
        state.queue.drain(..).collect()
    }

    fn spawn(&self, state: &mut State<K, J, R>) -> bool {
        let (shared, number) = (Arc::clone(&self.shared), state.started);
        let made = std::thread::Builder::new().name(self.name.to_owned()).spawn(move || work(&shared, number));
        if let Err(error) = &made {
            tracing::warn!(%error, "a thread that reads usage could not be started; some of it is stale until it can");
        }
        state.started += 1;
        state.workers += u64::from(made.is_ok());
        made.is_ok()
    }
}

impl<K, J, R> Drop for Lane<K, J, R> {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.work.notify_all();
    }
}

fn work<K, J, R>(shared: &Shared<K, J, R>, number: u64) {
    let mut state = shared.lock();
    while !state.closed {
        let Some((key, job)) = state.queue.pop_front() else {
            // Another waits already: this one was needed only while that one hung.
            if state.idle > 0 {
                break;
            }
            state.idle += 1;
            state = shared.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
            continue;
        };
        state.at_work.push((number, Instant::now()));
        drop(state);
        let result = (shared.run)(job);
        state = shared.lock();
        state.at_work.retain(|(worker, _)| *worker != number);
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
        let (release, held) = mpsc::channel::<()>();
        let held = Mutex::new(held);
        let lane = Lane::new("test", 3, Duration::from_millis(50), move |job: u32| {
            if job == 7 {
                let _ = held.lock().unwrap().recv();
            }
            job * 2
        });
        let begun = Instant::now();
        let mut done = Vec::new();
        assert!(lane.round((0..100).map(|n| (n, n)), &mut done).is_empty());
        done.sort_unstable();
        assert_eq!(done.len(), 99);
        assert!(done.iter().all(|(key, result)| *key != 7 && *result == key * 2));
        assert!(begun.elapsed() < Duration::from_secs(5));
        // The next round does not wait for it.
        let begun = Instant::now();
        done.clear();
        lane.round([(200, 200)], &mut done);
        assert_eq!(done, [(200, 400)]);
        done.clear();
        assert!(begun.elapsed() < Duration::from_millis(45), "{:?}", begun.elapsed());
        release.send(()).unwrap();
        let late = (0..100).find_map(|_| {
            std::thread::sleep(Duration::from_millis(10));
            lane.round([], &mut done);
            done.pop()
        });
        assert_eq!(late, Some((7, 14)));
    }

    #[test]
    fn there_are_no_more_threads_than_allowed() {
        let (release, held) = mpsc::channel::<()>();
        let held = Mutex::new(held);
        let lane = Lane::new("test", 2, Duration::from_millis(20), move |job: u32| {
            let _ = held.lock().unwrap().recv();
            job
        });
        let mut late = Vec::new();
        assert_eq!(lane.round([(1, 1), (2, 2), (3, 3), (4, 4)], &mut late), [(3, 3), (4, 4)]);
        assert!(late.is_empty());
        drop(release);
        for _ in 0..100 {
            lane.round([], &mut late);
            std::thread::sleep(Duration::from_millis(5));
        }
        late.sort_unstable();
        assert_eq!(late, [(1, 1), (2, 2)]);
        late.clear();
        lane.round([(5, 5)], &mut late);
        assert_eq!(late, [(5, 5)]);
    }
}
