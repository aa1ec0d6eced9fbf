//! From a pod, what runs of it and the time: the status that the API shows. Pure.

mod canonical;
pub(super) mod conditions;
mod container;
pub(super) mod ended;
mod resources;

use k8s_openapi::{
    api::core::v1::{Container, ContainerStatus, HostIP, PodIP, PodStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};
use windlass_kit::{net::NodeIps, objects::resources::class_of};

use self::conditions::is_kubelet_condition;
use super::{
    kill::KillReason,
    reasons,
    resize::with_actual_resources,
    spec::{self, Role},
    view::{PodOutcome, PodView},
};
use crate::engine::inspect::{Instance, State};

pub(crate) use canonical::canonical;
pub(crate) use container::exit_reason;

/// Bytes of all termination messages of a pod; upstream's `MaxPodTerminationMessageLogLength`.
const MAX_TERMINATION_MESSAGES_BYTES: usize = 12 << 10;

impl PodView<'_> {
    /// The status of the pod on this node, in its [`canonical`] form.
    pub(crate) fn status(&self, node_ips: NodeIps) -> PodStatus {
        let before = self.pod.status.clone().unwrap_or_default();
        if self.never_admitted(&before) {
            return canonical(self.rejected_status(before));
        }
        let mut init: Vec<ContainerStatus> = spec::init_containers(self.spec)
            .iter()
            .map(|c| self.container_status(c, spec::role_of_init(c), &before))
            .collect();
        let mut main: Vec<ContainerStatus> =
            self.spec.containers.iter().map(|c| self.container_status(c, Role::Main, &before)).collect();
        main.sort_by(|a, b| a.name.cmp(&b.name));
        let mut ephemeral: Vec<ContainerStatus> = spec::ephemeral_containers(self.spec)
            .iter()
            .map(|c| self.container_status(c, Role::Ephemeral, &before))
            .collect();

        let phase = self.phase(&before);
        let over = spec::is_phase_terminal(phase) && !self.observed.runs_or_may_run();
        if over {
            ended::end_states(self.spec, &mut init, &mut main);
        }
        limit_messages([&mut init, &mut main, &mut ephemeral]);
        let (reason, message) = self.reason_and_message(&before, phase);
        let hosts = || node_ips.iter().map(|ip| ip.to_string());
        let addresses: Vec<PodIP> = if spec::host_network(self.spec) {
            hosts().map(|ip| PodIP { ip }).collect()
        } else if self.observed.addresses.is_empty() {
            before.pod_ips.clone().unwrap_or_default()
        } else {
            self.observed.addresses.iter().map(|a| PodIP { ip: a.to_string() }).collect()
        };
        // What is allocated, which a resize that waits does not change.
        let allocated = self.observed.allocated.as_ref().map(|_| with_actual_resources(self.pod, self.observed));
        let spec = allocated.as_ref().and_then(|pod| pod.spec.as_ref()).unwrap_or(self.spec);
        let (resources, allocated_resources) = self.pod_resources(spec, &before);
        canonical(PodStatus {
            resources: Some(resources),
            allocated_resources,
            conditions: Some(self.conditions(&before, &init, &main, phase)),
            container_statuses: Some(main),
            init_container_statuses: Some(init),
            ephemeral_container_statuses: Some(ephemeral),
            host_ip: hosts().next(),
            host_ips: Some(hosts().map(|ip| HostIP { ip }).collect()),
            pod_ip: addresses.first().map(|a| a.ip.clone()),
            pod_ips: Some(addresses),
            phase: Some(phase.to_owned()),
            reason,
            message,
            ..self.base_status(before.start_time)
        })
    }

    /// The fields that every status of the pod has, rejected or not.
    fn base_status(&self, start_time: Option<Time>) -> PodStatus {
        PodStatus {
            qos_class: Some(class_of(self.pod).name().to_owned()),
            start_time: Some(start_time.unwrap_or(Time(self.now))),
            observed_generation: self.pod.metadata.generation,
            ..PodStatus::default()
        }
    }

    fn reason_and_message(&self, before: &PodStatus, phase: &str) -> (Option<String>, Option<String>) {
        // Shown with the phase alone: a pod that still runs is not terminal yet.
        if let Some(kill) = self.kill_reason(before, phase) {
            return (Some(kill.reason.clone()), Some(kill.message.clone()));
        }
        if phase == "Failed" && self.is_deadline_exceeded() && before.phase.as_deref() != Some("Succeeded") {
            let message = "Pod was active on the node longer than the specified deadline";
            return (Some(reasons::DEADLINE_EXCEEDED.to_owned()), Some(message.to_owned()));
        }
        (before.reason.clone(), before.message.clone())
    }

    /// Whether the node has rejected the pod, now or before a restart of the agent: it never had a container, nor a
    /// container status.
    fn never_admitted(&self, before: &PodStatus) -> bool {
        let observed = self.observed;
        let terminal = before.phase.as_deref().is_some_and(spec::is_phase_terminal);
        let reported = [&before.init_container_statuses, &before.container_statuses].into_iter().flatten().flatten();
        (terminal || observed.kill.as_ref().is_some_and(|kill| !kill.disruption))
            && observed.instances.is_empty()
            && !observed.may_start_container()
            && reported.count() == 0
    }

    /// As upstream's `rejectPod`: the reason, and neither containers, addresses nor conditions of the kubelet.
    fn rejected_status(&self, before: PodStatus) -> PodStatus {
        let kill = self.kill_reason(&before, "Failed").cloned();
        let (reason, message) =
            kill.map_or((before.reason, before.message), |kill| (Some(kill.reason), Some(kill.message)));
        let foreign = before.conditions.into_iter().flatten().filter(|c| !is_kubelet_condition(&c.type_)).collect();
        PodStatus {
            conditions: Some(foreign),
            phase: before.phase.filter(|phase| spec::is_phase_terminal(phase)).or_else(|| Some("Failed".to_owned())),
            reason,
            message,
            ..self.base_status(before.start_time)
        }
    }

    /// The kill that has just made the pod fail.
    fn kill_reason(&self, before: &PodStatus, phase: &str) -> Option<&KillReason> {
        let terminal = before.phase.as_deref().is_some_and(spec::is_phase_terminal);
        self.observed.kill.as_ref().filter(|_| phase == "Failed" && !terminal)
    }

    /// Upstream's order of decisions; a terminal phase never changes again.
    fn phase<'b>(&self, before: &'b PodStatus) -> &'b str {
        if let Some(terminal) = before.phase.as_deref().filter(|p| spec::is_phase_terminal(p)) {
            return terminal;
        }
        if let Some(terminal) = self.terminal_phase() {
            return terminal;
        }
        let initialized = spec::init_containers(self.spec).iter().all(|c| self.is_init_done(c));
        let started = |c: &Container| {
            let newest = self.observed.newest(&c.name);
            newest.is_some_and(|i| i.identity.attempt > 0 || i.state != State::Created) || ran_before(before, &c.name)
        };
        // A pod that has run stays Running, though its init containers may run again in a new sandbox.
        let has_run = before.phase.as_deref() == Some("Running");
        if has_run || (initialized && self.spec.containers.iter().all(started)) { "Running" } else { "Pending" }
    }

    /// The phase of a pod that has become terminal, which is shown only when nothing runs any more, nor will.
    fn terminal_phase(&self) -> Option<&'static str> {
        let observed = self.observed;
        if observed.runs_or_may_run() {
            return None;
        }
        if observed.kill.is_some() || self.is_deadline_exceeded() {
            return Some("Failed");
        }
        let terminated = self.is_deleted();
        let exit_code = |c: &Container| observed.newest(&c.name).and_then(Instance::exit).map(|exit| exit.code);
        let all_exited = self.spec.containers.iter().all(|c| exit_code(c).is_some());
        if self.outcome == PodOutcome::Terminal || (terminated && all_exited) {
            // Sidecars exit when the others have; how says nothing of the pod.
            let failed = |c: &Container| exit_code(c).is_some_and(|code| code != 0);
            let any_failed = spec::all_containers(self.spec).any(|(c, role)| role != Role::Sidecar && failed(c));
            return Some(if any_failed { "Failed" } else { "Succeeded" });
        }
        terminated.then_some("Failed")
    }
}

/// Cuts the termination messages of containers, so that all of them together have an end.
pub(super) fn limit_messages(all: [&mut [ContainerStatus]; 3]) {
    let each = MAX_TERMINATION_MESSAGES_BYTES / all.iter().map(|statuses| statuses.len()).sum::<usize>().max(1);
    all.into_iter().flatten().for_each(|status| truncate_messages(status, each));
}

/// Cuts the termination messages of a container to `max` bytes each, at the end of a character.
fn truncate_messages(status: &mut ContainerStatus, max: usize) {
    for state in [&mut status.state, &mut status.last_state].into_iter().flatten() {
        if let Some(message) = state.terminated.as_mut().and_then(|t| t.message.as_mut()) {
            message.truncate(message.floor_char_boundary(max));
        }
    }
}

/// Whether the reported status shows an earlier run of a container.
fn ran_before(before: &PodStatus, name: &str) -> bool {
    before.container_statuses.iter().flatten().any(|c| {
        c.name == name && (c.restart_count > 0 || c.last_state.as_ref().is_some_and(|s| s.terminated.is_some()))
    })
}
