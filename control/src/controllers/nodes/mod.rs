//! Node controllers: IPAM, lifecycle and taints, taint eviction, pod garbage collection, TTL. `ranges`, `health`,
//! `metrics` and `zones` are pure and may not import tokio or kube's client.

pub(super) mod health;
mod ipam;
mod lifecycle;
mod metrics;
mod pod_gc;
mod ranges;
mod silence;
mod taint_eviction;
mod ttl;
mod zones;

pub(crate) use ipam::NodeIpam;
pub(crate) use lifecycle::{NodeLifecycle, Timing};
pub(crate) use pod_gc::PodGc;
pub(crate) use ranges::Ranges;
pub use silence::WriteStalls;
pub(crate) use taint_eviction::TaintEviction;
pub(crate) use ttl::NodeTtl;
