//! What makes a pod the one of its ordinal: its name, labels, host name, claims and volumes. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod, PodTemplateSpec, Volume},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;

use crate::{pod_control::pod_of, runtime::CachedPod};

pub(super) const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";
pub(super) const POD_INDEX: &str = "apps.kubernetes.io/pod-index";
pub(super) const REVISION: &str = "controller-revision-hash";

/// The name of a set's pod.
pub(super) fn pod_name(set: &str, ordinal: i64) -> String {
    format!("{set}-{ordinal}")
}

/// The ordinal in the name of a pod; `None` if the name is not one that the set gives.
pub(super) fn ordinal_of(set: &str, pod: &str) -> Option<i64> {
    let digits = pod.strip_prefix(set)?.strip_prefix('-')?;
    let ordinal: i32 = digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())??;
    // One spelling for each: `web-01` is another's.
    (ordinal.to_string() == digits).then(|| i64::from(ordinal))
}

/// Whether a pod's name is one of a set, however its number is written (upstream: `isMemberOf`).
pub(super) fn is_member(set: &str, pod: &str) -> bool {
    let digits = pod.strip_prefix(set).and_then(|rest| rest.strip_prefix('-'));
    digits.is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
}

/// The name of a claim of a pod.
pub(super) fn claim_name(template: &str, set: &str, ordinal: i64) -> String {
    format!("{template}-{set}-{ordinal}")
}

/// The sets that a claim's name could be of.
pub(super) fn sets_of_claim(claim: &str) -> impl Iterator<Item = &str> {
    let (rest, ordinal) = claim.rsplit_once('-').unwrap_or_default();
    let rest = if ordinal.bytes().all(|b| b.is_ascii_digit()) { rest } else { "" };
    rest.match_indices('-').map(|(at, _)| &rest[at + 1..]).filter(|set| !set.is_empty())
}

fn claim_templates(set: &StatefulSet) -> &[PersistentVolumeClaim] {
    set.spec.as_ref().and_then(|spec| spec.volume_claim_templates.as_deref()).unwrap_or_default()
}

/// The names of the claims of a pod.
pub(super) fn claim_names(set: &StatefulSet, ordinal: i64) -> impl Iterator<Item = String> {
    let name = set.name_any();
    claim_templates(set).iter().map(move |template| claim_name(&template.name_any(), &name, ordinal))
}

/// The claims of a pod, as they are created.
pub(super) fn claims(set: &StatefulSet, ordinal: i64) -> Vec<PersistentVolumeClaim> {
    let selected = set.spec.as_ref().and_then(|spec| spec.selector.match_labels.clone()).unwrap_or_default();
    claim_templates(set)
        .iter()
        .map(|template| {
            let mut labels = template.metadata.labels.clone().unwrap_or_default();
            labels.extend(selected.clone());
            PersistentVolumeClaim {
                metadata: ObjectMeta {
                    name: Some(claim_name(&template.name_any(), &set.name_any(), ordinal)),
                    namespace: set.namespace(),
                    labels: Some(labels),
                    annotations: template.metadata.annotations.clone(),
                    finalizers: template.metadata.finalizers.clone(),
                    ..ObjectMeta::default()
                },
                spec: template.spec.clone(),
                status: None,
            }
        })
        .collect()
}

/// The labels of the pod with this ordinal, besides those of the template and its revision.
pub(super) fn identity_labels(set: &str, ordinal: i64) -> [(String, String); 2] {
    [(POD_NAME.to_owned(), pod_name(set, ordinal)), (POD_INDEX.to_owned(), ordinal.to_string())]
}

/// Whether a pod has the labels of its ordinal.
pub(super) fn has_identity(set: &str, ordinal: i64, pod: &CachedPod) -> bool {
    let labels = pod.metadata.labels.as_ref();
    identity_labels(set, ordinal).iter().all(|(key, value)| labels.and_then(|labels| labels.get(key)) == Some(value))
}

/// The revision that a pod was made of.
pub(super) fn revision_of(pod: &CachedPod) -> Option<&str> {
    pod.metadata.labels.as_ref()?.get(REVISION).map(String::as_str)
}

/// The pod with this ordinal, made of the template that the revision of this name holds.
pub(super) fn new_pod(set: &StatefulSet, template: &PodTemplateSpec, revision: &str, ordinal: i64) -> Pod {
    let mut pod = pod_of(template, set);
    let name = pod_name(&set.name_any(), ordinal);
    pod.metadata.generate_name = None;
    pod.metadata.name = Some(name.clone());
    let labels = pod.metadata.labels.get_or_insert_with(BTreeMap::new);
    labels.extend(identity_labels(&set.name_any(), ordinal));
    labels.insert(REVISION.to_owned(), revision.to_owned());
    let spec = pod.spec.get_or_insert_default();
    spec.hostname = Some(name);
    spec.subdomain = set.spec.as_ref().and_then(|spec| spec.service_name.clone()).filter(|name| !name.is_empty());
    let mut volumes: Vec<Volume> = claim_templates(set)
        .iter()
        .map(|template| Volume {
            name: template.name_any(),
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: claim_name(&template.name_any(), &set.name_any(), ordinal),
                read_only: Some(false),
            }),
            ..Volume::default()
        })
        .collect();
    // A claim takes the place of the template's volume of its name.
    let others = spec.volumes.take().unwrap_or_default();
    let others: Vec<Volume> = others.into_iter().filter(|v| volumes.iter().all(|w| w.name != v.name)).collect();
    volumes.extend(others);
    spec.volumes = (!volumes.is_empty()).then_some(volumes);
    pod
}
