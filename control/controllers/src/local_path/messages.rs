//! What users read of local-path volumes, in the words of sig-storage-lib-external-provisioner (`controller.go`), of
//! external-resizer and of Rancher's local-path-provisioner. Pure.

pub(super) const PROVISIONING: &str = "Provisioning";
pub(super) const PROVISIONING_FAILED: &str = "ProvisioningFailed";
pub(super) const PROVISIONING_SUCCEEDED: &str = "ProvisioningSucceeded";
pub(super) const VOLUME_FAILED_DELETE: &str = "VolumeFailedDelete";
pub(super) const RESIZED: &str = "VolumeResizeSuccessful";
pub(super) const RESIZED_TEXT: &str = "Resize volume succeeded";
pub(super) const NO_NODE: &str = "configuration error, no node was specified";
pub(super) const NO_SELECTOR: &str = "claim.Spec.Selector is not supported";

pub(super) fn provisioning(claim: &str) -> String {
    format!("External provisioner is provisioning volume for claim {claim:?}")
}

pub(super) fn succeeded(volume: &str) -> String {
    format!("Successfully provisioned volume {volume}")
}

pub(super) fn failed(class: &str, why: &str) -> String {
    format!("failed to provision volume with StorageClass {class:?}: {why}")
}

pub(super) fn no_block_volumes(provisioner: &str) -> String {
    format!("{provisioner} does not support block volume provisioning")
}

pub(super) fn no_such_node(node: &str) -> String {
    format!("failed to get target node: nodes {node:?} not found")
}

pub(super) fn other_node(node: &str, own: &str) -> String {
    format!("volumes are provisioned on node {own:?} only, and the pod was scheduled to {node:?}")
}

pub(super) fn name_is_taken(volume: &str) -> String {
    format!("persistentvolumes {volume:?} already exists and is not of this claim")
}

/// The path of a volume was not made by the provisioner.
pub(super) fn foreign_path(path: &str, dir: &str) -> String {
    format!(
        "its path {path:?} is none that was made for it in {dir}, so nothing was removed; remove the data and then the \
         finalizer of the volume, or set its reclaim policy to Retain"
    )
}

pub(super) fn shared_path(path: &str, volume: &str) -> String {
    format!("its path {path:?} is that of volume {volume:?} too, so nothing was removed")
}
