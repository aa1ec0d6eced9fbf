//! TaintToleration: taints that keep pods away. Pure.

use windlass_kit::objects::tolerations;

use super::Failure;
use crate::model::{Constraints, NodeInfo};

const NAME: &str = "TaintToleration";
/// Upstream's `ErrReasonNotMatch`; it does not name the taint since 1.33.
const REASON: &str = "node(s) had untolerated taint(s)";

/// Whether a pod tolerates all taints that forbid it the node (upstream's `DoNotScheduleTaintsFilterFunc`).
pub(crate) fn tolerates(constraints: &Constraints, node: &NodeInfo) -> bool {
    tolerations::untolerated(&node.taints, &constraints.tolerations, &["NoSchedule", "NoExecute"]).is_none()
}

pub(super) fn filter(constraints: &Constraints, node: &NodeInfo) -> Result<(), Failure> {
    if tolerates(constraints, node) { Ok(()) } else { Err(Failure::unresolvable(NAME, REASON)) }
}
