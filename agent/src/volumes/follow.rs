//! Tells what a ConfigMap or Secret holds and when it changes: one watch for each object, however many pods use it, for as
//! long as one does. Watches single names, since a node may not list all of a cluster's.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, Client, runtime::watcher};
use tokio::{sync::watch, time::Instant};
use tokio_util::task::AbortOnDropHandle;
use windlass_kit::{
    backoff::Backoff,
    reflector::{Extent, reflect},
};

use crate::node_authorizer::{LAG, is_refusal, past_lag, retries};

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
pub(super) struct Followed {
    changes: watch::Receiver<u64>,
    latest: watch::Receiver<Latest>,
    /// The last read of it beside the watch, and when that was begun.
    read: tokio::sync::Mutex<Option<(Instant, Answer)>>,
    task: AbortOnDropHandle<()>,
}

/// What a read of an object has answered, for all who waited for it.
pub(crate) type Answer = Result<Option<Object>, Arc<kube::Error>>;

impl Followed {
    /// The object as the API has it now. One read answers all who asked before it was begun: many pods that start at once
    /// are made of the same objects.
    async fn now(&self, client: &Client, of: &Reference) -> Answer {
        let asked = Instant::now();
        let mut last = self.read.lock().await;
        if let Some((_, answer)) = last.as_ref().filter(|(begun, _)| *begun >= asked) {
            return answer.clone();
        }
        let begun = Instant::now();
        let answer = read(client, of).await;
        *last = Some((begun, answer.clone()));
        answer
    }

    /// The object as the watch last told it, `Some(None)` when there is none. Its first word is waited for as long as the
    /// Node authorizer may lag; nothing when there was none.
    async fn latest(&self) -> Latest {
        let mut latest = self.latest.clone();
        let told = tokio::time::timeout(LAG, latest.wait_for(Option::is_some)).await;
        told.ok()?.ok()?.clone()
    }

    /// The watch has told something.
    pub(super) fn has_told(&self) -> bool {
        self.latest.borrow().is_some()
    }

    /// Nothing more will be told of it.
    pub(super) fn has_ended(&self) -> bool {
        self.task.is_finished()
    }
}

/// One of those who follow an object.
#[derive(Debug, Clone)]
pub(crate) struct Follower {
    pub(super) followed: Arc<Followed>,
    /// The watch had told something before: what the object was then, and not what it was when this one came.
    joined: bool,
}

impl Follower {
    /// Counts the object's changes.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.followed.changes.clone()
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
    pub(crate) fn follow(&self, reference: &Reference) -> Follower {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        // One that was immutable may be another by now, for pods that come later.
        if let Some(followed) = open.get(reference).and_then(Weak::upgrade).filter(|f| !f.has_ended()) {
            let joined = followed.has_told();
            return Follower { followed, joined };
        }
        open.retain(|_, followed| followed.strong_count() > 0);
        let (tell, changes) = watch::channel(0);
        let (show, latest) = watch::channel(None);
        let (client, of) = (self.client.clone(), reference.clone());
        let told = Told { tell, show };
        let task = tokio::spawn(async move {
            match of.kind {
                Kind::ConfigMap => watch_one::<ConfigMap>(client, &of, &told).await,
                Kind::Secret => watch_one::<Secret>(client, &of, &told).await,
            }
        });
        let followed = Arc::new(Followed {
            changes,
            latest,
            read: tokio::sync::Mutex::default(),
            task: AbortOnDropHandle::new(task),
        });
        open.insert(reference.clone(), Arc::downgrade(&followed));
        Follower { followed, joined: false }
    }
}

/// Where a watch puts what it is told.
struct Told {
    tell: watch::Sender<u64>,
    show: watch::Sender<Latest>,
}

impl Told {
    /// Takes in what the object is now; gives whether it may change again.
    fn put(&self, now: Option<Object>) -> bool {
        let goes_on = !now.as_ref().is_some_and(Object::is_immutable);
        let same = match (&*self.show.borrow(), &now) {
            (Some(Some(old)), Some(new)) => old.version() == new.version(),
            // That there is none is no news to who has found none.
            (None | Some(None), None) => true,
            _ => false,
        };
        self.show.send_replace(Some(now));
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
    // One request for what would be a list and a watch: most of what a pod costs the API are its ConfigMaps and Secrets.
    let config = watcher::Config::default().fields(&format!("metadata.name={}", of.name)).streaming_lists();
    let mut events = Box::pin(reflect(Api::<K>::namespaced(client, &of.namespace), config, Extent::Few));
    let (mut refused, mut failed) = (retries(), Backoff::new(Duration::from_millis(800), Duration::from_secs(30)));
    let mut listed = None;
    while let Some(event) = events.next().await {
        if matches!(event, Ok(watcher::Event::Apply(_) | watcher::Event::Delete(_) | watcher::Event::InitDone)) {
            refused.reset();
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
                tracing::debug!(%error, name = of.name, kind = ?of.kind, "an object of a pod could not be watched; it is tried again");
                let again = if is_watch_refusal(&error) { &mut refused } else { &mut failed };
                tokio::time::sleep(again.next_delay()).await;
                continue;
            }
        };
        if !told.put(now) {
            break;
        }
    }
}

/// The same as [`is_refusal`] of whatever step of a watch.
fn is_watch_refusal(error: &watcher::Error) -> bool {
    use watcher::Error::{InitialListFailed, WatchError, WatchFailed, WatchStartFailed};
    match error {
        InitialListFailed(error) | WatchStartFailed(error) | WatchFailed(error) => is_refusal(error),
        WatchError(status) => status.code == 403,
        watcher::Error::NoResourceVersion => false,
    }
}

/// What is wanted of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// What it held when the pod came, or later: a pod that is made right after an edit has what was edited.
    Now,
    /// What its watch told last.
    Told,
}

/// The objects that a pod is made of, as steps that run it ask for them: from their watches where that is enough and they
/// have told something in time, else from the API.
#[derive(Clone)]
pub(crate) struct Contents {
    client: Client,
    followed: BTreeMap<Reference, Follower>,
    need: Need,
}

impl Contents {
    pub(crate) fn new(client: Client, followed: BTreeMap<Reference, Follower>, need: Need) -> Self {
        Self { client, followed, need }
    }

    /// A ConfigMap; `None` when there is none.
    ///
    /// # Errors
    /// When the API does not tell.
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

    /// A Secret; `None` when there is none.
    ///
    /// # Errors
    /// When the API does not tell.
    pub(crate) async fn secret(&self, namespace: &str, name: &str) -> Result<Option<Arc<Secret>>, Arc<kube::Error>> {
        Ok(match self.get(Kind::Secret, namespace, name).await? {
            Some(Object::Secret(secret)) => Some(secret),
            _ => None,
        })
    }

    async fn get(&self, kind: Kind, namespace: &str, name: &str) -> Answer {
        let of = Reference { kind, namespace: namespace.to_owned(), name: name.to_owned() };
        let Some(follower) = self.followed.get(&of) else { return read(&self.client, &of).await };
        if follower.joined && self.need == Need::Now {
            return follower.followed.now(&self.client, &of).await;
        }
        match follower.followed.latest().await {
            Some(told) => Ok(told),
            None => follower.followed.now(&self.client, &of).await,
        }
    }
}

/// Reads an object once, for as long as the Node authorizer may lag.
async fn read(client: &Client, of: &Reference) -> Answer {
    let (client, namespace) = (client.clone(), &of.namespace);
    let object = match of.kind {
        Kind::ConfigMap => {
            let api: Api<ConfigMap> = Api::namespaced(client, namespace);
            past_lag(|| api.get_opt(&of.name)).await.map(|found| found.map(Object::from))
        }
        Kind::Secret => {
            let api: Api<Secret> = Api::namespaced(client, namespace);
            past_lag(|| api.get_opt(&of.name)).await.map(|found| found.map(Object::from))
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
    fn only_what_differs_is_news() {
        let (tell, changes) = watch::channel(0);
        let told = Told { tell, show: watch::Sender::new(None) };
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
