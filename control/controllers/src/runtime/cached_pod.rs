//! Pods as informers cache them: what controllers read of them, decoded without the rest.
//!
//! A `Pod` of k8s-openapi takes some seven kilobytes however little is in it, and each of its volumes and containers two more
//! while it is decoded; of ten thousand pods that is most of the control plane's memory.

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{
        ContainerPort, EphemeralVolumeSource, NodeSelectorRequirement, PersistentVolumeClaimVolumeSource, Pod,
        PodCondition, PodExtendedResourceClaimStatus, PodIP, PodResourceClaim, PodResourceClaimStatus, Toleration,
        Volume,
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use serde::{Deserialize, Deserializer};
use windlass_kit::objects::{
    claims::{Claim, claim_of},
    kept_metadata,
};

use super::{
    cached::Cached,
    cached_requests::{self, CachedRequests},
};

/// The annotations of pods that controllers read; of all others a cached pod knows nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PodAnnotation {
    /// Pods with a lower value are deleted first.
    DeletionCost,
    /// A pod's completion index; also a label.
    CompletionIndex,
    /// How many pods of the same index failed before this one.
    IndexFailures,
    /// The same, of those that a pod failure policy ignores.
    IndexIgnoredFailures,
}

impl PodAnnotation {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::DeletionCost => "controller.kubernetes.io/pod-deletion-cost",
            Self::CompletionIndex => "batch.kubernetes.io/job-completion-index",
            Self::IndexFailures => "batch.kubernetes.io/job-index-failure-count",
            Self::IndexIgnoredFailures => "batch.kubernetes.io/job-index-ignored-failure-count",
        }
    }
}

impl kept_metadata::Annotations for PodAnnotation {
    const KEPT: &'static [&'static str] = &[
        Self::DeletionCost.name(),
        Self::CompletionIndex.name(),
        Self::IndexFailures.name(),
        Self::IndexIgnoredFailures.name(),
    ];
}

/// A pod; fields have the names and types of k8s-openapi's.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub(crate) struct CachedPod {
    #[serde(default, deserialize_with = "kept_metadata::metadata::<PodAnnotation, _>")]
    pub(crate) metadata: ObjectMeta,
    pub(crate) spec: Option<CachedPodSpec>,
    pub(crate) status: Option<CachedPodStatus>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CachedPodSpec {
    pub(crate) node_name: Option<String>,
    pub(crate) hostname: Option<String>,
    pub(crate) subdomain: Option<String>,
    pub(crate) tolerations: Option<Vec<Toleration>>,
    /// The node that its affinity names, as that of pods of DaemonSets.
    #[serde(rename = "affinity", default, deserialize_with = "target_node")]
    pub(crate) target_node: Option<String>,
    #[serde(default)]
    pub(crate) containers: Vec<CachedContainer>,
    pub(crate) init_containers: Option<Vec<CachedContainer>>,
    /// Those that have a claim.
    #[serde(default, deserialize_with = "volumes_with_claims")]
    pub(crate) volumes: Option<Vec<Volume>>,
    pub(crate) resource_claims: Option<Vec<PodResourceClaim>>,
    /// Of the pod as a whole.
    #[serde(rename = "resources", default, deserialize_with = "cached_requests::of_resources")]
    pub(crate) requests: Option<Box<CachedRequests>>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CachedContainer {
    #[serde(default)]
    pub(crate) name: Box<str>,
    #[serde(rename = "resources", default, deserialize_with = "cached_requests::of_resources")]
    pub(crate) requests: Option<Box<CachedRequests>>,
    pub(crate) ports: Option<Vec<ContainerPort>>,
    pub(crate) restart_policy: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CachedPodStatus {
    pub(crate) phase: Option<String>,
    pub(crate) start_time: Option<Time>,
    pub(crate) conditions: Option<Vec<PodCondition>>,
    pub(crate) reason: Option<String>,
    #[serde(rename = "podIP")]
    pub(crate) pod_ip: Option<String>,
    #[serde(rename = "podIPs")]
    pub(crate) pod_ips: Option<Vec<PodIP>>,
    pub(crate) container_statuses: Option<Vec<CachedContainerStatus>>,
    pub(crate) init_container_statuses: Option<Vec<CachedContainerStatus>>,
    pub(crate) resource_claim_statuses: Option<Vec<PodResourceClaimStatus>>,
    pub(crate) extended_resource_claim_status: Option<PodExtendedResourceClaimStatus>,
    /// The most restarts of a sidecar.
    #[serde(skip)]
    pub(crate) sidecar_restarts: i32,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CachedContainerStatus {
    /// Empty once it is known whose restarts they are.
    pub(crate) name: Box<str>,
    pub(crate) restart_count: i32,
    pub(crate) terminated: Option<Box<CachedTermination>>,
}

/// How a container ended that does not run any more.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CachedTermination {
    pub(crate) container: String,
    pub(crate) exit_code: i32,
    pub(crate) finished_at: Option<Timestamp>,
}

impl<'de> Deserialize<'de> for CachedContainerStatus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Status {
            #[serde(default)]
            name: Box<str>,
            #[serde(default)]
            restart_count: i32,
            state: Option<State>,
        }
        #[derive(Deserialize)]
        struct State {
            terminated: Option<Terminated>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Terminated {
            #[serde(default)]
            exit_code: i32,
            finished_at: Option<Time>,
        }
        let status = Status::deserialize(deserializer)?;
        let terminated = status.state.and_then(|state| state.terminated).map(|end| {
            let finished_at = end.finished_at.map(|time| time.0);
            Box::new(CachedTermination { container: status.name.to_string(), exit_code: end.exit_code, finished_at })
        });
        Ok(Self { name: status.name, restart_count: status.restart_count, terminated })
    }
}

impl CachedPod {
    /// An annotation.
    pub(crate) fn annotation(&self, annotation: PodAnnotation) -> Option<&str> {
        self.metadata.annotations.as_ref()?.get(annotation.name()).map(String::as_str)
    }

    /// The volumes that have a claim.
    pub(crate) fn volumes(&self) -> impl Iterator<Item = &Volume> {
        self.spec.iter().flat_map(|spec| spec.volumes.iter().flatten())
    }

    /// The claims of its volumes.
    pub(crate) fn claims(&self) -> impl Iterator<Item = Claim> {
        self.volumes().filter_map(|volume| claim_of(&self.metadata, volume))
    }
}

windlass_kit::decoded_form!(CachedPod, Pod);

impl Cached for CachedPod {
    /// Gives back what decoding allocated ahead; of initial containers, only sidecars offer ports and keep what they request,
    /// and their restarts count.
    fn trim(&mut self) {
        if let Some(spec) = &mut self.spec {
            if let Some(inits) = &mut spec.init_containers {
                inits.retain(|container| container.restart_policy.as_deref() == Some("Always"));
                inits.shrink_to_fit();
            }
            spec.containers.shrink_to_fit();
            for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
                container.ports.iter_mut().for_each(Vec::shrink_to_fit);
            }
            spec.tolerations.iter_mut().for_each(Vec::shrink_to_fit);
        }
        if let Some(status) = &mut self.status {
            let sidecars = self.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
            let sidecars: Vec<&str> = sidecars.map(|container| &*container.name).collect();
            let inits = status.init_container_statuses.iter().flatten();
            let restarts = inits.filter(|of| sidecars.contains(&&*of.name)).map(|of| of.restart_count);
            // Looked at once: an object that comes from the cache is trimmed already.
            status.sidecar_restarts = restarts.max().unwrap_or(status.sidecar_restarts);
            let all = [&mut status.container_statuses, &mut status.init_container_statuses];
            all.into_iter().flatten().flatten().for_each(|status| status.name = Box::default());
            status.conditions.iter_mut().for_each(Vec::shrink_to_fit);
            status.pod_ips.iter_mut().for_each(Vec::shrink_to_fit);
            status.container_statuses.iter_mut().for_each(Vec::shrink_to_fit);
            status.init_container_statuses.iter_mut().for_each(Vec::shrink_to_fit);
        }
    }
}

/// What is decoded of an affinity.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TargetAffinity {
    node_affinity: Option<TargetNodeAffinity>,
}

#[derive(Deserialize)]
struct TargetNodeAffinity {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    required: Option<TargetSelector>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TargetSelector {
    node_selector_terms: Option<Vec<TargetTerm>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TargetTerm {
    match_fields: Option<Vec<NodeSelectorRequirement>>,
}

/// The first name in the first term that requires one.
fn target_node<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let affinity: Option<TargetAffinity> = Option::deserialize(deserializer)?;
    let required = affinity.and_then(|affinity| affinity.node_affinity?.required);
    let fields = required.into_iter().flat_map(|required| required.node_selector_terms.unwrap_or_default());
    let mut fields = fields.flat_map(|term| term.match_fields.unwrap_or_default());
    let named = fields.find(|field| field.key == "metadata.name" && field.operator == "In");
    let values = named.and_then(|field| field.values).unwrap_or_default();
    Ok(values.into_iter().next().filter(|name| !name.is_empty()))
}

/// What is decoded of a volume.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClaimVolume {
    #[serde(default)]
    name: String,
    persistent_volume_claim: Option<PersistentVolumeClaimVolumeSource>,
    ephemeral: Option<EphemeralVolumeSource>,
}

fn volumes_with_claims<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<Volume>>, D::Error> {
    let volumes: Vec<ClaimVolume> = Option::deserialize(deserializer)?.unwrap_or_default();
    let claims = volumes.into_iter().filter(|v| v.persistent_volume_claim.is_some() || v.ephemeral.is_some());
    let claims: Vec<Volume> = claims
        .map(|v| Volume {
            name: v.name,
            persistent_volume_claim: v.persistent_volume_claim,
            ephemeral: v.ephemeral,
            ..Volume::default()
        })
        .collect();
    Ok((!claims.is_empty()).then_some(claims))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_kept_is_what_a_whole_pod_says() {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "p", "generateName": "p-", "namespace": "n", "uid": "u", "resourceVersion": "7", "generation": 3,
                "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-02T00:00:00Z",
                "deletionGracePeriodSeconds": 5, "labels": {"a": "b"}, "finalizers": ["f"],
                "annotations": {"other": "x", PodAnnotation::DeletionCost.name(): "-5", "batch.kubernetes.io/job-completion-index": "3"},
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "o", "uid": "w", "controller": true}],
                "managedFields": [{"manager": "m", "fieldsV1": {"f:spec": {}}}],
            },
            "spec": {
                "nodeName": "one",
                "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "k", "operator": "Exists"}],
                     "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["target"]}]}]}}}, "hostname": "h", "subdomain": "s", "schedulerName": "default-scheduler",
                "tolerations": [{"key": "k", "operator": "Exists", "tolerationSeconds": 3}],
                "resources": {"requests": {"memory": "1Gi"}},
                "containers": [{"name": "c", "image": "i", "ports": [{"name": "www", "containerPort": 80}],
                                "resources": {"requests": {"cpu": "50m"}, "limits": {"cpu": "1"}}}],
                "initContainers": [{"name": "once", "ports": [{"containerPort": 1}]},
                                   {"name": "sidecar", "restartPolicy": "Always", "ports": [{"containerPort": 2}]}],
                "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}],
                "volumes": [{"name": "v", "ephemeral": {}}, {"name": "e", "emptyDir": {}},
                            {"name": "c", "persistentVolumeClaim": {"claimName": "data", "readOnly": true}}],
            },
            "status": {
                "phase": "Running", "startTime": "2026-01-01T00:00:05Z", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}],
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
                "containerStatuses": [{"name": "c", "restartCount": 4, "ready": true, "image": "i", "imageID": "d",
                    "state": {"terminated": {"exitCode": 3, "finishedAt": "2026-01-01T00:00:00Z"}}}],
                "resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "p-gpu-x"}],
                "initContainerStatuses": [{"name": "once", "restartCount": 7, "state": {"running": {}}},
                                          {"name": "sidecar", "restartCount": 5, "state": {"running": {}}}],
            },
        });
        let mut cached: CachedPod = serde_json::from_value(pod.clone()).expect("a pod");
        cached.trim();
        let mut whole: Pod = serde_json::from_value(pod).expect("a pod");
        whole.metadata.managed_fields = None;
        whole.metadata.annotations.as_mut().expect("annotations").remove("other");
        assert_eq!(cached.metadata, whole.metadata);
        let (cached_spec, spec) = (cached.spec.as_ref().expect("a spec"), whole.spec.as_ref().expect("a spec"));
        assert_eq!(cached_spec.node_name, spec.node_name);
        assert_eq!(cached_spec.target_node.as_deref(), Some("target"));
        assert_eq!((&cached_spec.hostname, &cached_spec.subdomain), (&spec.hostname, &spec.subdomain));
        assert_eq!(cached_spec.tolerations, spec.tolerations);
        assert_eq!(cached_spec.resource_claims, spec.resource_claims);
        assert_eq!(cached_spec.containers[0].ports, spec.containers[0].ports);
        assert_eq!(&*cached_spec.containers[0].name, spec.containers[0].name);
        let milli = |requests: &Option<Box<CachedRequests>>, of: &str| requests.as_ref().and_then(|r| r.milli(of));
        assert_eq!(milli(&cached_spec.containers[0].requests, "cpu"), Some(50));
        assert_eq!(milli(&cached_spec.requests, "memory"), Some((1 << 30) * 1000));
        let (inits, whole_inits) = (cached_spec.init_containers.as_deref(), spec.init_containers.as_deref());
        let (inits, whole_inits) = (inits.unwrap_or_default(), whole_inits.unwrap_or_default());
        assert_eq!(inits.iter().map(|c| &c.ports).collect::<Vec<_>>(), [&whole_inits[1].ports]);
        assert_eq!(
            cached.claims().collect::<Vec<_>>(),
            windlass_kit::objects::claims::claims_of(&whole).collect::<Vec<_>>()
        );
        let (cached_status, status) = (cached.status.expect("a status"), whole.status.expect("a status"));
        assert_eq!((cached_status.phase, cached_status.pod_ip), (status.phase, status.pod_ip));
        assert_eq!(cached_status.start_time, status.start_time);
        assert_eq!(cached_status.resource_claim_statuses, status.resource_claim_statuses);
        assert_eq!((cached_status.pod_ips, cached_status.conditions), (status.pod_ips, status.conditions));
        let restarts: Vec<i32> = status.container_statuses.iter().flatten().map(|s| s.restart_count).collect();
        let end = CachedTermination {
            container: "c".to_owned(),
            exit_code: 3,
            finished_at: Some("2026-01-01T00:00:00Z".parse().expect("a time")),
        };
        let of = |restart_count, terminated| CachedContainerStatus { restart_count, terminated, name: Box::default() };
        assert_eq!(cached_status.container_statuses, Some(vec![of(restarts[0], Some(Box::new(end)))]));
        assert_eq!(cached_status.init_container_statuses, Some(vec![of(7, None), of(5, None)]));
        assert_eq!(cached_status.sidecar_restarts, 5);
    }

    #[test]
    fn a_pod_without_anything_is_one() {
        for pod in [
            json!({}),
            json!({"spec": null, "status": {}}),
            json!({"spec": {"affinity": null}}),
            json!({"metadata": {}, "spec": {"volumes": null}}),
        ] {
            assert_eq!(serde_json::from_value::<CachedPod>(pod).expect("a pod").claims().count(), 0);
        }
    }
}
