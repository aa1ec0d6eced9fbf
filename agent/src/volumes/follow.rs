//! Tells when a ConfigMap or Secret changes: one watch for each object, however many pods use it, for as long as one
//! does. Watches single names, since a node may not list all of a cluster's.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api, Client,
    runtime::{WatchStreamExt as _, watcher},
};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

/// What kind of object, where, and which.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Reference {
    pub(crate) kind: Kind,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// The kinds that pods take contents from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    ConfigMap,
    Secret,
}

/// An object as the watch last told it.
#[derive(Debug, Clone)]
pub(crate) enum Object {
    ConfigMap(Arc<ConfigMap>),
    Secret(Arc<Secret>),
}

impl Object {
    /// Nothing of it changes any more while it exists.
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

/// What is known of an object: nothing yet, that there is none, or what it holds.
type Latest = Option<Option<Object>>;

/// An object that is being watched; the watch ends with the last of these.
#[derive(Debug)]
pub(crate) struct Followed {
    changes: watch::Receiver<u64>,
    latest: Arc<Mutex<Latest>>,
    task: AbortOnDropHandle<()>,
}

impl Followed {
    /// Counts the object's changes.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.clone()
    }

    /// The object as the watch last told it, `Some(None)` when there is none; nothing before the watch has told anything.
    pub(crate) fn latest(&self) -> Latest {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Nothing more will be told of it.
    pub(super) fn has_ended(&self) -> bool {
        self.task.is_finished()
    }
}

/// All that is being watched; clones share it.
#[derive(Clone)]
pub(crate) struct Following {
    client: Client,
    open: Arc<Mutex<HashMap<Reference, Weak<Followed>>>>,
}

impl fmt::Debug for Following {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Following").finish_non_exhaustive()
    }
}

impl Following {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, open: Arc::default() }
    }

    /// Watches an object, or joins those who do.
    pub(crate) fn follow(&self, reference: &Reference) -> Arc<Followed> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        // One that was immutable may be another by now, for pods that come later.
        if let Some(followed) = open.get(reference).and_then(Weak::upgrade).filter(|f| !f.has_ended()) {
            return followed;
        }
        open.retain(|_, followed| followed.strong_count() > 0);
        let (tell, changes) = watch::channel(0);
        let (client, of) = (self.client.clone(), reference.clone());
        let latest = Arc::<Mutex<Latest>>::default();
        let told = Told { tell, latest: Arc::clone(&latest) };
        let task = tokio::spawn(async move {
            match of.kind {
                Kind::ConfigMap => watch_one::<ConfigMap>(client, &of, &told).await,
                Kind::Secret => watch_one::<Secret>(client, &of, &told).await,
            }
        });
        let followed = Arc::new(Followed { changes, latest, task: AbortOnDropHandle::new(task) });
        open.insert(reference.clone(), Arc::downgrade(&followed));
        followed
    }
}

/// Where a watch puts what it is told.
struct Told {
    tell: watch::Sender<u64>,
    latest: Arc<Mutex<Latest>>,
}

impl Told {
    /// Takes in what the object is now; gives whether it may change again.
    fn put(&self, now: Option<Object>) -> bool {
        let goes_on = !now.as_ref().is_some_and(Object::is_immutable);
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let same = match (&*latest, &now) {
            (Some(Some(old)), Some(new)) => old.version() == new.version(),
            // That there is none is no news to who has found none.
            (None | Some(None), None) => true,
            _ => false,
        };
        *latest = Some(now);
        drop(latest);
        if !same {
            self.tell.send_modify(|count| *count += 1);
        }
        goes_on
    }
}

async fn watch_one<K>(client: Client, of: &Reference, told: &Told)
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Into<Object>
        + Clone
        + fmt::Debug
        + Send
        + serde::de::DeserializeOwned
        + 'static,
{
    let config = watcher::Config::default().fields(&format!("metadata.name={}", of.name));
    let mut events = Box::pin(watcher(Api::<K>::namespaced(client, &of.namespace), config).default_backoff());
    let mut listed = None;
    while let Some(event) = events.next().await {
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
                tracing::debug!(%error, name = of.name, kind = ?of.kind, "an object of a pod could not be watched; it is tried again");
                continue;
            }
        };
        if !told.put(now) {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(version: &str, immutable: bool) -> Object {
        let text = format!(r#"{{"metadata":{{"name":"m","resourceVersion":"{version}"}},"immutable":{immutable}}}"#);
        serde_json::from_str::<ConfigMap>(&text).unwrap().into()
    }

    #[test]
    fn only_what_differs_is_news() {
        let (tell, changes) = watch::channel(0);
        let told = Told { tell, latest: Arc::default() };
        for (now, goes_on, count) in [
            (None, true, 0),
            (Some(map("1", false)), true, 1),
            (Some(map("1", false)), true, 1),
            (Some(map("2", false)), true, 2),
            (None, true, 3),
            (None, true, 3),
            (Some(map("3", true)), false, 4),
        ] {
            let shown = format!("{now:?}");
            assert_eq!((told.put(now), *changes.borrow()), (goes_on, count), "{shown}");
        }
    }
}
