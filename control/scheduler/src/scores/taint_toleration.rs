//! TaintToleration: the fewer PreferNoSchedule taints that the pod does not tolerate, the better. Pure.

use windlass_kit::objects::tolerations;

use super::normalise;
use crate::model::{Constraints, NodeInfo};

pub(super) fn scores(constraints: &Constraints, nodes: &[&NodeInfo]) -> Vec<i64> {
    let tolerated = |taint: &_| constraints.tolerations.iter().any(|t| tolerations::tolerates(t, taint));
    let intolerable = nodes.iter().map(|node| {
        let taints = node.taints.iter().filter(|taint| taint.effect == "PreferNoSchedule" && !tolerated(taint));
        i64::try_from(taints.count()).unwrap_or(i64::MAX)
    });
    normalise(&intolerable.collect::<Vec<_>>(), true)
}
