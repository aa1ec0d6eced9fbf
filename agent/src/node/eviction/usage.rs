//! Usage of pods for eviction: from cadvisor, and scans of emptyDirs and node files that run beside the eviction loop.

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

use windlass_kit::blocking::{DISK, LaneError};

use super::ranking::{ContainerStats, PodStats};

/// The shortest interval between scans, and how many times longer than a scan the pause after it is.
const SCAN_INTERVAL: Duration = Duration::from_secs(10);
const IDLE_FACTOR: u32 = 20;
/// How long a decision waits for a scan.
const SCAN_TIMEOUT: Duration = Duration::from_secs(5);

/// Disk usage of pods beside writable layers and logs, by uid.
pub(super) type PodsDiskUsage = BTreeMap<String, PodDiskUsage>;

/// Disk usage of one pod, in bytes and inodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PodDiskUsage {
    /// By volume.
    pub(super) empty_dirs: BTreeMap<String, (u64, u64)>,
    /// Files on the nodefs that containers can write: `/etc/hosts`, `/etc/resolv.conf` and termination messages.
    pub(super) node_files: (u64, u64),
}

/// Scans emptyDirs of pods, and the node files that their containers can write.
#[derive(Debug)]
pub(super) struct DiskScans {
    /// The directory of pod directories, by uid.
    root: PathBuf,
    shutdown: CancellationToken,
    results: watch::Sender<PodsDiskUsage>,
    running: Option<JoinHandle<Result<Duration, LaneError>>>,
    next: Instant,
}

impl DiskScans {
    pub(super) fn new(root: PathBuf, shutdown: CancellationToken) -> Self {
        Self { root, shutdown, results: watch::Sender::default(), running: None, next: Instant::now() }
    }

    /// Starts a scan if one is due and none runs.
    pub(super) async fn start_if_due(&mut self, pods: &[(String, Vec<String>)]) {
        self.reap().await;
        if self.running.is_none() && self.next <= Instant::now() {
            self.begin(pods);
        }
    }

    async fn reap(&mut self) {
        if let Some(scan) = self.running.take_if(|scan| scan.is_finished()) {
            let cost = scan.await.ok().and_then(Result::ok).unwrap_or_default();
            self.next = Instant::now() + SCAN_INTERVAL.max(cost * IDLE_FACTOR);
        }
    }

    fn begin(&mut self, pods: &[(String, Vec<String>)]) {
        let (root, pods, shutdown) = (self.root.clone(), pods.to_vec(), self.shutdown.clone());
        let results = self.results.clone();
        self.running = Some(DISK.spawn(move || {
            let begun = Instant::now();
            let all = pods.into_iter().map(|(uid, volumes)| {
                let one = |name: String| measure(&empty_dir(&root, &uid, &name), &shutdown).map(|size| (name, size));
                let empty_dirs = volumes.into_iter().filter_map(one).collect();
                let node_files = node_files(&root.join(&uid), &shutdown);
                (uid, PodDiskUsage { empty_dirs, node_files })
            });
            results.send_replace(all.collect());
            begun.elapsed()
        }));
    }

    /// Scans now and waits for the result, up to a timeout, since a large tree takes long.
    pub(super) async fn rescan(&mut self, pods: &[(String, Vec<String>)]) {
        let mut updates = self.results.subscribe();
        self.reap().await;
        if self.running.is_none() {
            self.begin(pods);
        }
        let _ = tokio::time::timeout(SCAN_TIMEOUT, updates.changed()).await;
    }

    pub(super) fn results(&self) -> watch::Ref<'_, PodsDiskUsage> {
        // The sender keeps the last value.
        self.results.borrow()
    }
}

fn empty_dir(root: &Path, uid: &str, volume: &str) -> PathBuf {
    root.join(uid).join("volumes/kubernetes.io~empty-dir").join(volume)
}

/// `None` for a tmpfs, whose size the kernel enforces.
fn measure(dir: &Path, shutdown: &CancellationToken) -> Option<(u64, u64)> {
    let device = |path: &Path| fs::symlink_metadata(path).ok().map(|m| m.dev());
    if device(dir)? != device(dir.parent()?)? {
        return None;
    }
    disk_usage(dir, &|| !shutdown.is_cancelled())
}

/// Usage of the node files that containers of a pod can write, below the pod's directory.
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

/// Combines all measurements by pod. Pure.
pub(super) fn by_pod(
    snapshot: &Snapshot,
    storage: &Storage,
    disk_usage_by_pod: &PodsDiskUsage,
) -> BTreeMap<String, PodStats> {
    let mut all: BTreeMap<String, PodStats> = BTreeMap::new();
    for row in snapshot.rows.iter().filter(|row| !row.target.is_sandbox()) {
        let size = storage.containers.get(&row.target.container_id);
        let used = ContainerStats {
            memory: Some(row.sample.memory.working_set_bytes()),
            disk: size.map(|s| s.rootfs_bytes.saturating_add(s.logs_bytes)),
            inodes: size.map(|s| s.rootfs_inodes.saturating_add(s.logs_inodes)),
            processes: row.sample.pids.processes,
        };
        let pod = all.entry(row.target.pod_uid.clone()).or_default();
        pod.containers.insert(row.target.container_name.clone(), used);
    }
    for (uid, PodDiskUsage { empty_dirs, node_files }) in disk_usage_by_pod {
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
    async fn emptydirs_and_node_files_are_scanned() {
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
        let mut scans = DiskScans::new(dir.path().to_owned(), CancellationToken::new());
        let mut updates = scans.results.subscribe();
        scans.start_if_due(&wanted).await;
        updates.changed().await.unwrap();
        let results = scans.results()["u"].clone();
        let (bytes, inodes) = results.empty_dirs["v"];
        assert!(bytes >= 64 << 10 && inodes == 3, "{bytes} bytes, {inodes} inodes");
        assert!(!results.empty_dirs.contains_key("gone"));
        let (bytes, inodes) = results.node_files;
        assert!((128 << 10..192 << 10).contains(&bytes) && inodes == 4, "{bytes} bytes, {inodes} inodes");
    }
}
