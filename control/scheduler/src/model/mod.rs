//! Pods and nodes as the scheduler caches them: parsed once, when they change. Pure; imports nothing of the scheduler.

mod affinity;
mod disk;
mod node;
mod pod;
mod selector;
mod spread;

pub(crate) use affinity::{PodAffinity, Term};
pub(crate) use disk::Disk;
pub(crate) use node::{NodeInfo, Usage};
pub(crate) use pod::{Constraints, PodInfo, PodReference};
pub(crate) use selector::Selector;
pub(crate) use spread::{HOSTNAME, SpreadConstraint, WhenUnsatisfiable};

/// Namespace and name.
pub(crate) type Key = (String, String);
