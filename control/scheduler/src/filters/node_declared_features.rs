//! NodeDeclaredFeatures: a pod that needs a feature of the node agent goes to nodes that declare it. Pure.

use super::Failure;
use crate::model::{Constraints, NodeInfo};

const NAME: &str = "NodeDeclaredFeatures";
/// Upstream's `errReasonUnsatisfiedRequirements`.
const REASON: &str = "node(s) didn't match Pod's required features";

pub(super) fn filter(constraints: &Constraints, node: &NodeInfo) -> Result<(), Failure> {
    let has = |feature: &&str| node.declared_features.iter().any(|declared| declared == feature);
    if constraints.features.iter().all(has) { Ok(()) } else { Err(Failure::unresolvable(NAME, REASON)) }
}
