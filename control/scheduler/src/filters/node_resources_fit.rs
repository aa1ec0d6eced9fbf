//! NodeResourcesFit: every insufficient resource is named. Pure.

use std::borrow::Cow;

use windlass_kit::objects::requests::Amounts;

use super::Failure;
use crate::model::{NodeInfo, PodInfo, Usage};

const NAME: &str = "NodeResourcesFit";

pub(super) fn filter(pod: &PodInfo, node: &NodeInfo, usage: &Usage) -> Result<(), Failure> {
    let (mut reasons, mut preemptible) = (Vec::new(), true);
    if usage.pods + 1 > node.max_pods {
        reasons.push(Cow::Borrowed("Too many pods"));
    }
    let mut check = |name: &str, wanted: i64, used: i64, allocatable: i64| {
        if wanted > 0 && wanted > allocatable - used {
            reasons.push(Cow::Owned(format!("Insufficient {name}")));
            // More than the node ever has: no preemption helps.
            preemptible &= wanted <= allocatable;
        }
    };
    let (want, used, all) = (&pod.requests, &usage.requested, &node.allocatable);
    check("cpu", want.milli_cpu, used.milli_cpu, all.milli_cpu);
    check("memory", want.memory, used.memory, all.memory);
    check("ephemeral-storage", want.ephemeral, used.ephemeral, all.ephemeral);
    for (name, wanted) in &want.other {
        let of = |amounts: &Amounts| amounts.other.get(name).copied().unwrap_or(0);
        check(name, *wanted, of(used), of(all));
    }
    if reasons.is_empty() { Ok(()) } else { Err(Failure { plugin: NAME, reasons, preemptible }) }
}
