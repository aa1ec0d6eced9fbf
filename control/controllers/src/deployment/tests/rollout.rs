//! Rollouts in any order of events: of the controller, of ReplicaSets, pods and users.

use proptest::prelude::*;

use super::*;
use crate::deployment::status_patch;

/// Deployment, ReplicaSets and pods, with statuses that are written late.
struct World {
    deployment: Deployment,
    sets: Vec<Arc<ReplicaSet>>,
    /// Whether each pod is ready, by ReplicaSet.
    pods: HashMap<String, Vec<bool>>,
    serial: i64,
    /// Every event takes a second.
    now: i64,
}

#[derive(Debug, Clone, Copy)]
enum Event {
    /// A pass of the controller, which is killed after this number of writes.
    Pass(usize),
    /// A ReplicaSet's controller makes and deletes pods.
    Pods(usize),
    /// And reports its status.
    Status(usize),
    Ready(usize),
    Image(u8),
    Pause(bool),
    Scale(i32),
    /// To Recreate, or to RollingUpdate.
    Recreate(bool),
}

fn event(scales: bool, switches: bool) -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => Just(Event::Pass(usize::MAX)),
        2 => (0usize..4).prop_map(Event::Pass),
        6 => (0usize..5).prop_map(Event::Pods),
        6 => (0usize..5).prop_map(Event::Status),
        8 => (0usize..5).prop_map(Event::Ready),
        1 => (0u8..4).prop_map(Event::Image),
        1 => any::<bool>().prop_map(Event::Pause),
        u32::from(scales) => (0i32..8).prop_map(Event::Scale),
        u32::from(switches) => any::<bool>().prop_map(Event::Recreate),
    ]
}

impl World {
    fn new(deployment: Deployment) -> Self {
        Self { deployment, sets: Vec::new(), pods: HashMap::new(), serial: 0, now: 0 }
    }

    fn limits(&self) -> Limits {
        Limits::of(self.deployment.spec.as_ref().unwrap())
    }

    fn pods_of(&self, set: &ReplicaSet) -> &[bool] {
        self.pods.get(&set.name_any()).map(Vec::as_slice).unwrap_or_default()
    }

    fn wanted(&self) -> i32 {
        self.sets.iter().map(|set| Set::new(set).replicas).sum()
    }

    fn available(&self) -> i32 {
        let ready = self.sets.iter().flat_map(|set| self.pods_of(set)).filter(|ready| **ready).count();
        i32::try_from(ready).unwrap()
    }

    /// The images that pods run.
    fn images(&self) -> usize {
        self.sets.iter().filter(|set| !self.pods_of(set).is_empty()).count()
    }

    /// A pass; returns whether it wrote anything.
    fn pass(&mut self, writes: usize) -> bool {
        let uid = |set: &Arc<ReplicaSet>| (set.uid().unwrap(), self.pods_of(set).len());
        let running: HashMap<String, usize> = self.sets.iter().map(uid).collect();
        let observed = Observed { deployment: &self.deployment, sets: &self.sets, pods: &running };
        let plan = reconcile(&observed, at(self.now));
        let writes_any = !plan.steps.is_empty() || plan.status.is_some() || plan.revision.is_some();
        for step in plan.steps.iter().take(writes) {
            self.write(step);
        }
        if plan.steps.len() < writes && (plan.status.is_some() || plan.revision.is_some()) {
            let patch = status_patch(&self.deployment, plan.status.as_ref(), plan.revision.as_deref());
            let mut object = serde_json::to_value(&self.deployment).unwrap();
            json_patch::merge(&mut object, &patch);
            self.deployment = serde_json::from_value(object).unwrap();
        }
        writes_any
    }

    fn write(&mut self, step: &Step) {
        self.serial += 1;
        match step {
            Step::Create(set) => {
                assert!(self.sets.iter().all(|s| s.name_any() != set.name_any()), "a name is taken");
                let mut set = ReplicaSet::clone(set);
                set.metadata.uid = Some(format!("set-{}", self.serial));
                set.metadata.generation = Some(1);
                set.metadata.creation_timestamp = Some(Time(at(self.serial)));
                self.sets.push(Arc::new(set));
            }
            Step::Update(update) => {
                let set = self.sets.iter_mut().find(|set| set.uid() == update.set.uid()).unwrap();
                let mut object = serde_json::to_value(&**set).unwrap();
                let patch = update.patch(None);
                let mut patched = object.clone();
                json_patch::merge(&mut patched, &patch);
                assert_ne!(patched, object, "an empty write: {patch}");
                let generation = i64::from(patched["spec"] != object["spec"]);
                object = patched;
                object["metadata"]["generation"] = json!(set.metadata.generation.unwrap() + generation);
                *set = Arc::new(serde_json::from_value(object).unwrap());
            }
            Step::Delete(set) => {
                assert!(self.pods_of(set).is_empty(), "a ReplicaSet with pods is deleted");
                self.sets.retain(|s| s.uid() != set.uid());
            }
        }
    }

    fn sync_pods(&mut self, index: usize) {
        let Some(set) = self.sets.get(index) else { return };
        let pods = self.pods.entry(set.name_any()).or_default();
        // Those that are not ready are deleted first.
        pods.sort_by_key(|ready| !*ready);
        pods.resize(usize::try_from(Set::new(set).replicas).unwrap(), false);
    }

    fn tell_status(&mut self, index: usize) {
        let Some(set) = self.sets.get(index) else { return };
        let pods = self.pods_of(set);
        let ready = pods.iter().filter(|ready| **ready).count();
        let status = json!({"replicas": pods.len(), "readyReplicas": ready, "availableReplicas": ready,
            "terminatingReplicas": 0, "observedGeneration": set.metadata.generation});
        let set = Arc::make_mut(&mut self.sets[index]);
        set.status = serde_json::from_value(status).unwrap();
    }

    fn ready(&mut self, index: usize) {
        let Some(set) = self.sets.get(index) else { return };
        if let Some(pod) = self.pods.get_mut(&set.name_any()).and_then(|pods| pods.iter_mut().find(|ready| !**ready)) {
            *pod = true;
        }
    }

    fn apply(&mut self, event: Event) {
        self.now += 1;
        match event {
            Event::Pass(writes) => drop(self.pass(writes)),
            Event::Pods(index) => self.sync_pods(index),
            Event::Status(index) => {
                self.sync_pods(index);
                self.tell_status(index);
            }
            Event::Ready(index) => self.ready(index),
            Event::Image(number) => self.change(|d| *d = image(d, &format!("v{number}"))),
            Event::Pause(paused) => self.change(|d| d.spec.as_mut().unwrap().paused = Some(paused)),
            Event::Scale(replicas) => self.change(|d| d.spec.as_mut().unwrap().replicas = Some(replicas)),
            Event::Recreate(recreate) => self.change(|d| {
                let strategy = d.spec.as_mut().unwrap().strategy.as_mut().unwrap();
                strategy.type_ = Some(if recreate { "Recreate" } else { "RollingUpdate" }.to_owned());
            }),
        }
    }

    fn change(&mut self, change: impl FnOnce(&mut Deployment)) {
        change(&mut self.deployment);
        *self.deployment.metadata.generation.as_mut().unwrap() += 1;
    }

    /// Goes on without users until nothing changes any more.
    fn settle(&mut self) {
        self.change(|d| d.spec.as_mut().unwrap().paused = None);
        for _ in 0..200 {
            self.now += 1;
            let moved = self.pass(usize::MAX);
            let before = (self.pods.clone(), self.sets.clone());
            for index in 0..self.sets.len() {
                self.sync_pods(index);
                for _ in 0..10 {
                    self.ready(index);
                }
                self.tell_status(index);
            }
            if !moved && before == (self.pods.clone(), self.sets.clone()) {
                return;
            }
        }
        panic!("does not come to rest");
    }

    fn check_end(&self) {
        let limits = self.limits();
        let active: Vec<Set> = self.sets.iter().map(Set::new).filter(Set::is_active).collect();
        assert_eq!(self.wanted(), limits.replicas);
        assert_eq!(self.available(), limits.replicas);
        assert!(active.len() <= 1, "one ReplicaSet has all pods");
        for set in active {
            assert!(is_ours(&self.deployment, &set.object), "it has the last template");
            assert_eq!(
                set.object.annotations()["deployment.kubernetes.io/desired-replicas"],
                limits.replicas.to_string()
            );
        }
        let mut revisions: Vec<i64> = self.sets.iter().map(|set| annotations::revision(set)).collect();
        revisions.sort_unstable();
        let newest = revisions.last().map(ToString::to_string);
        assert_eq!(self.deployment.annotations().get("deployment.kubernetes.io/revision"), newest.as_ref());
        revisions.dedup();
        assert_eq!(revisions.len(), self.sets.len(), "each has a revision of its own");
        let status = self.deployment.status.as_ref().unwrap();
        let progressing = status.conditions.iter().flatten().find(|c| c.type_ == "Progressing").unwrap();
        assert_eq!(progressing.reason.as_deref(), Some("NewReplicaSetAvailable"));
    }
}

fn rolling(replicas: i32, surge: i32, unavailable: i32) -> Deployment {
    let limits = json!({"maxSurge": surge, "maxUnavailable": unavailable});
    deployment(json!({"replicas": replicas, "strategy": {"rollingUpdate": limits}, "revisionHistoryLimit": 2}))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Once all pods are available, there are never fewer than allowed, and never more pods wanted than allowed.
    #[test]
    fn a_rolling_update_keeps_its_limits(
        (replicas, surge, unavailable) in (1i32..8, 0i32..4, 0i32..4),
        events in prop::collection::vec(event(false, false), 0..120),
    ) {
        let mut world = World::new(rolling(replicas, surge, unavailable));
        world.settle();
        world.check_end();
        let limits = world.limits();
        for event in events {
            world.apply(event);
            prop_assert!(world.wanted() <= limits.most(), "{event:?}: {} pods wanted", world.wanted());
            prop_assert!(world.available() >= limits.fewest_available(), "{event:?}: {} available", world.available());
        }
        world.settle();
        world.check_end();
    }

    /// Whatever users do meanwhile, it ends with the last template and size.
    #[test]
    fn any_way_leads_to_the_wanted_state(
        (surge, unavailable) in (0i32..4, 0i32..4),
        events in prop::collection::vec(event(true, true), 0..120),
    ) {
        let mut world = World::new(rolling(4, surge, unavailable));
        for event in events {
            world.apply(event);
        }
        world.settle();
        world.check_end();
    }

    /// With Recreate, pods of two templates never run together.
    #[test]
    fn recreate_never_runs_two_templates(events in prop::collection::vec(event(true, false), 0..120)) {
        let strategy = json!({"type": "Recreate", "rollingUpdate": null});
        let mut world = World::new(deployment(json!({"strategy": strategy, "revisionHistoryLimit": 2})));
        for event in events {
            world.apply(event);
            prop_assert!(world.images() <= 1, "{event:?}");
        }
        world.settle();
        world.check_end();
    }
}
