//! What is written of claims and volumes. Each write holds for the version that was seen only: what others have changed
//! meanwhile is decided on again.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::{
    Api, Resource, ResourceExt as _,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{
    super::{
        runtime::{Error, error},
        storage::{
            BETA_STORAGE_PROVISIONER, BIND_COMPLETED, BOUND_BY_CONTROLLER, STORAGE_PROVISIONER, annotation,
            has_annotation, holder_uid, is_bound, is_held_by, volume_of,
        },
    },
    PersistentVolumeController,
    claim::status_changes,
    messages::Note,
};

/// A patch of the version that was seen.
fn of_version<K: Resource>(object: &K, mut patch: Value) -> Patch<Value> {
    patch["metadata"]["resourceVersion"] = json!(object.meta().resource_version);
    Patch::Merge(patch)
}

impl PersistentVolumeController {
    pub(super) fn volumes_api(&self) -> Api<PersistentVolume> {
        Api::all(self.client.clone())
    }

    pub(super) fn claims_of(&self, namespace: &str) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// The volume is written before the claim: once it names the claim, no other claim can bind it, wherever this is
    /// interrupted.
    pub(super) async fn bind(&self, claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Result<(), Error> {
        let volume_name = volume.name_any();
        if holder_uid(volume) != claim.metadata.uid.as_deref() {
            let mut patch = json!({"spec": {"claimRef": claim.object_ref(&())}});
            if !is_held_by(volume, claim) {
                patch["metadata"]["annotations"] = json!({BOUND_BY_CONTROLLER: "yes"});
            }
            let patch = of_version(volume, patch);
            let answer = self.volumes_api().patch(&volume_name, &PatchParams::default(), &patch).await;
            error::written(answer, "bind the volume", &volume_name)?;
        }
        let is_named = volume_of(claim) == Some(volume_name.as_str());
        if is_named && is_bound(claim) {
            return self.claim_status(claim, "Bound", Some(volume)).await;
        }
        let mut annotations = json!({BIND_COMPLETED: "yes"});
        if !is_named {
            annotations[BOUND_BY_CONTROLLER] = json!("yes");
        }
        let patch = json!({"metadata": {"annotations": annotations}, "spec": {"volumeName": volume_name}});
        let claim = self.patch_claim(claim, patch, "bind the claim").await?;
        self.claim_status(&claim, "Bound", Some(volume)).await
    }

    /// Makes a volume free that its claim does not need (`unbindVolume`).
    pub(super) async fn unbind(&self, volume: &PersistentVolume) -> Result<(), Error> {
        let patch = if has_annotation(&volume.metadata, BOUND_BY_CONTROLLER) {
            json!({"metadata": {"annotations": {BOUND_BY_CONTROLLER: null}}, "spec": {"claimRef": null}})
        } else {
            // Somebody else has reserved it.
            json!({"spec": {"claimRef": {"uid": null}}})
        };
        let name = volume.name_any();
        let answer = self.volumes_api().patch(&name, &PatchParams::default(), &of_version(volume, patch)).await;
        error::written(answer, "free the volume", &name).map(drop)
    }

    pub(super) async fn assign_class(&self, claim: &PersistentVolumeClaim, class: &str) -> Result<(), Error> {
        let patch = json!({"spec": {"storageClassName": class}});
        self.patch_claim(claim, patch, "give the default storage class to").await.map(drop)
    }

    /// Hands the claim to the provisioner (`setClaimProvisioner`).
    pub(super) async fn ask_provisioner(&self, claim: &PersistentVolumeClaim, provisioner: &str) -> Result<(), Error> {
        if annotation(&claim.metadata, STORAGE_PROVISIONER) == Some(provisioner) {
            return Ok(());
        }
        let annotations = json!({STORAGE_PROVISIONER: provisioner, BETA_STORAGE_PROVISIONER: provisioner});
        let patch = json!({"metadata": {"annotations": annotations}});
        self.patch_claim(claim, patch, "name the provisioner of").await.map(drop)
    }

    async fn patch_claim(
        &self,
        claim: &PersistentVolumeClaim,
        patch: Value,
        action: &'static str,
    ) -> Result<PersistentVolumeClaim, Error> {
        let api = self.claims_of(claim.metadata.namespace.as_deref().unwrap_or_default());
        let name = claim.name_any();
        error::written(api.patch(&name, &PatchParams::default(), &of_version(claim, patch)).await, action, &name)
    }

    pub(super) async fn claim_status(
        &self,
        claim: &PersistentVolumeClaim,
        phase: &str,
        volume: Option<&PersistentVolume>,
    ) -> Result<(), Error> {
        let Some(status) = status_changes(claim, phase, volume) else { return Ok(()) };
        let api = self.claims_of(claim.metadata.namespace.as_deref().unwrap_or_default());
        let (name, patch) = (claim.name_any(), of_version(claim, json!({"status": status})));
        let answer = api.patch_status(&name, &PatchParams::default(), &patch).await;
        error::written(answer, "write the status of the claim", &name).map(drop)
    }

    /// Writes the phase of a volume, and its reason.
    pub(super) async fn volume_phase(
        &self,
        volume: &PersistentVolume,
        phase: &str,
        why: Option<&Note>,
    ) -> Result<(), Error> {
        let message = why.map(|note| note.message.as_str());
        let had_message = volume.status.as_ref().is_some_and(|s| s.message.is_some());
        let mut status = json!({"phase": phase});
        if message.is_some() || had_message {
            status["message"] = json!(message);
        }
        let (name, patch) = (volume.name_any(), of_version(volume, json!({"status": status})));
        let answer = self.volumes_api().patch_status(&name, &PatchParams::default(), &patch).await;
        error::written(answer, "write the status of the volume", &name).map(drop)
    }
}
