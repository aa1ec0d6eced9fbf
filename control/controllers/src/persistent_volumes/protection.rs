//! Which pods keep a claim from going; upstream's `podUsesPVCForDeletion`. Pure.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;

use crate::{
    pods::{is_controlled_by, node_name},
    runtime::CachedPod,
};

/// Whether a pod may still use a claim that is being deleted. One without a node does not: no node starts it any more.
/// A terminal one does: its phase may have been written by another client, while its node may still write.
pub(super) fn uses(pod: &CachedPod, claim: &PersistentVolumeClaim) -> bool {
    node_name(pod).is_some()
        && pod.metadata.namespace == claim.metadata.namespace
        && pod.claims().any(|used| {
            let own = || !is_shut_down(pod) && is_controlled_by(&claim.metadata, &pod.metadata);
            Some(&used.name) == claim.metadata.name.as_ref() && (!used.ephemeral || own())
        })
}

/// The node is done with a pod, or it was deleted by force; it may stay for a finalizer that waits for the claim.
pub(super) fn is_shut_down(pod: &CachedPod) -> bool {
    pod.metadata.deletion_timestamp.is_some() && pod.metadata.deletion_grace_period_seconds == Some(0)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_claim_is_kept_by_pods_that_have_a_node() {
        let claim: PersistentVolumeClaim = serde_json::from_value(json!({"metadata": {"name": "p-v", "namespace": "n",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "1", "controller": true}]}}))
        .unwrap();
        let named = json!({"name": "v", "persistentVolumeClaim": {"claimName": "p-v"}});
        let own = json!({"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}});
        let pod = |uid: &str, node: Option<&str>, volume: &Value, more: Value| -> CachedPod {
            let mut pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": uid},
                "spec": {"nodeName": node, "containers": [], "volumes": [volume]}, "status": {"phase": "Running"}});
            json_patch::merge(&mut pod, &more);
            serde_json::from_value(pod).unwrap()
        };
        let going = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0}});
        for (pod, expected, what) in [
            (pod("1", Some("a"), &named, json!({})), true, "running"),
            (pod("1", Some("a"), &named, json!({"status": {"phase": "Failed"}})), true, "ended, as somebody says"),
            (pod("1", Some("a"), &named, going.clone()), true, "shut down"),
            (pod("1", None, &named, json!({})), false, "on no node"),
            (pod("1", Some("a"), &own, json!({})), true, "its own claim"),
            (pod("2", Some("a"), &own, json!({})), false, "the claim of an earlier pod of its name"),
            (pod("1", Some("a"), &own, going), false, "its own claim, shut down"),
            (pod("1", Some("a"), &named, json!({"metadata": {"namespace": "o"}})), false, "elsewhere"),
        ] {
            assert_eq!(uses(&pod, &claim), expected, "{what}");
        }
    }
}
