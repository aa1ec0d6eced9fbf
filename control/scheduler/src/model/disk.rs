//! Disks that a pod names itself, without a claim, and that one node at a time writes. Pure.

use k8s_openapi::api::core::v1::Volume;

/// A disk, and whether it is only read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Disk {
    Gce { name: String, read_only: bool },
    Aws { id: String },
    Iscsi { iqn: String, read_only: bool },
    Rbd { monitors: Vec<String>, pool: String, image: String, read_only: bool },
}

impl Disk {
    /// The disk of a volume; `None` for other types of volumes.
    pub(crate) fn of(volume: &Volume) -> Option<Self> {
        if let Some(disk) = &volume.gce_persistent_disk {
            return Some(Self::Gce { name: disk.pd_name.clone(), read_only: disk.read_only == Some(true) });
        }
        if let Some(disk) = &volume.aws_elastic_block_store {
            return Some(Self::Aws { id: disk.volume_id.clone() });
        }
        if let Some(disk) = &volume.iscsi {
            return Some(Self::Iscsi { iqn: disk.iqn.clone(), read_only: disk.read_only == Some(true) });
        }
        let disk = volume.rbd.as_ref()?;
        Some(Self::Rbd {
            monitors: disk.monitors.clone(),
            pool: disk.pool.clone().unwrap_or_default(),
            image: disk.image.clone(),
            read_only: disk.read_only == Some(true),
        })
    }

    /// Whether it is the other one too, and one of both writes it (upstream's `isVolumeConflict`).
    pub(crate) fn clashes(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Gce { name, read_only }, Self::Gce { name: other, read_only: reads }) => {
                name == other && !(*read_only && *reads)
            }
            (Self::Aws { id }, Self::Aws { id: other }) => id == other,
            (Self::Iscsi { iqn, read_only }, Self::Iscsi { iqn: other, read_only: reads }) => {
                iqn == other && !(*read_only && *reads)
            }
            (
                Self::Rbd { monitors, pool, image, read_only },
                Self::Rbd { monitors: others, pool: other_pool, image: other_image, read_only: reads },
            ) => {
                (pool, image) == (other_pool, other_image)
                    && monitors.iter().any(|monitor| others.contains(monitor))
                    && !(*read_only && *reads)
            }
            _ => false,
        }
    }
}
