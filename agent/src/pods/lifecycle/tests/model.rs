//! A model of Docker and of everything that happens to a pod: the rules hold for random events in random order.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;

use super::*;
use crate::pods::lifecycle::{
    kill::{KillReason, kill_grace},
    probes::{self, ProbeType},
    spec::{self, OnExit, Role},
    view::PodOutcome,
};

/// What happens to a pod.
#[derive(Debug, Clone)]
enum Event {
    /// The plan's actions are carried out; probes and hooks succeed or not.
    Work(bool),
    /// A container exits.
    Exit(usize, i64),
    /// The sandbox exits.
    SandboxDies,
    /// Time passes.
    Wait(i64),
    /// The agent restarts and adopts what runs.
    Restart,
    /// Another tool removes exited containers.
    Prune,
    /// The pod is deleted, with this grace period.
    Delete(i64),
    /// The node kills the pod, with this grace period.
    Kill(i64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => prop::bool::weighted(0.8).prop_map(Event::Work),
        4 => (0usize..4, prop_oneof![Just(0i64), Just(1), Just(42), Just(137)]).prop_map(|(c, code)| Event::Exit(c, code)),
        1 => Just(Event::SandboxDies),
        3 => (1i64..400).prop_map(Event::Wait),
        1 => Just(Event::Restart),
        1 => Just(Event::Prune),
        1 => (0i64..40).prop_map(Event::Delete),
        1 => (0i64..40).prop_map(Event::Kill),
    ]
}

const NAMES: [&str; 4] = ["init", "side", "c0", "c1"];

/// A pod of up to four containers with whatever hooks, probes and rules.
fn any_pod() -> impl Strategy<Value = Pod> {
    let policy = prop_oneof![Just("Always"), Just("OnFailure"), Just("Never")];
    (policy, any::<[bool; 8]>()).prop_map(|(policy, with)| {
        let [init, sidecar, second, liveness, startup, hook, rules, pre_stop] = with;
        let mut first = serde_json::json!({"name": "c0", "image": "i:1"});
        let mut main = Vec::new();
        if liveness {
            first["livenessProbe"] =
                serde_json::json!({"periodSeconds": 5, "failureThreshold": 2, "exec": {"command": ["x"]}});
        }
        if startup {
            first["startupProbe"] =
                serde_json::json!({"periodSeconds": 2, "failureThreshold": 2, "exec": {"command": ["x"]}});
        }
        let mut lifecycle = serde_json::Map::new();
        if hook {
            lifecycle.insert("postStart".to_owned(), serde_json::json!({"exec": {"command": ["x"]}}));
        }
        if pre_stop {
            lifecycle.insert("preStop".to_owned(), serde_json::json!({"sleep": {"seconds": 1}}));
        }
        first["lifecycle"] = lifecycle.into();
        if rules {
            first["restartPolicy"] = serde_json::json!("Never");
            first["restartPolicyRules"] = serde_json::json!([
                {"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}},
                {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}]);
        }
        main.push(first);
        if second {
            main.push(serde_json::json!({"name": "c1", "image": "i:1"}));
        }
        let mut inits = Vec::new();
        if init {
            inits.push(serde_json::json!({"name": "init", "image": "i:1"}));
        }
        if sidecar {
            inits.push(serde_json::json!({"name": "side", "image": "i:1", "restartPolicy": "Always"}));
        }
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u", "generation": 1},
            "spec": {"restartPolicy": policy, "terminationGracePeriodSeconds": 30,
                "volumes": [{"name": "a", "emptyDir": {}}, {"name": "b", "emptyDir": {}}],
                "initContainers": inits, "containers": main}}))
        .unwrap()
    })
}

/// The pod, what Docker has of it, and the time.
struct World {
    pod: Pod,
    observed: Observed,
    now: i64,
    made: u32,
    highest: u8,
    /// The grace periods that containers were stopped with, by instance.
    graces: BTreeMap<String, i64>,
}

impl World {
    fn plan(&self) -> Plan {
        next(&self.pod, &self.observed, self.now)
    }

    fn view(&self) -> PodView<'_> {
        PodView::new(&self.pod, &self.observed, at(self.now)).unwrap()
    }

    fn change(&mut self, id: &str, state: State) {
        if let Some(mut found) = self.observed.instances.iter().find(|i| i.id == id).cloned() {
            found.state = state;
            self.observed.upsert(found);
        }
    }

    /// Carries out an action as Docker and the worker would.
    fn work(&mut self, action: &Action, good: bool) {
        let now = self.now;
        match action {
            Action::PrepareVolume { volume } | Action::RefreshVolume { volume } => {
                if good {
                    self.observed.volume_prepared(volume.clone(), None);
                } else {
                    let why = (super::super::reasons::FAILED_MOUNT, "not found".to_owned());
                    self.observed.volume_failed(volume.clone(), why, false, at(now));
                }
            }
            Action::EnsureImage { container, .. } => {
                let present = ImageState::Present { id: "x".into(), shown: "x".into(), user: String::new() };
                self.observed.images.insert(container.clone(), present);
            }
            Action::CreateSandbox { attempt } => self.make(SANDBOX_NAME, *attempt, String::new()),
            Action::StartSandbox { id } => {
                self.change(id, running(now));
                self.observed.network_ready.insert(id.clone());
            }
            Action::Create { container, attempt, sandbox } => {
                if *attempt > 0 {
                    *self.observed.crash_counts.entry(container.clone()).or_default() += 1;
                }
                self.observed.images.remove(container);
                self.make(container, *attempt, sandbox.clone());
            }
            Action::Start { id, .. } => self.change(id, running(now)),
            Action::PostStart { id, .. } => {
                if !good {
                    self.observed.unhealthy.insert(id.clone());
                }
                self.observed.post_start_done.insert(id.clone());
            }
            Action::Probe { container, id, probe } => self.probe(container, id, *probe, good),
            Action::PreStop { id, grace, .. } => {
                self.observed.stopping.insert(id.clone(), at(now + grace));
                self.observed.pre_stop_done.insert(id.clone());
            }
            Action::Stop { id, grace, .. } => {
                self.graces.insert(id.clone(), *grace);
                self.change(id, exited(137, now - 1, now));
            }
            Action::Remove { id } | Action::RemoveSandbox { id } => self.observed.remove(id),
            Action::ReleaseVolumes => self.observed.volumes_released = true,
            Action::CleanUp => self.observed.cleaned_up = true,
            Action::DeleteFromApi => self.observed.deleted_from_api = true,
            Action::ShortenGrace { .. } | Action::ShortenPreStop { .. } | Action::CutPreStop { .. } => {}
            Action::ResizePod { .. } | Action::Resize(_) => {}
        }
    }

    /// As the worker handles a kill: a terminal pod is left alone, and a second kill only shortens the grace period.
    fn kill(&mut self, grace: i64) {
        if self.highest == 2 {
            return;
        }
        let by = at(self.now + grace);
        self.observed.kill_deadline = Some(self.observed.kill_deadline.map_or(by, |known| known.min(by)));
        let kill = self.observed.kill.get_or_insert_with(|| KillReason {
            reason: "Evicted".into(),
            message: "The node was low on resource: memory. ".into(),
            grace: Some(grace),
            disruption: true,
        });
        kill.grace = kill.grace.into_iter().chain([grace]).min();
    }

    fn make(&mut self, name: &str, attempt: u32, sandbox: String) {
        self.made += 1;
        let mut made = instance(name, attempt, State::Created);
        made.id = format!("{name}-{attempt}-{}", self.made);
        made.sandbox = sandbox;
        made.created_at = at(self.now);
        self.observed.upsert(made);
    }

    fn probe(&mut self, name: &str, id: &str, kind: ProbeType, good: bool) {
        let container = spec::container(self.pod.spec.as_ref().unwrap(), name).unwrap();
        let Some(found) = self.observed.newest(name).filter(|i| i.id == id).cloned() else { return };
        probes::record_result(&self.pod, &container, kind, &found, good, at(self.now), &mut self.observed.probes);
        if probes::failed_probe(&container, &found, &self.observed.probes).is_some() {
            self.observed.unhealthy.insert(found.id);
        }
    }

    /// Drops everything that is not in Docker, as a new process does.
    fn restart(&mut self) {
        let before = std::mem::take(&mut self.observed);
        self.observed.cleaned_up = before.cleaned_up;
        self.observed.adopted_at = Some(at(self.now));
        for instance in before.instances {
            if instance.is_running() {
                self.observed.post_start_done.insert(instance.id.clone());
                if instance.is_sandbox() {
                    self.observed.network_ready.insert(instance.id.clone());
                }
            }
            self.observed.upsert(instance);
        }
    }

    /// What an action must not do, by what is observed before it.
    fn check(&self, action: &Action) -> Result<(), TestCaseError> {
        let spec = self.pod.spec.as_ref().unwrap();
        let deleted = self.pod.metadata.deletion_timestamp.is_some();
        let ended = deleted || self.observed.kill.is_some();
        match action {
            Action::CreateSandbox { .. } => prop_assert!(!ended, "no sandbox for a pod that terminates"),
            Action::Remove { .. } if !deleted => {
                prop_assert!(self.observed.kill.is_none(), "exited containers of a killed pod stay: {action:?}");
            }
            Action::Create { container, attempt, sandbox } => {
                prop_assert!(!ended, "nothing is created for a pod that terminates: {action:?}");
                let role = spec::all_containers(spec).find(|(c, _)| c.name == *container).map(|(_, r)| r).unwrap();
                let last = self.observed.newest(container);
                if let Some(last) = last {
                    prop_assert!(last.identity.attempt < *attempt, "attempts grow: {action:?} after {last:?}");
                    // The restart policy: a final exit is followed by another run only when all of the pod restarts.
                    let same = last.sandbox == *sandbox && !self.view().predates_restart(last);
                    if let (State::Exited(exit), true) = (&last.state, same) {
                        let found = spec::container(spec, container).unwrap();
                        let failed = self.observed.unhealthy.contains(&last.id);
                        prop_assert!(
                            spec::on_exit(spec, &found, role, exit.code) != OnExit::Nothing
                                || (failed && spec::restarts_after_failure(spec, &found, role)),
                            "{action:?} after {last:?}"
                        );
                    }
                }
                // Once a regular container was created, the init containers have done their part.
                let view = self.view();
                let is_of_now = |i: &Instance| i.sandbox == *sandbox && !view.predates_restart(i);
                let initialized = spec.containers.iter().any(|c| self.observed.newest(&c.name).is_some_and(is_of_now));
                prop_assert!(!(initialized && role == Role::Init), "{container} runs again under the others");
                if role == Role::Main && !initialized {
                    for before in spec::init_containers(spec) {
                        let mut later =
                            spec::init_containers(spec).iter().skip_while(|c| c.name != before.name).skip(1);
                        let done = match self.observed.newest(&before.name).map(|i| &i.state) {
                            Some(State::Exited(exit)) => exit.code == 0 && spec::role_of_init(before) == Role::Init,
                            Some(State::Running { .. }) => spec::role_of_init(before) == Role::Sidecar,
                            Some(State::Created) => false,
                            // Pruned: that the next one was created shows that it was done.
                            None => later.any(|c| self.observed.newest(&c.name).is_some_and(is_of_now)),
                        };
                        prop_assert!(done, "{container} is created before {} has done its part", before.name);
                    }
                }
            }
            Action::Stop { id, grace, .. } | Action::PreStop { id, grace, .. } => {
                let own = if deleted { spec::termination_grace(&self.pod) } else { 30 };
                // A container whose sandbox has changed gets upstream's two seconds.
                let most = kill_grace(own, self.observed.kill.as_ref()).max(if deleted { 2 } else { 0 });
                prop_assert!((0..=most).contains(grace), "{grace} s for {id}");
            }
            Action::DeleteFromApi => {
                prop_assert!(spec::is_terminal(&self.pod), "the API is to have the terminal phase");
            }
            Action::Remove { id } if deleted && !spec::is_terminal(&self.pod) => {
                let created = self.observed.instances.iter().any(|i| i.id == *id && i.state == State::Created);
                prop_assert!(created, "the API does not have the exit code of {id}");
            }
            Action::CleanUp => {
                let dead = |i: &Instance| matches!(i.state, State::Exited(_));
                prop_assert!(self.observed.instances.iter().all(dead), "nothing is removed under a container");
            }
            _ => {}
        }
        Ok(())
    }

    /// Whatever its sidecars do, a container of a pod that has started is restarted when its back-off has passed.
    fn check_supervision(&self) -> Result<(), TestCaseError> {
        let spec = self.pod.spec.as_ref().unwrap();
        let over = self.pod.metadata.deletion_timestamp.is_some() || self.observed.kill.is_some() || self.highest == 2;
        let sandbox = self.observed.sandbox().filter(|s| s.is_running() && self.observed.network_ready.contains(&s.id));
        let (Some(sandbox), false) = (sandbox, over || !self.observed.are_volumes_ready(spec)) else { return Ok(()) };
        let view = self.view();
        let runs_on = self.observed.running_containers().all(|i| i.sandbox == sandbox.id && !view.predates_restart(i));
        let plan = self.plan();
        for container in &spec.containers {
            let Some(last) = self.observed.newest(&container.name) else { continue };
            let State::Exited(exit) = &last.state else { continue };
            let due = last.sandbox == sandbox.id
                && !view.predates_restart(last)
                && runs_on
                && view.restarts(container, Role::Main, last, exit)
                && view.restart_at(container, last, exit) <= at(self.now)
                && view.outcome == PodOutcome::Active;
            let name = &container.name;
            let comes = plan.actions.iter().any(|a| match a {
                Action::Create { container, .. } | Action::EnsureImage { container, .. } => container == name,
                _ => false,
            });
            // Later containers wait for a container's hook.
            let waits = spec.containers.iter().take_while(|c| c.name != *name).any(|c| {
                c.lifecycle.as_ref().is_some_and(|l| l.post_start.is_some())
                    && !self.observed.newest(&c.name).is_some_and(|i| self.observed.post_start_done.contains(&i.id))
            });
            prop_assert!(!due || comes || waits, "{name} is not restarted: {plan:?}");
        }
        Ok(())
    }

    /// Invariants that hold at any time.
    fn holds(&mut self) -> Result<(), TestCaseError> {
        for name in NAMES.into_iter().chain([SANDBOX_NAME]) {
            let alive = self.observed.attempts(name).filter(|i| i.is_running()).count();
            prop_assert!(alive <= 1, "{alive} of {name} run");
        }
        let told = shown(&self.pod, &self.observed, self.now);
        let rank = match told.phase.as_deref() {
            Some("Pending") => 0,
            Some("Running") => 1,
            _ => 2,
        };
        prop_assert!(rank >= self.highest, "{:?} after rank {}", told.phase, self.highest);
        let before = self.pod.status.clone().unwrap_or_default();
        let counts = |status: &PodStatus| -> BTreeMap<String, i32> {
            let all = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
            all.map(|c| (c.name.clone(), c.restart_count)).collect()
        };
        let now = counts(&told);
        for (name, count) in counts(&before) {
            prop_assert!(
                now.get(&name).is_some_and(|n| *n >= count),
                "restarts of {name} went from {count} to {now:?}"
            );
        }
        let disrupted = told.conditions.iter().flatten().any(|c| c.type_ == "DisruptionTarget");
        prop_assert_eq!(disrupted, told.reason.as_deref() == Some("Evicted"), "the condition comes with the reason");
        if disrupted {
            prop_assert!(rank == 2 && !self.observed.has_running(), "shown before the end");
        }
        self.highest = rank;
        self.pod.status = Some(told);
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn whatever_happens_the_rules_hold(pod in any_pod(), events in prop::collection::vec(event(), 1..80)) {
        let mut world =
            World { pod, observed: Observed::default(), now: 0, made: 0, highest: 0, graces: BTreeMap::new() };
        for event in events {
            match event {
                Event::Work(good) => {
                    for action in world.plan().actions {
                        world.check(&action)?;
                        world.work(&action, good);
                    }
                }
                Event::Exit(which, code) => {
                    let newest = world.observed.newest(NAMES[which]).filter(|i| i.is_running());
                    if let Some(id) = newest.map(|i| i.id.clone()) {
                        let now = world.now;
                        world.change(&id, exited(code, now - 1, now));
                    }
                }
                Event::SandboxDies => {
                    if let Some(id) = world.observed.sandbox().filter(|s| s.is_running()).map(|s| s.id.clone()) {
                        world.observed.network_ready.remove(&id);
                        let now = world.now;
                        world.change(&id, exited(137, now - 1, now));
                    }
                }
                Event::Wait(seconds) => world.now += seconds,
                Event::Restart => world.restart(),
                Event::Prune => {
                    let dead = world.observed.instances.iter().filter(|i| !i.is_running());
                    let dead: Vec<String> = dead.map(|i| i.id.clone()).collect();
                    dead.iter().for_each(|id| world.observed.remove(id));
                }
                Event::Delete(grace) => {
                    let shorter = world.pod.metadata.deletion_grace_period_seconds.is_none_or(|g| grace < g);
                    if shorter {
                        world.pod.metadata.deletion_timestamp = Some(Time(at(world.now + grace)));
                        world.pod.metadata.deletion_grace_period_seconds = Some(grace);
                    }
                }
                Event::Kill(grace) => world.kill(grace),
            }
            world.now += 1;
            world.check_supervision()?;
            world.holds()?;
        }
        // A killed pod is terminal soon, and its exited containers stay.
        if world.observed.kill.is_some() && world.pod.metadata.deletion_timestamp.is_none() {
            for _ in 0..8 {
                for action in world.plan().actions {
                    world.check(&action)?;
                    world.work(&action, true);
                }
                world.now += 1;
                world.holds()?;
            }
            prop_assert!(world.highest == 2 && !world.observed.instances.iter().any(Instance::is_running));
        }
        // A deleted pod terminates, whatever state it was in: after a few steps nothing is left.
        world.pod.metadata.deletion_timestamp = Some(Time(at(world.now)));
        world.pod.metadata.deletion_grace_period_seconds = Some(0);
        for _ in 0..20 {
            for action in world.plan().actions {
                world.check(&action)?;
                world.work(&action, true);
            }
            world.now += 1;
            world.holds()?;
        }
        prop_assert!(world.observed.instances.is_empty() && world.observed.deleted_from_api, "{:?}", world.observed);
    }
}
