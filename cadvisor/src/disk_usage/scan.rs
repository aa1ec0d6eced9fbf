//! One scan, on a thread of the pool.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{
    config::Volume,
    model::{ContainerSize, Filesystem, Size, VolumeSize},
    source,
};

#[derive(Debug)]
pub(super) enum ScanJob {
    Spaces { node: PathBuf, images: Option<PathBuf>, logs: Option<PathBuf> },
    ImageLayers { data_root: Option<PathBuf> },
    Container { id: Arc<str>, layer: Option<PathBuf>, data_root: Option<PathBuf> },
    Volume(Volume),
    PodFiles { dir: PathBuf },
}

#[derive(Debug)]
pub(super) enum ScanResult {
    Spaces {
        node: Option<(Filesystem, u64)>,
        images: Option<(Filesystem, u64)>,
        logs: Option<(Filesystem, u64)>,
        image_root: Option<PathBuf>,
    },
    ImageLayers(Option<u64>),
    Container(Option<ContainerSize>),
    Volume(Option<VolumeSize>),
    PodFiles(Option<Size>),
}

/// Executes a scan; it has no result when `keep_going` returned false.
pub(super) fn scan(job: ScanJob, keep_going: &dyn Fn() -> bool) -> ScanResult {
    let at = jiff::Timestamp::now();
    match job {
        ScanJob::Spaces { node, images, logs } => ScanResult::Spaces {
            node: space_of(&node),
            images: images.as_deref().and_then(space_of),
            logs: logs.as_deref().and_then(space_of),
            image_root: images,
        },
        ScanJob::ImageLayers { data_root } => ScanResult::ImageLayers(data_root.as_deref().and_then(source::layers)),
        ScanJob::Container { id, layer, data_root } => {
            let size = |(bytes, inodes)| Size { bytes, inodes: Some(inodes) };
            let walked = layer.as_deref().map(|dir| source::tree(dir, keep_going));
            // A walk that was stopped has no result.
            if walked == Some(None) {
                return ScanResult::Container(None);
            }
            // Only overlays have a directory of their own layer; of others the engine is asked.
            let rootfs = walked.flatten().map(size);
            let logs = data_root.and_then(|data_root| source::logs(&data_root, &id)).map(size);
            ScanResult::Container(Some(ContainerSize { at, rootfs, logs, stale: false }))
        }
        ScanJob::Volume(volume) => ScanResult::Volume(volume_size(volume, keep_going)),
        ScanJob::PodFiles { dir } => ScanResult::PodFiles(source::pod_files(&dir, keep_going)),
    }
}

/// Before the first pod the directory may not be there: its parent is on the same file system.
fn space_of(path: &Path) -> Option<(Filesystem, u64)> {
    let there = path.ancestors().find(|p| p.exists())?;
    source::space(there, jiff::Timestamp::now())
        .inspect_err(|error| tracing::debug!(%error, "failed to query the space of a file system; retrying"))
        .ok()
}

fn volume_size(volume: Volume, keep_going: &dyn Fn() -> bool) -> Option<VolumeSize> {
    let (mut space, _) = source::space(&volume.path, jiff::Timestamp::now()).ok()?;
    let mut inodes_used = space.inodes.saturating_sub(space.inodes_free);
    let in_memory = source::is_mount(&volume.path);
    if volume.of_pod {
        (space.used_bytes, inodes_used) = source::tree(&volume.path, keep_going)?;
    }
    Some(VolumeSize {
        name: volume.name,
        claim: volume.claim,
        ephemeral: volume.of_pod && !in_memory,
        space,
        inodes_used,
        stale: false,
    })
}
