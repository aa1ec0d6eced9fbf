//! Housekeeping: containers and logs of pods that no source has, and containers of pods without a worker.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use windlass_kit::blocking::DISK;

use super::{Dispatcher, PodUpdate, engine_watch, orphan_logs};
use crate::engine::{containers::Listed, inspect::Instance};

/// Seconds after which a helper container counts as unused.
const MAX_HELPER_AGE_SECONDS: i64 = 3600;

impl Dispatcher {
    /// Removes helper containers, which only lend the files of their images: at the start all that an earlier process
    /// has left, and later those that are too old to be in use.
    pub(super) fn remove_helpers(&self, helpers: &[Listed]) {
        let now = jiff::Timestamp::now().as_second();
        let is_old = |l: &&Listed| now.saturating_sub(l.created) > MAX_HELPER_AGE_SECONDS;
        for helper in helpers.iter().filter(|l| self.unadopted.is_none() || is_old(l)) {
            let (engine, id) = (self.context.node.engine.clone(), helper.id.clone());
            // Not awaited: a removal that fails is retried at the next list.
            drop(tokio::spawn(async move {
                if let Err(error) = engine.remove(&id).await {
                    tracing::debug!(%error, container = id, "failed to remove helper container; retrying");
                }
            }));
        }
    }

    /// Removes the logs of pods that neither a source nor a worker has.
    pub(super) fn remove_orphan_logs(&self) {
        if !self.settled {
            return;
        }
        let known: BTreeSet<String> = self.sources.uids().chain(self.workers.keys()).cloned().collect();
        let config = &self.context.node.config;
        let (pod_logs, container_logs) = (config.pod_logs_dir.clone(), config.container_logs_dir.clone());
        // Not awaited: what cannot be removed is left for the next list.
        drop(DISK.spawn(move || orphan_logs::remove(&pod_logs, &container_logs, &known)));
    }

    /// Kills the containers of pods that no source has: another tool may have created them, or Docker itself after a
    /// request had timed out.
    pub(super) fn kill_orphans(&mut self, found: impl Iterator<Item = String>) {
        for uid in found {
            let is_known = self.sources.has(&uid) || self.workers.contains_key(&uid) || self.searching.contains(&uid);
            if self.settled && !is_known {
                tracing::info!(pod = uid, "stopping containers of an unknown pod");
                self.search(uid, Duration::ZERO);
            }
        }
    }

    /// Once all sources and the engine were listed: kills orphans that ran before the agent, and frees addresses
    /// without a pod.
    pub(super) async fn settle(&mut self) {
        let unadopted = self.unadopted.iter().flat_map(HashMap::keys);
        let orphans: Vec<String> = unadopted.filter(|uid| !self.sources.has(uid)).cloned().collect();
        for uid in orphans {
            tracing::info!(pod = uid, "stopping containers of an unknown pod");
            self.dispatch(&uid, PodUpdate::Deleted);
        }
        self.settled = true;
        self.remove_orphan_logs();
        let live: BTreeSet<String> = self.workers.keys().cloned().collect();
        if let Err(error) = self.context.node.network.retain(&live).await {
            tracing::warn!(%error, "failed to free addresses of earlier pods; they are freed at the next start");
        }
    }

    /// Lists, after a delay, the containers of a pod that has no worker: none may start before.
    pub(super) fn search(&mut self, uid: String, delay: Duration) {
        self.searching.insert(uid.clone());
        let engine = self.context.node.engine.clone();
        self.searches.spawn(async move {
            tokio::time::sleep(delay).await;
            let found = engine_watch::list_pod_containers(&engine, &uid).await;
            (uid, found)
        });
    }

    /// Starts a worker that adopts the containers of a pod.
    pub(super) fn on_found(&mut self, uid: String, instances: Vec<Instance>) {
        self.searching.remove(&uid);
        let any = !instances.is_empty();
        if let Some(unadopted) = self.unadopted.as_mut().filter(|_| any) {
            unadopted.insert(uid.clone(), instances);
        }
        match self.sources.update(&uid) {
            Some(update) => self.dispatch(&uid, update),
            None if any => self.dispatch(&uid, PodUpdate::Deleted),
            None => {}
        }
    }
}
