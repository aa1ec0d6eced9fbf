//! The heart of the agent: from a pod, what runs of it and the time, what to do next. Pure.

mod end;
mod initialized;
mod key;
mod restarts;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use windlass_kit::backoff::delay_after;

use super::{
    hooks,
    observed::{BACKOFF_BASE, BACKOFF_CAP, Failure, ImageState, LONG_RUN, Observed, PULL_FAILURE_SHOWN, later},
    orders,
    probes::{self, Kind},
    resize::{self, Way},
    spec::{self, After, Role},
};
use crate::engine::{
    instance::{Exit, Instance, State},
    names::container_hash,
};

use end::{end, finish};
pub(crate) use initialized::is_passed;
pub(crate) use key::Key;
use restarts::deadline;
pub(crate) use restarts::{
    Verdict, crashes, deadline_passed, is_past, restart_at, restart_delay, restarts, round, shown_until, verdict,
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
    /// Hold a running container to what its spec says now.
    Resize {
        container: String,
        id: String,
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
    /// The volumes of a pod that is over.
    ClearVolumes,
    /// Volumes, address, folders, cgroups.
    TearDown,
    /// The pod is over and nothing of it is left: let the API forget it.
    Forget,
}

impl Action {
    /// Two actions with the same key are never under way together.
    pub(crate) fn key(&self) -> Key {
        match self {
            Self::PrepareVolumes | Self::RefreshVolumes | Self::ClearVolumes => Key::Volumes,
            Self::EnsureImage { container } => Key::Image(container.clone()),
            Self::CreateSandbox { .. } => Key::Sandbox,
            Self::StartSandbox { id } | Self::RemoveSandbox { id } => Key::Container(id.clone()),
            Self::Create { container, .. } => Key::Create(container.clone()),
            Self::Start { id, .. } | Self::Stop { id, .. } | Self::Remove { id } => Key::Container(id.clone()),
            Self::PostStart { id, .. } => Key::PostStart(id.clone()),
            Self::Resize { id, .. } => Key::Resize(id.clone()),
            Self::Probe { container, kind, .. } => Key::Probe(container.clone(), *kind),
            Self::Hasten { id, .. } => Key::Hasten(id.clone()),
            Self::TearDown => Key::TearDown,
            Self::Forget => Key::Forget,
        }
    }
}

/// What to do, and when to ask again if nothing happens before.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) actions: Vec<Action>,
    pub(crate) wake_at: Option<Timestamp>,
    /// The pod ends: what nobody waits for any longer is given up.
    pub(crate) ends: bool,
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
            let grace = orders::grace(spec::grace(pod), observed.ended.as_ref());
            end(Some(pod), grace, true, observed, now)
        }
        Wanted::Run(pod) => match &pod.spec {
            Some(spec) => run(pod, spec, observed, now),
            None => Plan::default(),
        },
    };
    plan.actions.retain(|action| !observed.in_flight.contains(&action.key()));
    plan
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
    for (kind, at) in probes::schedule(container, instance, &observed.probes, started, ending, observed.found_at) {
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
        if observed.resize == Some(resize::Verdict::Granted) {
            match resize::way(container, instance) {
                Some(Way::Restart) => {
                    let why = format!("Container {name} resize requires restart");
                    plan.actions.push(stop(instance, grace, why));
                }
                Some(Way::Live) if due(observed.resize_failure.as_ref(), now, plan) => {
                    plan.actions.push(Action::Resize { container: name.clone(), id: instance.id.clone() });
                }
                _ => {}
            }
        }
    }
    has_started(pod, container, instance, observed)
}

fn stop(instance: &Instance, grace: i64, why: String) -> Action {
    Action::Stop { container: instance.identity.container.clone(), id: instance.id.clone(), grace, why }
}

fn run(pod: &Pod, spec: &PodSpec, observed: &Observed, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let verdict = verdict(spec, observed);
    let over = spec::is_terminal(spec::phase(pod)) || verdict == Verdict::Over || observed.ended.is_some();
    if over || deadline_passed(pod, spec, now) {
        return finish(pod, spec, observed, now);
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
    for old in observed.running().filter(|i| i.sandbox != sandbox.id) {
        plan.actions.push(stop(old, 2, "Pod sandbox changed, it will be killed and re-created.".to_owned()));
    }

    // A container asked for all to begin anew: everything ends first.
    let began = round(spec, observed);
    let old: Vec<&Instance> = observed.running().filter(|i| is_past(i, began)).collect();
    if !old.is_empty() {
        plan.actions.extend(old.iter().map(|i| stop(i, 0, "Restarting all containers of the pod".to_owned())));
        return plan;
    }
    for container in spec::ephemeral_containers(spec) {
        visit(pod, &container, &sandbox.id, ready, observed, now, &mut plan);
    }
    let mut initialized = true;
    for (index, container) in spec::init_containers(spec).iter().enumerate() {
        let (role, passed) = (spec::role_of_init(container), is_passed(spec, observed, index));
        if passed && role == Role::Init {
            continue;
        }
        let done = advance(pod, spec, container, role, &sandbox.id, ready, observed, now, &mut plan);
        if !done && !passed {
            initialized = false;
            break;
        }
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
    for old in observed.running() {
        plan.actions.push(stop(old, 2, "Pod sandbox changed, it will be killed and re-created.".to_owned()));
    }
    if !observed.runs() && due(observed.sandbox_failure.as_ref(), now, &mut plan) {
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
            let past = is_past(instance, round(spec, observed));
            let same_sandbox = instance.sandbox == sandbox && !past;
            if same_sandbox && role == Role::Init && exit.code == 0 {
                return true;
            }
            // A new sandbox runs everything again, unless the container is done for good.
            if !restarts(spec, container, role, instance, exit, observed) && (same_sandbox || role == Role::Main) {
                return false;
            }
            let at = if past { now } else { restart_at(observed, instance, exit, container) };
            if at > now {
                let shown = observed.start_failures.get(&container.name).map(|f| shown_until(f, exit));
                plan.wake(shown.filter(|until| *until > now).map_or(at, |until| until.min(at)));
                return false;
            }
            create(container, instance.identity.attempt + 1, sandbox, observed, now, plan);
            false
        }
        None => {
            create(container, first_attempt(pod, &container.name, observed), sandbox, observed, now, plan);
            false
        }
    }
}

/// The number of a container's next run when Docker has nothing left of it: counts never go back.
fn first_attempt(pod: &Pod, name: &str, observed: &Observed) -> u32 {
    let status = pod.status.as_ref();
    let all = status
        .iter()
        .flat_map(|s| s.container_statuses.iter().flatten().chain(s.init_container_statuses.iter().flatten()));
    let told = all
        .filter(|c| c.name == name && c.container_id.as_deref().is_some_and(|id| !id.is_empty()))
        .filter_map(|c| u32::try_from(c.restart_count).ok());
    let logged = observed.logged.get(name).copied();
    told.chain(logged).max().map_or(0, |last| last.saturating_add(1))
}

/// Starts an ephemeral container, once.
fn visit(
    pod: &Pod,
    container: &Container,
    sandbox: &str,
    ready: bool,
    observed: &Observed,
    now: Timestamp,
    plan: &mut Plan,
) {
    let statuses = pod.status.iter().flat_map(|s| s.ephemeral_container_statuses.iter().flatten());
    let had_run = statuses.filter(|c| c.name == container.name).any(|c| c.container_id.is_some());
    match observed.newest(&container.name) {
        None if had_run => {}
        None => create(container, 0, sandbox, observed, now, plan),
        Some(instance) if instance.state == State::Created => {
            let failed = observed.start_failures.get(&container.name);
            if ready && instance.sandbox == sandbox && due(failed, now, plan) {
                plan.actions.push(Action::Start { container: container.name.clone(), id: instance.id.clone() });
            }
        }
        Some(_) => {}
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
