//! The conditions of a pod, with upstream's reasons and messages. Pure.

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{ContainerStatus, Pod, PodCondition, PodSpec, PodStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};

use super::{ended, init_done};
use crate::pods::{
    observed::Observed,
    resize::{PENDING, Verdict},
    spec::{self, Role},
};

#[allow(clippy::too_many_arguments, reason = "each is one fact that the conditions need")]
pub(super) fn conditions(
    pod: &Pod,
    spec: &PodSpec,
    observed: &Observed,
    before: &PodStatus,
    init: &[ContainerStatus],
    main: &[ContainerStatus],
    phase: &str,
    now: Timestamp,
) -> Vec<PodCondition> {
    let sidecars: Vec<&ContainerStatus> = spec::init_containers(spec)
        .iter()
        .zip(init)
        .filter(|(c, _)| spec::role_of_init(c) == Role::Sidecar)
        .map(|(_, s)| s)
        .collect();
    let unready: Vec<&str> = main.iter().chain(sidecars).filter(|s| !s.ready).map(|s| s.name.as_str()).collect();
    let incomplete: Vec<&str> =
        spec::init_containers(spec).iter().filter(|c| !init_done(pod, c, observed)).map(|c| c.name.as_str()).collect();
    let sandbox = observed
        .sandbox()
        .is_some_and(|s| s.is_running() && (observed.attached.contains(&s.id) || spec::host_network(spec)));
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
    let gates_missing: Vec<&str> = spec
        .readiness_gates
        .iter()
        .flatten()
        .map(|g| g.condition_type.as_str())
        .filter(|t| !before.conditions.iter().flatten().any(|c| c.type_ == *t && c.status == "True"))
        .collect();
    let ready = match &containers_ready {
        True if gates_missing.is_empty() => True,
        True => False(
            "ReadinessGatesNotReady",
            format!("the status of pod readiness gate {:?} is not \"True\"", gates_missing[0]),
        ),
        False(reason, message) | TrueSince(reason, message) => False(reason, message.clone()),
    };
    let truths = [if sandbox { True } else { False("", String::new()) }, initialized, ready, containers_ready, True];
    let wanted: Vec<(&str, Truth)> = ALWAYS.into_iter().zip(truths).collect();
    let disrupted = ended(observed, before, phase)
        .filter(|e| e.disruption)
        .map(|e| (DISRUPTED, TrueSince("TerminationByKubelet", e.message.clone())));
    let ours = wanted.iter().map(|(type_, _)| *type_).chain([PENDING, IN_PROGRESS]);
    let ours: Vec<&str> = ours.chain(disrupted.as_ref().map(|(type_, _)| *type_)).collect();
    let resize = resize_condition(observed);
    let mut all: Vec<PodCondition> = wanted
        .iter()
        .map(|(type_, truth)| (*type_, truth))
        .chain(disrupted.iter().chain(&resize).map(|(type_, truth)| (*type_, truth)))
        .map(|(type_, truth)| condition(type_, truth, before, pod.metadata.generation, now))
        .collect();
    // What others have said stays.
    all.extend(before.conditions.iter().flatten().filter(|c| !ours.contains(&c.type_.as_str())).cloned());
    all
}

/// What a node says of each pod that it takes in.
const ALWAYS: [&str; 5] = ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"];

/// Whether nodes make this condition.
pub(super) fn is_of_nodes(type_: &str) -> bool {
    ALWAYS.contains(&type_) || [PENDING, IN_PROGRESS].contains(&type_)
}

/// Whoever ended the pod was not the pod; controllers may count such ends apart.
const DISRUPTED: &str = "DisruptionTarget";
const IN_PROGRESS: &str = "PodResizeInProgress";

/// What has become of the wish for other resources; there is no condition once it has come true.
fn resize_condition(observed: &Observed) -> Option<(&'static str, Truth)> {
    Some(match observed.resize.as_ref()? {
        Verdict::Deferred(why) => (PENDING, TrueSince("Deferred", why.clone())),
        Verdict::Infeasible(why) => (PENDING, TrueSince("Infeasible", why.clone())),
        Verdict::Granted => match &observed.resize_failure {
            Some(failure) => (IN_PROGRESS, TrueSince("Error", failure.message.clone())),
            None => (IN_PROGRESS, True),
        },
    })
}

enum Truth {
    True,
    /// True, with a reason.
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
