//! Which ReplicaSet has a Deployment's pod template, and the ReplicaSet made for one that none has. Pure.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        apps::v1::{Deployment, DeploymentSpec, ReplicaSet, ReplicaSetSpec},
        core::v1::PodTemplateSpec,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::ResourceExt;

use crate::{pod_control::owner_reference, template_hash::safe_hash};

/// The label that distinguishes the pods of a Deployment's ReplicaSets.
pub(super) const HASH_LABEL: &str = "pod-template-hash";

/// Whether two templates are the same but for the hash label.
pub(super) fn same_but_for_hash(one: &PodTemplateSpec, other: &PodTemplateSpec) -> bool {
    one.spec == other.spec && without_hash(one) == without_hash(other)
}

fn without_hash(template: &PodTemplateSpec) -> ObjectMeta {
    let mut meta = template.metadata.clone().unwrap_or_default();
    if let Some(labels) = &mut meta.labels {
        labels.remove(HASH_LABEL);
    }
    meta.labels = meta.labels.filter(|labels| !labels.is_empty());
    meta.annotations = meta.annotations.filter(|annotations| !annotations.is_empty());
    meta
}

/// The hash of a template: FNV-1a of its JSON, whose fields and maps are in order, and of the number of collisions.
pub(super) fn hash(template: &PodTemplateSpec, collisions: Option<i32>) -> String {
    let mut bytes = serde_json::to_vec(template).unwrap_or_default();
    if let Some(collisions) = collisions {
        bytes.extend_from_slice(&i64::from(collisions).to_le_bytes());
    }
    safe_hash(&bytes)
}

/// The name of a ReplicaSet; a long name of the Deployment is cut.
pub(super) fn name_of_set(deployment: &str, hash: &str) -> String {
    let most = 253usize.saturating_sub(hash.len() + 1);
    let mut cut = most.min(deployment.len());
    while !deployment.is_char_boundary(cut) {
        cut -= 1;
    }
    format!("{}-{hash}", &deployment[..cut])
}

/// A ReplicaSet of the Deployment's template, without annotations.
pub(super) fn new_set(deployment: &Deployment, spec: &DeploymentSpec) -> ReplicaSet {
    let collisions = deployment.status.as_ref().and_then(|status| status.collision_count);
    let hash = hash(&spec.template, collisions);
    let mut template = spec.template.clone();
    let labels = template.metadata.get_or_insert_default().labels.get_or_insert_with(BTreeMap::new);
    labels.insert(HASH_LABEL.to_owned(), hash.clone());
    let labels = labels.clone();
    let mut selector = spec.selector.clone();
    selector.match_labels.get_or_insert_with(BTreeMap::new).insert(HASH_LABEL.to_owned(), hash.clone());
    ReplicaSet {
        metadata: ObjectMeta {
            name: Some(name_of_set(&deployment.name_any(), &hash)),
            namespace: deployment.namespace(),
            labels: Some(labels),
            owner_references: Some(vec![owner_reference(deployment)]),
            ..ObjectMeta::default()
        },
        spec: Some(ReplicaSetSpec {
            min_ready_seconds: spec.min_ready_seconds,
            replicas: Some(0),
            selector,
            template: Some(template),
        }),
        status: None,
    }
}
