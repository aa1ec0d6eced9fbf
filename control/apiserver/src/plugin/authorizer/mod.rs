//! Authorizers that know kinds or users of the system.

pub(crate) mod node;
pub(crate) mod rbac;

pub(crate) use node::NodeAuthorizer;
pub(crate) use rbac::RbacAuthorizer;
