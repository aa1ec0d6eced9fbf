//! VolumeBinding: nodes that reach the pod's volumes, or where volumes can be had for its claims. Pure.

use super::Failure;
use crate::{cache::Cluster, cycle::Cycle, model::NodeInfo};

const NAME: &str = "VolumeBinding";

pub(super) fn filter(cluster: &Cluster, cycle: &Cycle, node: &NodeInfo) -> Result<(), Failure> {
    if cycle.claims.is_empty() {
        return Ok(());
    }
    match cluster.storage.find(&cycle.claims, node) {
        Ok(_) => Ok(()),
        Err(reasons) => {
            let reasons = reasons.into_iter().map(Into::into).collect();
            Err(Failure { plugin: NAME, reasons, preemptible: false })
        }
    }
}
