//! What a controller has written and its cache has not yet heard of, so that it never acts twice.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use tokio::time::Instant;

use super::{
    cache::{Cache, Mark},
    key::Key,
};

/// After this time a write that was never heard of is given up (upstream's expectations).
const GIVE_UP: Duration = Duration::from_secs(300);

/// The unheard writes of one owner.
#[derive(Debug, Default)]
pub(crate) struct Writes {
    created: Option<Mark>,
    deleted: Vec<(Key, String)>,
    last: Option<Instant>,
}

impl Writes {
    pub(crate) fn created(&mut self, mark: Mark, now: Instant) {
        self.created = Some(mark);
        self.last = Some(now);
    }

    pub(crate) fn deleted(&mut self, pod: Key, uid: String, now: Instant) {
        self.deleted.push((pod, uid));
        self.last = Some(now);
    }

    /// Whether the cache shows all of them.
    pub(crate) fn heard(&mut self, cache: &Cache<Pod>, now: Instant) -> bool {
        if self.last.is_some_and(|last| now.duration_since(last) >= GIVE_UP) {
            *self = Self::default();
        }
        if self.created.is_some_and(|mark| cache.passed(mark)) {
            self.created = None;
        }
        self.deleted.retain(|(key, uid)| {
            cache.get(key).is_some_and(|pod| {
                pod.metadata.uid.as_deref() == Some(uid.as_str()) && pod.metadata.deletion_timestamp.is_none()
            })
        });
        self.created.is_none() && self.deleted.is_empty()
    }
}
