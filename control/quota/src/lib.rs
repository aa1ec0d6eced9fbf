//! Quotas: what objects use of the resources that a ResourceQuota counts, whether a write is within them, and what is used
//! after it. Used by admission, which counts each write, and by the controller, which counts all objects. Pure.

mod claims;
mod count;
mod evaluator;
pub mod pod_resources;
mod pods;
mod resource_list;
mod scopes;
mod services;
#[cfg(test)]
mod tests;

pub use claims::storage_class;
pub use count::{Quota, Request, check, recount};
pub use evaluator::Evaluator;
pub use pods::charged_until;
pub use resource_list::{ResourceList, names};
