//! Pods: from objects of the API to containers of Docker, and back to statuses.
//!
//! Each folder imports only those below it:
//!
//! | folder | what it does |
//! |---|---|
//! | `dispatcher` | joins the sources of pods with the engine's events, admits pods, starts workers |
//! | `worker` | one task per pod: decides by `lifecycle`, starts `steps`, writes the status |
//! | `steps` | acts: Docker, network, volumes, cgroups, files of the host, the API |
//! | `admission` | whether the node admits a pod, what each has reserved, preemption |
//! | `container` | from a pod's spec to what Docker is asked to create; pure |
//! | `lifecycle` | from a pod and what runs of it to the next actions and the status; pure |

mod admission;
mod container;
mod dispatcher;
mod lifecycle;
mod steps;
#[cfg(test)]
mod tests;
mod worker;

pub use admission::unsafe_sysctl_problems;
pub use dispatcher::{PodFeeds, Pods};
pub use lifecycle::kill::KillReason;
pub use lifecycle::spec::is_mirror_pod;
pub(crate) use lifecycle::spec::{SYSTEM_CRITICAL_PRIORITY, is_critical, is_terminal, runtime_uid};
#[cfg(feature = "cri")]
pub(crate) use lifecycle::{
    spec::{container as spec_container, image_of, pre_stop},
    status::exit_reason,
};
pub use steps::{context::NodeHandles, teardown::teardown};
pub use worker::pod_killer::{KillResult, PodKiller};
