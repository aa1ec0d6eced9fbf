//! The sources of pods: the API's pods of this node, and the directory of static pods.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use k8s_openapi::api::core::v1::Pod;
use kube::{ResourceExt as _, runtime::watcher};

use super::{
    Dispatcher, PodUpdate,
    static_pods::{
        self, FullName, StaticPodKey, StaticPods,
        diff::Change,
        full_name,
        mirror_pods::{self, MirrorPods},
    },
};
use crate::pods::lifecycle::spec::{self, is_mirror_pod};

/// The pods of each source.
#[derive(Debug, Default)]
pub(super) struct Sources {
    /// The API's pods by uid, without mirror pods.
    pub(super) api: BTreeMap<String, Arc<Pod>>,
    /// The pods of a list in progress.
    listed: Option<BTreeMap<String, Arc<Pod>>>,
    /// When that list began.
    list_in_progress: Option<Instant>,
    /// When the list began that `api` is of, with the watch after it.
    list: Option<Instant>,
    /// The API's pods were listed once.
    synced: bool,
    /// Static pods by uid; `None` before the directory was read.
    pub(super) static_pods: StaticPods,
    /// The mirror pods that the API has.
    mirror_pods: BTreeMap<FullName, Arc<Pod>>,
}

impl Sources {
    /// Whether every source was listed: a pod that none of them has does not belong on this node.
    pub(super) fn are_complete(&self) -> bool {
        self.synced && self.static_pods.is_some()
    }

    fn split(pods: BTreeMap<String, Arc<Pod>>) -> (BTreeMap<String, Arc<Pod>>, BTreeMap<FullName, Arc<Pod>>) {
        let (mirrors, api): (BTreeMap<_, _>, BTreeMap<_, _>) =
            pods.into_iter().partition(|(_, pod)| is_mirror_pod(pod));
        (api, mirrors.into_values().map(|pod| (full_name(&pod), pod)).collect())
    }

    /// The update for the worker of a pod; `None` where no source has it.
    pub(super) fn update(&self, uid: &str) -> Option<PodUpdate> {
        if let Some(pod) = self.static_pods.as_ref().and_then(|all| all.get(uid)) {
            let mirror = self.mirror_pods.get(&full_name(pod)).filter(|m| mirror_pods::is_mirror_of(m, pod)).cloned();
            return Some(PodUpdate::RunStatic { pod: Arc::clone(pod), mirror });
        }
        self.api.get(uid).map(|pod| self.api_update(Arc::clone(pod)))
    }

    /// The update of a pod that the API has.
    fn api_update(&self, pod: Arc<Pod>) -> PodUpdate {
        PodUpdate::Run { pod, list: self.list }
    }

    /// The uids of all pods that a source has.
    pub(super) fn uids(&self) -> impl Iterator<Item = &String> {
        self.api.keys().chain(self.static_pods.iter().flat_map(|all| all.keys()))
    }

    pub(super) fn has(&self, uid: &str) -> bool {
        self.api.contains_key(uid) || self.static_pods.as_ref().is_some_and(|all| all.contains_key(uid))
    }
}

impl Dispatcher {
    pub(super) fn on_watch_event(&mut self, event: watcher::Event<Pod>) {
        match event {
            watcher::Event::Init => {
                self.sources.listed = Some(BTreeMap::new());
                self.sources.list_in_progress = Some(Instant::now());
            }
            watcher::Event::InitApply(pod) => {
                if let (Some(listed), Some(uid)) = (&mut self.sources.listed, pod.uid()) {
                    listed.insert(uid, Arc::new(spec::sanitize(pod)));
                }
            }
            watcher::Event::InitDone => {
                if let Some(listed) = self.sources.listed.take() {
                    (self.sources.api, self.sources.mirror_pods) = Sources::split(listed);
                    self.sources.list = self.sources.list_in_progress;
                    self.sources.synced = true;
                    self.preempted.retain(|uid| self.sources.has(uid));
                    self.publish_pods();
                    self.dispatch_all();
                }
            }
            watcher::Event::Apply(pod) => {
                let Some(uid) = pod.uid() else { return };
                let pod = Arc::new(spec::sanitize(pod));
                if is_mirror_pod(&pod) {
                    self.sources.mirror_pods.insert(full_name(&pod), pod);
                    self.publish_pods();
                    return self.sync_static_pods();
                }
                self.sources.api.insert(uid.clone(), Arc::clone(&pod));
                self.publish_pods();
                let update = self.sources.api_update(pod);
                self.dispatch(&uid, update);
            }
            watcher::Event::Delete(pod) => {
                let Some(uid) = pod.uid() else { return };
                if is_mirror_pod(&pod) {
                    // Another one of the same name may exist already.
                    let name = full_name(&pod);
                    if self.sources.mirror_pods.get(&name).is_some_and(|m| m.metadata.uid == pod.metadata.uid) {
                        self.sources.mirror_pods.remove(&name);
                    }
                    self.publish_pods();
                    return self.sync_static_pods();
                }
                self.sources.api.remove(&uid);
                self.preempted.remove(&uid);
                self.publish_pods();
                if self.workers.contains_key(&uid) {
                    self.dispatch(&uid, PodUpdate::Deleted);
                }
            }
        }
    }

    pub(super) fn on_static_pods(&mut self, static_pods: StaticPods) {
        self.sources.static_pods = static_pods;
        self.publish_pods();
        self.sync_static_pods();
    }

    /// Publishes the pods of this node in the agent: static ones as their mirror pods where the API has them.
    fn publish_pods(&self) {
        let own = self.sources.static_pods.iter().flat_map(|all| all.values()).map(|pod| {
            let mirror = self.sources.mirror_pods.get(&full_name(pod)).filter(|m| mirror_pods::is_mirror_of(m, pod));
            Arc::clone(mirror.unwrap_or(pod))
        });
        self.pods_tx.send_replace(Arc::new(self.sources.api.values().cloned().chain(own).collect()));
    }

    /// After a full list: updates the workers of all pods, starts missing ones, and deletes pods that no source has.
    pub(super) fn dispatch_all(&mut self) {
        let mut pods: Vec<(String, Arc<Pod>)> =
            self.sources.api.iter().map(|(uid, pod)| (uid.clone(), Arc::clone(pod))).collect();
        // Pods that run have their resources; the others are admitted in the order of their creation.
        let runs = |uid: &String| self.unadopted.as_ref().is_some_and(|found| found.contains_key(uid));
        pods.sort_by_key(|(uid, pod)| (!runs(uid), pod.metadata.creation_timestamp.as_ref().map(|t| t.0)));
        for (uid, pod) in pods {
            let update = self.sources.api_update(pod);
            self.dispatch(&uid, update);
        }
        let of_api = self.workers.iter().filter(|(_, worker)| worker.static_key.is_none());
        let deleted: Vec<String> =
            of_api.map(|(uid, _)| uid.clone()).filter(|uid| self.sources.synced && !self.sources.has(uid)).collect();
        for uid in deleted {
            self.dispatch(&uid, PodUpdate::Deleted);
        }
        self.sync_static_pods();
    }

    /// Starts and deletes static pods, updates their workers, and publishes which mirror pods there should be.
    pub(super) fn sync_static_pods(&mut self) {
        let Some(wanted) = self.sources.static_pods.clone() else { return };
        let running: BTreeMap<String, StaticPodKey> =
            self.workers.iter().filter_map(|(uid, worker)| Some((uid.clone(), worker.static_key.clone()?))).collect();
        for change in static_pods::diff::changes(&wanted, &running) {
            match change {
                Change::Delete(uid) => self.dispatch(&uid, PodUpdate::Deleted),
                Change::Start(uid) => {
                    if let Some(update) = self.sources.update(&uid) {
                        self.dispatch(&uid, update);
                    }
                }
            }
        }
        for (uid, key) in &running {
            let same = wanted.get(uid).is_some_and(|pod| StaticPodKey::of(pod) == *key);
            if let Some(update) = self.sources.update(uid).filter(|_| same) {
                self.dispatch(uid, update);
            }
        }
        if !self.sources.synced {
            return;
        }
        // A static pod that terminates keeps its mirror pod: the next one of its name waits for it.
        let terminating = self.workers.values().filter_map(|worker| worker.static_pod.clone());
        let mut mirrored: BTreeMap<FullName, Arc<Pod>> =
            wanted.values().map(|pod| (full_name(pod), Arc::clone(pod))).collect();
        mirrored.extend(terminating.map(|pod| (full_name(&pod), pod)));
        self.mirror_pods_tx.send_replace(MirrorPods { wanted: mirrored, found: self.sources.mirror_pods.clone() });
    }
}
