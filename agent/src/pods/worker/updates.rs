//! What a worker learns from updates of the pod's object, and of the objects that it references.

use std::{collections::btree_map::Entry, sync::Arc, time::Instant};

use k8s_openapi::api::core::v1::{Container, Pod};
use tokio_stream::wrappers::WatchStream;

use super::{PodUpdate, Worker};
use crate::{
    pods::{
        container::env,
        lifecycle::{patch::version, reasons, spec, volumes::VolumeState},
        steps::host_files,
    },
    volumes::{
        Volumes, is_refreshed,
        object_watch::{Kind as ObjectKind, ObjectRef},
    },
};

impl Worker {
    pub(super) fn apply_update(&mut self, update: &PodUpdate) {
        if self.refused_patches.failures() > 0 {
            self.refused_patches.reset();
            self.patch_after = None;
        }
        match update {
            PodUpdate::Deleted => self.deleted = true,
            PodUpdate::RunStatic { pod, mirror } => {
                self.mirror.clone_from(mirror);
                if self.pod.is_none() {
                    // The status from before a restart of the agent: phases never go back.
                    let status = mirror.as_ref().and_then(|m| m.status.clone());
                    self.apply_pod(&Arc::new(Pod { status, ..pod.as_ref().clone() }));
                }
            }
            PodUpdate::Run { pod, list } => {
                let relisted = std::mem::replace(&mut self.list, *list) != *list;
                let origin = Origin { relisted, after_response: self.responded_at < *list };
                if let Some(pod) = newer(self.pod.as_ref(), pod, origin) {
                    self.apply_pod(&pod);
                }
            }
        }
    }

    /// Applies the pod that a write to the API has returned.
    pub(super) fn apply_response(&mut self, pod: &Arc<Pod>) {
        if let Some(pod) = newer(self.pod.as_ref(), pod, Origin::default()) {
            self.responded_at = Some(Instant::now());
            self.apply_pod(&pod);
        }
    }

    fn apply_pod(&mut self, pod: &Arc<Pod>) {
        if self.pod.is_none() {
            self.observed.last_logged_attempt = host_files::last_logged_attempts(&self.context.node.config, pod);
            self.restore_allocated(pod);
        }
        let metadata = |pod: &Pod| (pod.metadata.labels.clone(), pod.metadata.annotations.clone());
        if self.pod.as_ref().is_some_and(|old| metadata(old) != metadata(pod)) {
            // The downward API shows them in files, and subpaths may come from an annotation.
            self.objects_changed();
        }
        if self.pod.as_ref().is_some_and(|old| old.spec != pod.spec) {
            // A new image must be looked up, and a new resize evaluated.
            self.observed.images.clear();
            self.observed.resize = None;
            self.resize_deferred_at = None;
        }
        self.pod = Some(Arc::clone(pod));
        self.watch_objects(pod);
    }

    /// Watches the objects that a pod references, until it is deleted or terminal.
    fn watch_objects(&mut self, pod: &Pod) {
        let done = pod.metadata.deletion_timestamp.is_some() || spec::is_terminal(pod);
        let wanted = if done { Vec::new() } else { references(pod) };
        self.object_watches.retain(|reference, _| wanted.contains(reference));
        for reference in wanted {
            if let Entry::Vacant(entry) = self.object_watches.entry(reference) {
                let watch = self.context.object_watches.watch(entry.key());
                self.object_changes.push(WatchStream::from_changes(watch.changes()));
                entry.insert(watch);
            }
        }
    }

    /// A referenced object changed: files of volumes are rewritten, and steps that failed for want of it retried at
    /// once.
    pub(super) fn objects_changed(&mut self) {
        let now = self.now();
        let failures = self.observed.start_failures.values_mut();
        let failures = failures.filter(|f| f.reason == reasons::CREATE_CONTAINER_CONFIG_ERROR);
        failures.for_each(|failure| failure.retry_at = now);
        let volumes = self.pod.iter().flat_map(|p| &p.spec).flat_map(|s| s.volumes.iter().flatten());
        for volume in volumes {
            match self.observed.volumes.get_mut(&volume.name) {
                Some(VolumeState::Ready { refresh_at, .. }) if is_refreshed(volume) => *refresh_at = Some(now),
                Some(VolumeState::Failed { failure, .. }) => failure.retry_at = now,
                _ => {}
            }
        }
    }
}

/// Where an object of a pod comes from.
#[derive(Debug, Clone, Copy, Default)]
struct Origin {
    /// It is the first of a list that is new to the worker.
    relisted: bool,
    /// That list began after a write to the API last returned the pod.
    after_response: bool,
}

/// The object that replaces `old` after the API has sent `new`; `None` where that is older. Resource versions can be
/// compared within one list and the watch that follows it. Another list wins whatever its versions, since the API may
/// have been restored from a backup; but a deletion stays.
fn newer(old: Option<&Arc<Pod>>, new: &Arc<Pod>, origin: Origin) -> Option<Arc<Pod>> {
    let Some(old) = old else { return Some(Arc::clone(new)) };
    if version(new) >= version(old) {
        return Some(Arc::clone(new));
    }
    if !(origin.relisted && origin.after_response) {
        return None;
    }
    let mut new = Arc::clone(new);
    if old.metadata.deletion_timestamp.is_some() && new.metadata.deletion_timestamp.is_none() {
        let pod = Arc::make_mut(&mut new);
        pod.metadata.deletion_timestamp.clone_from(&old.metadata.deletion_timestamp);
        pod.metadata.deletion_grace_period_seconds = old.metadata.deletion_grace_period_seconds;
    }
    Some(new)
}

/// The ConfigMaps and Secrets that a pod's volumes and environments reference.
fn references(pod: &Pod) -> Vec<ObjectRef> {
    let mut out = Volumes::references(pod);
    let namespace = spec::namespace(pod);
    let reference = |kind, name: &str| ObjectRef { kind, namespace: namespace.to_owned(), name: name.to_owned() };
    let mut add = |container: &Container| {
        let (maps, secrets) = env::references(container);
        out.extend(maps.into_iter().map(|name| reference(ObjectKind::ConfigMap, name)));
        out.extend(secrets.into_iter().map(|name| reference(ObjectKind::Secret, name)));
    };
    if let Some(spec) = &pod.spec {
        spec::all_containers(spec).for_each(|(container, _)| add(container));
        spec::ephemeral_containers(spec).iter().for_each(&mut add);
    }
    out
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn pod(version: u64, image: &str, deleted: bool) -> Arc<Pod> {
        let mut pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "p", "uid": "u", "resourceVersion": version.to_string()},
            "spec": {"containers": [{"name": "c", "image": image}]}}))
        .unwrap();
        if deleted {
            pod.metadata.deletion_timestamp =
                Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH));
            pod.metadata.deletion_grace_period_seconds = Some(5);
        }
        Arc::new(pod)
    }

    #[test]
    fn a_new_list_is_believed_whatever_its_versions() {
        let origin = |relisted, after_response| Origin { relisted, after_response };
        let image = |pod: &Pod| spec::image_of(&pod.spec.as_ref().unwrap().containers[0]).to_owned();
        let after = |old: u64, new: u64, origin| newer(Some(&pod(old, "old", false)), &pod(new, "new", false), origin);
        assert!(newer(None, &pod(1, "new", false), Origin::default()).is_some());
        for (old, new, origin, taken) in [
            (7, 8, Origin::default(), true),
            (7, 7, Origin::default(), true),
            (7, 6, Origin::default(), false),
            // The API was restored from a backup.
            (7000, 6, origin(true, true), true),
            (7000, 6, origin(false, true), false),
            // The list began before the API returned the pod itself: it may just be older.
            (7, 6, origin(true, false), false),
            (7, 8, origin(true, false), true),
        ] {
            let pod = after(old, new, origin);
            assert_eq!(pod.as_deref().map(image), taken.then(|| "new".to_owned()), "{old} {new} {origin:?}");
        }
        // A deletion stays.
        let ending = newer(Some(&pod(7000, "old", true)), &pod(6, "new", false), origin(true, true)).unwrap();
        assert_eq!((image(&ending), version(&ending)), ("new".to_owned(), 6));
        assert_eq!(ending.metadata.deletion_grace_period_seconds, Some(5));
        assert!(ending.metadata.deletion_timestamp.is_some());
    }
}
