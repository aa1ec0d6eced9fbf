//! The machine: its properties, its file systems, its samples.

use serde_json::{Map, Value, json};

use super::stats;
use crate::{expose::View, history::Point, model::Filesystem};

/// The known file systems by label; those of the node and of images are often the same one.
fn filesystems(view: &View) -> Vec<(&'static str, Filesystem)> {
    let storage = &view.storage;
    let images = storage.images.map(|space| ("docker-images", space));
    let node = storage.node.filter(|_| storage.is_one_file_system != Some(true));
    images.into_iter().chain(node.map(|space| ("root", space))).collect()
}

fn device<'a>(view: &'a View, label: &str) -> &'a str {
    if label == "docker-images" { &view.storage.images_device } else { "root" }
}

pub(super) fn machine(view: &View) -> Value {
    let machine = &view.snapshot.machine;
    let pages: Vec<Value> =
        machine.huge_pages.iter().map(|(size, count)| json!({"page_size": size, "num_pages": count})).collect();
    let disks: Map<String, Value> = machine
        .disks
        .iter()
        .map(|disk| {
            let value = json!({
                "name": disk.name, "major": disk.major, "minor": disk.minor, "size": disk.size, "scheduler": disk.scheduler,
            });
            (format!("{}:{}", disk.major, disk.minor), value)
        })
        .collect();
    let networks: Vec<Value> = machine
        .network
        .iter()
        .map(|n| json!({"name": n.name, "mac_address": n.address, "speed": n.speed, "mtu": n.mtu}))
        .collect();
    let topology: Vec<Value> = machine
        .nodes
        .iter()
        .map(|node| {
            let cores: Vec<Value> = node
                .cores
                .iter()
                .map(|(core, socket, threads)| {
                    json!({"core_id": core, "thread_ids": threads, "caches": null, "uncore_caches": null, "socket_id": socket})
                })
                .collect();
            json!({"node_id": node.id, "memory": node.memory_bytes, "hugepages": null, "cores": cores, "caches": null, "distances": null})
        })
        .collect();
    let filesystems: Vec<Value> = filesystems(view)
        .iter()
        .map(|(label, space)| {
            json!({
                "device": device(view, label), "capacity": space.capacity_bytes, "type": "vfs",
                "inodes": space.inodes, "has_inodes": space.inodes > 0,
            })
        })
        .collect();
    json!({
        "timestamp": view.snapshot.moment.wall.to_string(),
        "vendor_id": machine.vendor,
        "num_cores": machine.cores,
        "num_physical_cores": machine.physical_cores,
        "num_sockets": machine.sockets,
        "num_books": 0,
        "num_drawers": 0,
        "cpu_frequency_khz": machine.frequency_khz,
        "memory_capacity": machine.memory_bytes,
        "swap_capacity": machine.swap_bytes,
        "memory_by_type": {},
        "nvm": {"memory_mode_capacity": 0, "app direct_mode_capacity": 0, "avg_power_budget": 0},
        "hugepages": pages,
        "machine_id": machine.machine_id,
        "system_uuid": machine.system_uuid,
        "boot_id": machine.boot_id,
        "filesystems": filesystems,
        "disk_map": disks,
        "network_devices": networks,
        "topology": topology,
        "cloud_provider": "Unknown",
        "instance_type": "Unknown",
        "instance_id": "None",
    })
}

pub(super) fn attributes(view: &View) -> Value {
    let mut all = machine(view);
    if let Some(fields) = all.as_object_mut() {
        let machine = &view.snapshot.machine;
        for (key, value) in [
            ("kernel_version", machine.kernel_version.as_str()),
            ("container_os_version", machine.os_version.as_str()),
            ("docker_version", ""),
            ("docker_api_version", ""),
            ("cadvisor_version", env!("CARGO_PKG_VERSION")),
        ] {
            fields.insert(key.to_owned(), json!(value));
        }
    }
    all
}

pub(super) fn storage(view: &View, label: Option<&str>) -> Value {
    let one = |(name, space): &(&'static str, Filesystem)| {
        json!({
            "timestamp": space.at.to_string(), "device": device(view, name), "mountpoint": "", "labels": [name],
            "capacity": space.capacity_bytes, "available": space.available_bytes, "usage": space.used_bytes,
            "inodes": space.inodes, "inodes_free": space.inodes_free,
        })
    };
    filesystems(view).iter().filter(|(name, _)| label.is_none_or(|wanted| wanted == *name)).map(one).collect()
}

pub(super) fn stats(view: &View, past: &[Point], count: usize) -> Value {
    let node = &view.snapshot.node;
    let filesystems: Vec<Value> = filesystems(view)
        .iter()
        .map(|(label, space)| {
            let mut all = json!({
                "device": device(view, label), "type": "vfs", "capacity": space.capacity_bytes, "usage": space.used_bytes,
                "available": space.available_bytes, "inodes_free": space.inodes_free,
            });
            let disk = node.disks.iter().find(|disk| disk.name == device(view, label));
            if let (Some(fields), Some(disk)) = (all.as_object_mut(), disk) {
                for (key, value) in [
                    ("reads_completed", disk.reads),
                    ("reads_merged", disk.reads_merged),
                    ("sectors_read", disk.sectors_read),
                    ("read_duration", disk.read_ms.saturating_mul(1_000_000)),
                    ("writes_completed", disk.writes),
                    ("writes_merged", disk.writes_merged),
                    ("sectors_written", disk.sectors_written),
                    ("write_duration", disk.write_ms.saturating_mul(1_000_000)),
                    ("io_in_progress", disk.in_progress),
                    ("io_duration", disk.io_ms.saturating_mul(1_000_000)),
                    ("weighted_io_duration", disk.weighted_ms.saturating_mul(1_000_000)),
                ] {
                    fields.insert(key.to_owned(), json!(value));
                }
            }
            all
        })
        .collect();
    let older = past.get(..past.len().saturating_sub(1)).unwrap_or_default();
    let mut all: Vec<Value> = older.iter().map(stats::v2_of_point).collect();
    let mut newest = stats::v2_of_sample(&node.sample, node.usage_nano_cores);
    if let Some(fields) = newest.as_object_mut() {
        fields.insert("filesystem".to_owned(), json!(filesystems));
    }
    all.push(newest);
    all.drain(..all.len().saturating_sub(count.max(1)));
    Value::Array(all)
}
