//! Which ends are followed by another run, and when; and what the ends say of the whole pod.

use super::*;

/// Whether a container that ended is run again.
pub(crate) fn restarts(
    spec: &PodSpec,
    container: &Container,
    role: Role,
    instance: &Instance,
    exit: &Exit,
    observed: &Observed,
) -> bool {
    let again = |code| spec::after(spec, container, role, code) != After::Nothing;
    is_past(instance, round(spec, observed))
        || again(exit.code)
        // One that was ended since a probe or hook failed has failed, whatever it says.
        || (observed.condemned.contains(&instance.id) && spec::restarts_after_failure(spec, container, role))
}

/// When the pod began anew since a container asked for it: what was made before belongs to an earlier round.
pub(crate) fn round(spec: &PodSpec, observed: &Observed) -> Option<Timestamp> {
    // Few containers have such rules, and this is asked often.
    let asks = |c: &Container| c.restart_policy_rules.iter().flatten().any(|r| r.action == "RestartAllContainers");
    spec::all_containers(spec)
        .filter(|(c, _)| asks(c))
        .flat_map(|(c, role)| observed.attempts(&c.name).map(move |i| (c, role, i)))
        .filter_map(|(c, role, instance)| match &instance.state {
            State::Exited(exit) if spec::after(spec, c, role, exit.code) == After::RestartAll => Some(exit.finished_at),
            _ => None,
        })
        .max()
}

/// Whether an instance belongs to an earlier round.
pub(crate) fn is_past(instance: &Instance, round: Option<Timestamp>) -> bool {
    round.is_some_and(|began| instance.created_at < began)
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

/// Until when a start or a hook that failed is shown as such, before its container is shown as being held back.
pub(crate) fn shown_until(failure: &Failure, exit: &Exit) -> Timestamp {
    later(failure.at.max(exit.finished_at), PULL_FAILURE_SHOWN)
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
            State::Exited(exit) => !restarts(spec, container, role, i, exit, observed),
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
pub(super) fn deadline(pod: &Pod, spec: &PodSpec) -> Option<Timestamp> {
    let seconds = u64::try_from(spec.active_deadline_seconds?).ok()?;
    let start = pod.status.as_ref()?.start_time.as_ref()?.0;
    Some(later(start, std::time::Duration::from_secs(seconds)))
}

pub(crate) fn deadline_passed(pod: &Pod, spec: &PodSpec, now: Timestamp) -> bool {
    deadline(pod, spec).is_some_and(|at| at <= now)
}
