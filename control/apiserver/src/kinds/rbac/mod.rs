//! Kinds of the group `rbac.authorization.k8s.io`.

pub(crate) mod bindings;
pub(crate) mod roles;
