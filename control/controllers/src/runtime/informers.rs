//! All informers of the control plane: one for each type, started when it is first asked for.

use std::{
    any::{Any, TypeId},
    collections::HashMap,
    fmt,
    future::Future,
    sync::{Arc, Weak},
};

use futures::stream::BoxStream;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject},
    core::PartialObjectMeta,
    runtime::watcher,
};
use parking_lot::Mutex;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use windlass_kit::{
    prometheus::{Kind, Text},
    reflector::{Extent, reflect},
    supervise::keep_running,
};

use super::{
    cached::Cached,
    informer::{Informer, MetadataSource},
    rest_mapper::group_resource,
};

/// The shared informers; clones are the same set. client-go's `SharedInformerFactory`.
#[derive(Clone)]
pub(crate) struct Informers {
    inner: Arc<Inner>,
}

struct Inner {
    client: Client,
    shutdown: CancellationToken,
    tasks: TaskTracker,
    /// Of types that are known when this is compiled; they run until shutdown.
    typed: Mutex<HashMap<TypeId, TypedInformer>>,
    /// Of types that are known by name alone, by form and group resource; they end with their last user.
    dynamic: Mutex<HashMap<(TypeId, String), DynamicInformer>>,
}

struct TypedInformer {
    group_resource: String,
    /// An `Arc<Informer<K>>`.
    any: Arc<dyn Any + Send + Sync>,
    metadata: Arc<dyn MetadataSource>,
}

struct DynamicInformer {
    any: Weak<dyn Any + Send + Sync>,
    metadata: Weak<dyn MetadataSource>,
}

impl fmt::Debug for Informers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Informers").finish_non_exhaustive()
    }
}

impl Informers {
    pub(crate) fn new(client: Client, shutdown: CancellationToken) -> Self {
        let (typed, dynamic) = (Mutex::default(), Mutex::default());
        Self { inner: Arc::new(Inner { client, shutdown, tasks: TaskTracker::new(), typed, dynamic }) }
    }

    /// The informer of `K`.
    pub(crate) fn of<K: Cached<DynamicType = ()>>(&self) -> Arc<Informer<K>> {
        let mut typed = self.inner.typed.lock();
        if let Some(known) = typed.get(&TypeId::of::<K>())
            && let Ok(informer) = Arc::clone(&known.any).downcast::<Informer<K>>()
        {
            return informer;
        }
        let client = self.inner.client.clone();
        let informer = self.start(move || {
            let events =
                reflect(Api::<K>::all(client.clone()), watcher::Config::default().streaming_lists(), Extent::Many);
            Box::pin(events) as BoxStream<'static, _>
        });
        let known = TypedInformer {
            group_resource: group_resource(&ApiResource::erase::<K>(&())),
            any: informer.clone(),
            metadata: informer.clone(),
        };
        typed.insert(TypeId::of::<K>(), known);
        informer
    }

    /// The informer of a type that is known by name alone: of whole objects (`DynamicObject`) or of their metadata
    /// (`PartialObjectMeta`). It ends when the last user has dropped it.
    pub(crate) fn dynamic<K: Cached<DynamicType = ApiResource>>(&self, resource: &ApiResource) -> Arc<Informer<K>> {
        let mut dynamic = self.inner.dynamic.lock();
        dynamic.retain(|_, informer| informer.any.strong_count() > 0);
        let name = (TypeId::of::<K>(), group_resource(resource));
        if let Some(known) = dynamic.get(&name).and_then(|known| known.any.upgrade())
            && let Ok(informer) = known.downcast::<Informer<K>>()
        {
            return informer;
        }
        let (client, resource) = (self.inner.client.clone(), resource.clone());
        let informer = self.start(move || {
            let api: Api<K> = Api::all_with(client.clone(), &resource);
            Box::pin(watcher(api, watcher::Config::default())) as BoxStream<'static, _>
        });
        let (any, metadata) = (Arc::downgrade(&informer), Arc::downgrade(&informer));
        dynamic.insert(name, DynamicInformer { any, metadata });
        informer
    }

    /// The metadata of a resource's objects: from the informer of its type where there is one, else from a watch of
    /// metadata alone.
    pub(crate) fn metadata(&self, resource: &ApiResource) -> Arc<dyn MetadataSource> {
        let name = group_resource(resource);
        let typed = self.inner.typed.lock().values().find(|known| known.group_resource == name).map(|known| {
            let metadata: Arc<dyn MetadataSource> = Arc::clone(&known.metadata);
            metadata
        });
        typed.unwrap_or_else(|| self.dynamic::<PartialObjectMeta<DynamicObject>>(resource))
    }

    fn start<K, S>(&self, mut watch: S) -> Arc<Informer<K>>
    where
        K: Cached,
        S: FnMut() -> BoxStream<'static, watcher::Result<watcher::Event<K>>> + Send + 'static,
    {
        let stop = self.inner.shutdown.child_token();
        let informer = Arc::new(Informer::new(stop.clone()));
        let weak = Arc::downgrade(&informer);
        self.inner.tasks.spawn(async move {
            let run = || {
                let running = Informer::run(weak.clone(), watch(), stop.clone());
                async move {
                    running.await;
                    Ok::<(), std::convert::Infallible>(())
                }
            };
            keep_running("informer", &stop, run).await;
        });
        informer
    }

    /// Waits for the end of all watches, after shutdown.
    pub(crate) fn ended(&self) -> impl Future<Output = ()> + use<> {
        self.inner.tasks.close();
        let tasks = self.inner.tasks.clone();
        async move { tasks.wait().await }
    }

    /// Writes how many objects each cache holds, and how many have been looked up.
    pub(crate) fn write(&self, page: &mut Text) {
        let mut statistics: Vec<(String, usize, u64)> = Vec::new();
        for known in self.inner.typed.lock().values() {
            let (objects, reads) = known.metadata.statistics();
            statistics.push((known.group_resource.clone(), objects, reads));
        }
        for ((_, group_resource), known) in self.inner.dynamic.lock().iter() {
            if let Some(informer) = known.metadata.upgrade() {
                let (objects, reads) = informer.statistics();
                statistics.push((group_resource.clone(), objects, reads));
            }
        }
        statistics.sort_unstable();
        // A resource may be cached both whole and as metadata.
        statistics.dedup_by(|next, kept| {
            let same = next.0 == kept.0;
            if same {
                (kept.1, kept.2) = (kept.1 + next.1, kept.2 + next.2);
            }
            same
        });
        #[allow(clippy::cast_precision_loss, reason = "numbers of a metric")]
        {
            let name = "windlass_informer_objects";
            page.family(name, "Objects in the caches of controllers.", Kind::Gauge);
            statistics.iter().for_each(|(resource, n, _)| page.sample(name, &[("resource", resource)], *n as f64));
            let name = "windlass_informer_objects_read_total";
            page.family(name, "Objects that controllers looked up in their caches.", Kind::Counter);
            statistics.iter().for_each(|(resource, _, n)| page.sample(name, &[("resource", resource)], *n as f64));
        }
    }
}
