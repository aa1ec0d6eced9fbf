//! Follows what the API serves: once for all controllers.

use std::{sync::Arc, time::Duration};

use kube::Client;
use tokio::sync::watch;

use super::rest_mapper::RestMapper;

/// Interval of discovery if changes are not notified, and after a failure (upstream's garbage collector).
const POLL_INTERVAL: Duration = Duration::from_secs(30);

/// What the API served when it was last asked, as one controller follows it.
#[derive(Clone)]
pub(crate) struct Discovery(watch::Receiver<Option<Arc<RestMapper>>>);

impl Discovery {
    /// What is served: at once the first time, afterwards when it may have changed.
    pub(crate) async fn next(&mut self) -> Arc<RestMapper> {
        loop {
            if self.0.changed().await.is_err() {
                // Shutdown.
                return std::future::pending().await;
            }
            if let Some(found) = self.0.borrow_and_update().clone() {
                return found;
            }
        }
    }

    /// The last result; `None` before the first.
    pub(crate) fn latest(&self) -> Option<Arc<RestMapper>> {
        self.0.borrow().clone()
    }
}

/// The task that asks, again whenever the result may have changed.
pub(super) struct Discoverer {
    client: Client,
    /// Changes with every change of what is served; `None` if the API does not notify of changes.
    generation: Option<watch::Receiver<u64>>,
    found: watch::Sender<Option<Arc<RestMapper>>>,
}

impl Discoverer {
    pub(super) fn new(client: Client, generation: Option<watch::Receiver<u64>>) -> Self {
        Self { client, generation, found: watch::Sender::new(None) }
    }

    /// For a controller that follows it.
    pub(super) fn discovery(&self) -> Discovery {
        let mut found = self.found.subscribe();
        // A controller that replaces another begins with what was found before.
        found.mark_changed();
        Discovery(found)
    }

    /// Asks forever.
    pub(super) async fn run(&self) {
        let mut generation = self.generation.clone();
        loop {
            if let Some(generation) = &mut generation {
                generation.mark_unchanged();
            }
            // A group that failed may be back without a change of the catalog: its server is another one.
            let whole = match RestMapper::discover(&self.client).await {
                Ok(mut kinds) => {
                    let whole = kinds.failed.is_empty();
                    if let Some(before) = self.found.borrow().as_deref() {
                        kinds.keep_unread_of(before);
                    }
                    self.found.send_replace(Some(Arc::new(kinds)));
                    whole
                }
                Err(error) => {
                    tracing::debug!(%error, "failed to discover served types; retrying");
                    false
                }
            };
            wait(&mut generation, whole).await;
        }
    }
}

/// Until the result may be another one. What is `whole` changes only with the generation.
async fn wait(generation: &mut Option<watch::Receiver<u64>>, whole: bool) {
    if let Some(changes) = generation {
        let has_ended = tokio::select! {
            changed = changes.changed() => changed.is_err(),
            () = tokio::time::sleep(POLL_INTERVAL), if !whole => false,
        };
        if !has_ended {
            return;
        }
        // The API server has ended; what it served cannot change any more, unless another one takes over.
        *generation = None;
    }
    tokio::time::sleep(POLL_INTERVAL).await;
}
