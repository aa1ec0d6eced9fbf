//! The watches of the scheduler: what each change of each type does to the state.

use std::{borrow::Cow, collections::HashSet, fmt, marker::PhantomData};

use futures::{StreamExt, stream, stream::BoxStream};
use k8s_openapi::{
    api::{
        apps::v1::{ReplicaSet, StatefulSet},
        core::v1::{
            Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, PodSpec, PodStatus, ReplicationController,
            Service,
        },
        policy::v1::PodDisruptionBudget,
        storage::v1::StorageClass,
    },
    apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta},
};
use kube::{
    Api, Client, Resource,
    runtime::{WatchStreamExt, watcher},
};
use serde::{Deserialize, de::DeserializeOwned};
use tokio::time::Instant;
use windlass_kit::{
    objects::kept_metadata::{NoAnnotations, metadata},
    reflector::{Extent, reflect},
};

use super::{
    SCHEDULER_NAME,
    cache::Budget,
    model::{Key, PodInfo, Selector},
    state::State,
    volumes::Stored,
};

/// A change of the state.
type Change = Box<dyn FnOnce(&mut State, Instant) + Send>;

/// What a watch has to say.
pub(super) enum Update {
    Change(Change),
    /// The end of a full list of this type, with what is gone.
    Synced(&'static str, Change),
    /// The watch of this type has ended for good.
    Ended(&'static str),
}

/// The updates of all types that are watched, and the names of these types; nothing is scheduled before all were listed.
pub(super) fn all(client: &Client) -> (stream::SelectAll<BoxStream<'static, Update>>, HashSet<&'static str>) {
    let watches = [
        watch::<WatchedPod>(client),
        watch::<Node>(client),
        watch::<PersistentVolumeClaim>(client),
        watch::<PersistentVolume>(client),
        watch::<StorageClass>(client),
        watch::<PodDisruptionBudget>(client),
        watch::<Namespace>(client),
        watch::<Services>(client),
        watch::<ReplicationControllers>(client),
        watch::<ReplicaSets>(client),
        watch::<StatefulSets>(client),
    ];
    let (names, updates): (HashSet<_>, Vec<_>) = watches.into_iter().unzip();
    (stream::select_all(updates), names)
}

/// Watches all objects of a type, whose name is returned too. Failed watches are retried with back-off.
fn watch<K>(client: &Client) -> (&'static str, BoxStream<'static, Update>)
where
    K: Watched + Resource<DynamicType = ()> + Clone + DeserializeOwned + fmt::Debug + Send + 'static,
{
    let config = watcher::Config::default().streaming_lists();
    let events = reflect(Api::<K>::all(client.clone()), config, Extent::Many).default_backoff();
    let mut listed = HashSet::new();
    let updates = events.filter_map(move |event| std::future::ready(update(&mut listed, event)));
    (K::NAME, updates.chain(stream::once(std::future::ready(Update::Ended(K::NAME)))).boxed())
}

fn update<K>(listed: &mut HashSet<Key>, event: watcher::Result<watcher::Event<K>>) -> Option<Update>
where
    K: Watched + Resource + Send + 'static,
{
    let change: Change = match event {
        Err(error) => {
            tracing::debug!(%error, "watch of {} failed; retrying", K::NAME);
            return None;
        }
        Ok(watcher::Event::Init) => {
            listed.clear();
            return None;
        }
        Ok(watcher::Event::InitApply(object)) => {
            let key = key_of(object.meta());
            listed.insert(key.clone());
            Box::new(move |state: &mut State, now: Instant| object.apply(&key, state, now))
        }
        Ok(watcher::Event::InitDone) => {
            let listed = std::mem::take(listed);
            let gone = move |state: &mut State, now: Instant| {
                let gone: Vec<Key> = K::known(state).into_iter().filter(|key| !listed.contains(key)).collect();
                gone.iter().for_each(|key| K::remove(key, state, now));
            };
            return Some(Update::Synced(K::NAME, Box::new(gone)));
        }
        Ok(watcher::Event::Apply(object)) => {
            let key = key_of(object.meta());
            Box::new(move |state: &mut State, now: Instant| object.apply(&key, state, now))
        }
        Ok(watcher::Event::Delete(object)) => {
            let key = key_of(object.meta());
            Box::new(move |state: &mut State, now: Instant| K::remove(&key, state, now))
        }
    };
    Some(Update::Change(change))
}

fn key_of(metadata: &ObjectMeta) -> Key {
    (metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
}

/// A watched type.
trait Watched {
    /// Its name in texts.
    const NAME: &'static str;

    fn apply(self, key: &Key, state: &mut State, now: Instant);

    fn remove(key: &Key, state: &mut State, now: Instant);

    /// The objects that are known.
    fn known(state: &State) -> Vec<Key>;
}

/// A pod without the metadata that nothing here reads.
#[derive(Debug, Clone, Deserialize)]
struct WatchedPod {
    #[serde(default, deserialize_with = "metadata::<NoAnnotations, _>")]
    metadata: ObjectMeta,
    spec: Option<PodSpec>,
    status: Option<PodStatus>,
}

windlass_kit::decoded_form!(WatchedPod, Pod);

impl Watched for WatchedPod {
    const NAME: &'static str = "pods";

    fn apply(self, _: &Key, state: &mut State, now: Instant) {
        let Self { metadata, spec, status } = self;
        let pod = Pod { metadata, spec, status };
        let name = pod.spec.as_ref().and_then(|s| s.scheduler_name.as_deref()).unwrap_or(SCHEDULER_NAME);
        state.pod_applied(PodInfo::of(&pod), name == SCHEDULER_NAME, now);
    }

    fn remove(key: &Key, state: &mut State, now: Instant) {
        state.pod_deleted(key, now);
    }

    fn known(state: &State) -> Vec<Key> {
        state.cluster().pods.keys().cloned().collect()
    }
}

impl Watched for Node {
    const NAME: &'static str = "nodes";

    fn apply(self, _: &Key, state: &mut State, now: Instant) {
        state.node_applied(&self, now);
    }

    fn remove(key: &Key, state: &mut State, now: Instant) {
        state.node_deleted(&key.1, now);
    }

    fn known(state: &State) -> Vec<Key> {
        state.cluster().nodes.keys().map(|name| (String::new(), name.clone())).collect()
    }
}

macro_rules! stored {
    ($($kind:ty: $name:literal),*) => {$(
        impl Watched for $kind {
            const NAME: &'static str = $name;

            fn apply(self, key: &Key, state: &mut State, now: Instant) {
                state.storage_applied(&self, key, now);
            }

            fn remove(key: &Key, state: &mut State, now: Instant) {
                state.storage_removed::<Self>(key, now);
            }

            fn known(state: &State) -> Vec<Key> {
                Self::keys(&state.cluster().storage)
            }
        }
    )*};
}

stored!(
    PersistentVolumeClaim: "persistent volume claims",
    PersistentVolume: "persistent volumes",
    StorageClass: "storage classes"
);

impl Watched for PodDisruptionBudget {
    const NAME: &'static str = "pod disruption budgets";

    fn apply(self, key: &Key, state: &mut State, _: Instant) {
        let status = self.status.unwrap_or_default();
        let budget = Budget {
            namespace: key.0.clone(),
            selector: Selector::of(self.spec.as_ref().and_then(|s| s.selector.as_ref())),
            disruptions_allowed: status.disruptions_allowed.unwrap_or(0),
            disrupted: status.disrupted_pods.unwrap_or_default().into_keys().collect(),
        };
        state.budget(key.clone(), Some(budget));
    }

    fn remove(key: &Key, state: &mut State, _: Instant) {
        state.budget(key.clone(), None);
    }

    fn known(state: &State) -> Vec<Key> {
        state.cluster().budgets.keys().cloned().collect()
    }
}

impl Watched for Namespace {
    const NAME: &'static str = "namespaces";

    fn apply(self, key: &Key, state: &mut State, now: Instant) {
        state.namespace_applied(&key.1, self.metadata.labels.unwrap_or_default(), now);
    }

    fn remove(key: &Key, state: &mut State, _: Instant) {
        state.namespace_removed(&key.1);
    }

    fn known(state: &State) -> Vec<Key> {
        state.cluster().namespaces.keys().map(|name| (String::new(), name.clone())).collect()
    }
}

/// An object of type `K`, of which only the selector, of type `S`, is decoded: templates are large.
#[derive(Debug, Clone, Deserialize)]
#[serde(bound = "S: DeserializeOwned")]
struct Selecting<K, S> {
    #[serde(default, deserialize_with = "metadata::<NoAnnotations, _>")]
    metadata: ObjectMeta,
    #[serde(default = "none")]
    spec: Option<Selected<S>>,
    #[serde(skip)]
    of: PhantomData<K>,
}

#[derive(Debug, Clone, Deserialize)]
struct Selected<S> {
    #[serde(default = "none")]
    selector: Option<S>,
}

const fn none<T>() -> Option<T> {
    None
}

impl<K: Resource<DynamicType = ()>, S> Resource for Selecting<K, S> {
    type DynamicType = ();
    type Scope = K::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        K::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        K::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        K::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        K::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl<K, S> Selecting<K, S> {
    fn selector(self) -> Option<S> {
        self.spec.and_then(|spec| spec.selector)
    }
}

type Labels = std::collections::BTreeMap<String, String>;
type Services = Selecting<Service, Labels>;
type ReplicationControllers = Selecting<ReplicationController, Labels>;
type ReplicaSets = Selecting<ReplicaSet, LabelSelector>;
type StatefulSets = Selecting<StatefulSet, LabelSelector>;

impl Watched for Services {
    const NAME: &'static str = "services";

    fn apply(self, key: &Key, state: &mut State, _: Instant) {
        state.service(key, self.selector());
    }

    fn remove(key: &Key, state: &mut State, _: Instant) {
        state.service(key, None);
    }

    fn known(state: &State) -> Vec<Key> {
        state.cluster().owners.services().collect()
    }
}

macro_rules! controllers {
    ($($kind:ty: $name:literal, $word:literal, $selector:expr;)*) => {$(
        impl Watched for $kind {
            const NAME: &'static str = $name;

            fn apply(self, key: &Key, state: &mut State, _: Instant) {
                state.controller($word, key, self.selector().map($selector));
            }

            fn remove(key: &Key, state: &mut State, _: Instant) {
                state.controller($word, key, None);
            }

            fn known(state: &State) -> Vec<Key> {
                state.cluster().owners.controllers($word).collect()
            }
        }
    )*};
}

controllers! {
    ReplicationControllers: "replication controllers", "ReplicationController",
        |labels| LabelSelector { match_labels: Some(labels), match_expressions: None };
    ReplicaSets: "replica sets", "ReplicaSet", |selector| selector;
    StatefulSets: "stateful sets", "StatefulSet", |selector| selector;
}
