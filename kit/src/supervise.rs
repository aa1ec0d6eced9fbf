//! Owns the long-running tasks of a process: each has a name, all end on one token, and a task that ends early is
//! reported by name, or started again.

use std::{fmt, future::Future, time::Duration};

use tokio::{task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::backoff::Backoff;

/// Delays of [`keep_running`], from the first to the longest.
const RESTART_BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// After a task has run for this long, the delay is the first one again.
const RESTART_BACKOFF_RESET: Duration = Duration::from_secs(300);

/// Why a supervised task ended.
#[derive(Debug)]
pub struct Ended {
    /// The name given to [`Supervisor::spawn`].
    pub name: &'static str,
    /// `Ok` when the task returned normally, otherwise its error or that it panicked.
    pub result: Result<(), String>,
}

/// A set of named tasks that share one cancellation token.
pub struct Supervisor {
    tasks: JoinSet<Ended>,
    token: CancellationToken,
}

impl fmt::Debug for Supervisor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Supervisor").field("tasks", &self.tasks.len()).finish_non_exhaustive()
    }
}

impl Supervisor {
    /// An empty set, whose tasks end when `token` is cancelled.
    #[must_use]
    pub fn new(token: CancellationToken) -> Self {
        Self { tasks: JoinSet::new(), token }
    }

    /// The token that ends all tasks.
    #[must_use]
    pub fn token(&self) -> CancellationToken {
        self.token.clone()
    }

    /// Starts a task. It must watch the token itself and return soon after it is cancelled.
    pub fn spawn<F, E>(&mut self, name: &'static str, task: F)
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: fmt::Display,
    {
        self.tasks.spawn(async move { Ended { name, result: catch_panic(task).await } });
    }

    /// Starts a task that cannot fail. It must watch the token itself and return soon after it is cancelled.
    pub fn forever(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.spawn(name, async move {
            task.await;
            Ok::<(), std::convert::Infallible>(())
        });
    }

    /// Waits for the next task to end; `None` once no task is left.
    pub async fn next_ended(&mut self) -> Option<Ended> {
        loop {
            match self.tasks.join_next().await {
                None => return None,
                Some(Ok(ended)) => return Some(ended),
                Some(Err(error)) => tracing::error!(%error, "a supervised task was lost (bug)"),
            }
        }
    }

    /// Cancels the token and waits for all tasks, at most `deadline`; aborts those that did not end in time. Returns
    /// whether all ended.
    pub async fn shutdown(&mut self, deadline: Duration) -> bool {
        self.token.cancel();
        let drained =
            tokio::time::timeout(deadline, async { while self.next_ended().await.is_some() {} }).await.is_ok();
        self.tasks.abort_all();
        drained
    }
}

/// Runs what `start` makes until `shutdown`, and makes it again, after a back-off from one second to a minute, whenever
/// it panics or fails. A task that returns `Ok` is done, and so is this. Panics of `start` itself are not caught.
pub async fn keep_running<S, F, E>(name: &'static str, shutdown: &CancellationToken, mut start: S)
where
    S: FnMut() -> F,
    F: Future<Output = Result<(), E>> + Send + 'static,
    E: fmt::Display,
{
    let mut backoff = Backoff::new(RESTART_BACKOFF.0, RESTART_BACKOFF.1);
    loop {
        let started = Instant::now();
        let Err(error) = catch_panic(start()).await else { return };
        if shutdown.is_cancelled() {
            return;
        }
        if started.elapsed() >= RESTART_BACKOFF_RESET {
            backoff.reset();
        }
        let delay = backoff.next_delay();
        tracing::error!(task = name, error, ?delay, "task failed; restarting");
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(delay) => {}
        }
    }
}

/// Runs `task` as a separate task, so that its panic becomes an error.
async fn catch_panic<F, E>(task: F) -> Result<(), String>
where
    F: Future<Output = Result<(), E>> + Send + 'static,
    E: fmt::Display,
{
    let inner = tokio::spawn(async move { task.await.map_err(|e| e.to_string()) });
    let _abort = AbortOnDrop(inner.abort_handle());
    match inner.await {
        Ok(result) => result,
        Err(error) if error.is_panic() => Err("the task panicked; its message is in the log".to_owned()),
        Err(_) => Ok(()),
    }
}

struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_reported_by_name() {
        let mut tasks = Supervisor::new(CancellationToken::new());
        tasks.spawn::<_, String>("fine", async { Ok(()) });
        tasks.spawn::<_, String>("broken", async { panic!("boom") });
        let mut ended = [tasks.next_ended().await.unwrap(), tasks.next_ended().await.unwrap()];
        ended.sort_by_key(|e| e.name);
        assert!(ended[0].result.is_err() && ended[0].name == "broken");
        assert!(ended[1].result.is_ok());
        assert!(tasks.next_ended().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_panics_or_fails_is_started_again_until_it_is_done() {
        let (token, start) = (CancellationToken::new(), Instant::now());
        let mut starts = Vec::new();
        keep_running("shaky", &token, || {
            starts.push(start.elapsed().as_secs());
            let run = starts.len();
            async move {
                match run {
                    1 => panic!("boom"),
                    2 => Err("failed"),
                    // Long enough for the delays to begin again.
                    3 => {
                        tokio::time::sleep(RESTART_BACKOFF_RESET).await;
                        Err("failed late")
                    }
                    _ => Ok(()),
                }
            }
        })
        .await;
        assert_eq!(starts, [0, 1, 3, 304]);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_started_again_after_shutdown() {
        let token = CancellationToken::new();
        token.cancel();
        let mut starts = 0;
        keep_running("late", &token, || {
            starts += 1;
            async { Err("failed") }
        })
        .await;
        assert_eq!(starts, 1);
    }

    #[tokio::test]
    async fn shutdown_waits_for_tasks_that_watch_the_token() {
        let mut tasks = Supervisor::new(CancellationToken::new());
        let token = tasks.token();
        tasks.spawn::<_, String>("waits", async move {
            token.cancelled().await;
            Ok(())
        });
        assert!(tasks.shutdown(Duration::from_secs(5)).await);
    }

    #[tokio::test]
    async fn shutdown_gives_up_on_a_task_that_does_not() {
        let mut tasks = Supervisor::new(CancellationToken::new());
        tasks.spawn::<_, String>("deaf", std::future::pending());
        assert!(!tasks.shutdown(Duration::from_millis(20)).await);
    }
}
