//! The families of volumes, logs and of sampling itself for the kubelet's `/metrics`.

use windlass_kit::prometheus::{Kind, Text};

use super::{View, float, pods};
use crate::model::VolumeSize;

type VolumeMetric = (&'static str, &'static str, fn(&VolumeSize) -> u64);

const VOLUME_METRICS: [VolumeMetric; 7] = [
    ("kubelet_volume_stats_available_bytes", "Bytes left in the volume's file system", |v| v.space.available_bytes),
    ("kubelet_volume_stats_capacity_bytes", "Size of the volume's file system, in bytes", |v| v.space.capacity_bytes),
    ("kubelet_volume_stats_health_status_abnormal", "1 when the volume's file system does not answer, else 0", |v| {
        u64::from(v.stale)
    }),
    ("kubelet_volume_stats_inodes", "Inodes of the volume's file system", |v| v.space.inodes),
    ("kubelet_volume_stats_inodes_free", "Inodes left in the volume's file system", |v| v.space.inodes_free),
    ("kubelet_volume_stats_inodes_used", "Inodes that the volume uses", |v| v.inodes_used),
    ("kubelet_volume_stats_used_bytes", "Bytes that the volume uses", |v| v.space.used_bytes),
];

/// Adds them to a page. A claim that several pods use has one series.
pub(crate) fn put(view: &View, housekeepings: u64, page: &mut Text) {
    let logs = "kubelet_container_log_filesystem_used_bytes";
    page.family(logs, "Bytes that the container's logs take", Kind::Gauge);
    for pod in pods(&view.snapshot) {
        for row in &pod.containers {
            let Some(size) = view.storage.containers.get(row.target.container_id.as_str()) else { continue };
            let labels = [
                ("container", row.target.container_name.as_str()),
                ("namespace", pod.namespace),
                ("pod", pod.name),
                ("uid", pod.uid),
            ];
            if let Some(size) = size.logs {
                page.sample(logs, &labels, float(size.bytes));
            }
        }
    }
    let claims: std::collections::BTreeMap<&(String, String), &VolumeSize> =
        view.storage.volumes.values().flatten().filter_map(|volume| Some((volume.claim.as_ref()?, volume))).collect();
    for (name, help, value) in VOLUME_METRICS {
        page.family(name, help, Kind::Gauge);
        for ((namespace, claim), volume) in &claims {
            let labels = [("namespace", namespace.as_str()), ("persistentvolumeclaim", claim.as_str())];
            page.sample(name, &labels, float(value(volume)));
        }
    }
    let stale = view.snapshot.rows.iter().filter(|row| row.stale).count() as u64;
    page.family("windlass_usage_rounds_total", "Rounds in which all usage was read", Kind::Counter);
    page.sample("windlass_usage_rounds_total", &[], float(housekeepings));
    page.family("windlass_usage_stale_rows", "Containers whose usage could not be read in the last round", Kind::Gauge);
    page.sample("windlass_usage_stale_rows", &[], float(stale));
}
