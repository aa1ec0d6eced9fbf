//! Where the dispatcher's wishes come from: the API's pods of this node, and the node's own folder.

use std::{collections::BTreeMap, time::Instant};

use super::{
    static_pods::{self, Change, FullName, Running, full_name, mirrors},
    *,
};

/// What each source last said.
#[derive(Debug, Default)]
pub(super) struct Sources {
    /// The API's pods, images of static ones left out.
    pub(super) api: BTreeMap<String, Arc<Pod>>,
    /// The pods of a list that the API is in the middle of telling.
    listed: Option<BTreeMap<String, Arc<Pod>>>,
    /// When that list began, and when the one began that the pods above are of.
    lists: [Option<Instant>; 2],
    /// The API has told all once.
    synced: bool,
    /// Static pods by uid; `None` before the folder was read.
    pub(super) statics: static_pods::StaticPods,
    /// The images of static pods that the API has.
    mirrors: BTreeMap<FullName, Arc<Pod>>,
}

impl Sources {
    /// Nothing that is not among these pods belongs on this node; false until every source has spoken.
    pub(super) fn are_complete(&self) -> bool {
        self.synced && self.statics.is_some()
    }

    fn sort(pods: BTreeMap<String, Arc<Pod>>) -> (BTreeMap<String, Arc<Pod>>, BTreeMap<FullName, Arc<Pod>>) {
        let (mirrors, api): (BTreeMap<_, _>, BTreeMap<_, _>) = pods.into_iter().partition(|(_, pod)| is_mirror(pod));
        (api, mirrors.into_values().map(|pod| (full_name(&pod), pod)).collect())
    }

    /// What is wanted of a pod; `None` where no source has it.
    pub(super) fn wish(&self, uid: &str) -> Option<Wish> {
        if let Some(pod) = self.statics.as_ref().and_then(|all| all.get(uid)) {
            let mirror = self.mirrors.get(&full_name(pod)).filter(|m| mirrors::shows(m, pod)).cloned();
            return Some(Wish::Static { pod: Arc::clone(pod), mirror });
        }
        self.api.get(uid).map(|pod| self.wish_for(Arc::clone(pod)))
    }

    /// The API's word on a pod.
    fn wish_for(&self, pod: Arc<Pod>) -> Wish {
        Wish::Pod { pod, list: self.lists[1] }
    }

    /// Of all pods that a source has.
    pub(super) fn uids(&self) -> impl Iterator<Item = &String> {
        self.api.keys().chain(self.statics.iter().flat_map(|all| all.keys()))
    }

    fn has(&self, uid: &str) -> bool {
        self.api.contains_key(uid) || self.statics.as_ref().is_some_and(|all| all.contains_key(uid))
    }
}

impl Dispatcher {
    pub(super) fn take_event(&mut self, event: watcher::Event<Pod>) {
        match event {
            watcher::Event::Init => {
                self.sources.listed = Some(BTreeMap::new());
                self.sources.lists[0] = Some(Instant::now());
            }
            watcher::Event::InitApply(pod) => {
                if let (Some(listed), Some(uid)) = (&mut self.sources.listed, pod.uid()) {
                    listed.insert(uid, Arc::new(spec::received(pod)));
                }
            }
            watcher::Event::InitDone => {
                if let Some(listed) = self.sources.listed.take() {
                    (self.sources.api, self.sources.mirrors) = Sources::sort(listed);
                    self.sources.lists[1] = self.sources.lists[0];
                    self.sources.synced = true;
                    self.room_made.retain(|uid| self.sources.has(uid));
                    self.tell();
                    self.wish_all();
                }
            }
            watcher::Event::Apply(pod) => {
                let Some(uid) = pod.uid() else { return };
                let pod = Arc::new(spec::received(pod));
                if is_mirror(&pod) {
                    self.sources.mirrors.insert(full_name(&pod), pod);
                    self.tell();
                    return self.settle_statics();
                }
                self.sources.api.insert(uid.clone(), Arc::clone(&pod));
                self.tell();
                let wish = self.sources.wish_for(pod);
                self.wish(&uid, wish);
            }
            watcher::Event::Delete(pod) => {
                let Some(uid) = pod.uid() else { return };
                if is_mirror(&pod) {
                    // Another of the same name may be there already.
                    let name = full_name(&pod);
                    if self.sources.mirrors.get(&name).is_some_and(|m| m.metadata.uid == pod.metadata.uid) {
                        self.sources.mirrors.remove(&name);
                    }
                    self.tell();
                    return self.settle_statics();
                }
                self.sources.api.remove(&uid);
                self.room_made.remove(&uid);
                self.tell();
                if self.workers.contains_key(&uid) {
                    self.wish(&uid, Wish::Gone);
                }
            }
        }
    }

    pub(super) fn take_statics(&mut self, statics: static_pods::StaticPods) {
        self.sources.statics = statics;
        self.tell();
        self.settle_statics();
    }

    /// Shows the rest of the agent the pods of this node: static ones by their images where the API has them.
    fn tell(&self) {
        let own = self.sources.statics.iter().flat_map(|all| all.values()).map(|pod| {
            let mirror = self.sources.mirrors.get(&full_name(pod)).filter(|m| mirrors::shows(m, pod));
            Arc::clone(mirror.unwrap_or(pod))
        });
        self.tell_pods.send_replace(Arc::new(self.sources.api.values().cloned().chain(own).collect()));
    }

    /// After a full list: every pod has a worker that knows, and every worker a pod or its end.
    pub(super) fn wish_all(&mut self) {
        let mut pods: Vec<(String, Arc<Pod>)> =
            self.sources.api.iter().map(|(uid, pod)| (uid.clone(), Arc::clone(pod))).collect();
        // Those that run hold what they hold already; the rest is judged in the order in which it came.
        let runs = |uid: &String| self.found.as_ref().is_some_and(|found| found.contains_key(uid));
        pods.sort_by_key(|(uid, pod)| (!runs(uid), pod.metadata.creation_timestamp.as_ref().map(|t| t.0)));
        for (uid, pod) in pods {
            let wish = self.sources.wish_for(pod);
            self.wish(&uid, wish);
        }
        let of_the_api = self.workers.iter().filter(|(_, worker)| worker.stands_for.is_none());
        let gone: Vec<String> = of_the_api
            .map(|(uid, _)| uid.clone())
            .filter(|uid| self.sources.synced && !self.sources.has(uid))
            .collect();
        for uid in gone {
            self.wish(&uid, Wish::Gone);
        }
        self.settle_statics();
    }

    /// Begins and ends static pods, tells their workers of their images, and shows what images there should be.
    pub(super) fn settle_statics(&mut self) {
        let Some(wanted) = self.sources.statics.clone() else { return };
        let running: BTreeMap<String, Running> =
            self.workers.iter().filter_map(|(uid, worker)| Some((uid.clone(), worker.stands_for.clone()?))).collect();
        for change in static_pods::changes(&wanted, &running) {
            match change {
                Change::End(uid) => self.wish(&uid, Wish::Gone),
                Change::Start(uid) => {
                    if let Some(wish) = self.sources.wish(&uid) {
                        self.wish(&uid, wish);
                    }
                }
            }
        }
        for (uid, running) in &running {
            let same = wanted.get(uid).is_some_and(|pod| Running::of(pod) == *running);
            if let Some(wish) = self.sources.wish(uid).filter(|_| same) {
                self.wish(uid, wish);
            }
        }
        if !self.sources.synced {
            return;
        }
        // One that is ending is still shown: the next of its name waits for it.
        let ending = self.workers.values().filter_map(|worker| worker.shown.clone());
        let mut shown: BTreeMap<FullName, Arc<Pod>> =
            wanted.values().map(|pod| (full_name(pod), Arc::clone(pod))).collect();
        shown.extend(ending.map(|pod| (full_name(&pod), pod)));
        self.tell_images.send_replace(mirrors::Images { wanted: shown, found: self.sources.mirrors.clone() });
    }

    /// Ends what containers there are of pods that no source knows: an other tool may have made them, or Docker itself after
    /// nobody waited for its answer any more.
    pub(super) fn end_orphans(&mut self, found: impl Iterator<Item = String>) {
        for uid in found {
            if !self.settled || self.sources.has(&uid) || self.workers.contains_key(&uid) || self.lost.contains(&uid) {
                continue;
            }
            tracing::info!(pod = uid, "containers of a pod that no source knows are stopped");
            self.search(uid, Duration::ZERO);
        }
    }

    /// Once all sides are known: ends what no pod claims, and frees addresses that nobody holds.
    pub(super) async fn settle(&mut self) {
        let found = self.found.iter().flat_map(HashMap::keys);
        let orphans: Vec<String> = found.filter(|uid| !self.sources.has(uid)).cloned().collect();
        for uid in orphans {
            tracing::info!(pod = uid, "containers of a pod that no source knows are stopped");
            self.wish(&uid, Wish::Gone);
        }
        self.settled = true;
        self.sweep();
        let live: BTreeSet<String> = self.workers.keys().cloned().collect();
        if let Err(error) = self.shared.network.retain(&live).await {
            tracing::warn!(%error, "addresses of earlier pods could not be freed; they are when the agent starts again");
        }
    }
}
