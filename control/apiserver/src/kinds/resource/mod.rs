//! Kinds of the group `resource.k8s.io`: devices, and claims of them.

mod allocation;
pub(crate) mod claims;
mod device;
pub(crate) mod device_class;
mod devices;
mod lists;
mod names;
mod request_policy;
pub(crate) mod resource_slice;
