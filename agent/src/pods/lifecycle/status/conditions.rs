//! The conditions of a pod, with upstream's reasons and messages. Pure.

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{ContainerStatus, PodCondition, PodStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};

use super::super::{
    observed::{Observed, ResizeDecision},
    resize::RESIZE_PENDING,
    restarts::may_restart_all,
    spec::{self, Role},
    view::PodView,
};

impl PodView<'_> {
    /// The conditions of a pod whose containers have the statuses `init` and `main`.
    pub(crate) fn conditions(
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
        let shared = disrupted.as_ref().map(|(type_, _)| *type_);
        let all = KUBELET_CONDITIONS.into_iter().zip(truths).chain(disrupted).chain(resize_condition(self.observed));
        let generation = self.pod.metadata.generation;
        let mut all: Vec<PodCondition> =
            all.map(|(type_, truth)| condition(type_, &truth, before, generation, self.now)).collect();
        // Upstream sets no observedGeneration on it.
        all.extend(self.restart_of_all(phase).map(|truth| condition(RESTARTING, &truth, before, None, self.now)));
        // Conditions of other controllers stay.
        let is_own = |type_: &str| is_kubelet_condition(type_) || shared == Some(type_);
        all.extend(before.conditions.iter().flatten().filter(|c| !is_own(&c.type_)).cloned());
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
        let is_ready = |name: &str| init.iter().chain(main).any(|status| status.name == name && status.ready);
        // Init containers that are done need not be; in the order of the spec, and not of the statuses.
        let may_be_ready = spec::all_containers(self.spec).filter(|(_, role)| *role != Role::Init);
        let unready: Vec<&str> = may_be_ready.map(|(c, _)| c.name.as_str()).filter(|name| !is_ready(name)).collect();
        let incomplete: Vec<&str> = inits.iter().filter(|c| !self.is_init_done(c)).map(|c| c.name.as_str()).collect();
        let sandbox_ready = self.observed.sandbox().is_some_and(|s| self.is_sandbox_ready(s));
        let words = |names: &[&str], what: &str| format!("containers with {what} status: [{}]", names.join(" "));
        // A pod that was initialized stays so, though its init containers may run again.
        let was = before.conditions.iter().flatten().any(|c| c.type_ == INITIALIZED && c.status == "True");
        let initialized = match phase {
            "Succeeded" => TrueSince("PodCompleted", String::new()),
            _ if incomplete.is_empty() || was => True,
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

    /// Whether all containers are being restarted; only for pods with a RestartAllContainers rule.
    fn restart_of_all(&self, phase: &str) -> Option<Truth> {
        let none = String::new();
        may_restart_all(self.spec).then(|| match phase {
            "Succeeded" => False("PodCompleted", none),
            "Failed" => False("PodFailed", none),
            _ if self.is_restarting_all() => {
                TrueSince("RestartAllContainersStarted", "container exited with restart policy rule".to_owned())
            }
            _ => False("", none),
        })
    }
}

/// The conditions that the kubelet sets on every admitted pod.
const KUBELET_CONDITIONS: [&str; 5] =
    ["PodReadyToStartContainers", INITIALIZED, "Ready", "ContainersReady", "PodScheduled"];
const INITIALIZED: &str = "Initialized";
/// The kubelet sets it on pods with a container whose exit restarts all.
const RESTARTING: &str = "AllContainersRestarting";

/// Whether the kubelet sets this condition.
pub(super) fn is_kubelet_condition(type_: &str) -> bool {
    KUBELET_CONDITIONS.contains(&type_) || [RESIZE_PENDING, RESIZE_IN_PROGRESS, RESTARTING].contains(&type_)
}

/// The node killed the pod; controllers do not count such a failure against it.
const DISRUPTION_TARGET: &str = "DisruptionTarget";
const RESIZE_IN_PROGRESS: &str = "PodResizeInProgress";

/// The condition of a resize; `None` once it is completed.
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
pub(crate) enum Truth {
    True,
    TrueSince(&'static str, String),
    False(&'static str, String),
}
use Truth::{False, True, TrueSince};

pub(crate) fn condition(
    type_: &str,
    truth: &Truth,
    before: &PodStatus,
    generation: Option<i64>,
    now: Timestamp,
) -> PodCondition {
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
