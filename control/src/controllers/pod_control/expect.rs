//! Expectations of pods that a controller creates and deletes itself, because its events have other texts.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use tokio::time::Instant;

use super::{Namespaced, PodControl};
use crate::controllers::runtime::{CachedPod, Key};

impl<O: Namespaced> PodControl<O> {
    /// The owner has no more to write until the cache shows this pod, as the API returned it.
    pub(crate) fn expect_created(&self, owner: &O, pod: &Pod) {
        let mark = self.pods.sync_point(pod.metadata.resource_version.as_deref());
        let (key, uid) = (Key::of(owner.meta()), owner.uid().unwrap_or_default());
        self.with_expectations(&key, &uid, |e| e.expect_creation(mark, Instant::now()));
    }

    /// The same until this pod is terminating or gone.
    pub(crate) fn expect_deleted(&self, owner: &O, pod: &CachedPod) {
        let (key, uid) = (Key::of(owner.meta()), owner.uid().unwrap_or_default());
        let (deleted, its_uid) = (Key::of(&pod.metadata), pod.uid().unwrap_or_default());
        self.with_expectations(&key, &uid, |e| e.expect_deletion(deleted, its_uid, Instant::now()));
    }
}
