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

/// An object that is being watched; the watch ends with the last of these.
#[derive(Debug)]
pub(crate) struct Followed {
    changes: watch::Receiver<u64>,
    _task: AbortOnDropHandle<()>,
}

impl Followed {
    /// Counts the object's changes.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.clone()
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
        if let Some(followed) = open.get(reference).and_then(Weak::upgrade) {
            return followed;
        }
        open.retain(|_, followed| followed.strong_count() > 0);
        let (tell, changes) = watch::channel(0);
        let (client, of) = (self.client.clone(), reference.clone());
        let task = tokio::spawn(async move {
            match of.kind {
                Kind::ConfigMap => watch_one::<ConfigMap>(client, &of, &tell).await,
                Kind::Secret => watch_one::<Secret>(client, &of, &tell).await,
            }
        });
        let followed = Arc::new(Followed { changes, _task: AbortOnDropHandle::new(task) });
        open.insert(reference.clone(), Arc::downgrade(&followed));
        followed
    }
}

async fn watch_one<K>(client: Client, of: &Reference, tell: &watch::Sender<u64>)
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + fmt::Debug
        + Send
        + serde::de::DeserializeOwned
        + 'static,
{
    let config = watcher::Config::default().fields(&format!("metadata.name={}", of.name));
    let mut events = Box::pin(watcher(Api::<K>::namespaced(client, &of.namespace), config).default_backoff());
    let mut version = None;
    while let Some(event) = events.next().await {
        let seen = match event {
            Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => {
                object.meta().resource_version.clone()
            }
            Ok(watcher::Event::Delete(_)) => None,
            Ok(_) => continue,
            Err(error) => {
                tracing::debug!(%error, name = of.name, kind = ?of.kind, "an object of a pod could not be watched; it is tried again");
                continue;
            }
        };
        if seen != version {
            version = seen;
            tell.send_modify(|count| *count += 1);
        }
    }
}
