//! The heart of the agent: from a pod, what runs of it and the time, what to do next. Pure.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use windlass_kit::backoff::delay_after;

use super::{
    admission, hooks,
    observed::{BACKOFF_BASE, BACKOFF_CAP, Failure, ImageState, LONG_RUN, Observed, PULL_FAILURE_SHOWN, later},
    probes::{self, Kind},
    spec::{self, Role},
};
use crate::engine::{
    instance::{Exit, Instance, State},
    names::container_hash,
};

/// One step that a worker takes. Steps of one plan do not depend on each other and run side by side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    PrepareVolumes,
    /// Write files of volumes anew, since what they are made of changed.
    RefreshVolumes,
    /// Look the image up, and pull it if the policy says so.
    EnsureImage {
        container: String,
    },
    CreateSandbox {
        attempt: u32,
    },
    /// Start the sandbox and connect its network.
    StartSandbox {
        id: String,
    },
    Create {
        container: String,
        attempt: u32,
        sandbox: String,
    },
    Start {
        container: String,
        id: String,
    },
    /// Run the hook of a container that has just started.
    PostStart {
        container: String,
        id: String,
    },
    Probe {
        container: String,
        id: String,
        kind: Kind,
    },
    /// Stop a container that is being stopped already, sooner.
    Hasten {
        id: String,
        grace: i64,
    },
    Stop {
        container: String,
        id: String,
        grace: i64,
        why: String,
    },
    /// Remove a dead container.
    Remove {
        id: String,
    },
    /// Disconnect, kill and remove a sandbox.
    RemoveSandbox {
        id: String,
    },
    /// Volumes, address, folders, cgroups.
    TearDown,
    /// The pod is over and nothing of it is left: let the API forget it.
    Forget,
}

/// What keys of probes start with: they hold up nothing.
const PROBE: &str = "probe/";

impl Action {
    /// Two actions with the same key are never under way together.
    pub(crate) fn key(&self) -> String {
        match self {
            Self::PrepareVolumes | Self::RefreshVolumes => "volumes".to_owned(),
            Self::EnsureImage { container } => format!("image/{container}"),
            Self::CreateSandbox { .. } => "sandbox".to_owned(),
            Self::StartSandbox { id } | Self::RemoveSandbox { id } => format!("container/{id}"),
            Self::Create { container, .. } => format!("create/{container}"),
            Self::Start { id, .. } | Self::Stop { id, .. } | Self::Remove { id } => format!("container/{id}"),
            Self::PostStart { id, .. } => format!("hook/{id}"),
            Self::Probe { container, kind, .. } => format!("{PROBE}{container}/{}", kind.name()),
            Self::Hasten { id, .. } => format!("hasten/{id}"),
            Self::TearDown => "teardown".to_owned(),
            Self::Forget => "forget".to_owned(),
        }
    }
}

/// What to do, and when to ask again if nothing happens before.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) actions: Vec<Action>,
    pub(crate) wake_at: Option<Timestamp>,
}

impl Plan {
    fn wake(&mut self, at: Timestamp) {
        self.wake_at = Some(self.wake_at.map_or(at, |earlier| earlier.min(at)));
    }
}

/// What is wanted of a pod: its object, or nothing because it vanished from the API.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wanted<'a> {
    Run(&'a Pod),
    /// Deleted without a trace; stop what is left with this much grace. The pod as it was last seen, if it was.
    Gone {
        grace: i64,
        pod: Option<&'a Pod>,
    },
}

/// Decides the next steps.
pub(crate) fn plan(wanted: Wanted<'_>, observed: &Observed, now: Timestamp) -> Plan {
    let mut plan = match wanted {
        Wanted::Gone { grace, pod } => end(pod, grace, false, observed, now),
        Wanted::Run(pod) if pod.metadata.deletion_timestamp.is_some() => {
            end(Some(pod), spec::grace(pod), true, observed, now)
        }
        Wanted::Run(pod) => match &pod.spec {
            Some(spec) => run(pod, spec, observed, now),
            None => Plan::default(),
        },
    };
    plan.actions.retain(|action| !observed.in_flight.contains(&action.key()));
    plan
}

/// Ends a pod: containers, then the sandbox, then everything else.
fn end(pod: Option<&Pod>, grace: i64, in_api: bool, observed: &Observed, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let spec = pod.and_then(|p| p.spec.as_ref());
    let running: Vec<&Instance> = observed.instances.iter().filter(|i| !i.is_sandbox() && i.is_running()).collect();
    if !running.is_empty() {
        // Dead ones are kept until the last one has ended: its status needs them.
        stop_in_order(spec, &running, grace, pod, observed, now, &mut plan);
        for (instance, (pod, container)) in
            running.iter().filter_map(|i| Some((*i, pod.zip(container_of(spec?, &i.identity.container))?)))
        {
            ask(pod, container, instance, observed, true, now, &mut plan);
        }
        return plan;
    }
    for instance in observed.instances.iter().filter(|i| !i.is_sandbox()) {
        plan.actions.push(Action::Remove { id: instance.id.clone() });
    }
    // A container or sandbox in the making must appear before it can be taken away.
    if observed.in_flight.iter().any(|key| key == "sandbox" || key.starts_with("create/")) {
        return plan;
    }
    let sandboxes: Vec<Action> = observed
        .instances
        .iter()
        .filter(|i| i.is_sandbox())
        .map(|i| Action::RemoveSandbox { id: i.id.clone() })
        .collect();
    plan.actions.extend(sandboxes);
    if observed.instances.is_empty() && observed.in_flight.iter().all(|key| key.starts_with(PROBE)) {
        if !observed.torn_down {
            plan.actions.push(Action::TearDown);
        } else if in_api {
            plan.actions.push(Action::Forget);
        }
    }
    plan
}

fn container_of<'a>(spec: &'a PodSpec, name: &str) -> Option<&'a Container> {
    spec::all_containers(spec).map(|(c, _)| c).find(|c| c.name == name)
}

/// Stops what runs: sidecars one after the other, the last one first, once nothing else runs. What is being stopped
/// already is hastened when there is less time now than it was told.
fn stop_in_order(
    spec: Option<&PodSpec>,
    running: &[&Instance],
    grace: i64,
    pod: Option<&Pod>,
    observed: &Observed,
    now: Timestamp,
    plan: &mut Plan,
) {
    let place = |instance: &&Instance| {
        let sidecars = spec.map_or(&[][..], spec::init_containers);
        let at = sidecars.iter().position(|c| c.name == instance.identity.container);
        at.filter(|at| spec::role_of_init(&sidecars[*at]) == Role::Sidecar)
    };
    let mut turn: Vec<&Instance> = running.iter().copied().filter(|i| place(i).is_none()).collect();
    let mut grace = grace;
    if turn.is_empty() {
        turn.extend(running.iter().copied().max_by_key(place));
        // What the others took is gone; two seconds are left whatever they took, as upstream has it.
        if let Some(end) = pod.and_then(|p| p.metadata.deletion_timestamp.as_ref()).filter(|_| grace > 0) {
            let left = end.0.duration_since(now).as_secs();
            grace = left.clamp(2.min(grace), grace);
        }
    }
    for instance in turn {
        plan.actions.push(stop(instance, grace, String::new()));
    }
    let seconds = std::time::Duration::from_secs(u64::try_from(grace).unwrap_or(0));
    let deadline = later(now, seconds + std::time::Duration::from_secs(1));
    for instance in running {
        if observed.stopping.get(&instance.id).is_some_and(|told| *told > deadline) {
            plan.actions.push(Action::Hasten { id: instance.id.clone(), grace });
        }
    }
}

/// Whether a running instance has begun its work: its hook has ended well and its startup probe has succeeded.
pub(crate) fn has_started(pod: &Pod, container: &Container, instance: &Instance, observed: &Observed) -> bool {
    instance.is_running()
        && !hook_pending(container, instance, observed)
        && probes::result(pod, container, Kind::Startup, instance, &observed.probes)
}

fn hook_pending(container: &Container, instance: &Instance, observed: &Observed) -> bool {
    hooks::post_start(container).is_some() && !observed.hooked.contains(&instance.id)
}

/// Asks what is due of a running instance's probes, and wakes up for the rest.
fn ask(
    pod: &Pod,
    container: &Container,
    instance: &Instance,
    observed: &Observed,
    ending: bool,
    now: Timestamp,
    plan: &mut Plan,
) {
    if hook_pending(container, instance, observed) {
        return;
    }
    let started = has_started(pod, container, instance, observed);
    for (kind, at) in probes::schedule(container, instance, &observed.probes, started, ending) {
        let action = Action::Probe { container: container.name.clone(), id: instance.id.clone(), kind };
        if at <= now {
            plan.actions.push(action);
        } else if !observed.in_flight.contains(&action.key()) {
            plan.wake(at);
        }
    }
}

/// Keeps a running container running: its definition, hook and probes. Gives whether it has started.
fn attend(
    pod: &Pod,
    spec: &PodSpec,
    container: &Container,
    instance: &Instance,
    observed: &Observed,
    now: Timestamp,
    plan: &mut Plan,
) -> bool {
    let grace = spec.termination_grace_period_seconds.unwrap_or(30);
    let name = &container.name;
    if instance.hash != container_hash(name, spec::image_of(container)) {
        plan.actions.push(stop(instance, grace, format!("Container {name} definition changed, will be restarted")));
    } else if let Some(kind) = probes::condemned(container, instance, &observed.probes) {
        let again =
            if spec::RestartPolicy::of(spec) == spec::RestartPolicy::Never { "" } else { ", will be restarted" };
        let why = format!("Container {name} failed {} probe{again}", kind.name().to_lowercase());
        plan.actions.push(stop(instance, probes::grace(container, kind).unwrap_or(grace), why));
    } else if observed.condemned.contains(&instance.id) {
        plan.actions.push(stop(instance, grace, "FailedPostStartHook".to_owned()));
    } else if hook_pending(container, instance, observed) {
        plan.actions.push(Action::PostStart { container: name.clone(), id: instance.id.clone() });
    } else {
        ask(pod, container, instance, observed, false, now, plan);
    }
    has_started(pod, container, instance, observed)
}

/// Whether a container that ended is run again.
pub(crate) fn restarts(spec: &PodSpec, role: Role, instance: &Instance, exit: &Exit, observed: &Observed) -> bool {
    let policy = spec::policy_for(spec, role);
    let failed = observed.condemned.contains(&instance.id) && policy != spec::RestartPolicy::Never;
    failed || policy.restarts(exit.code)
}

fn stop(instance: &Instance, grace: i64, why: String) -> Action {
    Action::Stop { container: instance.identity.container.clone(), id: instance.id.clone(), grace, why }
}

fn run(pod: &Pod, spec: &PodSpec, observed: &Observed, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let verdict = verdict(spec, observed);
    let refused = observed.instances.is_empty() && admission::refuse(pod).is_some();
    if spec::is_terminal(spec::phase(pod)) || verdict == Verdict::Over || refused || deadline_passed(pod, spec, now) {
        return finish(spec, observed, now);
    }
    if let Some(at) = deadline(pod, spec) {
        plan.wake(at);
    }
    remove_leftovers(spec, observed, &mut plan);

    // Volumes and images do not wait for the sandbox, nor it for them.
    if !observed.volumes && due(observed.volumes_failure.as_ref(), now, &mut plan) {
        plan.actions.push(Action::PrepareVolumes);
    }
    match observed.stale.filter(|_| observed.volumes) {
        Some(at) if at <= now => plan.actions.push(Action::RefreshVolumes),
        Some(at) => plan.wake(at),
        None => {}
    }
    let Some(sandbox) = observed.sandbox().filter(|s| !matches!(s.state, State::Exited(_))) else {
        return new_sandbox(spec, observed, now, plan);
    };
    let ready = sandbox.is_running() && (observed.attached.contains(&sandbox.id) || spec::host_network(spec));
    if !ready && due(observed.sandbox_failure.as_ref(), now, &mut plan) {
        plan.actions.push(Action::StartSandbox { id: sandbox.id.clone() });
    }
    // Containers of an earlier sandbox have lost their network.
    for old in observed.instances.iter().filter(|i| !i.is_sandbox() && i.is_running() && i.sandbox != sandbox.id) {
        plan.actions.push(stop(old, 2, "Pod sandbox changed, it will be killed and re-created.".to_owned()));
    }

    let mut initialized = true;
    for container in spec::init_containers(spec) {
        let role = spec::role_of_init(container);
        if !initialized {
            break;
        }
        initialized = advance(pod, spec, container, role, &sandbox.id, ready, observed, now, &mut plan);
    }
    if initialized {
        let mut free = true;
        for container in &spec.containers {
            // Whoever comes after a container waits for its hook, as people count on.
            let running = observed.newest(&container.name).is_some_and(Instance::is_running);
            if free || running {
                advance(pod, spec, container, Role::Main, &sandbox.id, ready, observed, now, &mut plan);
            } else {
                want_image(container, observed, now, &mut plan);
            }
            let hooked = observed.newest(&container.name).is_some_and(|i| observed.hooked.contains(&i.id));
            free &= hooks::post_start(container).is_none() || hooked;
        }
    } else {
        // Images of later containers come meanwhile.
        for container in &spec.containers {
            want_image(container, observed, now, &mut plan);
        }
    }
    plan
}

fn new_sandbox(spec: &PodSpec, observed: &Observed, now: Timestamp, mut plan: Plan) -> Plan {
    for (container, _) in spec::all_containers(spec) {
        want_image(container, observed, now, &mut plan);
    }
    let attempt = observed.sandbox().map_or(0, |s| s.identity.attempt + 1);
    // What ran in the old sandbox must have ended before the next one starts.
    for old in observed.instances.iter().filter(|i| !i.is_sandbox() && i.is_running()) {
        plan.actions.push(stop(old, 2, "Pod sandbox changed, it will be killed and re-created.".to_owned()));
    }
    let busy = observed.instances.iter().any(|i| !i.is_sandbox() && i.is_running());
    if !busy && due(observed.sandbox_failure.as_ref(), now, &mut plan) {
        plan.actions.push(Action::CreateSandbox { attempt });
    }
    plan
}

/// Moves one container toward running. Gives whether the next init container may begin.
#[allow(clippy::too_many_arguments, reason = "each is one fact that the decision needs")]
fn advance(
    pod: &Pod,
    spec: &PodSpec,
    container: &Container,
    role: Role,
    sandbox: &str,
    ready: bool,
    observed: &Observed,
    now: Timestamp,
    plan: &mut Plan,
) -> bool {
    let newest = observed.newest(&container.name);
    match newest.map(|i| (&i.state, i)) {
        Some((State::Running { .. }, instance)) => {
            attend(pod, spec, container, instance, observed, now, plan) && role == Role::Sidecar
        }
        Some((State::Created, instance)) if instance.sandbox == sandbox => {
            let failed = observed.start_failures.get(&container.name);
            if ready && due(failed, now, plan) {
                plan.actions.push(Action::Start { container: container.name.clone(), id: instance.id.clone() });
            }
            false
        }
        Some((State::Created, instance)) => {
            plan.actions.push(Action::Remove { id: instance.id.clone() });
            false
        }
        Some((State::Exited(exit), instance)) => {
            let same_sandbox = instance.sandbox == sandbox;
            if same_sandbox && role == Role::Init && exit.code == 0 {
                return true;
            }
            // A new sandbox runs everything again, unless the container is done for good.
            if !restarts(spec, role, instance, exit, observed) && (same_sandbox || role == Role::Main) {
                return false;
            }
            let at = restart_at(observed, instance, exit, container);
            if at > now {
                plan.wake(at);
                return false;
            }
            create(container, instance.identity.attempt + 1, sandbox, observed, now, plan);
            false
        }
        None => {
            create(container, 0, sandbox, observed, now, plan);
            false
        }
    }
}

fn create(container: &Container, attempt: u32, sandbox: &str, observed: &Observed, now: Timestamp, plan: &mut Plan) {
    let present = want_image(container, observed, now, plan);
    if present && observed.volumes && due(observed.start_failures.get(&container.name), now, plan) {
        plan.actions.push(Action::Create { container: container.name.clone(), attempt, sandbox: sandbox.to_owned() });
    }
}

/// Asks for the image if it is not known yet; gives whether it is there.
fn want_image(container: &Container, observed: &Observed, now: Timestamp, plan: &mut Plan) -> bool {
    match observed.images.get(&container.name) {
        Some(ImageState::Present { .. }) => return true,
        Some(ImageState::Failed(failure)) if failure.retry_at > now => {
            let shown_until = later(failure.at, PULL_FAILURE_SHOWN);
            plan.wake(if shown_until > now { shown_until } else { failure.retry_at });
            return false;
        }
        _ => {}
    }
    // One that runs already needs no look at its image.
    if observed.newest(&container.name).is_none_or(|i| !i.is_running()) {
        let action = Action::EnsureImage { container: container.name.clone() };
        if !plan.actions.contains(&action) {
            plan.actions.push(action);
        }
    }
    false
}

/// Whether a failed step may be tried (again); if not yet, the plan wakes up for it.
fn due(failure: Option<&Failure>, now: Timestamp, plan: &mut Plan) -> bool {
    match failure {
        Some(failure) if failure.retry_at > now => {
            plan.wake(failure.retry_at);
            false
        }
        _ => true,
    }
}

/// How many times in a row a container has crashed, counted from its label after our own restart.
pub(crate) fn crashes(observed: &Observed, instance: &Instance, exit: &Exit, container: &Container) -> u32 {
    let ran_long = exit.started_at.is_some_and(|at| later(at, LONG_RUN) <= exit.finished_at);
    let changed = instance.hash != container_hash(&container.name, spec::image_of(container));
    if ran_long || changed {
        return 0;
    }
    observed.crashes.get(&container.name).copied().unwrap_or(instance.identity.attempt)
}

/// The back-off before the next run: none after the first crash, then 10 s doubling to 5 min.
pub(crate) fn restart_delay(crashes: u32) -> std::time::Duration {
    match crashes.checked_sub(1) {
        None => std::time::Duration::ZERO,
        Some(earlier) => delay_after(BACKOFF_BASE, BACKOFF_CAP, earlier),
    }
}

/// When a container that ended may be started again.
pub(crate) fn restart_at(observed: &Observed, instance: &Instance, exit: &Exit, container: &Container) -> Timestamp {
    later(exit.finished_at, restart_delay(crashes(observed, instance, exit, container)))
}

/// Dead attempts beyond the newest dead one, and sandboxes beyond the newest.
fn remove_leftovers(spec: &PodSpec, observed: &Observed, plan: &mut Plan) {
    for (container, _) in spec::all_containers(spec) {
        let dead: Vec<&Instance> =
            observed.attempts(&container.name).filter(|i| matches!(i.state, State::Exited(_))).collect();
        for old in dead.iter().rev().skip(1) {
            plan.actions.push(Action::Remove { id: old.id.clone() });
        }
    }
    let sandboxes: Vec<&Instance> = observed.instances.iter().filter(|i| i.is_sandbox()).collect();
    for old in sandboxes.iter().rev().skip(1) {
        plan.actions.push(Action::RemoveSandbox { id: old.id.clone() });
    }
}

/// A pod that is over: nothing runs on, its dead containers stay for their logs.
fn finish(spec: &PodSpec, observed: &Observed, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let grace = spec.termination_grace_period_seconds.unwrap_or(30);
    let running: Vec<&Instance> = observed.instances.iter().filter(|i| !i.is_sandbox() && i.is_running()).collect();
    stop_in_order(Some(spec), &running, grace, None, observed, now, &mut plan);
    if plan.actions.is_empty() {
        for sandbox in observed.instances.iter().filter(|i| i.is_sandbox()) {
            plan.actions.push(Action::RemoveSandbox { id: sandbox.id.clone() });
        }
    }
    plan
}

/// What the containers' ends say of the whole pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Goes,
    /// Every container has ended for good, or an init container has failed for good.
    Over,
}

pub(crate) fn verdict(spec: &PodSpec, observed: &Observed) -> Verdict {
    let ended_for_good = |container: &Container, role: Role| {
        observed.newest(&container.name).is_some_and(|i| match &i.state {
            State::Exited(exit) => !restarts(spec, role, i, exit, observed),
            _ => false,
        })
    };
    let init_failed = spec::init_containers(spec).iter().any(|c| {
        spec::role_of_init(c) == Role::Init
            && ended_for_good(c, Role::Init)
            && observed.newest(&c.name).is_some_and(|i| matches!(&i.state, State::Exited(e) if e.code != 0))
    });
    if init_failed || spec.containers.iter().all(|c| ended_for_good(c, Role::Main)) {
        Verdict::Over
    } else {
        Verdict::Goes
    }
}

/// When `activeDeadlineSeconds` runs out.
fn deadline(pod: &Pod, spec: &PodSpec) -> Option<Timestamp> {
    let seconds = u64::try_from(spec.active_deadline_seconds?).ok()?;
    let start = pod.status.as_ref()?.start_time.as_ref()?.0;
    Some(later(start, std::time::Duration::from_secs(seconds)))
}

pub(crate) fn deadline_passed(pod: &Pod, spec: &PodSpec, now: Timestamp) -> bool {
    deadline(pod, spec).is_some_and(|at| at <= now)
}
