//! The conditions of a pod, with upstream's reasons and messages. Pure.

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{ContainerStatus, PodCondition, PodStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};

use super::super::{
    observed::{Observed, ResizeDecision},
    resize::RESIZE_PENDING,
    spec::{self, Role},
    view::PodView,
};

impl PodView<'_> {
    /// The conditions of a pod whose containers have the statuses `init` and `main`.
    pub(super) fn conditions(
        &self,
        before: &PodStatus,
        init: &[ContainerStatus],
        main: &[ContainerStatus],
        phase: &str,
    ) -> Vec<PodCondition> {
        let truths = self.truths(before, init, main, phase);
        let disrupted = self
            .kill_reason(before, phase)
            .filter(|kill| kill.disruption)
            .map(|kill| (DISRUPTION_TARGET, TrueSince("TerminationByKubelet", kill.message.clone())));
        let own = KUBELET_CONDITIONS.into_iter().chain([RESIZE_PENDING, RESIZE_IN_PROGRESS]);
        let own: Vec<&str> = own.chain(disrupted.as_ref().map(|(type_, _)| *type_)).collect();
        let all = KUBELET_CONDITIONS.into_iter().zip(truths).chain(disrupted).chain(resize_condition(self.observed));
        let generation = self.pod.metadata.generation;
        let mut all: Vec<PodCondition> =
            all.map(|(type_, truth)| condition(type_, &truth, before, generation, self.now)).collect();
        // Conditions of other controllers stay.
        all.extend(before.conditions.iter().flatten().filter(|c| !own.contains(&c.type_.as_str())).cloned());
        all
    }

    /// The values of [`KUBELET_CONDITIONS`].
    fn truths(
        &self,
        before: &PodStatus,
        init: &[ContainerStatus],
        main: &[ContainerStatus],
        phase: &str,
    ) -> [Truth; 5] {
        let inits = spec::init_containers(self.spec);
        let pairs = inits.iter().zip(init);
        let sidecars = pairs.filter(|(c, _)| spec::role_of_init(c) == Role::Sidecar).map(|(_, status)| status);
        let unready: Vec<&str> = main.iter().chain(sidecars).filter(|s| !s.ready).map(|s| s.name.as_str()).collect();
        let incomplete: Vec<&str> = inits.iter().filter(|c| !self.is_init_done(c)).map(|c| c.name.as_str()).collect();
        let sandbox_ready = self.observed.sandbox().is_some_and(|s| self.is_sandbox_ready(s));
        let words = |names: &[&str], what: &str| format!("containers with {what} status: [{}]", names.join(" "));
        let initialized = match phase {
            "Succeeded" => TrueSince("PodCompleted", String::new()),
            _ if incomplete.is_empty() => True,
            _ => False("ContainersNotInitialized", words(&incomplete, "incomplete")),
        };
        let containers_ready = match phase {
            "Succeeded" => False("PodCompleted", String::new()),
            "Failed" => False("PodFailed", String::new()),
            _ if unready.is_empty() => True,
            _ => False("ContainersNotReady", words(&unready, "unready")),
        };
        let gate = |type_: &str| match before.conditions.iter().flatten().find(|c| c.type_ == type_) {
            None => Some(format!("corresponding condition of pod readiness gate {type_:?} does not exist.")),
            Some(found) if found.status == "True" => None,
            Some(found) => {
                Some(format!("the status of pod readiness gate {type_:?} is not \"True\", but {}", found.status))
            }
        };
        let gates = self.spec.readiness_gates.iter().flatten();
        let gates_missing: Vec<String> = gates.filter_map(|g| gate(&g.condition_type)).collect();
        let ready = match &containers_ready {
            True if gates_missing.is_empty() => True,
            True => False("ReadinessGatesNotReady", gates_missing.join(", ")),
            False(reason, message) | TrueSince(reason, message) => False(reason, message.clone()),
        };
        let sandbox_ready = if sandbox_ready { True } else { False("", String::new()) };
        [sandbox_ready, initialized, ready, containers_ready, True]
    }
}

/// The conditions that the kubelet sets on every admitted pod.
const KUBELET_CONDITIONS: [&str; 5] =
    ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"];

/// Whether the kubelet sets this condition.
pub(super) fn is_kubelet_condition(type_: &str) -> bool {
    KUBELET_CONDITIONS.contains(&type_) || [RESIZE_PENDING, RESIZE_IN_PROGRESS].contains(&type_)
}

/// The node killed the pod; controllers do not count such a failure against it.
const DISRUPTION_TARGET: &str = "DisruptionTarget";
const RESIZE_IN_PROGRESS: &str = "PodResizeInProgress";

/// The condition of a resize; there is none once it is completed.
fn resize_condition(observed: &Observed) -> Option<(&'static str, Truth)> {
    Some(match observed.resize.as_ref()? {
        ResizeDecision::Deferred(why) => (RESIZE_PENDING, TrueSince("Deferred", why.clone())),
        ResizeDecision::Infeasible(why) => (RESIZE_PENDING, TrueSince("Infeasible", why.clone())),
        ResizeDecision::Granted => match &observed.resize_failure {
            Some(failure) => (RESIZE_IN_PROGRESS, TrueSince("Error", failure.message.clone())),
            None => (RESIZE_IN_PROGRESS, True),
        },
    })
}

/// The status of a condition, with reason and message.
enum Truth {
    True,
    TrueSince(&'static str, String),
    False(&'static str, String),
}
use Truth::{False, True, TrueSince};

fn condition(type_: &str, truth: &Truth, before: &PodStatus, generation: Option<i64>, now: Timestamp) -> PodCondition {
    let (status, reason, message) = match truth {
        True => ("True", "", ""),
        TrueSince(reason, message) => ("True", *reason, message.as_str()),
        False(reason, message) => ("False", *reason, message.as_str()),
    };
    let earlier = before.conditions.iter().flatten().find(|c| c.type_ == type_);
    let since = earlier.filter(|c| c.status == status).and_then(|c| c.last_transition_time.clone());
    PodCondition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: (!reason.is_empty()).then(|| reason.to_owned()),
        message: (!message.is_empty()).then(|| message.to_owned()),
        last_transition_time: Some(since.unwrap_or(Time(now))),
        observed_generation: generation,
        ..PodCondition::default()
    }
}
