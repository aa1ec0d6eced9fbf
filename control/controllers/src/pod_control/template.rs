//! Pods of a template. Pure.

use k8s_openapi::{
    api::core::v1::{Pod, PodTemplateSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::ResourceExt;

use super::{Namespaced, ownership::owner_reference};

/// A pod of the template, controlled by `owner`; the API appends five characters to the name's prefix.
pub(crate) fn pod_of<O: Namespaced>(template: &PodTemplateSpec, owner: &O) -> Pod {
    let meta = template.metadata.clone().unwrap_or_default();
    let (name, prefix) = (owner.name_any(), format!("{}-", owner.name_any()));
    Pod {
        metadata: ObjectMeta {
            // Too long with the dash: the dash is left out.
            generate_name: Some(if prefix.len() > 253 { name } else { prefix }),
            namespace: owner.namespace(),
            labels: meta.labels,
            annotations: meta.annotations,
            finalizers: meta.finalizers,
            owner_references: Some(vec![owner_reference(owner)]),
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}

/// Slow start: batches of 1, 2, 4 … that add up to `count`, so that a refused create fails once and not 500 times.
pub(crate) fn batches(count: usize) -> impl Iterator<Item = usize> {
    let (mut left, mut size) = (count, 1usize);
    std::iter::from_fn(move || {
        let batch = size.min(left);
        (batch > 0).then(|| {
            left -= batch;
            size = size.saturating_mul(2);
            batch
        })
    })
}
