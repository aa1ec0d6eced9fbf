//! How a pod terminates: what is stopped in which order, and what is removed. Pure.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodSpec};

use super::{
    action::{Action, Plan},
    kill::kill_grace,
    observed::Observed,
    spec::{self, Role},
    step_key::StepKey,
    stopping::{MIN_GRACE, StopOrder},
    time::after_grace,
    view::PodView,
};
use crate::engine::inspect::{Instance, State};

/// Terminates a pod that was deleted: containers, then the sandbox, then everything else, at last the object itself
/// where it is still `in_api`.
pub(super) fn plan_termination(
    pod: Option<&Pod>,
    grace: i64,
    in_api: bool,
    observed: &Observed,
    now: Timestamp,
) -> Plan {
    let mut plan = Plan::terminating();
    let view = pod.and_then(|pod| PodView::new(pod, observed, now));
    let live: Vec<&Instance> = observed.live_containers().collect();
    if !live.is_empty() {
        // Exited containers are kept until the last one has exited: its status needs them.
        let deletion = pod.and_then(|p| p.metadata.deletion_timestamp.as_ref()).map(|at| at.0);
        let end = deletion.into_iter().chain(observed.kill_deadline).min();
        let order = Termination { spec: view.as_ref().map(|view| view.spec), grace, end };
        order.stop(&live, observed, now, &mut plan);
        if let Some(view) = &view {
            probe_readiness(view, &live, &mut plan);
        }
        return plan;
    }
    // How containers exited is kept in the engine until the API has it: clients that look at the pod later count on
    // that.
    let reported = !in_api || pod.is_some_and(spec::is_terminal);
    for instance in observed.instances.iter().filter(|i| !i.is_sandbox() && !i.is_running()) {
        if (reported || instance.state == State::Created) && !observed.may_have_started(instance) {
            plan.push(Action::Remove { id: instance.id.clone() });
        }
    }
    // A container or sandbox that is being created must be listed before it can be removed.
    if observed.in_flight.iter().any(StepKey::creates) {
        return plan;
    }
    let sandboxes = observed.instances.iter().filter(|i| i.is_sandbox());
    plan.actions.extend(sandboxes.map(|i| Action::RemoveSandbox { id: i.id.clone() }));
    // Exited containers use nothing of the node: clean-up does not wait until the engine has removed them.
    let all_exited = observed.instances.iter().all(|i| i.exit().is_some());
    if all_exited && !observed.in_flight.iter().any(StepKey::blocks_cleanup) {
        if !observed.cleaned_up {
            plan.push(Action::CleanUp);
        } else if in_api && reported && !observed.in_flight.contains(&StepKey::Status) && !observed.deleted_from_api {
            plan.push(Action::DeleteFromApi);
        }
    }
    plan
}

/// A terminal pod: everything is stopped, its exited containers stay for their logs.
pub(super) fn plan_terminal(view: &PodView<'_>) -> Plan {
    let mut plan = Plan::terminating();
    let observed = view.observed;
    let own = view.spec.termination_grace_period_seconds.unwrap_or(30);
    let grace = kill_grace(own, observed.kill.as_ref());
    let live: Vec<&Instance> = observed.live_containers().collect();
    let order = Termination { spec: Some(view.spec), grace, end: observed.kill_deadline };
    order.stop(&live, observed, view.now, &mut plan);
    // Readiness is irrelevant once the API has the pod as terminal.
    if !spec::is_terminal(view.pod) {
        probe_readiness(view, &live, &mut plan);
    }
    let created = observed.instances.iter().filter(|i| !i.is_sandbox() && i.state == State::Created);
    for instance in created.filter(|i| !observed.may_have_started(i)) {
        plan.push(Action::Remove { id: instance.id.clone() });
    }
    // A container that is being started keeps its sandbox until it can be stopped.
    if live.is_empty() && !observed.may_start_container() {
        for sandbox in observed.instances.iter().filter(|i| i.is_sandbox()) {
            plan.push(Action::RemoveSandbox { id: sandbox.id.clone() });
        }
        // Its volumes are not needed once the API has it as terminal.
        let reported = spec::is_terminal(view.pod);
        let busy = observed.in_flight.iter().any(|key| matches!(key, StepKey::Volume(_)));
        let unused = !busy && observed.instances.iter().all(|i| !i.is_sandbox());
        if reported && !observed.volumes_released && unused {
            plan.push(Action::ReleaseVolumes);
        }
        if reported && observed.gc_exited {
            let exited = observed.instances.iter().filter(|i| !i.is_sandbox());
            plan.actions.extend(exited.map(|i| Action::Remove { id: i.id.clone() }));
        }
    }
    plan
}

/// Readiness is probed to the end: endpoints follow it.
fn probe_readiness(view: &PodView<'_>, live: &[&Instance], plan: &mut Plan) {
    for instance in live {
        if let Some(container) = spec::find_container(view.spec, &instance.identity.container) {
            view.schedule_probes(container, instance, true, plan);
        }
    }
}

/// How the containers of a pod are stopped.
struct Termination<'a> {
    spec: Option<&'a PodSpec>,
    /// In seconds.
    grace: i64,
    /// When the grace period of the whole pod ends.
    end: Option<Timestamp>,
}

impl Termination<'_> {
    /// The index of a sidecar among the init containers.
    fn sidecar_index(&self, instance: &Instance) -> Option<usize> {
        let inits = self.spec.map_or(&[][..], spec::init_containers);
        let at = inits.iter().position(|c| c.name == instance.identity.container)?;
        (spec::role_of_init(&inits[at]) == Role::Sidecar).then_some(at)
    }

    /// Stops the live containers: sidecars one after the other, the last one first, once no other container lives, or
    /// all at once when the grace period is zero or has ended. All preStop hooks run at once, at the start, those of
    /// sidecars too: a proxy drains while its application stops. The grace period of a container that is already being
    /// stopped is shortened if less time is left now than it was given.
    fn stop(&self, live: &[&Instance], observed: &Observed, now: Timestamp, plan: &mut Plan) {
        // One that is being started may run already, though the engine has not answered yet.
        let used: Vec<&Instance> =
            live.iter().copied().chain(observed.instances.iter().filter(|i| observed.is_starting(i))).collect();
        let last_sidecar = used.iter().max_by_key(|i| self.sidecar_index(i)).map(|i| i.id.as_str());
        let others_live = used.iter().any(|i| self.sidecar_index(i).is_none());
        let takes_turns = self.grace > 0 && self.end.is_none_or(|end| now < end);
        for instance in live {
            let mut order = StopOrder::new(instance, self.grace, "");
            if self.sidecar_index(instance).is_some() {
                order.hook_only = takes_turns && (others_live || last_sidecar != Some(instance.id.as_str()));
                if let Some(end) = self.end.filter(|_| order.hook_only) {
                    plan.wake(end);
                }
                // The others have used up part of the grace period; upstream leaves two seconds whatever they took.
                if let Some(end) = self.end.filter(|_| self.grace > 0 && !order.hook_only) {
                    let left = end.duration_since(now).as_secs();
                    order.grace = left.clamp(MIN_GRACE.min(self.grace), self.grace);
                }
            }
            let (grace, id) = (order.grace, &instance.id);
            order.plan(self.spec, observed, now, plan);
            let deadline = after_grace(now, grace.max(0).saturating_add(1));
            let hook_runs = observed.in_flight.contains(&StepKey::PreStop(id.clone()));
            if !hook_runs && observed.stopping.get(id).is_some_and(|given| *given > deadline) {
                plan.push(Action::ShortenGrace { id: id.clone(), grace });
            }
        }
    }
}
