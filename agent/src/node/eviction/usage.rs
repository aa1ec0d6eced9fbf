//! What pods use, as far as eviction needs it: measured by cadvisor, and emptyDirs by walks of our own that never hold
//! up the loop.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::Pod;
use tokio::{sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;
use windlass_cadvisor::{disk_usage, model::Snapshot, model::Storage};

use super::ranking::{Usage, Used};

/// Walks come this often at most, and take this part of the time at most.
const WALK_EVERY: Duration = Duration::from_secs(10);
const SHARE: u32 = 20;
/// How long a decision waits for a walk.
const PATIENCE: Duration = Duration::from_secs(5);

/// Bytes and inodes of emptyDirs on the disk, by pod and volume.
pub(super) type EmptyDirs = BTreeMap<String, BTreeMap<String, (u64, u64)>>;

/// Walks over the emptyDirs of pods.
#[derive(Debug)]
pub(super) struct Walks {
    /// Pods' folders are below it, by uid.
    root: PathBuf,
    shutdown: CancellationToken,
    found: watch::Sender<EmptyDirs>,
    under_way: Option<JoinHandle<Duration>>,
    next: Instant,
}

impl Walks {
    pub(super) fn new(root: PathBuf, shutdown: CancellationToken) -> Self {
        Self { root, shutdown, found: watch::Sender::default(), under_way: None, next: Instant::now() }
    }

    /// Begins a walk if one is due and none is under way.
    pub(super) async fn go_on(&mut self, pods: &[(String, Vec<String>)]) {
        self.reap().await;
        if self.under_way.is_none() && self.next <= Instant::now() {
            self.begin(pods);
        }
    }

    async fn reap(&mut self) {
        if let Some(walk) = self.under_way.take_if(|walk| walk.is_finished()) {
            let cost = walk.await.unwrap_or_default();
            self.next = Instant::now() + WALK_EVERY.max(cost * SHARE);
        }
    }

    fn begin(&mut self, pods: &[(String, Vec<String>)]) {
        let (root, pods, shutdown) = (self.root.clone(), pods.to_vec(), self.shutdown.clone());
        let found = self.found.clone();
        self.under_way = Some(tokio::task::spawn_blocking(move || {
            let begun = Instant::now();
            let all = pods.into_iter().map(|(uid, volumes)| {
                let one = |name: String| measure(&empty_dir(&root, &uid, &name), &shutdown).map(|size| (name, size));
                (uid.clone(), volumes.into_iter().filter_map(one).collect())
            });
            found.send_replace(all.collect());
            begun.elapsed()
        }));
    }

    /// Walks now and waits for the result, but not for long: a large tree may take its time.
    pub(super) async fn renew(&mut self, pods: &[(String, Vec<String>)]) {
        let mut news = self.found.subscribe();
        self.reap().await;
        if self.under_way.is_none() {
            self.begin(pods);
        }
        let _ = tokio::time::timeout(PATIENCE, news.changed()).await;
    }

    pub(super) fn found(&self) -> watch::Ref<'_, EmptyDirs> {
        // The sender keeps what it sent last.
        self.found.borrow()
    }
}

fn empty_dir(root: &Path, uid: &str, volume: &str) -> PathBuf {
    root.join(uid).join("volumes/kubernetes.io~empty-dir").join(volume)
}

/// Nothing for a folder in memory: the kernel keeps that within its size.
fn measure(dir: &Path, shutdown: &CancellationToken) -> Option<(u64, u64)> {
    let device = |path: &Path| fs::symlink_metadata(path).ok().map(|m| m.dev());
    if device(dir)? != device(dir.parent()?)? {
        return None;
    }
    disk_usage(dir, &|| !shutdown.is_cancelled())
}

/// The emptyDirs of pods, by uid.
pub(super) fn empty_dirs_of<'a>(pods: impl Iterator<Item = &'a Pod>) -> Vec<(String, Vec<String>)> {
    let of = |pod: &Pod| {
        let volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
        let names: Vec<String> = volumes.filter(|v| v.empty_dir.is_some()).map(|v| v.name.clone()).collect();
        Some((pod.metadata.uid.clone()?, names)).filter(|(_, names)| !names.is_empty())
    };
    pods.filter_map(of).collect()
}

/// Puts together what was measured, by pod. Pure.
pub(super) fn by_pod(snapshot: &Snapshot, storage: &Storage, empty_dirs: &EmptyDirs) -> BTreeMap<String, Usage> {
    let mut all: BTreeMap<String, Usage> = BTreeMap::new();
    for row in snapshot.rows.iter().filter(|row| !row.subject.is_sandbox()) {
        let size = storage.containers.get(&row.subject.container_id);
        let used = Used {
            memory: Some(row.sample.memory.working_set_bytes()),
            disk: size.map(|s| s.rootfs_bytes.saturating_add(s.logs_bytes)),
            inodes: size.map(|s| s.rootfs_inodes.saturating_add(s.logs_inodes)),
            processes: row.sample.pids.processes,
        };
        let pod = all.entry(row.subject.pod_uid.clone()).or_default();
        pod.containers.insert(row.subject.container_name.clone(), used);
    }
    for (uid, volumes) in empty_dirs {
        let pod = all.entry(uid.clone()).or_default();
        pod.empty_dirs = volumes.iter().map(|(name, (bytes, _))| (name.clone(), *bytes)).collect();
        pod.empty_dir_inodes = volumes.values().map(|(_, inodes)| inodes).sum();
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn empty_dirs_are_measured_in_the_background() {
        let dir = tempfile::tempdir().unwrap();
        let volume = empty_dir(dir.path(), "u", "v");
        fs::create_dir_all(volume.join("below")).unwrap();
        fs::write(volume.join("below/file"), vec![1; 64 << 10]).unwrap();
        let pod: Pod = serde_json::from_str(
            r#"{"metadata":{"uid":"u"},"spec":{"containers":[],"volumes":[
                {"name":"v","emptyDir":{}},{"name":"gone","emptyDir":{}},{"name":"c","configMap":{}}]}}"#,
        )
        .unwrap();
        let wanted = empty_dirs_of([&pod].into_iter());
        assert_eq!(wanted, [("u".to_owned(), vec!["v".to_owned(), "gone".to_owned()])]);
        let mut walks = Walks::new(dir.path().to_owned(), CancellationToken::new());
        let mut news = walks.found.subscribe();
        walks.go_on(&wanted).await;
        news.changed().await.unwrap();
        let (bytes, inodes) = walks.found()["u"]["v"];
        assert!(bytes >= 64 << 10 && inodes == 3, "{bytes} bytes, {inodes} inodes");
        assert!(!walks.found()["u"].contains_key("gone"));
    }
}
