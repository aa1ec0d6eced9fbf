//! The types that informers cache, and what of them is kept: what no controller reads is dropped. Pure.

use std::fmt::Debug;

use k8s_openapi::api::{
    apps::v1::{ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet},
    autoscaling::v2::HorizontalPodAutoscaler,
    batch::v1::{CronJob, Job},
    certificates::v1::CertificateSigningRequest,
    coordination::v1::Lease,
    core::v1::{
        Endpoints, Namespace, Node, PersistentVolume, PersistentVolumeClaim, ReplicationController, ResourceQuota,
        Secret, Service,
    },
    discovery::v1::EndpointSlice,
    networking::v1::{IPAddress, ServiceCIDR},
    policy::v1::PodDisruptionBudget,
    rbac::v1::ClusterRole,
    resource::v1::{ResourceClaim, ResourceClaimTemplate},
    storage::v1::{StorageClass, VolumeAttributesClass},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, api::DynamicObject, core::PartialObjectMeta};
use serde::de::DeserializeOwned;

use crate::service_account_tokens::{BOOTSTRAP_SECRET_TYPE, SECRET_TYPE};

/// A type that informers cache: one of k8s-openapi, `PartialObjectMeta` of one, or either dynamic form.
pub(crate) trait Cached: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static {
    /// Drops what no controller reads; by default the long parts of the metadata.
    fn trim(&mut self) {
        trim_meta(self.meta_mut());
    }
}

impl Cached for CertificateSigningRequest {}
impl Cached for ClusterRole {}
impl Cached for CronJob {}
impl Cached for Deployment {}
impl Cached for ControllerRevision {}
impl Cached for DaemonSet {}
impl Cached for Endpoints {}
impl Cached for EndpointSlice {}
impl Cached for HorizontalPodAutoscaler {}
impl Cached for IPAddress {}
impl Cached for Job {}
impl Cached for Lease {}
impl Cached for Namespace {}
impl Cached for PersistentVolume {}
impl Cached for PersistentVolumeClaim {}
impl Cached for PodDisruptionBudget {}
impl Cached for ReplicaSet {}
impl Cached for ReplicationController {}
impl Cached for ResourceClaim {}
impl Cached for ResourceClaimTemplate {}
impl Cached for ResourceQuota {}
impl Cached for Service {}
impl Cached for StatefulSet {}
impl Cached for StorageClass {}
impl Cached for VolumeAttributesClass {}
impl Cached for ServiceCIDR {}
impl Cached for DynamicObject {}

/// Keeps identity, version, owners and finalizers.
impl<K> Cached for PartialObjectMeta<K>
where
    K: Resource + Clone + Debug + Send + Sync + 'static,
{
    fn trim(&mut self) {
        trim_meta(&mut self.metadata);
        self.types = None;
        self.metadata.labels = None;
        self.metadata.annotations = None;
    }
}

/// Keeps the content of secrets with tokens only, those of service accounts and those by which nodes join.
impl Cached for Secret {
    fn trim(&mut self) {
        trim_meta(&mut self.metadata);
        if !matches!(self.type_.as_deref(), Some(SECRET_TYPE | BOOTSTRAP_SECRET_TYPE)) {
            self.data = None;
            self.metadata.labels = None;
            self.metadata.annotations = None;
        }
    }
}

/// Keeps taints, pod CIDRs, conditions and addresses.
impl Cached for Node {
    fn trim(&mut self) {
        trim_node(self);
    }
}

/// Drops what only clients that write whole objects need.
fn trim_meta(meta: &mut ObjectMeta) {
    meta.managed_fields = None;
    meta.self_link = None;
    if let Some(annotations) = &mut meta.annotations {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
        annotations.remove("windlass.io/last-applied");
        if annotations.is_empty() {
            meta.annotations = None;
        }
    }
}

fn trim_node(node: &mut Node) {
    trim_meta(&mut node.metadata);
    if let Some(status) = &mut node.status {
        status.images = None;
        status.node_info = None;
        status.capacity = None;
        // What zones are weighed by.
        if let Some(allocatable) = &mut status.allocatable {
            allocatable.retain(|resource, _| resource == "cpu");
        }
        status.daemon_endpoints = None;
        status.volumes_attached = None;
        status.volumes_in_use = None;
    }
}
