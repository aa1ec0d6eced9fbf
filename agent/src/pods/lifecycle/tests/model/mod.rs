//! A model of Docker and of everything that happens to a pod: the rules hold for random events in random order. Steps overlap,
//! fail and end late; calls fail before and after Docker has acted; the worker hears what has changed meanwhile.

mod docker;
mod rules;
mod worker;

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::{prelude::*, test_runner::RngSeed};

use self::{
    docker::{Call, Docker, Fault, Reply},
    worker::Flight,
};
use super::*;
use crate::pods::lifecycle::{
    kill::{KillReason, kill_grace},
    probes::{self, ProbeType},
    spec::{self, OnExit, Role},
    view::PodOutcome,
    volumes::VolumeState,
};

/// What becomes of a call to Docker.
#[derive(Debug, Clone, Copy)]
enum Fate {
    /// It is done, and the worker hears of it; hooks and probes succeed or not.
    Done(bool),
    /// It is done, and the worker hears of it later.
    HeardLate,
    /// It fails, before or after Docker has acted, with an answer or without one.
    Fails(Fault, bool),
    /// The worker gives up; Docker carries it out later.
    GivenUp,
}

/// What happens to a pod.
#[derive(Debug, Clone)]
enum Event {
    /// What is due is started.
    Plan,
    /// One step in flight ends.
    Step(usize, Fate),
    /// Docker carries out an abandoned call.
    Late(usize),
    /// The worker receives Docker's next event.
    Hear,
    /// The kernel reports that the processes of a container have exited.
    Pidfd(usize),
    /// A container exits.
    Exit(usize, i64),
    /// The sandbox exits.
    SandboxDies,
    /// Time passes.
    Wait(i64),
    /// Somebody sets the clock.
    Jump(i64),
    /// The agent is killed and started again: of each call in flight Docker has done it, or not.
    Restart(u32),
    /// The engine is killed or restarted; of its containers some end with a code, all without live-restore, and the others
    /// live on. Of each call in flight Docker has done it, or not.
    EngineRestarts { code: i64, ends: u32, acted: u32 },
    /// Another tool removes exited containers.
    Prune,
    /// Somebody removes a container, whatever it does.
    RemoveForce(usize),
    /// Somebody freezes a container.
    Pause(usize),
    /// The image is removed.
    ImageVanishes,
    /// The pod is deleted, with this grace period.
    Delete(i64),
    /// The node kills the pod, with this grace period.
    Kill(i64),
}

fn fate() -> impl Strategy<Value = Fate> {
    let fault = prop_oneof![Just(Fault::Refused), Just(Fault::Unreachable)];
    prop_oneof![
        12 => prop::bool::weighted(0.8).prop_map(Fate::Done),
        3 => Just(Fate::HeardLate),
        3 => (fault, any::<bool>()).prop_map(|(fault, acted)| Fate::Fails(fault, acted)),
        1 => Just(Fate::GivenUp),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    let engine_ends = (
        prop_oneof![Just(0i64), Just(137), Just(143), Just(255)],
        prop_oneof![Just(0), any::<u32>(), Just(u32::MAX)],
        any::<u32>(),
    );
    prop_oneof![
        12 => Just(Event::Plan),
        30 => (any::<usize>(), fate()).prop_map(|(which, fate)| Event::Step(which, fate)),
        2 => any::<usize>().prop_map(Event::Late),
        8 => Just(Event::Hear),
        1 => any::<usize>().prop_map(Event::Pidfd),
        5 => (0usize..4, prop_oneof![Just(0i64), Just(1), Just(42), Just(137)]).prop_map(|(c, code)| Event::Exit(c, code)),
        1 => Just(Event::SandboxDies),
        5 => (1i64..400).prop_map(Event::Wait),
        1 => prop_oneof![-4000i64..-2, 2i64..4000].prop_map(Event::Jump),
        1 => any::<u32>().prop_map(Event::Restart),
        1 => engine_ends.prop_map(|(code, ends, acted)| Event::EngineRestarts { code, ends, acted }),
        1 => Just(Event::Prune),
        1 => any::<usize>().prop_map(Event::RemoveForce),
        1 => any::<usize>().prop_map(Event::Pause),
        1 => Just(Event::ImageVanishes),
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

/// The pod, what Docker has of it, what the worker knows, and the time.
struct World {
    pod: Pod,
    docker: Docker,
    observed: Observed,
    flights: Vec<Flight>,
    /// No step is started before.
    pause_until: i64,
    clock_was_set: bool,
    /// Containers whose logs are linked to.
    links: BTreeSet<String>,
    /// No source has the pod any more.
    gone: bool,
    /// An abandoned call was carried out, or Docker lost track: what the worker knows may be wrong.
    was_late: bool,
    now: i64,
    highest: u8,
}

impl World {
    fn new(pod: Pod) -> Self {
        Self {
            pod,
            docker: Docker::default(),
            observed: Observed::default(),
            flights: Vec::new(),
            pause_until: 0,
            clock_was_set: false,
            links: BTreeSet::new(),
            gone: false,
            was_late: false,
            now: 0,
            highest: 0,
        }
    }

    fn plan(&self) -> Plan {
        next(&self.pod, &self.observed, self.now)
    }

    fn view(&self) -> PodView<'_> {
        PodView::new(&self.pod, &self.observed, at(self.now)).unwrap()
    }

    /// One step in flight ends, or has ended and is heard of.
    fn step(&mut self, which: usize, fate: Fate) -> Result<(), TestCaseError> {
        let Some(index) = which.checked_rem(self.flights.len()) else { return Ok(()) };
        let Flight { call, ended } = self.flights.swap_remove(index);
        if let Some(reply) = ended {
            self.hear(&call, reply);
            return Ok(());
        }
        if !matches!(fate, Fate::Fails(_, false)) {
            self.check_truth(&call)?;
        }
        let reply = match fate {
            Fate::Done(good) => self.docker.act(&call, good, self.now),
            Fate::Fails(fault, acted) => self.docker.fail(&call, fault, acted, self.now),
            Fate::HeardLate => {
                let ended = Some(self.docker.act(&call, true, self.now));
                self.flights.push(Flight { call, ended });
                return Ok(());
            }
            Fate::GivenUp => {
                if let Call::Plan(action) = &call {
                    self.docker.late.push(action.clone());
                }
                self.docker.fail(&call, Fault::Unreachable, false, self.now)
            }
        };
        self.hear(&call, reply);
        Ok(())
    }

    /// Docker carries out an abandoned call.
    fn late(&mut self, which: usize) {
        let Some(index) = which.checked_rem(self.docker.late.len()) else { return };
        let action = self.docker.late.swap_remove(index);
        let of_engine = matches!(
            action,
            Action::CreateSandbox { .. }
                | Action::StartSandbox { .. }
                | Action::Create { .. }
                | Action::Start { .. }
                | Action::Stop { .. }
                | Action::ShortenGrace { .. }
                | Action::Remove { .. }
        );
        // The name is taken by now, or the container was started after all.
        let taken = match &action {
            Action::CreateSandbox { attempt } => self.is_taken(SANDBOX_NAME, *attempt),
            Action::Create { container, attempt, .. } => self.is_taken(container, *attempt),
            _ => false,
        };
        if of_engine && !taken {
            self.docker.act_late(action, self.now);
        }
    }

    fn is_taken(&self, name: &str, attempt: u32) -> bool {
        self.docker.containers.iter().any(|c| c.identity.container == name && c.identity.attempt == attempt)
    }

    /// All calls in flight are cut; `acted` has a bit for each that Docker has carried out.
    fn cut_calls(&mut self, acted: u32) -> Vec<(Call, Reply)> {
        let flights = std::mem::take(&mut self.flights);
        let cut = |(index, flight): (usize, Flight)| {
            let acted = acted >> (index % 32) & 1 == 1;
            let reply =
                flight.ended.unwrap_or_else(|| self.docker.fail(&flight.call, Fault::Unreachable, acted, self.now));
            (flight.call, reply)
        };
        flights.into_iter().enumerate().map(cut).collect()
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
}

impl World {
    fn happen(&mut self, event: Event) -> Result<(), TestCaseError> {
        let of_docker = |world: &Self, which: usize| {
            let index = which.checked_rem(world.docker.containers.len())?;
            Some(world.docker.containers[index].id.clone())
        };
        match event {
            Event::Plan => self.start_due()?,
            Event::Step(which, fate) => self.step(which, fate)?,
            Event::Late(which) => {
                self.was_late |= !self.docker.late.is_empty();
                self.late(which);
            }
            Event::Hear => {
                if let Some((id, news)) = self.docker.news.pop_front() {
                    self.on_news(id, news);
                }
            }
            Event::Pidfd(which) => {
                let stopping: Vec<&String> = self.observed.stopping.keys().collect();
                let id = which.checked_rem(stopping.len()).map(|index| stopping[index].clone());
                if let Some(id) = id.filter(|id| !self.docker.runs(id)) {
                    self.observed.processes_exited.insert(id);
                }
            }
            Event::Exit(which, code) => {
                let newest = self.observed.newest(NAMES[which]).filter(|i| i.is_running());
                if let Some(id) = newest.map(|i| i.id.clone()) {
                    self.docker.exit(&id, code, self.now);
                }
            }
            Event::SandboxDies => {
                if let Some(id) = self.observed.sandbox().filter(|s| s.is_running()).map(|s| s.id.clone()) {
                    self.docker.exit(&id, 137, self.now);
                }
            }
            Event::Wait(seconds) => self.now += seconds,
            Event::Jump(by) => {
                self.now += by;
                self.pause_until += by;
                self.clock_was_set = true;
                self.observed.shift_times(SignedDuration::from_secs(by));
            }
            Event::Restart(acted) => {
                drop(self.cut_calls(acted));
                self.adopt();
            }
            Event::EngineRestarts { code, ends, acted } => {
                self.was_late = true;
                let cut = self.cut_calls(acted);
                self.docker.restart(code, ends, self.now);
                for (call, reply) in cut {
                    self.hear(&call, reply);
                }
                self.on_list();
            }
            Event::Prune => {
                let dead = self.docker.containers.iter().filter(|i| !i.is_running());
                let dead: Vec<String> = dead.map(|i| i.id.clone()).collect();
                dead.iter().for_each(|id| self.docker.remove(id));
            }
            Event::RemoveForce(which) => of_docker(self, which).iter().for_each(|id| self.docker.remove(id)),
            Event::Pause(which) => {
                let id = of_docker(self, which).filter(|id| self.docker.runs(id));
                self.docker.paused.extend(id);
            }
            Event::ImageVanishes => {
                self.docker.has_image = false;
                self.observed.doubt_images();
            }
            Event::Delete(grace) => {
                let shorter = self.pod.metadata.deletion_grace_period_seconds.is_none_or(|g| grace < g);
                if shorter {
                    self.pod.metadata.deletion_timestamp = Some(Time(at(self.now + grace)));
                    self.pod.metadata.deletion_grace_period_seconds = Some(grace);
                }
            }
            Event::Kill(grace) => self.kill(grace),
        }
        self.now += 1;
        self.check_supervision()?;
        self.holds()
    }

    /// Nothing fails any more, and everything is heard of: nothing but the main paths, for no list is read.
    fn settle(&mut self, rounds: usize) -> Result<(), TestCaseError> {
        for round in 0..rounds {
            while let Some((id, news)) = self.docker.news.pop_front() {
                self.on_news(id, news);
            }
            while !self.docker.late.is_empty() {
                self.was_late = true;
                self.late(0);
            }
            self.docker.paused.clear();
            self.start_due()?;
            while !self.flights.is_empty() {
                self.step(0, Fate::Done(true))?;
            }
            // Longer than any back-off.
            self.now += if round % 4 == 3 { 400 } else { 1 };
            self.holds()?;
        }
        Ok(())
    }

    /// What the worker knows is true. Only a list reveals a created container that it has received no event for.
    fn knows(&mut self) -> Result<(), TestCaseError> {
        let unknown = |c: &&Instance| self.observed.instance(&c.id).is_none();
        let unknown: Vec<&Instance> = self.docker.containers.iter().filter(unknown).collect();
        prop_assert!(unknown.iter().all(|c| c.state == State::Created), "the worker does not know of {unknown:?}");
        if !unknown.is_empty() {
            self.on_list();
            self.settle(8)?;
        }
        let told = |all: &[Instance]| -> BTreeMap<String, bool> {
            all.iter().map(|i| (i.id.clone(), i.is_running())).collect()
        };
        let (knows, is) = (told(&self.observed.instances), told(&self.docker.containers));
        prop_assert_eq!(&knows, &is, "what the worker knows, and what is");
        let started = self.docker.containers.iter().filter(|c| !c.is_sandbox() && c.state != State::Created);
        let started: BTreeSet<String> = started.map(|c| c.id.clone()).collect();
        let linked = if self.observed.cleaned_up { &started & &self.links } else { started };
        prop_assert_eq!(&self.links, &linked, "links to the logs of what was started, and no others");
        let over = self.pod.metadata.deletion_timestamp.is_some() || self.observed.kill.is_some() || self.highest == 2;
        if over {
            return Ok(());
        }
        let sandbox = self.observed.sandbox().filter(|s| s.is_running());
        let attached = sandbox.is_some_and(|s| self.docker.attached.contains(&s.id));
        prop_assert!(attached, "no sandbox with a network: {:?}", self.observed);
        let view = self.view();
        for container in &self.pod.spec.as_ref().unwrap().containers {
            let newest = self.observed.newest(&container.name);
            let is_over = newest
                .and_then(|i| Some((i, i.exit()?)))
                .is_some_and(|(instance, exit)| !view.restarts(container, Role::Main, instance, exit));
            let waits = view.outcome == PodOutcome::Active
                && !spec::init_containers(view.spec).iter().all(|c| view.is_init_done(c));
            let unhooked = newest.is_some_and(|i| i.is_running() && !self.docker.hooked.contains(&i.id));
            prop_assert!(
                !unhooked || spec::post_start(container).is_none(),
                "{} runs without its hook",
                container.name
            );
            prop_assert!(
                newest.is_some_and(Instance::is_running) || is_over || waits,
                "{} does not run: {:?}",
                container.name,
                self.observed
            );
        }
        Ok(())
    }
}

fn seed() -> u64 {
    std::env::var("TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

proptest! {
    // The same cases in each run; TEST_SEED draws others.
    #![proptest_config(ProptestConfig { cases: 1000, rng_seed: RngSeed::Fixed(seed()), ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_the_rules_hold(pod in any_pod(), events in prop::collection::vec(event(), 1..160)) {
        let mut world = World::new(pod);
        for event in events {
            world.happen(event)?;
        }
        world.settle(24)?;
        world.knows()?;
        // A killed pod is terminal soon, and its exited containers stay.
        if world.observed.kill.is_some() && world.pod.metadata.deletion_timestamp.is_none() {
            prop_assert!(world.highest == 2 && !world.docker.containers.iter().any(Instance::is_running));
        }
        // A deleted pod terminates, whatever state it was in: after a few steps nothing is left.
        world.pod.metadata.deletion_timestamp = Some(Time(at(world.now)));
        world.pod.metadata.deletion_grace_period_seconds = Some(0);
        world.settle(20)?;
        prop_assert!(world.observed.instances.is_empty() && world.observed.deleted_from_api, "{:?}", world.observed);
        prop_assert!(world.links.is_empty(), "links to no logs: {:?}", world.links);
        // The worker has no record of the container created last: it is found as an orphan.
        prop_assert!(world.docker.containers.iter().all(|c| c.state == State::Created), "{:?}", world.docker);
        world.gone = true;
        world.adopt();
        world.settle(8)?;
        prop_assert!(world.docker.containers.is_empty() && world.docker.attached.is_empty(), "{:?}", world.docker);
    }
}
