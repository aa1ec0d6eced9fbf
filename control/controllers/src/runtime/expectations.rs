//! Expectations: a controller's writes that its cache does not show yet, so that it never acts twice on stale state.

use std::time::Duration;

use kube::Resource;
use tokio::time::Instant;

use super::{
    informer::{Cache, SyncPoint},
    key::Key,
};

/// How long a controller waits for a cache to show its own write; the write's event queues the owner sooner.
pub(crate) const CACHE_PATIENCE: Duration = Duration::from_secs(1);

/// An expectation that is never observed expires after this time, as upstream's.
const EXPECTATIONS_TIMEOUT: Duration = Duration::from_secs(300);

/// The expectations of one owner.
#[derive(Debug, Default)]
pub(crate) struct Expectations {
    created: Option<SyncPoint>,
    deleted: Vec<(Key, String)>,
    last: Option<Instant>,
}

impl Expectations {
    pub(crate) fn expect_creation(&mut self, point: SyncPoint, now: Instant) {
        self.created = Some(point);
        self.last = Some(now);
    }

    pub(crate) fn expect_deletion(&mut self, object: Key, uid: String, now: Instant) {
        self.deleted.push((object, uid));
        self.last = Some(now);
    }

    /// Whether the cache shows all expected writes; expired expectations are dropped.
    pub(crate) fn satisfied<K: Resource>(&mut self, cache: &Cache<K>, now: Instant) -> bool {
        if self.last.is_some_and(|last| now.duration_since(last) >= EXPECTATIONS_TIMEOUT) {
            *self = Self::default();
        }
        if self.created.is_some_and(|point| cache.reached(point)) {
            self.created = None;
        }
        self.deleted.retain(|(key, uid)| {
            cache.get(key).is_some_and(|object| {
                let meta = object.meta();
                meta.uid.as_deref() == Some(uid.as_str()) && meta.deletion_timestamp.is_none()
            })
        });
        self.created.is_none() && self.deleted.is_empty()
    }
}
