//! Shared informers: one watch per kind, a cache of trimmed objects, and the handlers of changes. `Cache` is plain
//! data; `Informer` feeds it from the API.

use std::{
    collections::BTreeMap,
    fmt,
    ops::Bound,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

use futures::{Stream, StreamExt};
use kube::{
    Resource, ResourceExt,
    runtime::{WatchStreamExt, watcher},
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::key::Key;

#[cfg(test)]
mod tests;
mod trim;

pub(crate) use trim::{trim_metadata, trim_node, trim_pod};

/// The cached objects of one kind.
pub(crate) struct Cache<K> {
    contents: Arc<RwLock<BTreeMap<Key, Arc<K>>>>,
    /// The highest resource version seen; 0 before the first.
    seen_version: Arc<AtomicU64>,
    /// The number of full lists started, and of the last one completed.
    lists: Arc<(AtomicU64, AtomicU64)>,
    synced: watch::Receiver<bool>,
}

impl<K> Clone for Cache<K> {
    fn clone(&self) -> Self {
        Self {
            contents: Arc::clone(&self.contents),
            seen_version: Arc::clone(&self.seen_version),
            lists: Arc::clone(&self.lists),
            synced: self.synced.clone(),
        }
    }
}

impl<K> fmt::Debug for Cache<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").finish_non_exhaustive()
    }
}

/// A point that a cache reaches when it reflects a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SyncPoint {
    version: u64,
    lists_started: u64,
}

impl<K> Cache<K> {
    pub(crate) fn get(&self, key: &Key) -> Option<Arc<K>> {
        self.contents.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    /// All objects, ordered by namespace and name.
    pub(crate) fn all(&self) -> Vec<Arc<K>> {
        self.contents.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// The objects of one namespace, ordered by name.
    pub(crate) fn in_namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        let from = Key::new(namespace, "");
        self.contents
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .range((Bound::Included(from), Bound::Unbounded))
            .take_while(|(key, _)| key.namespace == namespace)
            .map(|(_, object)| Arc::clone(object))
            .collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.contents.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// The sync point of a write that returned `version`.
    pub(crate) fn sync_point(&self, version: Option<&str>) -> SyncPoint {
        SyncPoint {
            // A version that is not a number is not waited for.
            version: version.and_then(|v| v.parse().ok()).unwrap_or(0),
            lists_started: self.lists.0.load(Ordering::Acquire),
        }
    }

    /// Whether the cache reflects the write: it has seen that version, or completed a list that began later.
    pub(crate) fn reached(&self, point: SyncPoint) -> bool {
        self.seen_version.load(Ordering::Acquire) >= point.version
            || self.lists.1.load(Ordering::Acquire) > point.lists_started
    }

    /// Waits until the first list is complete; `false` when the watch ended before.
    pub(crate) async fn synced(&self) -> bool {
        self.synced.clone().wait_for(|synced| *synced).await.is_ok()
    }
}

/// Called with the object before and after each change; must not block.
pub(crate) type Handler<K> = Box<dyn Fn(Option<&Arc<K>>, Option<&Arc<K>>) + Send + Sync>;

/// Feeds a [`Cache`] from a watch and calls handlers.
pub(crate) struct Informer<K> {
    cache: Cache<K>,
    synced: watch::Sender<bool>,
    handlers: Vec<Handler<K>>,
    trim: fn(&mut K),
}

impl<K> fmt::Debug for Informer<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Informer").field("handlers", &self.handlers.len()).finish_non_exhaustive()
    }
}

impl<K: Resource + Clone + Send + Sync + 'static> Informer<K> {
    /// An empty cache; `trim` drops what no controller reads.
    pub(crate) fn new(trim: fn(&mut K)) -> Self {
        let (synced, receiver) = watch::channel(false);
        let cache =
            Cache { contents: Arc::default(), seen_version: Arc::default(), lists: Arc::default(), synced: receiver };
        Self { cache, synced, handlers: Vec::new(), trim }
    }

    pub(crate) fn cache(&self) -> Cache<K> {
        self.cache.clone()
    }

    /// Adds a handler; all are added before [`run`](Self::run).
    pub(crate) fn on_change(&mut self, handler: impl Fn(Option<&Arc<K>>, Option<&Arc<K>>) + Send + Sync + 'static) {
        self.handlers.push(Box::new(handler));
    }

    /// Applies `events` until `shutdown`; failed watches are retried with back-off.
    pub(crate) async fn run(
        self,
        events: impl Stream<Item = Result<watcher::Event<K>, watcher::Error>> + Send,
        shutdown: CancellationToken,
    ) {
        let events = events.default_backoff();
        futures::pin_mut!(events);
        let mut listed: Option<BTreeMap<Key, Arc<K>>> = None;
        loop {
            let event = tokio::select! {
                () = shutdown.cancelled() => return,
                event = events.next() => event,
            };
            match event {
                None => return,
                Some(Err(error)) => tracing::debug!(%error, "watch failed; retrying"),
                Some(Ok(event)) => self.apply(event, &mut listed),
            }
        }
    }

    fn apply(&self, event: watcher::Event<K>, listed: &mut Option<BTreeMap<Key, Arc<K>>>) {
        match event {
            watcher::Event::Init => {
                self.cache.lists.0.fetch_add(1, Ordering::AcqRel);
                *listed = Some(BTreeMap::new());
            }
            watcher::Event::InitApply(mut object) => {
                (self.trim)(&mut object);
                let key = Key::of(object.meta());
                if let Some(listed) = listed {
                    listed.insert(key, Arc::new(object));
                }
            }
            watcher::Event::InitDone => {
                self.replace(listed.take().unwrap_or_default());
                self.cache.lists.1.store(self.cache.lists.0.load(Ordering::Acquire), Ordering::Release);
                self.synced.send_replace(true);
            }
            watcher::Event::Apply(mut object) => {
                (self.trim)(&mut object);
                let object = Arc::new(object);
                let old = self.write().insert(Key::of(object.meta()), Arc::clone(&object));
                self.observe_version(&object);
                self.notify(old.as_ref(), Some(&object));
            }
            watcher::Event::Delete(object) => {
                let old = self.write().remove(&Key::of(object.meta()));
                self.observe_version(&object);
                if old.is_some() {
                    self.notify(old.as_ref(), None);
                }
            }
        }
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, BTreeMap<Key, Arc<K>>> {
        self.cache.contents.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn observe_version(&self, object: &K) {
        if let Some(version) = object.meta().resource_version.as_deref().and_then(|v| v.parse().ok()) {
            self.cache.seen_version.fetch_max(version, Ordering::AcqRel);
        }
    }

    /// Replaces the contents by a full list and notifies handlers of each difference.
    fn replace(&self, listed: BTreeMap<Key, Arc<K>>) {
        let old = std::mem::replace(&mut *self.write(), listed.clone());
        // The version is published last: whoever sees it must find the contents.
        listed.values().for_each(|object| self.observe_version(object));
        for (key, object) in &old {
            if listed.get(key).is_none_or(|new| new.uid() != object.uid()) {
                self.notify(Some(object), None);
            }
        }
        for (key, object) in &listed {
            let before = old.get(key).filter(|old| old.uid() == object.uid());
            if before.is_none_or(|old| old.resource_version() != object.resource_version()) {
                self.notify(before, Some(object));
            }
        }
    }

    fn notify(&self, old: Option<&Arc<K>>, new: Option<&Arc<K>>) {
        for handler in &self.handlers {
            handler(old, new);
        }
    }
}
