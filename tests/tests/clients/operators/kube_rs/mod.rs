//! An operator on kube-rs: two versions of a type with a conversion webhook, admission webhooks whose authority is injected later,
//! a controller with children, a finalizer and events, two candidates for leadership, and a migration of what is stored.

mod cache;
mod controller;
mod injector;
mod leader;
mod life;
mod manifests;
mod process;
mod webhooks;

pub(super) use life::an_operator_lives;

/// Where the operator's lease is, and who it is.
const NAMESPACE: &str = "cache-system";
const USER: &str = "system:serviceaccount:cache-system:operator";
/// The group of its type.
const GROUP: &str = "operators.example.com";
/// Objects with this annotation want the authority of the webhooks in them.
const INJECT: &str = "operators.example.com/inject-ca";
