//! Why and how the node itself ends a pod that the API would let run. Pure; `worker::pod_killer` carries the requests.

/// Why and how the node ends a pod: eviction, preemption, shutdown, or rejection at admission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KillReason {
    /// Upstream's word for it, shown as the pod's `status.reason`: `Evicted`, `Preempting`, `Terminated`.
    pub reason: String,
    /// Shown as the pod's `status.message`.
    pub message: String,
    /// Grace period in seconds; `None` for the pod's own. Never longer than the pod's own.
    pub grace: Option<i64>,
    /// Whether the pod gets the condition `DisruptionTarget`: controllers do not count such a failure against it.
    pub disruption: bool,
}

/// The grace period in seconds of a pod that the node ends: the shorter of its `own` and the one asked for, which is at
/// least a second.
pub(crate) fn kill_grace(own: i64, kill: Option<&KillReason>) -> i64 {
    kill.and_then(|kill| kill.grace).map_or(own, |grace| own.min(grace.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kill_only_shortens_the_grace() {
        let kill = |grace| KillReason { reason: String::new(), message: String::new(), grace, disruption: false };
        for (own, asked, gives) in [
            (30, None, 30),
            (30, Some(1), 1),
            (30, Some(0), 1),
            (30, Some(60), 30),
            (0, Some(60), 0),
            (30, Some(-5), 1),
        ] {
            assert_eq!(kill_grace(own, Some(&kill(asked))), gives, "{own} {asked:?}");
        }
        assert_eq!(kill_grace(7, None), 7);
    }
}
