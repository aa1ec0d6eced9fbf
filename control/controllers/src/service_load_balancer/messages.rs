//! What users read of load balancers, in the words of `cloud-provider/controllers/service/controller.go`. Pure.

use super::plan::PortKey;

pub(super) const ENSURING: (&str, &str) = ("EnsuringLoadBalancer", "Ensuring load balancer");
pub(super) const ENSURED: (&str, &str) = ("EnsuredLoadBalancer", "Ensured load balancer");
pub(super) const DELETING: (&str, &str) = ("DeletingLoadBalancer", "Deleting load balancer");
pub(super) const DELETED: (&str, &str) = ("DeletedLoadBalancer", "Deleted load balancer");
pub(super) const UPDATED: (&str, &str) = ("UpdatedLoadBalancer", "Updated load balancer with new hosts");
pub(super) const UNAVAILABLE: &str = "UnAvailableLoadBalancer";
pub(super) const NO_NODES: &str = "There are no available nodes for LoadBalancer";
pub(super) const SYNC_FAILED: &str = "SyncLoadBalancerFailed";

fn failed(why: &str) -> String {
    format!("Error syncing load balancer: failed to ensure load balancer: {why}")
}

pub(super) fn taken_by_service(port: PortKey, service: &str) -> String {
    failed(&format!("port {port} is already used by load balancer service {service}"))
}

pub(super) fn taken_by_pod(port: PortKey, pod: &str) -> String {
    failed(&format!("port {port} is a host port of pod {pod}"))
}

pub(super) fn taken_by_node(port: PortKey) -> String {
    failed(&format!("port {port} is used by the node itself"))
}
