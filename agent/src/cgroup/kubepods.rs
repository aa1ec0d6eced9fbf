//! The one owner of the tree below `kubepods`: it knows what node and pods want, and writes where the kernel has
//! something else, at each change and every minute, since others may write there too.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use windlass_kit::{quantity::Quantity, repairs::Repair};

use super::{
    ROOT, differs, has, huge_pages, is_v2,
    limits::milli_cpu_to_shares,
    pod_dirs, remove_pod, systemd,
    tree::{self, PodCgroup, Resource, Values},
    write_all,
};

/// Upstream's `periodicQOSCgroupUpdateInterval`.
const UPDATE_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
struct State {
    /// By uid.
    pods: BTreeMap<String, PodCgroup>,
    /// Of `kubepods`, where its limit is enforced.
    node: Option<Values>,
}

/// The cgroups of all pods, of their classes, and of single pods.
#[derive(Debug)]
pub(crate) struct Cgroups {
    root: PathBuf,
    state: Mutex<State>,
    /// Held while values are read from the state and written: the newest are written last.
    writing: tokio::sync::Mutex<()>,
    /// Pods came or went: their classes weigh something else.
    changed: Notify,
}

impl Default for Cgroups {
    fn default() -> Self {
        Self::below(Path::new(ROOT))
    }
}

impl Cgroups {
    fn below(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            state: Mutex::default(),
            writing: tokio::sync::Mutex::default(),
            changed: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// What a pod's cgroup has, as far as it was set here.
    pub(crate) fn pod(&self, uid: &str) -> Option<PodCgroup> {
        self.state().pods.get(uid).cloned()
    }

    /// Sets the values of a pod's cgroup, which Docker has made.
    pub(crate) async fn set_pod(&self, uid: &str, pod: PodCgroup) {
        let _writing = self.writing.lock().await;
        self.state().pods.insert(uid.to_owned(), pod.clone());
        self.apply(&pod.name, &pod.values).await;
        self.changed.notify_one();
    }

    /// Sets the values of a pod's cgroup, but takes nothing from one that has more already: its containers may still use
    /// it. A resize takes it when they do not.
    pub(crate) async fn grow_pod(&self, uid: &str, wanted: &PodCgroup) {
        let next = self.pod(uid).map_or_else(|| wanted.clone(), |is| wanted.grown(&is));
        self.set_pod(uid, next).await;
    }

    /// Takes over the cgroup of a pod that an earlier agent has run. Where that one had not come to take memory from it,
    /// and the pod uses it, it keeps it: a limit below what is in use would have the kernel kill processes.
    pub(crate) async fn adopt_pod(&self, uid: &str, mut wanted: PodCgroup) {
        let limit = wanted.values.memory.filter(|limit| *limit > 0);
        if let (Some(limit), Some(is)) = (limit, self.memory_limit(&wanted.name))
            && (is == 0 || is > limit)
        {
            let (used, _) = self.memory_in_use(&wanted.name, &[]);
            if used.is_none_or(|used| u64::try_from(limit).is_ok_and(|limit| used >= limit)) {
                wanted.values.memory = Some(is);
            }
        }
        self.set_pod(uid, wanted).await;
    }

    /// The kernel's memory limit of a pod; 0 for no limit, `None` if it cannot be read.
    fn memory_limit(&self, pod: &str) -> Option<i64> {
        let read = |(_, dir): (String, PathBuf)| {
            let text =
                ["memory.max", "memory.limit_in_bytes"].iter().find_map(|f| fs::read_to_string(dir.join(f)).ok())?;
            match text.trim() {
                "max" => Some(0),
                // No limit reads as a very large one with cgroup v1.
                bytes => bytes.parse::<i64>().ok().map(|bytes| if bytes > 1 << 62 { 0 } else { bytes }),
            }
        };
        pod_dirs(&self.root, pod).into_iter().find_map(read)
    }

    /// Sets one resource of a pod's cgroup, with `grow` no smaller than it is: before its containers are resized.
    pub(crate) async fn set_resource(&self, uid: &str, wanted: &PodCgroup, resource: Resource, grow: bool) {
        let next = self.pod(uid).map_or_else(|| wanted.clone(), |is| is.with(wanted, resource, grow));
        self.set_pod(uid, next).await;
    }

    /// A pod's containers have ended: it weighs nothing any more.
    pub(crate) fn forget_pod(&self, uid: &str) {
        if self.state().pods.remove(uid).is_some() {
            self.changed.notify_one();
        }
    }

    /// Removes the cgroups of a pod where they are empty.
    pub(crate) fn remove_pod(&self, uid: &str) {
        self.forget_pod(uid);
        remove_pod(uid);
    }

    /// Sets the limit of all pods together; gives whether their cgroup exists yet.
    pub(crate) async fn set_node(&self, amounts: &BTreeMap<String, Quantity>) -> bool {
        let of = |resource: &str| amounts.get(resource).copied();
        let values = Values {
            memory: Some(of("memory").map_or(0, Quantity::units)),
            cpu_shares: Some(milli_cpu_to_shares(of("cpu").map_or(0, Quantity::milli))),
            ..Values::default()
        };
        self.state().node = Some(values);
        self.apply_above_pods().await
    }

    async fn apply_above_pods(&self) -> bool {
        let _writing = self.writing.lock().await;
        let wanted = {
            let state = self.state();
            tree::above_pods(state.pods.values(), state.node.as_ref())
        };
        let mut found = false;
        for (name, values) in &wanted {
            found |= self.apply(name, values).await;
        }
        found
    }

    /// Writes what the kernel has otherwise, until `shutdown`.
    pub(crate) async fn keep(&self, shutdown: CancellationToken) {
        let mut every = tokio::time::interval(Repair::CgroupUpdate.period(UPDATE_INTERVAL));
        loop {
            let all = tokio::select! {
                () = shutdown.cancelled() => return,
                () = self.changed.notified() => false,
                _ = every.tick() => true,
            };
            self.apply_above_pods().await;
            if all {
                self.apply_pods().await;
            }
        }
    }

    async fn apply_pods(&self) {
        let uids: Vec<String> = self.state().pods.keys().cloned().collect();
        for uid in uids {
            let _writing = self.writing.lock().await;
            if let Some(pod) = self.pod(&uid) {
                self.apply(&pod.name, &pod.values).await;
            }
        }
    }

    /// Writes the values of a cgroup where it exists and has others; gives whether it exists. Through systemd where
    /// that owns it; else, and where systemd refuses, into its files. What the kernel refuses, such as less memory than
    /// is in use with cgroup v1, is logged and stays as it was.
    async fn apply(&self, name: &str, values: &Values) -> bool {
        let dirs = pod_dirs(&self.root, name);
        for (hierarchy, dir) in &dirs {
            let v2 = is_v2(dir);
            let files = tree::files(hierarchy, v2, values);
            let slice = name.trim_start_matches('/');
            let mut written = false;
            if slice.ends_with(".slice") && v2 && files.iter().any(|(file, value)| differs(&dir.join(file), value)) {
                match systemd::set(slice, systemd::properties(values)).await {
                    Ok(()) => written = true,
                    Err(error) => {
                        tracing::warn!(slice, %error, "failed to set limits of a slice through systemd; writing its cgroup files, until the next daemon-reload");
                    }
                }
            }
            if !written {
                write_all(dir, files.into_iter().map(|(file, value)| (file.to_owned(), value)));
            }
            if let Some(pages) = values.pages.as_ref().filter(|_| has(hierarchy, dir, "hugetlb")) {
                write_all(dir, huge_pages(dir, pages));
            }
        }
        !dirs.is_empty()
    }

    /// The memory in use by a pod, and by those of its containers whose ids are given; `None` where it cannot be read.
    pub(crate) fn memory_in_use(&self, pod: &str, ids: &[&str]) -> (Option<u64>, Vec<Option<u64>>) {
        let dirs = pod_dirs(&self.root, pod);
        let of = |within: &dyn Fn(&Path) -> PathBuf| {
            dirs.iter().find_map(|(_, dir)| windlass_cadvisor::memory_in_use(&within(dir)))
        };
        let container =
            |id: &&str| of(&|dir| dir.join(id)).or_else(|| of(&|dir| dir.join(format!("docker-{id}.scope"))));
        (of(&Path::to_owned), ids.iter().map(container).collect())
    }
}

#[cfg(test)]
mod tests {
    use windlass_kit::objects::resources::Class;

    use super::*;
    use crate::engine::inspect::Limits;

    fn pod(name: &str, class: Class, milli_cpu: i64) -> PodCgroup {
        let limits = Limits { memory: 1 << 20, cpu_shares: milli_cpu_to_shares(milli_cpu), cpu_quota: 0 };
        PodCgroup { name: name.to_owned(), class, milli_cpu, values: Values::of(&limits) }
    }

    #[tokio::test]
    async fn what_others_wrote_is_written_over_and_the_classes_follow_their_pods() {
        let root = tempfile::tempdir().unwrap();
        for (dir, file, value) in [
            ("cpu,cpuacct/kubepods", "cpu.shares", "1024\n"),
            ("cpu,cpuacct/kubepods/burstable", "cpu.shares", "1024\n"),
            ("cpu,cpuacct/kubepods/besteffort", "cpu.shares", "1024\n"),
            ("cpu,cpuacct/kubepods/burstable/poda", "cpu.shares", "1024\n"),
            ("memory/kubepods/burstable/poda", "memory.limit_in_bytes", "9223372036854771712\n"),
        ] {
            let dir = root.path().join(dir);
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join(file), value).unwrap();
        }
        let said = |file: &str| fs::read_to_string(root.path().join(file)).unwrap().trim().to_owned();
        let classes = || {
            let of = |class: &str| said(&format!("cpu,cpuacct/kubepods/{class}/cpu.shares"));
            (of("burstable"), of("besteffort"))
        };
        let cgroups = Cgroups::below(root.path());
        cgroups.set_pod("a", pod("/kubepods/burstable/poda", Class::Burstable, 1500)).await;
        cgroups.set_pod("g", pod("/kubepods/podg", Class::Guaranteed, 4000)).await;
        cgroups.apply_above_pods().await;
        assert_eq!(said("cpu,cpuacct/kubepods/burstable/poda/cpu.shares"), "1536");
        assert_eq!(said("memory/kubepods/burstable/poda/memory.limit_in_bytes"), "1048576");
        assert_eq!(classes(), ("1536".to_owned(), "2".to_owned()));
        assert_eq!(said("cpu,cpuacct/kubepods/cpu.shares"), "1024", "not enforced");
        let written = "cpu,cpuacct/kubepods/burstable/poda/cpu.shares";
        fs::write(root.path().join(written), "2\n").unwrap();
        cgroups.apply_pods().await;
        assert_eq!(said(written), "1536");
        assert!(cgroups.set_node(&BTreeMap::from([("cpu".to_owned(), "2".parse().unwrap())])).await);
        assert_eq!(said("cpu,cpuacct/kubepods/cpu.shares"), "2048");
        cgroups.forget_pod("a");
        cgroups.apply_above_pods().await;
        assert_eq!(classes(), ("2".to_owned(), "2".to_owned()));
    }

    #[tokio::test]
    async fn what_a_pod_uses_is_not_taken_at_a_start() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("memory/kubepods/burstable/poda");
        fs::create_dir_all(&dir).unwrap();
        let wanted = || pod("/kubepods/burstable/poda", Class::Burstable, 100);
        // The limit that is wanted is 1 MiB.
        for (is, used, kept) in [
            (2 << 20, 1 << 20, 2 << 20),
            (2 << 20, 4096, 1 << 20),
            (9_223_372_036_854_771_712_i64, 1 << 20, 0),
            (4096, 4096, 1 << 20),
        ] {
            fs::write(dir.join("memory.limit_in_bytes"), format!("{is}\n")).unwrap();
            fs::write(dir.join("memory.usage_in_bytes"), format!("{used}\n")).unwrap();
            let cgroups = Cgroups::below(root.path());
            cgroups.adopt_pod("a", wanted()).await;
            assert_eq!(cgroups.pod("a").unwrap().limits().unwrap().memory, kept, "{is} {used}");
        }
        let cgroups = Cgroups::below(root.path());
        let larger = PodCgroup { values: Values { memory: Some(8 << 20), ..wanted().values }, ..wanted() };
        cgroups.set_pod("a", larger.clone()).await;
        cgroups.grow_pod("a", &wanted()).await;
        assert_eq!(cgroups.pod("a").unwrap().values.memory, Some(8 << 20));
        cgroups.set_resource("a", &wanted(), Resource::Memory, false).await;
        assert_eq!(cgroups.pod("a").unwrap().values.memory, Some(1 << 20));
    }

    #[test]
    fn memory_in_use_is_found_with_either_driver() {
        let root = tempfile::tempdir().unwrap();
        for (dir, bytes) in [("memory/kubepods/poda", 30), ("memory/kubepods/poda/c1", 10)] {
            fs::create_dir_all(root.path().join(dir)).unwrap();
            fs::write(root.path().join(dir).join("memory.usage_in_bytes"), format!("{bytes}\n")).unwrap();
        }
        let slice = root.path().join("kubepods.slice/kubepods-poda.slice");
        fs::create_dir_all(slice.join("docker-c2.scope")).unwrap();
        fs::write(slice.join("docker-c2.scope/memory.current"), "20\n").unwrap();
        let cgroups = Cgroups::below(root.path());
        assert_eq!(cgroups.memory_in_use("/kubepods/poda", &["c1", "c9"]), (Some(30), vec![Some(10), None]));
        assert_eq!(cgroups.memory_in_use("kubepods-poda.slice", &["c2"]), (None, vec![Some(20)]));
    }
}
