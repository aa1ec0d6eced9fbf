//! Usage of pods for eviction, of what cadvisor has measured. Pure.

use std::collections::BTreeMap;

use windlass_cadvisor::model::{Snapshot, Storage, sum_of_sizes};

use super::ranking::{ContainerStats, PodStats};

/// Combines all measurements by pod.
pub(super) fn by_pod(snapshot: &Snapshot, storage: &Storage) -> BTreeMap<String, PodStats> {
    let mut all: BTreeMap<String, PodStats> = BTreeMap::new();
    for row in snapshot.rows.iter().filter(|row| !row.target.is_sandbox()) {
        let size = storage.containers.get(row.target.container_id.as_str());
        // Logs alone are not what a container uses.
        let disk = size.and_then(|size| sum_of_sizes([Some(size.rootfs?), size.logs]));
        let used = ContainerStats {
            memory: row.sample.memory.map(|memory| memory.working_set_bytes()),
            disk: disk.map(|disk| disk.bytes),
            inodes: disk.and_then(|disk| disk.inodes),
            processes: row.sample.pids.processes,
        };
        let pod = all.entry(row.target.pod_uid.clone()).or_default();
        pod.containers.insert(row.target.container_name.clone(), used);
    }
    for (uid, row) in snapshot.pods.iter() {
        let pod = all.entry(uid.to_string()).or_default();
        pod.memory = row.sample.memory.map(|memory| memory.working_set_bytes());
    }
    for (uid, volumes) in storage.volumes.iter() {
        let pod = all.entry(uid.to_string()).or_default();
        // The kernel enforces the size of a tmpfs.
        for volume in volumes.iter().filter(|volume| volume.ephemeral) {
            pod.empty_dirs.insert(volume.name.clone(), volume.space.used_bytes);
            pod.empty_dir_inodes = pod.empty_dir_inodes.saturating_add(volume.inodes_used);
        }
    }
    for (uid, files) in storage.pod_files.iter() {
        let pod = all.entry(uid.to_string()).or_default();
        (pod.node_files, pod.node_file_inodes) = (files.bytes, files.inodes.unwrap_or(0));
    }
    all
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use windlass_cadvisor::{
        Target,
        model::{ContainerSize, Filesystem, Limits, Memory, Node, Row, Sample, SharedMap, Size, VolumeSize},
    };
    use windlass_kit::moment::Moment;

    use super::*;

    fn row(uid: &str, container: &str, bytes: u64) -> Arc<Row> {
        let moment = Moment::ZERO;
        let memory = Some(Memory { usage_bytes: bytes + 5, inactive_file_bytes: 5, ..Memory::default() });
        Arc::new(Row {
            target: Arc::new(Target {
                container_id: format!("{uid}-{container}"),
                container_name: container.to_owned(),
                pod_uid: uid.to_owned(),
                ..Target::default()
            }),
            cgroup: Arc::from("/x"),
            sample: Sample { memory, ..Sample::empty(moment) },
            usage_nano_cores: None,
            limits: Limits::default(),
            slow: Arc::default(),
            host_network: false,
            stale: false,
        })
    }

    /// A memory emptyDir that was filled before a restart is charged to the pod's cgroup alone. A layer that cannot be
    /// measured is not taken for empty.
    #[test]
    fn a_pod_uses_what_its_own_cgroup_counts() {
        let moment = Moment::ZERO;
        let node = Node {
            sample: Sample::empty(moment),
            usage_nano_cores: None,
            swap_free_bytes: None,
            default_interface: None,
            threads: None,
            disks: Vec::new(),
            load: [0.0; 3],
            stale: false,
        };
        let snapshot = Snapshot {
            moment,
            machine: Arc::default(),
            node: Arc::new(node),
            rows: [row("shm", "c", 10 << 20), row("plain", "c", 30 << 20)].into_iter().collect(),
            pods: SharedMap::from([(Arc::from("shm"), row("shm", "", 4 << 30))]),
            system: Arc::default(),
            all_pods: None,
            runtime_cgroups: Arc::default(),
            devices: Arc::default(),
        };
        let logs = Some(Size { bytes: 7, inodes: Some(1) });
        let size = |rootfs| ContainerSize { at: moment.wall, rootfs, logs, stale: false };
        let containers = SharedMap::from([
            (Arc::from("shm-c"), size(None)),
            (Arc::from("plain-c"), size(Some(Size { bytes: 100, inodes: None }))),
        ]);
        let space = Filesystem {
            at: moment.wall,
            capacity_bytes: 1000,
            available_bytes: 500,
            used_bytes: 40,
            inodes: 9,
            inodes_free: 1,
        };
        let volume = |name: &str, ephemeral| VolumeSize {
            name: name.to_owned(),
            claim: None,
            ephemeral,
            space,
            inodes_used: 3,
            stale: false,
        };
        let volumes = SharedMap::from([(Arc::from("shm"), vec![volume("scratch", true), volume("memory", false)])]);
        let pod_files = SharedMap::from([(Arc::from("shm"), Size { bytes: 11, inodes: Some(2) })]);
        let storage = Storage { containers, volumes, pod_files, ..Storage::default() };
        let found = by_pod(&snapshot, &storage);
        assert_eq!((found["shm"].memory, found["plain"].memory), (Some(4 << 30), None));
        assert_eq!(found["shm"].empty_dirs, BTreeMap::from([("scratch".to_owned(), 40)]));
        let of_pod = (found["shm"].empty_dir_inodes, found["shm"].node_files, found["shm"].node_file_inodes);
        assert_eq!(of_pod, (3, 11, 2));
        let disk = |uid: &str| (found[uid].containers["c"].disk, found[uid].containers["c"].inodes);
        assert_eq!((disk("shm"), disk("plain")), ((None, None), (Some(107), None)));
    }
}
