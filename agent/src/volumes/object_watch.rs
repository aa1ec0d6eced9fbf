//! Watches of the ConfigMaps and Secrets that pods use: one watch per object, shared by all pods that use it, for as
//! long as one does. By single names, since a node may not list all of a cluster's (kubelet's watch-based manager).

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, Client, runtime::watcher};
use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};
use tokio_util::task::AbortOnDropHandle;
use windlass_kit::{
    backoff::Backoff,
    reflector::{Extent, reflect},
};

use crate::node_authorizer::{LAG, is_forbidden, retries, retry_forbidden};

/// A reference to an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ObjectRef {
    pub(crate) kind: Kind,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// The kinds that pods read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    ConfigMap,
    Secret,
}

/// An object as last seen by a watch.
#[derive(Debug, Clone)]
pub(crate) enum Object {
    ConfigMap(Arc<ConfigMap>),
    Secret(Arc<Secret>),
}

impl Object {
    /// Whether the object is immutable.
    fn is_immutable(&self) -> bool {
        match self {
            Self::ConfigMap(map) => map.immutable == Some(true),
            Self::Secret(secret) => secret.immutable == Some(true),
        }
    }

    fn version(&self) -> Option<&str> {
        let metadata = match self {
            Self::ConfigMap(map) => &map.metadata,
            Self::Secret(secret) => &secret.metadata,
        };
        metadata.resource_version.as_deref()
    }
}

impl From<ConfigMap> for Object {
    fn from(mut map: ConfigMap) -> Self {
        map.metadata.managed_fields = None;
        Self::ConfigMap(Arc::new(map))
    }
}

impl From<Secret> for Object {
    fn from(mut secret: Secret) -> Self {
        secret.metadata.managed_fields = None;
        Self::Secret(Arc::new(secret))
    }
}

/// The latest state of an object: unknown, missing, or present.
type Latest = Option<Option<Object>>;

/// A watched object; the watch ends with the last reference.
#[derive(Debug)]
pub(super) struct WatchedObject {
    changes: watch::Receiver<u64>,
    latest: watch::Receiver<Latest>,
    /// The last live read, and when it started.
    last_read: tokio::sync::Mutex<Option<(Instant, ReadResult)>>,
    task: AbortOnDropHandle<()>,
}

/// The result of a read, shared by all callers that waited for it.
pub(crate) type ReadResult = Result<Option<Object>, Arc<kube::Error>>;

impl WatchedObject {
    /// Reads the object from the API. One read serves all callers that came before it started: many pods that start
    /// together use the same objects.
    async fn read_live(&self, client: &Client, of: &ObjectRef) -> ReadResult {
        let requested_at = Instant::now();
        let mut last = self.last_read.lock().await;
        if let Some((_, answer)) = last.as_ref().filter(|(begun, _)| *begun >= requested_at) {
            return answer.clone();
        }
        let begun = Instant::now();
        let answer = read_object(client, of).await;
        *last = Some((begun, answer.clone()));
        answer
    }

    /// The latest state of the watch, `Some(None)` if the object does not exist. The first state is waited for as long
    /// as the Node authorizer may lag; `None` if it has not arrived by then.
    async fn latest(&self) -> Latest {
        let mut latest = self.latest.clone();
        let synced = tokio::time::timeout(LAG, latest.wait_for(Option::is_some)).await;
        synced.ok()?.ok()?.clone()
    }

    /// Whether the watch has delivered a state.
    pub(super) fn has_synced(&self) -> bool {
        self.latest.borrow().is_some()
    }

    /// Whether the watch has ended.
    pub(super) fn is_finished(&self) -> bool {
        self.task.is_finished()
    }
}

/// A pod's interest in a watched object.
#[derive(Debug, Clone)]
pub(crate) struct ObjectWatch {
    pub(super) watched: Arc<WatchedObject>,
    /// The watch had synced before this one joined, so its state may be older than the pod.
    was_synced: bool,
}

impl ObjectWatch {
    /// Counts the object's changes.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.watched.changes.clone()
    }
}

/// All watched objects; clones share them.
#[derive(Clone)]
pub(crate) struct ObjectWatches {
    client: Client,
    watches: Arc<Mutex<HashMap<ObjectRef, Weak<WatchedObject>>>>,
}

impl fmt::Debug for ObjectWatches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectWatches").finish_non_exhaustive()
    }
}

impl ObjectWatches {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, watches: Arc::default() }
    }

    /// Watches an object, or joins the existing watch.
    pub(crate) fn watch(&self, reference: &ObjectRef) -> ObjectWatch {
        let mut watches = self.watches.lock();
        // An immutable object may have been recreated since.
        if let Some(watched) = watches.get(reference).and_then(Weak::upgrade).filter(|f| !f.is_finished()) {
            let was_synced = watched.has_synced();
            return ObjectWatch { watched, was_synced };
        }
        watches.retain(|_, watched| watched.strong_count() > 0);
        let (changes_sender, changes) = watch::channel(0);
        let (latest_sender, latest) = watch::channel(None);
        let (client, of) = (self.client.clone(), reference.clone());
        let updates = WatchUpdates { changes_sender, latest_sender };
        let task = tokio::spawn(async move {
            match of.kind {
                Kind::ConfigMap => watch_one::<ConfigMap>(client, &of, &updates).await,
                Kind::Secret => watch_one::<Secret>(client, &of, &updates).await,
            }
        });
        let watched = Arc::new(WatchedObject {
            changes,
            latest,
            last_read: tokio::sync::Mutex::default(),
            task: AbortOnDropHandle::new(task),
        });
        watches.insert(reference.clone(), Arc::downgrade(&watched));
        ObjectWatch { watched, was_synced: false }
    }
}

/// Publishes the states of a watch.
struct WatchUpdates {
    changes_sender: watch::Sender<u64>,
    latest_sender: watch::Sender<Latest>,
}

impl WatchUpdates {
    /// Publishes the object's state; returns whether it may change again.
    fn put(&self, now: Option<Object>) -> bool {
        let may_change = !now.as_ref().is_some_and(Object::is_immutable);
        let same = match (&*self.latest_sender.borrow(), &now) {
            (Some(Some(old)), Some(new)) => old.version() == new.version(),
            // Missing before and after is no change.
            (None | Some(None), None) => true,
            _ => false,
        };
        self.latest_sender.send_replace(Some(now));
        if !same {
            self.changes_sender.send_modify(|count| *count += 1);
        }
        may_change
    }
}

async fn watch_one<K>(client: Client, of: &ObjectRef, updates: &WatchUpdates)
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Into<Object>
        + Clone
        + fmt::Debug
        + Send
        + serde::de::DeserializeOwned
        + 'static,
{
    // One request for what would be a list and a watch: most of what a pod costs the API are its ConfigMaps and Secrets.
    let config = watcher::Config::default().fields(&format!("metadata.name={}", of.name)).streaming_lists();
    let mut events = Box::pin(reflect(Api::<K>::namespaced(client, &of.namespace), config, Extent::Few));
    let (mut forbidden, mut failed) = (retries(), Backoff::new(Duration::from_millis(800), Duration::from_secs(30)));
    let mut listed = None;
    while let Some(event) = events.next().await {
        if matches!(event, Ok(watcher::Event::Apply(_) | watcher::Event::Delete(_) | watcher::Event::InitDone)) {
            forbidden.reset();
            failed.reset();
        }
        let now = match event {
            Ok(watcher::Event::Apply(object)) => Some(object.into()),
            Ok(watcher::Event::Delete(_)) => None,
            Ok(watcher::Event::Init) => {
                listed = None;
                continue;
            }
            Ok(watcher::Event::InitApply(object)) => {
                listed = Some(object.into());
                continue;
            }
            Ok(watcher::Event::InitDone) => listed.take(),
            Err(error) => {
                tracing::debug!(%error, name = of.name, kind = ?of.kind, "failed to watch object of a pod; retrying");
                let backoff = if is_watch_forbidden(&error) { &mut forbidden } else { &mut failed };
                tokio::time::sleep(backoff.next_delay()).await;
                continue;
            }
        };
        if !updates.put(now) {
            break;
        }
    }
}

/// [`is_forbidden`] for any step of a watch.
fn is_watch_forbidden(error: &watcher::Error) -> bool {
    use watcher::Error::{InitialListFailed, WatchError, WatchFailed, WatchStartFailed};
    match error {
        InitialListFailed(error) | WatchStartFailed(error) | WatchFailed(error) => is_forbidden(error),
        WatchError(status) => status.code == 403,
        watcher::Error::NoResourceVersion => false,
    }
}

/// How fresh a read must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Freshness {
    /// Not older than the pod: a pod that is created right after an edit sees the edit.
    Live,
    /// The latest state of the watch.
    Watched,
}

/// Reads the objects of a pod for its steps: from their watches if they are fresh enough and synced in time, else from
/// the API.
#[derive(Clone)]
pub(crate) struct ObjectReader {
    client: Client,
    watched: BTreeMap<ObjectRef, ObjectWatch>,
    freshness: Freshness,
}

impl ObjectReader {
    pub(crate) fn new(client: Client, watched: BTreeMap<ObjectRef, ObjectWatch>, freshness: Freshness) -> Self {
        Self { client, watched, freshness }
    }

    /// A ConfigMap; `None` if it does not exist.
    ///
    /// # Errors
    /// When the API cannot be read.
    pub(crate) async fn config_map(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<ConfigMap>>, Arc<kube::Error>> {
        Ok(match self.get(Kind::ConfigMap, namespace, name).await? {
            Some(Object::ConfigMap(map)) => Some(map),
            _ => None,
        })
    }

    /// A Secret; `None` if it does not exist.
    ///
    /// # Errors
    /// When the API cannot be read.
    pub(crate) async fn secret(&self, namespace: &str, name: &str) -> Result<Option<Arc<Secret>>, Arc<kube::Error>> {
        Ok(match self.get(Kind::Secret, namespace, name).await? {
            Some(Object::Secret(secret)) => Some(secret),
            _ => None,
        })
    }

    async fn get(&self, kind: Kind, namespace: &str, name: &str) -> ReadResult {
        let of = ObjectRef { kind, namespace: namespace.to_owned(), name: name.to_owned() };
        let Some(watch) = self.watched.get(&of) else { return read_object(&self.client, &of).await };
        if watch.was_synced && self.freshness == Freshness::Live {
            return watch.watched.read_live(&self.client, &of).await;
        }
        match watch.watched.latest().await {
            Some(state) => Ok(state),
            None => watch.watched.read_live(&self.client, &of).await,
        }
    }
}

/// Reads an object, retrying while the Node authorizer may lag.
async fn read_object(client: &Client, of: &ObjectRef) -> ReadResult {
    let (client, namespace) = (client.clone(), &of.namespace);
    let object = match of.kind {
        Kind::ConfigMap => {
            let api: Api<ConfigMap> = Api::namespaced(client, namespace);
            retry_forbidden(|| api.get_opt(&of.name)).await.map(|found| found.map(Object::from))
        }
        Kind::Secret => {
            let api: Api<Secret> = Api::namespaced(client, namespace);
            retry_forbidden(|| api.get_opt(&of.name)).await.map(|found| found.map(Object::from))
        }
    };
    object.map_err(Arc::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(version: &str, immutable: bool) -> Object {
        let text = format!(r#"{{"metadata":{{"name":"m","resourceVersion":"{version}"}},"immutable":{immutable}}}"#);
        serde_json::from_str::<ConfigMap>(&text).unwrap().into()
    }

    #[test]
    fn only_what_differs_is_a_change() {
        let (changes_sender, changes) = watch::channel(0);
        let updates = WatchUpdates { changes_sender, latest_sender: watch::Sender::new(None) };
        for (now, may_change, count) in [
            (None, true, 0),
            (Some(map("1", false)), true, 1),
            (Some(map("1", false)), true, 1),
            (Some(map("2", false)), true, 2),
            (None, true, 3),
            (None, true, 3),
            (Some(map("3", true)), false, 4),
        ] {
            let shown = format!("{now:?}");
            assert_eq!((updates.put(now), *changes.borrow()), (may_change, count), "{shown}");
        }
    }
}
