//! The PersistentVolumeClaims of a pod's volumes, and what is written at claims and volumes.

use k8s_openapi::{
    api::core::v1::{Pod, Volume},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

/// Annotation of a claim that has been bound (upstream's `AnnBindCompleted`).
pub const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// Annotation of a claim or a volume whose other half was not chosen by its user (`AnnBoundByController`).
pub const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
/// Annotation with the node that the scheduler has chosen for a claim (`AnnSelectedNode`).
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// The annotation of claims and volumes that was there before `spec.storageClassName`.
pub const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";

/// The storage class of a claim or a volume with this field, empty for none (`GetPersistentVolumeClaimClass`).
#[must_use]
pub fn class<'a>(metadata: &'a ObjectMeta, field: Option<&'a String>) -> &'a str {
    let by_annotation = metadata.annotations.as_ref().and_then(|all| all.get(CLASS_ANNOTATION));
    by_annotation.or(field).map_or("", String::as_str)
}

/// A PersistentVolumeClaim of a pod, in the pod's own namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Its name.
    pub name: String,
    /// The volume is mounted read-only.
    pub read_only: bool,
    /// Created for this pod alone, by the ephemeral volume controller.
    pub ephemeral: bool,
}

/// The claim of a volume of the pod with this metadata; `None` for other volume types. The claim of a generic ephemeral volume is `<pod>-<volume>`.
#[must_use]
pub fn claim_of(pod: &ObjectMeta, volume: &Volume) -> Option<Claim> {
    if let Some(source) = &volume.persistent_volume_claim {
        let read_only = source.read_only == Some(true);
        return Some(Claim { name: source.claim_name.clone(), read_only, ephemeral: false });
    }
    volume.ephemeral.as_ref()?;
    let pod = pod.name.as_deref().unwrap_or("");
    Some(Claim { name: format!("{pod}-{}", volume.name), read_only: false, ephemeral: true })
}

/// The claims of all of a pod's volumes.
pub fn claims_of(pod: &Pod) -> impl Iterator<Item = Claim> {
    let volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
    volumes.filter_map(|volume| claim_of(&pod.metadata, volume))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ephemeral_volume_has_a_claim_of_its_own() {
        let pod: Pod = serde_json::from_str(
            r#"{"metadata":{"name":"p"},"spec":{"containers":[],"volumes":[
                {"name":"v","ephemeral":{}},{"name":"e","emptyDir":{}},
                {"name":"c","persistentVolumeClaim":{"claimName":"data","readOnly":true}}]}}"#,
        )
        .unwrap();
        let made = Claim { name: "p-v".to_owned(), read_only: false, ephemeral: true };
        let named = Claim { name: "data".to_owned(), read_only: true, ephemeral: false };
        assert_eq!(claims_of(&pod).collect::<Vec<_>>(), [made, named]);
        let other: Volume = serde_json::from_str(r#"{"name":"v","emptyDir":{}}"#).unwrap();
        assert_eq!(claim_of(&pod.metadata, &other), None);
    }
}
