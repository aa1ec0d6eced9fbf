//! Shared informers: one watch for a type, a cache of trimmed objects, and the handlers of changes.

use std::{
    collections::BTreeMap,
    fmt,
    hash::{BuildHasher as _, RandomState},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::{Stream, StreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    ResourceExt,
    runtime::{WatchStreamExt, watcher},
};
use parking_lot::{Mutex, RwLock};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;
use windlass_kit::repairs::{MainPath, Repair};

use super::{
    cached::Cached,
    index::{Contents, Index},
    key::Key,
};

/// The cached objects of one type; clones are the same cache.
pub(crate) struct Cache<K> {
    contents: Arc<RwLock<Contents<K>>>,
    /// The highest resource version seen; 0 before the first.
    seen_version: Arc<AtomicU64>,
    /// The number of full lists started, and of the last one completed.
    lists: Arc<(AtomicU64, AtomicU64)>,
    /// The number of objects that lookups returned.
    reads: Arc<AtomicU64>,
}

impl<K> Clone for Cache<K> {
    fn clone(&self) -> Self {
        Self {
            contents: Arc::clone(&self.contents),
            seen_version: Arc::clone(&self.seen_version),
            lists: Arc::clone(&self.lists),
            reads: Arc::clone(&self.reads),
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
    fn new() -> Self {
        Self {
            contents: Arc::new(RwLock::new(Contents::default())),
            seen_version: Arc::default(),
            lists: Arc::default(),
            reads: Arc::default(),
        }
    }

    fn read<T>(&self, f: impl FnOnce(&Contents<K>) -> T) -> T {
        f(&self.contents.read())
    }

    fn write<T>(&self, f: impl FnOnce(&mut Contents<K>) -> T) -> T {
        f(&mut self.contents.write())
    }

    fn counted(&self, found: Vec<Arc<K>>) -> Vec<Arc<K>> {
        self.reads.fetch_add(found.len() as u64, Ordering::Relaxed);
        found
    }

    pub(crate) fn get(&self, key: &Key) -> Option<Arc<K>> {
        let found = self.read(|contents| contents.get(key).cloned());
        self.reads.fetch_add(u64::from(found.is_some()), Ordering::Relaxed);
        found
    }

    /// All objects, ordered by namespace and name. For what concerns all of them only: changes use an index.
    pub(crate) fn all(&self) -> Vec<Arc<K>> {
        self.counted(self.read(|contents| contents.iter().map(|(_, object)| Arc::clone(object)).collect()))
    }

    /// The same for metrics, which are no work of a controller: not counted.
    pub(crate) fn shown(&self) -> Vec<Arc<K>> {
        self.read(|contents| contents.iter().map(|(_, object)| Arc::clone(object)).collect())
    }

    /// The objects of one namespace, ordered by name.
    pub(crate) fn in_namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        self.counted(self.read(|contents| contents.in_namespace(namespace).cloned().collect()))
    }

    /// Whether a namespace has no objects.
    pub(crate) fn is_namespace_empty(&self, namespace: &str) -> bool {
        self.read(|contents| contents.in_namespace(namespace).next().is_none())
    }

    /// The objects that `index` finds under `value`, ordered by namespace and name.
    pub(crate) fn by_index(&self, index: &Index<K>, value: &str) -> Vec<Arc<K>> {
        self.counted(self.read(|contents| contents.by_index(index, value)))
    }

    /// The objects under the one of `values` that has the fewest; none without values.
    pub(crate) fn by_rarest(&self, index: &Index<K>, values: &[String]) -> Vec<Arc<K>> {
        self.counted(self.read(|contents| {
            let rarest = values.iter().min_by_key(|value| contents.count(index, value));
            rarest.map(|value| contents.by_index(index, value)).unwrap_or_default()
        }))
    }

    /// The number of objects that `index` finds under `value`.
    pub(crate) fn count(&self, index: &Index<K>, value: &str) -> usize {
        self.read(|contents| contents.count(index, value))
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
}

/// Called with the object before and after each change; must not block.
type Handler<K> = Box<dyn Fn(Option<&Arc<K>>, Option<&Arc<K>>) + Send + Sync>;

/// A handler of the metadata of any type's objects, before and after each change.
pub(crate) type MetadataHandler = Box<dyn Fn(Option<&ObjectMeta>, Option<&ObjectMeta>) + Send + Sync>;

/// How long handlers are called.
#[derive(Debug, Clone, Default)]
pub(crate) struct Life {
    over: CancellationToken,
    failed: CancellationToken,
}

impl Life {
    /// A life that ends with this one at the latest. If a handler of either panics, both have failed.
    pub(crate) fn child(&self) -> Self {
        Self { over: self.over.child_token(), failed: self.failed.clone() }
    }

    /// Removes the handlers.
    pub(crate) fn end(&self) {
        self.over.cancel();
    }

    /// Waits for a panic of a handler.
    pub(crate) async fn failed(&self) {
        self.failed.cancelled().await;
    }
}

struct Registered<K> {
    life: Life,
    /// It counts changes, so that it is not called for a replay.
    counts: bool,
    handler: Handler<K>,
}

/// Feeds a [`Cache`] from a watch and calls handlers.
pub(crate) struct Informer<K> {
    cache: Cache<K>,
    synced: watch::Sender<bool>,
    handlers: Mutex<Vec<Registered<K>>>,
    /// Ends the watch.
    stop: CancellationToken,
}

impl<K> Drop for Informer<K> {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl<K> fmt::Debug for Informer<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Informer").finish_non_exhaustive()
    }
}

/// After this time, and at most a tenth more, the cache is delivered once more. Upstream's is 12 h to 24 h; here it is
/// the safety net for missed changes, and cheap: an unchanged object costs no request.
const REPLAY: Duration = Duration::from_secs(3600);

/// The time to the next replay, which is another one for each informer, so that not all controllers work at once.
fn replay_after() -> Duration {
    // Each such state has keys of its own.
    let random = RandomState::new().hash_one(0);
    #[allow(clippy::cast_possible_truncation, reason = "below 1000")]
    let share = (random % 1000) as u32;
    Repair::InformerReplay.period(REPLAY + REPLAY / 10_000 * share)
}

/// A full list in progress.
pub(crate) type Listed<K> = Option<BTreeMap<Arc<Key>, Arc<K>>>;

impl<K: Cached> Informer<K> {
    /// An informer that cancels `stop` when it is dropped.
    pub(crate) fn new(stop: CancellationToken) -> Self {
        Self { cache: Cache::new(), synced: watch::Sender::new(false), handlers: Mutex::default(), stop }
    }

    pub(crate) fn cache(&self) -> Cache<K> {
        self.cache.clone()
    }

    /// Adds an index, at any time.
    pub(crate) fn add_index(&self, index: &Index<K>) {
        self.cache.write(|contents| contents.add_index(index));
    }

    /// Adds a handler, at any time, until `life` ends. What is cached already is delivered to it first, as additions; it
    /// may hear of a change a second time. A panic makes `life` fail and ends it.
    pub(crate) fn on_change(
        &self,
        life: &Life,
        handler: impl Fn(Option<&Arc<K>>, Option<&Arc<K>>) + Send + Sync + 'static,
    ) {
        self.register(Registered { life: life.clone(), counts: false, handler: Box::new(handler) });
    }

    /// The same for a handler that counts changes, which hears of none a second time.
    pub(crate) fn count_changes(
        &self,
        life: &Life,
        handler: impl Fn(Option<&Arc<K>>, Option<&Arc<K>>) + Send + Sync + 'static,
    ) {
        self.register(Registered { life: life.clone(), counts: true, handler: Box::new(handler) });
    }

    fn register(&self, registered: Registered<K>) {
        // The lock keeps back the notifications of later changes, whose objects the list of present ones may hold.
        let mut handlers = self.handlers.lock();
        let present: Vec<Arc<K>> =
            self.cache.read(|contents| contents.iter().map(|(_, object)| Arc::clone(object)).collect());
        present.iter().for_each(|object| registered.call(None, Some(object)));
        handlers.push(registered);
    }

    /// Delivers what is cached once more, as additions: whatever a controller has missed or given up, it does now, as it
    /// would after a restart. client-go's resync.
    pub(crate) fn replay(&self) {
        let handlers = self.handlers.lock();
        let present: Vec<Arc<K>> =
            self.cache.read(|contents| contents.iter().map(|(_, object)| Arc::clone(object)).collect());
        let replayed =
            || handlers.iter().filter(|registered| !registered.counts && !registered.life.over.is_cancelled());
        present.iter().for_each(|object| replayed().for_each(|registered| registered.call(None, Some(object))));
    }

    /// Applies `events` until `stop`, or until the informer has been dropped; failed watches are retried with
    /// back-off.
    pub(crate) async fn run(
        informer: Weak<Self>,
        events: impl Stream<Item = Result<watcher::Event<K>, watcher::Error>> + Send,
        stop: CancellationToken,
    ) {
        let events = events.default_backoff();
        futures::pin_mut!(events);
        let mut listed: Listed<K> = None;
        let mut replay = Instant::now() + replay_after();
        loop {
            let event = tokio::select! {
                () = stop.cancelled() => return,
                event = events.next() => Some(event),
                () = tokio::time::sleep_until(replay) => None,
            };
            let Some(informer) = informer.upgrade() else { return };
            let Some(event) = event else {
                informer.replay();
                replay = Instant::now() + replay_after();
                continue;
            };
            match event {
                None => return,
                Some(Err(error)) => {
                    tracing::debug!(%error, r#type = std::any::type_name::<K>(), "watch failed; retrying");
                }
                Some(Ok(event)) => informer.apply(event, &mut listed),
            }
        }
    }

    pub(crate) fn apply(&self, event: watcher::Event<K>, listed: &mut Listed<K>) {
        match event {
            watcher::Event::Init => {
                self.cache.lists.0.fetch_add(1, Ordering::AcqRel);
                *listed = Some(BTreeMap::new());
            }
            watcher::Event::InitApply(mut object) => {
                object.trim();
                let key = Key::of(object.meta());
                if let Some(listed) = listed {
                    listed.insert(Arc::new(key), Arc::new(object));
                }
            }
            watcher::Event::InitDone => {
                self.replace(listed.take().unwrap_or_default());
                self.cache.lists.1.store(self.cache.lists.0.load(Ordering::Acquire), Ordering::Release);
                self.synced.send_replace(true);
            }
            watcher::Event::Apply(mut object) => {
                object.trim();
                let object = Arc::new(object);
                let old = self.cache.write(|c| c.insert(Key::of(object.meta()), Arc::clone(&object)));
                self.observe_version(&object);
                if old.as_ref().is_some_and(|old| old.uid() != object.uid()) {
                    self.notify(old.as_ref(), None);
                    self.notify(None, Some(&object));
                } else {
                    self.notify(old.as_ref(), Some(&object));
                }
            }
            watcher::Event::Delete(object) => {
                let old = self.cache.write(|contents| contents.remove(&Key::of(object.meta())));
                self.observe_version(&object);
                if old.is_some() {
                    self.notify(old.as_ref(), None);
                }
            }
        }
    }

    fn observe_version(&self, object: &K) {
        if let Some(version) = object.meta().resource_version.as_deref().and_then(|v| v.parse().ok()) {
            self.cache.seen_version.fetch_max(version, Ordering::AcqRel);
        }
    }

    /// Replaces the contents by a full list and notifies handlers of each difference.
    fn replace(&self, listed: BTreeMap<Arc<Key>, Arc<K>>) {
        let old = self.cache.write(|contents| contents.replace(listed.clone()));
        // The version is published last: a reader that sees it must find the contents.
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
        let mut handlers = self.handlers.lock();
        handlers.retain(|registered| !registered.life.over.is_cancelled());
        // Who counts changes hears of them by nothing else.
        let told = |registered: &&Registered<K>| registered.counts || !MainPath::ObjectChanges.is_off();
        handlers.iter().filter(told).for_each(|registered| registered.call(old, new));
    }
}

impl<K> Registered<K> {
    /// A panic ends the subscriber, not the informer, which others share.
    fn call(&self, old: Option<&Arc<K>>, new: Option<&Arc<K>>) {
        if catch_unwind(AssertUnwindSafe(|| (self.handler)(old, new))).is_err() {
            self.life.failed.cancel();
            self.life.end();
        }
    }
}

/// An informer of any type, as a source of metadata.
pub(crate) trait MetadataSource: Send + Sync {
    /// As [`Informer::on_change`].
    fn on_metadata(&self, life: &Life, handler: MetadataHandler);

    /// The UIDs of all cached objects.
    fn uids(&self) -> Vec<String>;

    /// `true` when the first list is complete.
    fn synced(&self) -> watch::Receiver<bool>;

    /// The number of cached objects, and the number of objects that lookups returned.
    fn statistics(&self) -> (usize, u64);
}

impl<K: Cached> MetadataSource for Informer<K> {
    fn on_metadata(&self, life: &Life, handler: MetadataHandler) {
        self.on_change(life, move |old, new| handler(old.map(|o| o.meta()), new.map(|o| o.meta())));
    }

    fn uids(&self) -> Vec<String> {
        self.cache.read(|contents| contents.iter().filter_map(|(_, object)| object.uid()).collect())
    }

    fn synced(&self) -> watch::Receiver<bool> {
        self.synced.subscribe()
    }

    fn statistics(&self) -> (usize, u64) {
        (self.cache.read(Contents::len), self.cache.reads.load(Ordering::Relaxed))
    }
}
