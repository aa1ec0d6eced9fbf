//! Kinds of volumes that are deprecated, or do nothing any more. Pure.

use super::field::Field;

/// A kind: its field, what upstream calls it in warnings, and what has become of it.
type OldVolume = (&'static str, &'static str, &'static str);

const PHOTON: OldVolume =
    ("photonPersistentDisk", "photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+");
const GIT_REPO: OldVolume = ("gitRepo", "gitRepo", "deprecated in v1.11, and disabled by default in v1.33+");
const SCALE_IO: OldVolume = ("scaleIO", "scaleIO", "deprecated in v1.16, non-functional in v1.22+");
const FLOCKER: OldVolume = ("flocker", "flocker", "deprecated in v1.22, non-functional in v1.25+");
const STORAGE_OS: OldVolume = ("storageos", "storageOS", "deprecated in v1.22, non-functional in v1.25+");
const QUOBYTE: OldVolume = ("quobyte", "quobyte", "deprecated in v1.22, non-functional in v1.25+");
const GLUSTERFS: OldVolume = ("glusterfs", "glusterfs", "deprecated in v1.25, non-functional in v1.26+");
const CEPH_FS: OldVolume = ("cephfs", "cephfs", "deprecated in v1.28, non-functional in v1.31+");
const RBD: OldVolume = ("rbd", "rbd", "deprecated in v1.28, non-functional in v1.31+");

/// Those that upstream warns of in pods, in its order.
pub(crate) const OF_PODS: [OldVolume; 9] =
    [PHOTON, GIT_REPO, SCALE_IO, FLOCKER, STORAGE_OS, QUOBYTE, GLUSTERFS, CEPH_FS, RBD];
/// Those that upstream warns of in persistent volumes, in its order.
pub(crate) const OF_PERSISTENT_VOLUMES: [OldVolume; 6] = [CEPH_FS, PHOTON, SCALE_IO, STORAGE_OS, GLUSTERFS, RBD];

/// Warnings about what is set of these.
pub(crate) fn warnings(volume: &Field<'_>, kinds: &[OldVolume]) -> Vec<String> {
    let set = kinds.iter().filter(|(field, ..)| volume.at(field).is_set());
    set.map(|(_, shown, why)| format!("{}.{shown}: {why}", volume.path)).collect()
}
