//! Owns the long-running tasks of a process: each has a name, all end on one token, and a task that ends early is
//! reported by name.

use std::{fmt, future::Future, time::Duration};

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

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
        self.tasks.spawn(async move {
            // A task of its own so that a panic is reported under its name.
            let inner = tokio::spawn(async move { task.await.map_err(|e| e.to_string()) });
            let abort = AbortOnDrop(inner.abort_handle());
            let result = match inner.await {
                Ok(result) => result,
                Err(error) if error.is_panic() => Err("the task panicked; its message is in the log".to_owned()),
                Err(_) => Ok(()),
            };
            drop(abort);
            Ended { name, result }
        });
    }

    /// Starts a task that cannot fail. It must watch the token itself and return soon after it is cancelled.
    pub fn forever(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.spawn(name, async move {
            task.await;
            Ok::<(), std::convert::Infallible>(())
        });
    }

    /// Waits for the next task to end; `None` when there is none left.
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
