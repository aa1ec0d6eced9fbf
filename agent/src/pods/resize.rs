//! Resources that change while a pod runs: whether the node has room for them, and what each container needs done.
//! Pure.

use k8s_openapi::api::core::v1::{Container, PodSpec};
use windlass_kit::objects::requests::Amounts;

use super::{observed::Observed, qos, spec};
use crate::engine::instance::Instance;

/// What becomes of a wish for other resources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is being done.
    Granted,
    /// There is no room now; there may be later.
    Deferred(String),
    /// This node can never give so much.
    Infeasible(String),
}

/// Whether `wanted` fits beside what the `others` of the node ask for.
pub(crate) fn judge(wanted: &Amounts, others: &Amounts, allocatable: &Amounts) -> Verdict {
    for (name, wanted, others, all) in [
        ("cpu", wanted.milli_cpu, others.milli_cpu, allocatable.milli_cpu),
        ("memory", wanted.memory, others.memory, allocatable.memory),
    ] {
        if wanted > all {
            return Verdict::Infeasible(format!(
                "Node didn't have enough capacity: {name}, requested: {wanted}, capacity: {all}"
            ));
        }
        if wanted > all.saturating_sub(others) {
            return Verdict::Deferred(format!(
                "Node didn't have enough resource: {name}, requested: {wanted}, used: {others}, capacity: {all}"
            ));
        }
    }
    Verdict::Granted
}

/// How a container gets what its spec says now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// While it runs.
    Live,
    /// By being run again: its resizePolicy says so.
    Restart,
}

/// What a running container needs to have what its spec says; nothing when it has that.
pub(crate) fn way(container: &Container, instance: &Instance) -> Option<Way> {
    let (is, wanted) = (instance.limits, qos::limits(container));
    if !instance.is_running() || is == wanted {
        return None;
    }
    let restarts = |resource: &str| {
        let mut policies = container.resize_policy.iter().flatten();
        policies.any(|p| p.resource_name == resource && p.restart_policy == "RestartContainer")
    };
    let cpu = (is.cpu_shares, is.cpu_quota) != (wanted.cpu_shares, wanted.cpu_quota);
    let memory = is.memory != wanted.memory;
    Some(if (cpu && restarts("cpu")) || (memory && restarts("memory")) { Way::Restart } else { Way::Live })
}

/// Whether a container of the pod runs with other resources than its spec says.
pub(crate) fn is_due(spec: &PodSpec, observed: &Observed) -> bool {
    spec::all_containers(spec)
        .filter_map(|(c, _)| Some((c, observed.newest(&c.name)?)))
        .any(|(container, instance)| way(container, instance).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_is_granted() {
        let needs = |milli_cpu, memory| Amounts { milli_cpu, memory, ..Amounts::default() };
        let ask = |wanted, others| judge(&wanted, &others, &needs(2000, 1 << 30));
        assert_eq!(ask(needs(2000, 1 << 30), needs(0, 0)), Verdict::Granted);
        assert_eq!(ask(needs(500, 0), needs(1500, 1 << 30)), Verdict::Granted);
        assert!(matches!(ask(needs(501, 0), needs(1500, 0)), Verdict::Deferred(why) if why.contains("cpu")));
        assert!(matches!(ask(needs(0, 1), needs(0, 1 << 30)), Verdict::Deferred(why) if why.contains("memory")));
        assert!(matches!(ask(needs(2001, 0), needs(0, 0)), Verdict::Infeasible(_)));
    }
}
