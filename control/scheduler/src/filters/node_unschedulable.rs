//! NodeUnschedulable: cordoned nodes. Pure.

use k8s_openapi::api::core::v1::Taint;
use windlass_kit::objects::tolerations;

use super::Failure;
use crate::model::{Constraints, NodeInfo};

const NAME: &str = "NodeUnschedulable";
/// Who tolerates this taint tolerates `spec.unschedulable` (upstream's `TaintNodeUnschedulable`).
const TAINT: &str = "node.kubernetes.io/unschedulable";
/// Upstream's `ErrReasonUnschedulable`.
const REASON: &str = "node(s) were unschedulable";

pub(super) fn filter(constraints: &Constraints, node: &NodeInfo) -> Result<(), Failure> {
    if !node.unschedulable {
        return Ok(());
    }
    let taint = Taint { key: TAINT.to_owned(), effect: "NoSchedule".to_owned(), ..Taint::default() };
    let tolerated = constraints.tolerations.iter().any(|t| tolerations::tolerates(t, &taint));
    if tolerated { Ok(()) } else { Err(Failure::unresolvable(NAME, REASON)) }
}
