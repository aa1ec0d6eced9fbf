//! Resolves a PersistentVolumeClaim to its PersistentVolume and data source.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    HostPathVolumeSource, NFSVolumeSource, Node, PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec, Pod,
};
use kube::{Api, Client};
use windlass_kit::objects::{claims::Claim, node_selector};

use crate::node_authorizer::retry_forbidden;

/// The supported sources of PersistentVolumes.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum PersistentSource {
    HostPath(HostPathVolumeSource),
    /// A local directory of this node.
    Local(String),
    Nfs(NFSVolumeSource),
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct ResolvedVolume {
    pub(super) source: PersistentSource,
    pub(super) read_only: bool,
    /// It is a block device, for `volumeDevices`.
    pub(super) device: bool,
    pub(super) mount_options: Vec<String>,
}

/// Reads the claim and its volume, and checks that the pod may use it on this node.
///
/// # Errors
/// Says which object is missing or not ready.
pub(super) async fn resolve(
    client: &Client,
    node_name: &str,
    pod: &Pod,
    claim: &Claim,
) -> Result<(PersistentVolumeClaim, PersistentVolume, BTreeMap<String, String>), String> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    let unread =
        |what: &str, e: kube::Error| format!("{what} could not be read: {}", windlass_kit::client::message(&e));
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    let Claim { name: claim, ephemeral, .. } = claim;
    let found = retry_forbidden(|| claims.get_opt(claim))
        .await
        .map_err(|e| unread(&format!("persistentvolumeclaim {claim:?}"), e))?;
    let found = found.ok_or_else(|| format!("persistentvolumeclaim {claim:?} not found"))?;
    if *ephemeral {
        let owned = found.metadata.owner_references.iter().flatten().any(|o| Some(&o.uid) == pod.metadata.uid.as_ref());
        if !owned {
            return Err(format!(
                "persistentvolumeclaim {claim:?} was not made for this pod: another object has its name"
            ));
        }
    }
    let name = bound_to(&found)?;
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let persistent = retry_forbidden(|| volumes.get_opt(&name))
        .await
        .map_err(|e| unread(&format!("persistentvolume {name:?}"), e))?;
    let persistent = persistent.ok_or_else(|| format!("persistentvolume {name:?} not found"))?;
    let affine = persistent.spec.as_ref().is_some_and(|s| s.node_affinity.is_some());
    let labels = if affine {
        let nodes: Api<Node> = Api::all(client.clone());
        let node = nodes.get(node_name).await.map_err(|e| unread(&format!("node {node_name:?}"), e))?;
        node.metadata.labels.unwrap_or_default()
    } else {
        BTreeMap::new()
    };
    Ok((found, persistent, labels))
}

/// The name of the volume that a claim is bound to.
fn bound_to(claim: &PersistentVolumeClaim) -> Result<String, String> {
    let name = claim.metadata.name.as_deref().unwrap_or("");
    if claim.metadata.deletion_timestamp.is_some() {
        return Err(format!("persistentvolumeclaim {name:?} is being deleted"));
    }
    let bound = claim.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Bound");
    let volume = claim.spec.as_ref().and_then(|s| s.volume_name.clone()).filter(|v| !v.is_empty());
    volume.filter(|_| bound).ok_or_else(|| format!("persistentvolumeclaim {name:?} is not bound to a volume yet"))
}

/// The source of a bound claim, for a node with these labels. Pure.
///
/// # Errors
/// When the volume is not this claim's, not for this node, or of a kind that is not supported.
pub(super) fn persistent_source(
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
    node: &str,
    labels: &BTreeMap<String, String>,
    read_only: bool,
) -> Result<ResolvedVolume, String> {
    let name = volume.metadata.name.as_deref().unwrap_or("");
    let spec = volume.spec.as_ref().ok_or_else(|| format!("persistentvolume {name:?} has no spec"))?;
    let owner = spec.claim_ref.as_ref().and_then(|r| r.uid.as_ref());
    if owner != claim.metadata.uid.as_ref() {
        return Err(format!("persistentvolume {name:?} is bound to another claim"));
    }
    if let Some(required) = spec.node_affinity.as_ref().and_then(|a| a.required.as_ref())
        && !node_selector::matches(required, node, labels)
    {
        return Err(format!("persistentvolume {name:?} is not for node {node:?}: its nodeAffinity names others"));
    }
    let device = spec.volume_mode.as_deref() == Some("Block");
    if device != (claim.spec.as_ref().and_then(|s| s.volume_mode.as_deref()) == Some("Block")) {
        return Err(format!("persistentvolume {name:?} and its claim differ in volumeMode"));
    }
    let source_of_volume = if let Some(source) = &spec.host_path {
        PersistentSource::HostPath(source.clone())
    } else if let Some(source) = &spec.local {
        PersistentSource::Local(source.path.clone())
    } else if let Some(source) = &spec.nfs {
        PersistentSource::Nfs(source.clone())
    } else {
        return Err(format!(
            "persistentvolume {name:?} is of kind {}, which is not supported by Windlass; those that are: hostPath, local, nfs",
            kind_of(spec)
        ));
    };
    if device && matches!(source_of_volume, PersistentSource::Nfs(_)) {
        return Err(format!("persistentvolume {name:?} is nfs, which is no block device: its volumeMode is Block"));
    }
    let modes = claim.spec.as_ref().and_then(|s| s.access_modes.as_deref()).unwrap_or_default();
    let only_reads = !modes.is_empty() && modes.iter().all(|m| m == "ReadOnlyMany");
    Ok(ResolvedVolume {
        read_only: read_only
            || only_reads
            || matches!(&source_of_volume, PersistentSource::Nfs(n) if n.read_only == Some(true)),
        source: source_of_volume,
        device,
        mount_options: spec.mount_options.clone().unwrap_or_default(),
    })
}

/// The field name of an unsupported volume source.
fn kind_of(spec: &PersistentVolumeSpec) -> String {
    const OTHERS: [&str; 9] = [
        "accessModes",
        "capacity",
        "claimRef",
        "mountOptions",
        "nodeAffinity",
        "persistentVolumeReclaimPolicy",
        "storageClassName",
        "volumeAttributesClassName",
        "volumeMode",
    ];
    let value = serde_json::to_value(spec).unwrap_or_default();
    let mut fields = value.as_object().into_iter().flatten().map(|(field, _)| field.as_str());
    fields.find(|f| !OTHERS.contains(f)).unwrap_or("none at all").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from<T: serde::de::DeserializeOwned>(text: &str) -> T {
        serde_json::from_str(text).unwrap()
    }

    fn claim(status: &str) -> PersistentVolumeClaim {
        from(&format!(
            r#"{{"metadata":{{"name":"c","uid":"1"}},"spec":{{"volumeName":"v","accessModes":["ReadOnlyMany"]}},"status":{{"phase":"{status}"}}}}"#
        ))
    }

    #[test]
    fn only_a_bound_claim_has_a_volume() {
        assert_eq!(bound_to(&claim("Bound")), Ok("v".to_owned()));
        assert!(bound_to(&claim("Pending")).unwrap_err().contains("not bound"));
    }

    #[test]
    fn the_volume_must_be_this_claims_and_for_this_node() {
        let labels = BTreeMap::from([("disk".to_owned(), "fast".to_owned())]);
        let volume = |rest: &str| -> PersistentVolume {
            from(&format!(r#"{{"metadata":{{"name":"v"}},"spec":{{"claimRef":{{"uid":"1"}},{rest}}}}}"#))
        };
        let ask = |volume: &PersistentVolume| persistent_source(&claim("Bound"), volume, "n", &labels, false);
        let made = ask(&volume(r#""hostPath":{"path":"/d"}"#)).unwrap();
        assert!(made.read_only && matches!(made.source, PersistentSource::HostPath(_)));
        let other: PersistentVolume = from(r#"{"spec":{"claimRef":{"uid":"2"},"hostPath":{"path":"/d"}}}"#);
        assert!(ask(&other).unwrap_err().contains("another claim"));
        let affinity = |value: &str| {
            format!(
                r#""local":{{"path":"/d"}},"nodeAffinity":{{"required":{{"nodeSelectorTerms":[{{"matchExpressions":[{{"key":"disk","operator":"In","values":["{value}"]}}]}}]}}}}"#
            )
        };
        assert_eq!(ask(&volume(&affinity("fast"))).unwrap().source, PersistentSource::Local("/d".to_owned()));
        assert!(ask(&volume(&affinity("slow"))).unwrap_err().contains("not for node"));
        let block = r#""volumeMode":"Block","local":{"path":"/d"}"#;
        assert!(ask(&volume(block)).unwrap_err().contains("differ in volumeMode"));
        let mut raw = claim("Bound");
        raw.spec.as_mut().unwrap().volume_mode = Some("Block".to_owned());
        let ask = |volume: &PersistentVolume| persistent_source(&raw, volume, "n", &labels, false);
        assert!(ask(&volume(block)).unwrap().device);
        assert!(ask(&volume(r#""local":{"path":"/d"}"#)).unwrap_err().contains("differ in volumeMode"));
        let served = r#""volumeMode":"Block","nfs":{"server":"s","path":"/"}"#;
        assert!(ask(&volume(served)).unwrap_err().contains("no block device"));
        let ask = |volume: &PersistentVolume| persistent_source(&claim("Bound"), volume, "n", &labels, false);
        let why =
            ask(&volume(r#""capacity":{},"rbd":{"image":"i","monitors":[]},"volumeMode":"Filesystem""#)).unwrap_err();
        assert!(why.contains("kind rbd") && why.contains("not supported by Windlass"), "{why}");
    }
}
