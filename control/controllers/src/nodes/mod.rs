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

pub(crate) use ipam::NodeIpamController;
pub(crate) use lifecycle::{NodeLifecycleController, Timing};
pub(crate) use pod_gc::PodGcController;
pub(crate) use ranges::Ranges;
pub use silence::WriteStalls;
pub(crate) use taint_eviction::TaintEvictionController;
pub(crate) use ttl::TtlController;
