//! How a pod ends: what is stopped in which order, and what is taken away.

use super::*;

/// Ends a pod: containers, then the sandbox, then everything else.
pub(super) fn end(pod: Option<&Pod>, grace: i64, in_api: bool, observed: &Observed, now: Timestamp) -> Plan {
    let mut plan = Plan { ends: true, ..Plan::default() };
    let spec = pod.and_then(|p| p.spec.as_ref());
    let running: Vec<&Instance> = observed.alive().collect();
    if !running.is_empty() {
        // Dead ones are kept until the last one has ended: its status needs them.
        let deleted_by = pod.and_then(|p| p.metadata.deletion_timestamp.as_ref()).map(|at| at.0);
        let end_by = deleted_by.into_iter().chain(observed.end_by).min();
        stop_in_order(spec, &running, grace, end_by, observed, now, &mut plan);
        for (instance, (pod, container)) in
            running.iter().filter_map(|i| Some((*i, pod.zip(spec::permanent(spec?, &i.identity.container))?)))
        {
            ask(pod, container, instance, observed, true, now, &mut plan);
        }
        return plan;
    }
    // How containers ended is kept in Docker until the API has it: whoever looks at the pod later counts on that.
    let told = !in_api || pod.is_some_and(spec::is_over);
    for instance in observed.instances.iter().filter(|i| !i.is_sandbox() && !i.is_running()) {
        if told || instance.state == State::Created {
            plan.actions.push(Action::Remove { id: instance.id.clone() });
        }
    }
    // A container or sandbox in the making must appear before it can be taken away.
    if observed.in_flight.iter().any(Key::creates) {
        return plan;
    }
    let sandboxes: Vec<Action> = observed
        .instances
        .iter()
        .filter(|i| i.is_sandbox())
        .map(|i| Action::RemoveSandbox { id: i.id.clone() })
        .collect();
    plan.actions.extend(sandboxes);
    // The dead hold nothing of the node: nobody need wait until Docker has removed them.
    let dead = observed.instances.iter().all(|i| matches!(i.state, State::Exited(_)));
    if dead && !observed.in_flight.iter().any(Key::blocks_teardown) {
        if !observed.torn_down {
            plan.actions.push(Action::TearDown);
        } else if in_api && told && !observed.in_flight.contains(&Key::Status) && !observed.forgotten {
            plan.actions.push(Action::Forget);
        }
    }
    plan
}

/// Stops what runs: sidecars one after the other, the last one first, once nothing else runs. What is being stopped
/// already is hastened when there is less time now than it was told.
fn stop_in_order(
    spec: Option<&PodSpec>,
    running: &[&Instance],
    grace: i64,
    end_by: Option<Timestamp>,
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
        if let Some(end) = end_by.filter(|_| grace > 0) {
            let left = end.duration_since(now).as_secs();
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

/// A pod that is over: nothing runs on, its dead containers stay for their logs.
pub(super) fn finish(pod: &Pod, spec: &PodSpec, observed: &Observed, now: Timestamp) -> Plan {
    let mut plan = Plan { ends: true, ..Plan::default() };
    let own = spec.termination_grace_period_seconds.unwrap_or(30);
    let grace = orders::grace(own, observed.ended.as_ref());
    let running: Vec<&Instance> = observed.alive().collect();
    stop_in_order(Some(spec), &running, grace, observed.end_by, observed, now, &mut plan);
    for instance in &running {
        if let Some(container) = spec::permanent(spec, &instance.identity.container) {
            ask(pod, container, instance, observed, true, now, &mut plan);
        }
    }
    // One that is being started keeps its sandbox until it can be stopped.
    if running.is_empty() && !observed.in_the_making() {
        for sandbox in observed.instances.iter().filter(|i| i.is_sandbox()) {
            plan.actions.push(Action::RemoveSandbox { id: sandbox.id.clone() });
        }
        // What it has written is of use to nobody once the API knows that it is over.
        let over = spec::is_terminal(spec::phase(pod));
        if over && !observed.cleared && observed.instances.iter().all(|i| !i.is_sandbox()) {
            plan.actions.push(Action::ClearVolumes);
        }
        if over && observed.drop_dead {
            let dead = observed.instances.iter().filter(|i| !i.is_sandbox());
            plan.actions.extend(dead.map(|i| Action::Remove { id: i.id.clone() }));
        }
    }
    plan
}
