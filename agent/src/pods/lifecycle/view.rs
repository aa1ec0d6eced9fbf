//! A pod as decisions see it: its object, what is observed of it and the time, with what follows from them computed
//! once.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};

use super::{
    observed::Observed,
    probes::{self, ProbeType},
    restarts,
    spec::{self, OnExit, Role},
    time::{saturating_add, shift},
};
use crate::engine::inspect::{Exit, Instance, State};

/// Whether the containers' exits make the pod terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PodOutcome {
    /// At least one container runs, or will.
    Active,
    /// Every container has exited for good, or an init container has failed for good.
    Terminal,
}

/// One pod at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PodView<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) spec: &'a PodSpec,
    pub(crate) observed: &'a Observed,
    pub(crate) now: Timestamp,
    /// When a container last asked for all to be restarted; instances that were created before belong to an earlier
    /// run.
    pub(crate) restart_all_since: Option<Timestamp>,
    pub(crate) outcome: PodOutcome,
    /// How many init containers are known to have done their part, since a later container exists.
    passed_inits: usize,
}

impl<'a> PodView<'a> {
    /// The view of a pod; `None` where it has no spec.
    pub(crate) fn new(pod: &'a Pod, observed: &'a Observed, now: Timestamp) -> Option<Self> {
        let spec = pod.spec.as_ref()?;
        let restart_all_since = restarts::restart_all_since(spec, observed);
        let mut view =
            Self { pod, spec, observed, now, restart_all_since, outcome: PodOutcome::Active, passed_inits: 0 };
        view.passed_inits = view.count_passed_inits();
        view.outcome = view.outcome_of_exits();
        Some(view)
    }

    /// Whether an instance was created before all containers were to be restarted.
    pub(crate) fn predates_restart(&self, instance: &Instance) -> bool {
        self.restart_all_since.is_some_and(|since| instance.created_at < since)
    }

    /// Whether all containers are to be restarted, and none has been created for that yet.
    pub(crate) fn is_restarting_all(&self) -> bool {
        let mut newest = spec::all_containers(self.spec).filter_map(|(c, _)| self.observed.newest(&c.name));
        self.restart_all_since.is_some() && newest.all(|instance| self.predates_restart(instance))
    }

    /// Nothing is created before the init containers in front of it have done their part. So whatever comes before a
    /// container of the present sandbox and run has, though it may have been removed behind our back, or, as a sidecar,
    /// be restarting.
    fn count_passed_inits(&self) -> usize {
        let inits = spec::init_containers(self.spec);
        let sandbox = self.observed.sandbox().map(|s| s.id.as_str());
        let is_current = |i: &Instance| sandbox.is_none_or(|id| i.sandbox == id) && !self.predates_restart(i);
        let all: Vec<&Container> = inits.iter().chain(&self.spec.containers).collect();
        let last = all.iter().rposition(|c| self.observed.newest(&c.name).is_some_and(is_current));
        last.unwrap_or(0).min(inits.len())
    }

    /// Whether the init container at `index` is known to have done its part, since a later container exists.
    pub(crate) fn is_init_passed(&self, index: usize) -> bool {
        index < self.passed_inits
    }

    /// The same of a container by its name; false for one that is no init container.
    pub(crate) fn is_passed_init(&self, name: &str) -> bool {
        let index = spec::init_containers(self.spec).iter().position(|c| c.name == name);
        index.is_some_and(|index| self.is_init_passed(index))
    }

    /// Whether a container that exited is run again.
    pub(crate) fn restarts(&self, container: &Container, role: Role, instance: &Instance, exit: &Exit) -> bool {
        self.predates_restart(instance)
            || spec::on_exit(self.spec, container, role, exit.code) != OnExit::Nothing
            // One that was killed since a probe or hook failed has failed, whatever its exit code.
            || (self.observed.unhealthy.contains(&instance.id)
                && spec::restarts_after_failure(self.spec, container, role))
    }

    fn outcome_of_exits(&self) -> PodOutcome {
        let final_exit = |container: &Container, role: Role| {
            let exited = self.observed.newest(&container.name).and_then(|i| Some((i, i.exit()?)));
            exited.filter(|(instance, exit)| !self.restarts(container, role, instance, exit)).map(|(_, exit)| exit.code)
        };
        let init_failed = spec::init_containers(self.spec).iter().any(|container| {
            spec::role_of_init(container) == Role::Init
                && final_exit(container, Role::Init).is_some_and(|code| code != 0)
        });
        if init_failed || self.spec.containers.iter().all(|c| final_exit(c, Role::Main).is_some()) {
            PodOutcome::Terminal
        } else {
            PodOutcome::Active
        }
    }

    /// Whether a running instance has started: its postStart hook has succeeded, and its startup probe.
    pub(crate) fn has_started(&self, container: &Container, instance: &Instance) -> bool {
        instance.is_running()
            && !self.is_hook_pending(container, instance)
            && probes::result(self.pod, container, ProbeType::Startup, instance, &self.observed.probes)
    }

    /// Whether the postStart hook of an instance has not run to its end yet.
    pub(crate) fn is_hook_pending(&self, container: &Container, instance: &Instance) -> bool {
        spec::post_start(container).is_some() && !self.observed.post_start_done.contains(&instance.id)
    }

    /// Whether an init container has done its part: exited with 0, or, as a sidecar, started; or a later container
    /// exists.
    pub(crate) fn is_init_done(&self, container: &Container) -> bool {
        if self.is_passed_init(&container.name) {
            return true;
        }
        let is_sidecar = spec::role_of_init(container) == Role::Sidecar;
        let newest = self.observed.newest(&container.name).filter(|i| !self.predates_restart(i));
        newest.is_some_and(|i| match &i.state {
            State::Exited(exit) => exit.code == 0 || is_sidecar,
            State::Running { .. } => is_sidecar && self.has_started(container, i),
            State::Created => false,
        })
    }

    /// When a container that exited may be started again.
    pub(crate) fn restart_at(&self, container: &Container, instance: &Instance, exit: &Exit) -> Timestamp {
        restarts::restart_at(self.observed, container, instance, exit)
    }

    /// When `activeDeadlineSeconds` is exceeded.
    pub(crate) fn deadline(&self) -> Option<Timestamp> {
        let seconds = u64::try_from(self.spec.active_deadline_seconds?).ok()?;
        let start = self.pod.status.as_ref()?.start_time.as_ref()?.0;
        Some(saturating_add(shift(start, self.observed.start_shift), std::time::Duration::from_secs(seconds)))
    }

    pub(crate) fn is_deadline_exceeded(&self) -> bool {
        self.deadline().is_some_and(|at| at <= self.now)
    }

    pub(crate) fn is_deleted(&self) -> bool {
        self.pod.metadata.deletion_timestamp.is_some()
    }

    /// Whether a sandbox runs and is attached to its network.
    pub(crate) fn is_sandbox_ready(&self, sandbox: &Instance) -> bool {
        let attached = self.observed.network_ready.contains(&sandbox.id) || spec::host_network(self.spec);
        sandbox.is_running() && attached
    }
}
