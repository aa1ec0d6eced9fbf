//! One watch per kind, shared by all controllers: a cache of trimmed objects and the handlers that
//! hear each change. `Contents` is plain data; `Informer` feeds it from the API.

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

/// What the API has of one kind, as far as it has been heard.
pub(crate) struct Cache<K> {
    contents: Arc<RwLock<BTreeMap<Key, Arc<K>>>>,
    /// The highest resourceVersion heard; 0 before the first.
    heard: Arc<AtomicU64>,
    /// How many full lists have been started, and the number of the last that is complete.
    lists: Arc<(AtomicU64, AtomicU64)>,
    synced: watch::Receiver<bool>,
}

impl<K> Clone for Cache<K> {
    fn clone(&self) -> Self {
        Self {
            contents: Arc::clone(&self.contents),
            heard: Arc::clone(&self.heard),
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

/// A point that a cache passes once it has heard of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
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

    /// The mark of a write that was answered with `version`.
    pub(crate) fn mark(&self, version: Option<&str>) -> Mark {
        Mark {
            // A version that is no number is not waited for.
            version: version.and_then(|v| v.parse().ok()).unwrap_or(0),
            lists_started: self.lists.0.load(Ordering::Acquire),
        }
    }

    /// Whether the cache reflects the write: it heard that version, or finished a list begun later.
    pub(crate) fn passed(&self, mark: Mark) -> bool {
        self.heard.load(Ordering::Acquire) >= mark.version || self.lists.1.load(Ordering::Acquire) > mark.lists_started
    }

    /// Waits until the first list is complete; `false` when the watch ended before.
    pub(crate) async fn synced(&self) -> bool {
        self.synced.clone().wait_for(|synced| *synced).await.is_ok()
    }
}

/// Called with the object before and after each change; must not block.
pub(crate) type Handler<K> = Box<dyn Fn(Option<&Arc<K>>, Option<&Arc<K>>) + Send + Sync>;

/// Feeds a [`Cache`] from a watch and tells handlers.
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
        let cache = Cache { contents: Arc::default(), heard: Arc::default(), lists: Arc::default(), synced: receiver };
        Self { cache, synced, handlers: Vec::new(), trim }
    }

    pub(crate) fn cache(&self) -> Cache<K> {
        self.cache.clone()
    }

    /// Adds a handler; all are added before [`run`](Self::run).
    pub(crate) fn on_change(&mut self, handler: impl Fn(Option<&Arc<K>>, Option<&Arc<K>>) + Send + Sync + 'static) {
        self.handlers.push(Box::new(handler));
    }

    /// Follows `events` until `shutdown`; broken watches are taken up again with back-off.
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
                Some(Err(error)) => tracing::debug!(%error, "a watch broke; it is taken up again"),
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
                self.heard(&object);
                self.tell(old.as_ref(), Some(&object));
            }
            watcher::Event::Delete(object) => {
                let old = self.write().remove(&Key::of(object.meta()));
                self.heard(&object);
                if old.is_some() {
                    self.tell(old.as_ref(), None);
                }
            }
        }
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, BTreeMap<Key, Arc<K>>> {
        self.cache.contents.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn heard(&self, object: &K) {
        if let Some(version) = object.meta().resource_version.as_deref().and_then(|v| v.parse().ok()) {
            self.cache.heard.fetch_max(version, Ordering::AcqRel);
        }
    }

    /// Takes a full list in the place of the contents and tells each difference.
    fn replace(&self, listed: BTreeMap<Key, Arc<K>>) {
        let old = std::mem::replace(&mut *self.write(), listed.clone());
        // Only now: whoever sees the version must find the contents.
        listed.values().for_each(|object| self.heard(object));
        for (key, object) in &old {
            if listed.get(key).is_none_or(|new| new.uid() != object.uid()) {
                self.tell(Some(object), None);
            }
        }
        for (key, object) in &listed {
            let before = old.get(key).filter(|old| old.uid() == object.uid());
            if before.is_none_or(|old| old.resource_version() != object.resource_version()) {
                self.tell(before, Some(object));
            }
        }
    }

    fn tell(&self, old: Option<&Arc<K>>, new: Option<&Arc<K>>) {
        for handler in &self.handlers {
            handler(old, new);
        }
    }
}
