//! For how long a node has been silent. The time in which the API could write nothing, because its own disk took nothing,
//! says nothing of the node: its heartbeats waited, too.

use std::{fmt, sync::Arc, time::Duration};

use tokio::time::Instant;

/// For how long in all the API could write nothing since it was started.
#[derive(Clone, Default)]
pub struct WriteStalls(Option<Arc<dyn Fn() -> Duration + Send + Sync>>);

impl fmt::Debug for WriteStalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WriteStalls").field(&self.total()).finish()
    }
}

/// When something was seen.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    at: Instant,
    stalled: Duration,
}

impl WriteStalls {
    /// `total` returns the total duration of write stalls, which never decreases.
    pub fn new(total: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(total)))
    }

    fn total(&self) -> Duration {
        self.0.as_ref().map_or(Duration::ZERO, |total| total())
    }

    pub(super) fn now(&self) -> Seen {
        Seen { at: Instant::now(), stalled: self.total() }
    }

    /// The time since then in which the API could write.
    pub(super) fn silence(&self, since: Seen) -> Duration {
        since.at.elapsed().saturating_sub(self.total().saturating_sub(since.stalled))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_time_in_which_nothing_could_be_written_does_not_count() {
        let stalled = Arc::new(AtomicU64::new(7));
        let told = Arc::clone(&stalled);
        let stalls = WriteStalls::new(move || Duration::from_secs(told.load(Ordering::Relaxed)));
        let seen = stalls.now();
        for (passes, stalls_for, silence) in [(10, 0, 10), (40, 40, 10), (5, 3, 12), (20, 0, 32)] {
            tokio::time::advance(Duration::from_secs(passes)).await;
            stalled.fetch_add(stalls_for, Ordering::Relaxed);
            assert_eq!(stalls.silence(seen), Duration::from_secs(silence));
        }
        assert_eq!(WriteStalls::default().silence(seen), Duration::from_secs(75), "of an API that does not tell");
    }
}
