//! The types that informers cache, and what of them is kept: what no controller reads is dropped. Pure.

use std::fmt::Debug;

use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{
        Container, Endpoints, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, ReplicationController,
        Service,
    },
    discovery::v1::EndpointSlice,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, api::DynamicObject, core::PartialObjectMeta};
use serde::de::DeserializeOwned;

/// A type that informers cache: one of k8s-openapi, `PartialObjectMeta` of one, or either dynamic form.
pub(crate) trait Cached: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static {
    /// Drops what no controller reads; by default the long parts of the metadata.
    fn trim(&mut self) {
        trim_meta(self.meta_mut());
    }
}

impl Cached for Endpoints {}
impl Cached for EndpointSlice {}
impl Cached for Lease {}
impl Cached for Namespace {}
impl Cached for PersistentVolume {}
impl Cached for PersistentVolumeClaim {}
impl Cached for ReplicationController {}
impl Cached for Service {}
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

/// Keeps taints, pod CIDRs and conditions.
impl Cached for Node {
    fn trim(&mut self) {
        trim_node(self);
    }
}

/// Keeps metadata without annotations, ports, node, tolerations and claims; phase, conditions, addresses and restarts.
impl Cached for Pod {
    fn trim(&mut self) {
        trim_pod(self);
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
        status.addresses = None;
        status.capacity = None;
        status.allocatable = None;
        status.daemon_endpoints = None;
        status.volumes_attached = None;
        status.volumes_in_use = None;
    }
}

/// The only annotation of pods that a controller reads: pods with a lower value are deleted first.
pub(crate) const POD_DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

fn trim_pod(pod: &mut Pod) {
    trim_meta(&mut pod.metadata);
    pod.metadata.annotations = pod
        .metadata
        .annotations
        .take()
        .and_then(|mut annotations| annotations.remove_entry(POD_DELETION_COST).map(|cost| [cost].into()));
    if let Some(spec) = &mut pod.spec {
        spec.volumes = spec.volumes.take().and_then(|volumes| {
            let claims: Vec<_> =
                volumes.into_iter().filter(|v| v.persistent_volume_claim.is_some() || v.ephemeral.is_some()).collect();
            (!claims.is_empty()).then_some(claims)
        });
        spec.affinity = None;
        spec.ephemeral_containers = None;
        spec.image_pull_secrets = None;
        spec.dns_config = None;
        spec.host_aliases = None;
        spec.security_context = None;
        spec.node_selector = None;
        spec.topology_spread_constraints = None;
        spec.overhead = None;
        for container in spec.containers.iter_mut() {
            keep_ports(container);
        }
        if let Some(inits) = &mut spec.init_containers {
            // Only sidecars offer ports.
            inits.retain(|c| c.restart_policy.as_deref() == Some("Always"));
            inits.iter_mut().for_each(keep_ports);
        }
        spec.containers.shrink_to_fit();
    }
    if let Some(status) = &mut pod.status {
        status.init_container_statuses = None;
        status.ephemeral_container_statuses = None;
        status.host_ips = None;
        for container in status.container_statuses.iter_mut().flatten() {
            container.state = None;
            container.last_state = None;
            container.image_id = String::new();
            container.image = String::new();
            container.container_id = None;
            container.volume_mounts = None;
            container.resources = None;
            container.allocated_resources = None;
        }
    }
}

fn keep_ports(container: &mut Container) {
    *container = Container {
        name: std::mem::take(&mut container.name),
        ports: container.ports.take(),
        restart_policy: container.restart_policy.take(),
        ..Container::default()
    };
}
