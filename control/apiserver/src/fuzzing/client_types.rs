//! The types that Rust clients decode, for tests: whatever is stored and served can be read as its own type.

use k8s_openapi::{
    api::{
        admissionregistration::v1 as admission, apps::v1 as apps, autoscaling::v1 as autoscaling_v1,
        autoscaling::v2 as autoscaling_v2, batch::v1 as batch, certificates::v1 as certificates,
        coordination::v1 as coordination, core::v1 as core, discovery::v1 as discovery, events::v1 as events,
        flowcontrol::v1 as flow, networking::v1 as networking, node::v1 as node, policy::v1 as policy,
        rbac::v1 as rbac, resource::v1 as resource, scheduling::v1 as scheduling, storage::v1 as storage,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1 as extensions,
    kube_aggregator::pkg::apis::apiregistration::v1 as registration,
};

type Decode = fn(&[u8]) -> Result<(), serde_json::Error>;

fn of<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<(), serde_json::Error> {
    windlass_kit::json::from_slice::<T>(bytes).map(drop)
}

/// `apiVersion` and kind of every stored type, and its decoder.
const TYPES: &[(&str, &str, Decode)] = &[
    ("v1", "ConfigMap", of::<core::ConfigMap>),
    ("v1", "Endpoints", of::<core::Endpoints>),
    ("v1", "Event", of::<core::Event>),
    ("v1", "Namespace", of::<core::Namespace>),
    ("v1", "Node", of::<core::Node>),
    ("v1", "PersistentVolumeClaim", of::<core::PersistentVolumeClaim>),
    ("v1", "PersistentVolume", of::<core::PersistentVolume>),
    ("v1", "Pod", of::<core::Pod>),
    ("v1", "ReplicationController", of::<core::ReplicationController>),
    ("v1", "Secret", of::<core::Secret>),
    ("v1", "ServiceAccount", of::<core::ServiceAccount>),
    ("v1", "Service", of::<core::Service>),
    ("coordination.k8s.io/v1", "Lease", of::<coordination::Lease>),
    ("discovery.k8s.io/v1", "EndpointSlice", of::<discovery::EndpointSlice>),
    ("node.k8s.io/v1", "RuntimeClass", of::<node::RuntimeClass>),
    ("storage.k8s.io/v1", "StorageClass", of::<storage::StorageClass>),
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition", of::<extensions::CustomResourceDefinition>),
    ("events.k8s.io/v1", "Event", of::<events::Event>),
    // No client has this version any more.
    ("autoscaling/v2beta1", "HorizontalPodAutoscaler", of::<serde_json::Value>),
    ("v1", "LimitRange", of::<core::LimitRange>),
    ("v1", "PodTemplate", of::<core::PodTemplate>),
    ("v1", "ResourceQuota", of::<core::ResourceQuota>),
    ("apiregistration.k8s.io/v1", "APIService", of::<registration::APIService>),
    ("apps/v1", "ControllerRevision", of::<apps::ControllerRevision>),
    ("apps/v1", "DaemonSet", of::<apps::DaemonSet>),
    ("apps/v1", "Deployment", of::<apps::Deployment>),
    ("apps/v1", "ReplicaSet", of::<apps::ReplicaSet>),
    ("apps/v1", "StatefulSet", of::<apps::StatefulSet>),
    ("autoscaling/v2", "HorizontalPodAutoscaler", of::<autoscaling_v2::HorizontalPodAutoscaler>),
    ("autoscaling/v1", "HorizontalPodAutoscaler", of::<autoscaling_v1::HorizontalPodAutoscaler>),
    ("batch/v1", "CronJob", of::<batch::CronJob>),
    ("batch/v1", "Job", of::<batch::Job>),
    ("certificates.k8s.io/v1", "CertificateSigningRequest", of::<certificates::CertificateSigningRequest>),
    ("networking.k8s.io/v1", "Ingress", of::<networking::Ingress>),
    ("networking.k8s.io/v1", "IngressClass", of::<networking::IngressClass>),
    ("networking.k8s.io/v1", "IPAddress", of::<networking::IPAddress>),
    ("networking.k8s.io/v1", "NetworkPolicy", of::<networking::NetworkPolicy>),
    ("networking.k8s.io/v1", "ServiceCIDR", of::<networking::ServiceCIDR>),
    ("policy/v1", "PodDisruptionBudget", of::<policy::PodDisruptionBudget>),
    ("rbac.authorization.k8s.io/v1", "ClusterRole", of::<rbac::ClusterRole>),
    ("rbac.authorization.k8s.io/v1", "Role", of::<rbac::Role>),
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", of::<rbac::ClusterRoleBinding>),
    ("rbac.authorization.k8s.io/v1", "RoleBinding", of::<rbac::RoleBinding>),
    ("storage.k8s.io/v1", "CSIDriver", of::<storage::CSIDriver>),
    ("storage.k8s.io/v1", "CSINode", of::<storage::CSINode>),
    ("storage.k8s.io/v1", "CSIStorageCapacity", of::<storage::CSIStorageCapacity>),
    ("storage.k8s.io/v1", "VolumeAttachment", of::<storage::VolumeAttachment>),
    ("storage.k8s.io/v1", "VolumeAttributesClass", of::<storage::VolumeAttributesClass>),
    ("scheduling.k8s.io/v1", "PriorityClass", of::<scheduling::PriorityClass>),
    ("admissionregistration.k8s.io/v1", "MutatingAdmissionPolicy", of::<admission::MutatingAdmissionPolicy>),
    (
        "admissionregistration.k8s.io/v1",
        "MutatingAdmissionPolicyBinding",
        of::<admission::MutatingAdmissionPolicyBinding>,
    ),
    ("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration", of::<admission::MutatingWebhookConfiguration>),
    ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy", of::<admission::ValidatingAdmissionPolicy>),
    (
        "admissionregistration.k8s.io/v1",
        "ValidatingAdmissionPolicyBinding",
        of::<admission::ValidatingAdmissionPolicyBinding>,
    ),
    (
        "admissionregistration.k8s.io/v1",
        "ValidatingWebhookConfiguration",
        of::<admission::ValidatingWebhookConfiguration>,
    ),
    ("flowcontrol.apiserver.k8s.io/v1", "FlowSchema", of::<flow::FlowSchema>),
    ("flowcontrol.apiserver.k8s.io/v1", "PriorityLevelConfiguration", of::<flow::PriorityLevelConfiguration>),
    ("resource.k8s.io/v1", "DeviceClass", of::<resource::DeviceClass>),
    ("resource.k8s.io/v1", "ResourceClaim", of::<resource::ResourceClaim>),
    ("resource.k8s.io/v1", "ResourceClaimTemplate", of::<resource::ResourceClaimTemplate>),
    ("resource.k8s.io/v1", "ResourceSlice", of::<resource::ResourceSlice>),
];

/// Decodes an object of a built-in kind as a client does.
///
/// # Errors
/// Why it cannot be decoded; also of a kind that has no decoder here.
pub(crate) fn decode(api_version: &str, kind: &str, bytes: &[u8]) -> Result<(), String> {
    let of = TYPES.iter().find(|(of, known, _)| (*of, *known) == (api_version, kind));
    let (_, _, decode) = of.ok_or_else(|| format!("{api_version} {kind} has no decoder"))?;
    decode(bytes).map_err(|error| error.to_string())
}
