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

/// Bytes and inodes that pods have written on the disk beside their layers and logs, by pod.
pub(super) type Written = BTreeMap<String, WrittenByPod>;

/// The same of one pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct WrittenByPod {
    /// By volume.
    pub(super) empty_dirs: BTreeMap<String, (u64, u64)>,
    /// Files of the node that containers can write: `/etc/hosts`, `/etc/resolv.conf` and termination messages.
    pub(super) node_files: (u64, u64),
}

/// Walks over the emptyDirs of pods, and the files of the node that their containers can write.
#[derive(Debug)]
pub(super) struct Walks {
    /// Pods' folders are below it, by uid.
    root: PathBuf,
    shutdown: CancellationToken,
    found: watch::Sender<Written>,
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
                let empty_dirs = volumes.into_iter().filter_map(one).collect();
                let node_files = node_files(&root.join(&uid), &shutdown);
                (uid, WrittenByPod { empty_dirs, node_files })
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

    pub(super) fn found(&self) -> watch::Ref<'_, Written> {
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

/// What is in the files of the node that containers of a pod can write, below the pod's folder.
fn node_files(pod: &Path, shutdown: &CancellationToken) -> (u64, u64) {
    let files = ["etc-hosts", "resolv.conf"]
        .map(|name| fs::symlink_metadata(pod.join(name)).map_or((0, 0), |file| (file.blocks().saturating_mul(512), 1)));
    let messages = disk_usage(&pod.join("containers"), &|| !shutdown.is_cancelled()).unwrap_or_default();
    files.into_iter().fold(messages, |all, file| (all.0.saturating_add(file.0), all.1.saturating_add(file.1)))
}

/// The emptyDirs of pods, by uid.
pub(super) fn empty_dirs_of<'a>(pods: impl Iterator<Item = &'a Pod>) -> Vec<(String, Vec<String>)> {
    let of = |pod: &Pod| {
        let volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
        let names: Vec<String> = volumes.filter(|v| v.empty_dir.is_some()).map(|v| v.name.clone()).collect();
        Some((pod.metadata.uid.clone()?, names))
    };
    pods.filter_map(of).collect()
}

/// Puts together what was measured, by pod. Pure.
pub(super) fn by_pod(snapshot: &Snapshot, storage: &Storage, written: &Written) -> BTreeMap<String, Usage> {
    let mut all: BTreeMap<String, Usage> = BTreeMap::new();
    for row in snapshot.rows.iter().filter(|row| !row.target.is_sandbox()) {
        let size = storage.containers.get(&row.target.container_id);
        let used = Used {
            memory: Some(row.sample.memory.working_set_bytes()),
            disk: size.map(|s| s.rootfs_bytes.saturating_add(s.logs_bytes)),
            inodes: size.map(|s| s.rootfs_inodes.saturating_add(s.logs_inodes)),
            processes: row.sample.pids.processes,
        };
        let pod = all.entry(row.target.pod_uid.clone()).or_default();
        pod.containers.insert(row.target.container_name.clone(), used);
    }
    for (uid, WrittenByPod { empty_dirs, node_files }) in written {
        let pod = all.entry(uid.clone()).or_default();
        pod.empty_dirs = empty_dirs.iter().map(|(name, (bytes, _))| (name.clone(), *bytes)).collect();
        pod.empty_dir_inodes = empty_dirs.values().map(|(_, inodes)| inodes).sum();
        (pod.node_files, pod.node_file_inodes) = *node_files;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_pods_have_written_is_measured_in_the_background() {
        let dir = tempfile::tempdir().unwrap();
        let volume = empty_dir(dir.path(), "u", "v");
        fs::create_dir_all(volume.join("below")).unwrap();
        fs::write(volume.join("below/file"), vec![1; 64 << 10]).unwrap();
        let messages = dir.path().join("u/containers/c");
        fs::create_dir_all(&messages).unwrap();
        fs::write(messages.join("00000000"), vec![1; 96 << 10]).unwrap();
        fs::write(dir.path().join("u/etc-hosts"), vec![1; 32 << 10]).unwrap();
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
        let found = walks.found()["u"].clone();
        let (bytes, inodes) = found.empty_dirs["v"];
        assert!(bytes >= 64 << 10 && inodes == 3, "{bytes} bytes, {inodes} inodes");
        assert!(!found.empty_dirs.contains_key("gone"));
        let (bytes, inodes) = found.node_files;
        assert!((128 << 10..192 << 10).contains(&bytes) && inodes == 4, "{bytes} bytes, {inodes} inodes");
    }
}
