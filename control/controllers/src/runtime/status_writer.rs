//! The one way to write the status of an owner: of the version that was seen, and the next reconciliation waits until the
//! cache shows the write. A status that was computed from an older one would take back what the newer one says, such as a
//! revision or a number of collisions. Upstream's `ConsistencyStore`.

use std::fmt;

use k8s_openapi::NamespaceResourceScope;
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{
    cached::Cached,
    error::{Error, of_seen},
    informer::{Cache, SyncPoint},
    key::Key,
    per_owner::PerOwner,
};

pub(crate) struct StatusWriter<K> {
    client: Client,
    cache: Cache<K>,
    written: PerOwner<Option<SyncPoint>>,
}

impl<K> fmt::Debug for StatusWriter<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatusWriter").finish_non_exhaustive()
    }
}

impl<K: Cached + Resource<DynamicType = (), Scope = NamespaceResourceScope>> StatusWriter<K> {
    /// Writes statuses of the objects that `cache` shows.
    pub(crate) fn new(client: Client, cache: Cache<K>) -> Self {
        Self { client, cache, written: PerOwner::default() }
    }

    /// Whether the cache shows the last write of the status of the object with this UID. Until it does, the object that it
    /// shows is an old one.
    pub(crate) fn is_shown(&self, key: &Key, uid: &str) -> bool {
        self.written.with(key, uid, |written| written.is_none_or(|point| self.cache.reached(point)))
    }

    /// Forgets an object that is gone.
    pub(crate) fn forget(&self, key: &Key) {
        self.written.forget(key);
    }

    /// Writes the status of exactly this version of an object, as a merge patch; one that is gone needs none.
    ///
    /// # Errors
    /// When the object has changed meanwhile, and when the API refuses.
    pub(crate) async fn write(&self, object: &K, mut patch: Value) -> Result<(), Error> {
        let (key, meta) = (Key::of(object.meta()), object.meta());
        patch["metadata"] = json!({"uid": meta.uid, "resourceVersion": meta.resource_version});
        let api: Api<K> = Api::namespaced(self.client.clone(), &key.namespace);
        let answer = api.patch_status(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await;
        if let Some(written) = of_seen(answer, "update the status of", &key)? {
            let point = self.cache.sync_point(written.meta().resource_version.as_deref());
            self.written.with(&key, meta.uid.as_deref().unwrap_or_default(), |last| *last = Some(point));
        }
        Ok(())
    }
}
