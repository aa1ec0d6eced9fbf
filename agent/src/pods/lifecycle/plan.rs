//! The heart of the agent: from a pod, what runs of it and the time, what to do next. Pure.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};

use super::{
    action::{Action, Plan},
    kill::kill_grace,
    observed::{FAILURE_SHOWN_FOR, Failure, ImageState, Observed, ResizeDecision},
    probes,
    resize::{self, ResizePath},
    restarts::shown_until,
    spec::{self, Role},
    step_key::StepKey,
    stopping::StopOrder,
    termination::{plan_terminal, plan_termination},
    time::saturating_add,
    view::{PodOutcome, PodView},
    volumes::VolumeState,
};
use crate::engine::{
    inspect::{Exit, Instance, State},
    names::container_hash,
};

/// Grace in seconds of containers whose sandbox is gone; upstream's minimum.
const SANDBOX_CHANGED_GRACE: i64 = 2;
/// Upstream's event.
const SANDBOX_CHANGED: &str = "Pod sandbox changed, it will be killed and re-created.";

/// What is desired of a pod.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Desired<'a> {
    /// The pod as the API has it, or the manifest of a static pod.
    Run(&'a Pod),
    /// The API has no such pod any more: stop what is left, with this much grace.
    Deleted {
        grace: i64,
        /// The pod as it was last seen, if it was.
        pod: Option<&'a Pod>,
    },
}

/// Decides the next steps.
pub(crate) fn plan(desired: Desired<'_>, observed: &Observed, now: Timestamp) -> Plan {
    let mut plan = match desired {
        Desired::Deleted { grace, pod } => plan_termination(pod, grace, false, observed, now),
        Desired::Run(pod) if pod.metadata.deletion_timestamp.is_some() => {
            let grace = kill_grace(spec::termination_grace(pod), observed.kill.as_ref());
            plan_termination(Some(pod), grace, true, observed, now)
        }
        Desired::Run(pod) => PodView::new(pod, observed, now).map(|view| view.plan_run()).unwrap_or_default(),
    };
    plan.actions.retain(|action| !observed.in_flight.contains(&action.key()));
    plan
}

/// The sandbox that containers join.
#[derive(Debug, Clone, Copy)]
struct Sandbox<'a> {
    id: &'a str,
    /// It runs, and its network is attached.
    ready: bool,
}

impl PodView<'_> {
    /// A pod that is to run, until it is terminal.
    fn plan_run(&self) -> Plan {
        let mut plan = Plan::default();
        let observed = self.observed;
        let terminal = spec::is_terminal(self.pod) || self.outcome == PodOutcome::Terminal || observed.kill.is_some();
        if terminal || self.is_deadline_exceeded() {
            return plan_terminal(self);
        }
        if let Some(at) = self.deadline() {
            plan.wake(at);
        }
        self.remove_leftovers(&mut plan);
        self.sync_volumes(&mut plan);

        // Volumes and images do not wait for the sandbox, nor it for them.
        let Some(instance) = observed.sandbox().filter(|s| s.exit().is_none()) else {
            self.plan_new_sandbox(&mut plan);
            return plan;
        };
        // One that a list has shown meanwhile makes way for the one that is being created.
        if observed.in_flight.contains(&StepKey::Sandbox) {
            return plan;
        }
        let sandbox = Sandbox { id: &instance.id, ready: self.is_sandbox_ready(instance) };
        if !sandbox.ready
            && !observed.is_unread(&instance.id)
            && self.is_retry_due(observed.sandbox_failure.as_ref(), &mut plan)
        {
            plan.push(Action::StartSandbox { id: instance.id.clone() });
        }
        // Containers of an earlier sandbox have lost their network.
        for old in observed.running_containers().filter(|i| i.sandbox != sandbox.id) {
            self.stop(StopOrder::new(old, SANDBOX_CHANGED_GRACE, SANDBOX_CHANGED), &mut plan);
        }

        // A container's rule restarts all: everything stops first.
        let old: Vec<&Instance> = observed.running_containers().filter(|i| self.predates_restart(i)).collect();
        if !old.is_empty() {
            for instance in old {
                self.stop(StopOrder::new(instance, 0, "Restarting all containers of the pod"), &mut plan);
            }
            return plan;
        }
        for container in spec::ephemeral_containers(self.spec) {
            self.sync_ephemeral(&container, sandbox, &mut plan);
        }
        if observed.resize == Some(ResizeDecision::Granted)
            && let Some(resource) = resize::next_pod_step(self.spec, observed)
            && self.is_retry_due(observed.resize_failure.as_ref(), &mut plan)
        {
            plan.push(Action::ResizePod { resource });
        }
        if self.sync_init_containers(sandbox, &mut plan) {
            self.sync_main_containers(sandbox, &mut plan);
        } else {
            // Images of later containers are pulled meanwhile.
            for container in &self.spec.containers {
                self.ensure_image(container, true, &mut plan);
            }
        }
        plan
    }

    fn sync_volumes(&self, plan: &mut Plan) {
        for volume in self.spec.volumes.iter().flatten().map(|v| v.name.clone()) {
            match self.observed.volumes.get(&volume) {
                None => plan.push(Action::PrepareVolume { volume }),
                Some(VolumeState::Failed { failure, .. }) => {
                    if self.is_retry_due(Some(failure), plan) {
                        plan.push(Action::PrepareVolume { volume });
                    }
                }
                Some(VolumeState::Ready { refresh_at: Some(at), .. }) if *at <= self.now => {
                    plan.push(Action::RefreshVolume { volume });
                }
                Some(VolumeState::Ready { refresh_at, .. }) => refresh_at.iter().for_each(|at| plan.wake(*at)),
            }
        }
    }

    /// Gives whether all init containers have done their part.
    fn sync_init_containers(&self, sandbox: Sandbox<'_>, plan: &mut Plan) -> bool {
        for (index, container) in spec::init_containers(self.spec).iter().enumerate() {
            let (role, passed) = (spec::role_of_init(container), self.is_init_passed(index));
            if passed && role == Role::Init {
                continue;
            }
            let done = self.sync_container(container, role, sandbox, plan);
            if !done && !passed {
                return false;
            }
        }
        true
    }

    /// Containers start in the order of the spec, each after the postStart hook of those before it, as users rely on.
    /// One that has exited blocks no other, whether its hook was run or not.
    fn sync_main_containers(&self, sandbox: Sandbox<'_>, plan: &mut Plan) {
        let mut hooks_done = true;
        for container in &self.spec.containers {
            let newest = self.observed.newest(&container.name);
            if hooks_done || newest.is_some_and(Instance::is_running) {
                self.sync_container(container, Role::Main, sandbox, plan);
            } else {
                self.ensure_image(container, true, plan);
            }
            let done = newest.is_some_and(|i| i.exit().is_some() || self.observed.post_start_done.contains(&i.id));
            hooks_done &= spec::post_start(container).is_none() || done;
        }
    }

    fn plan_new_sandbox(&self, plan: &mut Plan) {
        let observed = self.observed;
        // Its first container needs no other before it; without init containers all main ones do.
        let inits = spec::init_containers(self.spec);
        for (index, (container, _)) in spec::all_containers(self.spec).enumerate() {
            self.ensure_image(container, index > 0 && !inits.is_empty(), plan);
        }
        let attempt = observed.sandbox().map_or(0, |s| s.identity.attempt + 1);
        // What ran in the old sandbox must have exited before the next one starts.
        for old in observed.running_containers() {
            self.stop(StopOrder::new(old, SANDBOX_CHANGED_GRACE, SANDBOX_CHANGED), plan);
        }
        if !observed.has_running() && self.is_retry_due(observed.sandbox_failure.as_ref(), plan) {
            plan.push(Action::CreateSandbox { attempt });
        }
    }

    /// Moves one container toward running. Gives whether the next init container may start.
    fn sync_container(&self, container: &Container, role: Role, sandbox: Sandbox<'_>, plan: &mut Plan) -> bool {
        let Some(instance) = self.observed.newest(&container.name) else {
            self.create(container, self.first_attempt(&container.name), sandbox, plan);
            return false;
        };
        match &instance.state {
            State::Running { .. } => self.sync_running(container, instance, plan) && role == Role::Sidecar,
            State::Created => {
                if instance.sandbox == sandbox.id {
                    self.start(container, instance, sandbox, plan);
                } else {
                    plan.push(Action::Remove { id: instance.id.clone() });
                }
                false
            }
            State::Exited(exit) => self.sync_exited(container, role, (instance, exit), sandbox, plan),
        }
    }

    /// Runs a container again that exited, if it is to be; gives whether it was an init container that succeeded.
    fn sync_exited(
        &self,
        container: &Container,
        role: Role,
        (instance, exit): (&Instance, &Exit),
        sandbox: Sandbox<'_>,
        plan: &mut Plan,
    ) -> bool {
        let predates = self.predates_restart(instance);
        let is_current = instance.sandbox == sandbox.id && !predates;
        if is_current && role == Role::Init && exit.code == 0 {
            return true;
        }
        // A new sandbox runs everything again, unless the container is done for good.
        if !self.restarts(container, role, instance, exit) && (is_current || role == Role::Main) {
            return false;
        }
        let at = if predates { self.now } else { self.restart_at(container, instance, exit) };
        if at > self.now {
            let shown = self.observed.start_failures.get(&container.name).map(|f| shown_until(f, exit));
            plan.wake(shown.filter(|until| *until > self.now).map_or(at, |until| until.min(at)));
        } else {
            self.create(container, instance.identity.attempt + 1, sandbox, plan);
        }
        false
    }

    /// Keeps a running container as its spec says: definition, hook, probes, resources. Gives whether it has started.
    fn sync_running(&self, container: &Container, instance: &Instance, plan: &mut Plan) -> bool {
        let observed = self.observed;
        let grace = self.spec.termination_grace_period_seconds.unwrap_or(30);
        let name = &container.name;
        let mut stop = |grace: i64, message: String| self.stop(StopOrder::new(instance, grace, message), plan);
        if observed.stopping.contains_key(&instance.id) {
            // Once its hook has run there is no way back.
            stop(grace, String::new());
        } else if instance.hash != container_hash(name, spec::image_of(container)) {
            stop(grace, format!("Container {name} definition changed, will be restarted"));
        } else if let Some(probe) = probes::failed_probe(container, instance, &observed.probes) {
            let never = spec::RestartPolicy::of(self.spec) == spec::RestartPolicy::Never;
            let again = if never { "" } else { ", will be restarted" };
            let message = format!("Container {name} failed {} probe{again}", probe.name().to_lowercase());
            stop(probes::termination_grace(container, probe).unwrap_or(grace), message);
        } else if observed.unhealthy.contains(&instance.id) {
            stop(grace, super::reasons::FAILED_POST_START_HOOK.to_owned());
        } else if self.is_hook_pending(container, instance) {
            plan.push(Action::PostStart { container: name.clone(), id: instance.id.clone() });
        } else {
            self.schedule_probes(container, instance, false, plan);
            if observed.resize == Some(ResizeDecision::Granted) {
                self.actuate_resize(container, instance, grace, plan);
            }
        }
        self.has_started(container, instance)
    }

    fn stop(&self, order: StopOrder<'_>, plan: &mut Plan) {
        order.plan(Some(self.spec), self.observed, self.now, plan);
    }

    /// Applies a granted resize to one container.
    fn actuate_resize(&self, container: &Container, instance: &Instance, grace: i64, plan: &mut Plan) {
        match resize::resize_path(self.spec, container, instance) {
            Some(ResizePath::Restart) => {
                let message = format!("Container {} resize requires restart", container.name);
                self.stop(StopOrder::new(instance, grace, message), plan);
            }
            Some(ResizePath::InPlace) => {
                // Another container's may come first.
                if let Some(step) = resize::next_step(self.spec, self.observed).filter(|step| step.id == instance.id)
                    && self.is_retry_due(self.observed.resize_failure.as_ref(), plan)
                {
                    plan.push(Action::Resize(step));
                }
            }
            None => {}
        }
    }

    /// Probes a running instance where a probe is due, and plans again when the next one is. `terminating` says that
    /// the pod is: only readiness is probed then.
    pub(super) fn schedule_probes(
        &self,
        container: &Container,
        instance: &Instance,
        terminating: bool,
        plan: &mut Plan,
    ) {
        if self.is_hook_pending(container, instance) {
            return;
        }
        let started = self.has_started(container, instance);
        let observed = self.observed;
        let due = probes::schedule(container, instance, &observed.probes, started, terminating, observed.adopted_at);
        for (probe, at) in due {
            let action = Action::Probe { container: container.name.clone(), id: instance.id.clone(), probe };
            if at <= self.now {
                plan.push(action);
            } else if !observed.in_flight.contains(&action.key()) {
                plan.wake(at);
            }
        }
    }

    /// Starts an ephemeral container, once.
    fn sync_ephemeral(&self, container: &Container, sandbox: Sandbox<'_>, plan: &mut Plan) {
        let statuses = self.pod.status.iter().flat_map(|s| s.ephemeral_container_statuses.iter().flatten());
        let had_run = statuses.filter(|c| c.name == container.name).any(|c| c.container_id.is_some());
        match self.observed.newest(&container.name) {
            None if had_run => {}
            None => self.create(container, 0, sandbox, plan),
            Some(instance) if instance.state == State::Created && instance.sandbox == sandbox.id => {
                self.start(container, instance, sandbox, plan);
            }
            Some(_) => {}
        }
    }

    /// The number of a container's next run when the engine has nothing left of it: restart counts never go back.
    fn first_attempt(&self, name: &str) -> u32 {
        let status = self.pod.status.as_ref();
        let all = status
            .iter()
            .flat_map(|s| s.container_statuses.iter().flatten().chain(s.init_container_statuses.iter().flatten()));
        let reported = all
            .filter(|c| c.name == name && c.container_id.as_deref().is_some_and(|id| !id.is_empty()))
            .filter_map(|c| u32::try_from(c.restart_count).ok());
        let logged = self.observed.last_logged_attempt.get(name).copied();
        reported.chain(logged).max().map_or(0, |last| last.saturating_add(1))
    }

    fn create(&self, container: &Container, attempt: u32, sandbox: Sandbox<'_>, plan: &mut Plan) {
        // The image is looked up when it is needed, and not before a back-off.
        if !self.is_retry_due(self.observed.start_failures.get(&container.name), plan) {
            return;
        }
        if self.ensure_image(container, false, plan) && self.observed.are_volumes_ready(self.spec) {
            let (container, sandbox) = (container.name.clone(), sandbox.id.to_owned());
            plan.push(Action::Create { container, attempt, sandbox });
        }
    }

    /// Not before it is known whether an earlier call has started it: Docker runs a container again that has exited. Nor one that
    /// a list has shown while it is being created again, and that makes way.
    fn start(&self, container: &Container, instance: &Instance, sandbox: Sandbox<'_>, plan: &mut Plan) {
        let observed = self.observed;
        let makes_way = observed.in_flight.contains(&StepKey::Create(container.name.clone()));
        let waits = makes_way || observed.may_have_started(instance);
        if sandbox.ready && !waits && self.is_retry_due(observed.start_failures.get(&container.name), plan) {
            plan.push(Action::Start { container: container.name.clone(), id: instance.id.clone() });
        }
    }

    /// Asks for the image where it is not known to be present, perhaps `ahead` of the container's turn; gives whether it
    /// is.
    fn ensure_image(&self, container: &Container, ahead: bool, plan: &mut Plan) -> bool {
        // The container that is being created has its image, and the next one must look up its own.
        if self.observed.in_flight.contains(&StepKey::Create(container.name.clone())) {
            return false;
        }
        match self.observed.images.get(&container.name) {
            Some(ImageState::Present { .. }) => return true,
            Some(ImageState::Failed(failure)) if failure.retry_at > self.now => {
                let shown_until = saturating_add(failure.at, FAILURE_SHOWN_FOR);
                plan.wake(if shown_until > self.now { shown_until } else { failure.retry_at });
                return false;
            }
            Some(ImageState::FailedAhead(failure)) if ahead && failure.retry_at > self.now => {
                plan.wake(failure.retry_at);
                return false;
            }
            _ => {}
        }
        // The image of a container that runs need not be looked up.
        if self.observed.newest(&container.name).is_none_or(|i| !i.is_running()) {
            let action = Action::EnsureImage { container: container.name.clone(), ahead };
            if !plan.actions.iter().any(|planned| planned.key() == action.key()) {
                plan.push(action);
            }
        }
        false
    }

    /// Whether a step that failed may be retried; if not yet, the plan wakes up for it.
    fn is_retry_due(&self, failure: Option<&Failure>, plan: &mut Plan) -> bool {
        match failure {
            Some(failure) if failure.retry_at > self.now => {
                plan.wake(failure.retry_at);
                false
            }
            _ => true,
        }
    }

    /// Exited attempts beyond the newest exited one, and sandboxes beyond the newest.
    fn remove_leftovers(&self, plan: &mut Plan) {
        for (container, _) in spec::all_containers(self.spec) {
            let exited = self.observed.attempts(&container.name).filter(|i| i.exit().is_some());
            for old in exited.rev().skip(1) {
                plan.push(Action::Remove { id: old.id.clone() });
            }
        }
        let sandboxes: Vec<&Instance> = self.observed.instances.iter().filter(|i| i.is_sandbox()).collect();
        for old in sandboxes.iter().rev().skip(1) {
            plan.push(Action::RemoveSandbox { id: old.id.clone() });
        }
    }
}
