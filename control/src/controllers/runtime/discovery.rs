//! Follows what the API serves.

use std::time::Duration;

use kube::Client;
use tokio::sync::watch;

use super::kinds::Kinds;

/// Interval of discovery where nothing tells of changes, and after a failure (upstream's garbage collector).
const POLL_INTERVAL: Duration = Duration::from_secs(30);

/// Discovery, repeated whenever its result may have changed.
#[derive(Clone)]
pub(crate) struct Discovery {
    client: Client,
    /// Changes with every change of what is served; `None` where the API does not tell.
    generation: Option<watch::Receiver<u64>>,
    /// What the next result waits for.
    next: Next,
}

#[derive(Debug, Clone, Copy)]
enum Next {
    Now,
    Change,
    ChangeOrPoll,
}

impl Discovery {
    pub(crate) fn new(client: Client, generation: Option<watch::Receiver<u64>>) -> Self {
        Self { client, generation, next: Next::Now }
    }

    /// What is served: at once the first time, afterwards when it may have changed.
    pub(crate) async fn next(&mut self) -> Kinds {
        loop {
            self.wait().await;
            if let Some(generation) = &mut self.generation {
                generation.mark_unchanged();
            }
            match Kinds::discover(&self.client).await {
                Ok(kinds) => {
                    // A group that failed may be back without a change of the catalog: its server is another one.
                    let told = self.generation.is_some() && kinds.failed.is_empty();
                    self.next = if told { Next::Change } else { Next::ChangeOrPoll };
                    return kinds;
                }
                Err(error) => {
                    tracing::debug!(%error, "failed to discover served types; retrying");
                    self.next = Next::ChangeOrPoll;
                }
            }
        }
    }

    async fn wait(&mut self) {
        let poll = async |next| match next {
            Next::Change => std::future::pending().await,
            _ => tokio::time::sleep(POLL_INTERVAL).await,
        };
        if matches!(self.next, Next::Now) {
            return;
        }
        match &mut self.generation {
            None => poll(Next::ChangeOrPoll).await,
            Some(generation) => tokio::select! {
                changed = generation.changed() => if changed.is_err() {
                    // The API server has ended; what it served cannot change any more, unless another one takes over.
                    self.generation = None;
                    poll(Next::ChangeOrPoll).await;
                },
                () = poll(self.next) => {}
            },
        }
    }
}
