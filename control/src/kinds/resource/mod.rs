//! Kinds of the group `resource.k8s.io`: devices, and claims of them.

pub(crate) mod claims;
pub(crate) mod device_class;
mod devices;
pub(crate) mod resource_slice;
