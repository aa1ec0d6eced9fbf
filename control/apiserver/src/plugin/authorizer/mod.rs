//! Authorizers that know kinds or users of the system.

mod always;
pub(crate) mod node;
pub(crate) mod rbac;

pub(crate) use always::{AlwaysAllow, AlwaysDeny};
pub(crate) use node::NodeAuthorizer;
pub(crate) use rbac::RbacAuthorizer;
