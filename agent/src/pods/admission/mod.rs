//! Whether the node admits a pod, besides the others that it runs: upstream's admit handlers ([`rules`]), preemption by
//! critical pods, and the reservations that admission and resizes are judged by.
//!
//! Pure but for `allocation_state`, which keeps allocated resources on disk. Imports `lifecycle` and `container`, never
//! `steps`, `worker` or `dispatcher`.

pub(crate) mod allocation_state;
pub(crate) mod preempt;
mod pressure;
pub(crate) mod reservations;
pub(crate) mod rules;
mod sysctls;

pub use sysctls::unsafe_sysctl_problems;

use super::lifecycle::kill::KillReason;

/// What becomes of a pod that is new to the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Admission {
    Admitted,
    Rejected(KillReason),
    /// A critical pod that fits once the pods with these uids are killed.
    Preempt(Vec<String>),
}

/// A rejection, in upstream's words.
fn rejected(reason: impl Into<String>, why: impl std::fmt::Display) -> KillReason {
    KillReason { reason: reason.into(), message: format!("Pod was rejected: {why}"), grace: None, disruption: false }
}
