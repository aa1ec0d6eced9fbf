//! NodePorts: host ports that are taken. Pure.

use super::Failure;
use crate::model::{PodInfo, Usage};

const NAME: &str = "NodePorts";
/// Upstream's `ErrReason`.
const REASON: &str = "node(s) didn't have free ports for the requested pod ports";

pub(super) fn filter(pod: &PodInfo, usage: &Usage) -> Result<(), Failure> {
    let is_taken = pod.ports.iter().any(|port| usage.ports.values().flatten().any(|taken| taken.clashes(port)));
    if is_taken { Err(Failure::unschedulable(NAME, REASON)) } else { Ok(()) }
}
