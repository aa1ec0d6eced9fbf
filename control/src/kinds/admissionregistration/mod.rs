//! Kinds of the group `admissionregistration.k8s.io`. Expressions are checked for being there; what evaluates them
//! compiles them.

pub(crate) mod bindings;
pub(crate) mod policies;
mod rules;
pub(crate) mod webhooks;
