//! Properties over random changes.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use proptest::prelude::*;

use super::*;
use crate::cache::Budget;

/// After this time every pod that an event has woken was tried.
const LONGEST_BACKOFF: Duration = Duration::from_secs(10);

/// What pods of a sort want of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wish {
    Nothing,
    /// Not on one node with its like.
    Apart,
    /// In one zone with its like.
    Together,
    /// Spread over zones.
    Spread,
    /// The same host port.
    Port,
}

#[derive(Debug, Clone)]
enum Event {
    Add { name: u8, cpu: u8, priority: u8, app: u8, wish: Wish },
    Delete(u8),
    Terminate(u8),
    Relabel(u8, u8),
    Node(u8, u8, u8),
    NodeGone(u8),
    Decide(bool),
    Pass(u64),
}

fn wish() -> impl Strategy<Value = Wish> {
    prop::sample::select(vec![Wish::Nothing, Wish::Nothing, Wish::Apart, Wish::Together, Wish::Spread, Wish::Port])
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (0u8..12, 1u8..4, 0u8..3, 0u8..3, wish())
            .prop_map(|(name, cpu, priority, app, wish)| Event::Add { name, cpu, priority, app, wish }),
        3 => (0u8..12).prop_map(Event::Delete),
        1 => (0u8..12).prop_map(Event::Terminate),
        1 => (0u8..12, 0u8..3).prop_map(|(name, app)| Event::Relabel(name, app)),
        2 => (0u8..4, 0u8..6, 0u8..2).prop_map(|(node, cpu, zone)| Event::Node(node, cpu, zone)),
        1 => (0u8..4).prop_map(Event::NodeGone),
        6 => any::<bool>().prop_map(Event::Decide),
        2 => (0u64..4000).prop_map(Event::Pass),
    ]
}

fn make(name: u8, cpu: u8, priority: u8, app: u8, wish: Wish) -> Pod {
    let selector = json!({"matchLabels": {"app": format!("a{app}")}});
    let term = |key: &str| json!([{"labelSelector": selector, "topologyKey": key}]);
    let mut pod = labelled(&format!("p{name}"), &[("app", &format!("a{app}"))]);
    pod.spec.as_mut().unwrap().containers = vec![container(&cpu.to_string())];
    pod.spec.as_mut().unwrap().priority = Some(i32::from(priority));
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    match wish {
        Wish::Nothing => pod,
        Wish::Apart => {
            with(&pod, "/spec/affinity", json!({"podAntiAffinity": {required: term("kubernetes.io/hostname")}}))
        }
        Wish::Together => with(&pod, "/spec/affinity", json!({"podAffinity": {required: term("zone")}})),
        Wish::Spread => with(
            &pod,
            "/spec/topologySpreadConstraints",
            json!([{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}]),
        ),
        Wish::Port => with(&pod, "/spec/containers/0/ports", json!([{"containerPort": 80, "hostPort": 80}])),
    }
}

/// A cluster as the API has it, next to the scheduler's state.
#[derive(Default)]
struct World {
    state: State,
    now: Option<Instant>,
    pods: BTreeMap<String, Pod>,
    serial: u32,
}

impl World {
    fn now(&mut self) -> Instant {
        *self.now.get_or_insert_with(Instant::now)
    }

    fn write(&mut self, pod: Pod) {
        let now = self.now();
        self.state.pod_applied(PodInfo::of(&pod), true, now);
        self.pods.insert(pod.metadata.name.clone().unwrap(), pod);
    }

    fn delete(&mut self, name: &str) {
        let now = self.now();
        if self.pods.remove(name).is_some() {
            self.state.pod_deleted(&("default".to_owned(), name.to_owned()), now);
        }
    }

    fn add(&mut self, mut pod: Pod) {
        if !self.pods.contains_key(pod.metadata.name.as_ref().unwrap()) {
            self.serial += 1;
            pod.metadata.uid = Some(self.serial.to_string());
            self.write(pod);
        }
    }

    /// One decision, which is written if that `works`.
    fn decide(&mut self, works: bool) -> bool {
        let now = self.now();
        let Some((info, constraints, decision)) = self.state.next(now) else { return false };
        match decision {
            Decision::Bind { node } if works => {
                let pod = &self.pods[&info.name];
                self.write(with(pod, "/spec/nodeName", json!(node)));
            }
            Decision::Bind { .. } => self.state.bind_failed(&info, &constraints, "no", now),
            Decision::BindVolumes { .. } => unreachable!("there are no volumes"),
            Decision::Unschedulable(refusal) => {
                let pod = self.pods[&info.name].clone();
                match refusal.nomination {
                    Nomination::Keep => {}
                    Nomination::Clear => self.write(with(&pod, "/status/nominatedNodeName", Value::Null)),
                    Nomination::Set(node) => self.write(with(&pod, "/status/nominatedNodeName", json!(node))),
                }
                if let Some(preemption) = refusal.preemption {
                    for nominee in &preemption.nominees {
                        let pod = self.pods[&nominee.name].clone();
                        self.write(with(&pod, "/status/nominatedNodeName", Value::Null));
                    }
                    if works {
                        preemption.victims.iter().for_each(|victim| self.delete(&victim.name));
                    } else {
                        self.state.preemption_failed(&info, &preemption, now);
                    }
                }
            }
        }
        true
    }

    fn happen(&mut self, event: Event) {
        let now = self.now();
        match event {
            Event::Add { name, cpu, priority, app, wish } => self.add(make(name, cpu, priority, app, wish)),
            Event::Delete(name) => self.delete(&format!("p{name}")),
            Event::Terminate(name) => {
                if let Some(pod) = self.pods.get(&format!("p{name}")).cloned()
                    && pod.spec.as_ref().unwrap().node_name.is_some()
                {
                    self.write(with(&pod, "/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z")));
                }
            }
            Event::Relabel(name, app) => {
                if let Some(pod) = self.pods.get(&format!("p{name}")).cloned() {
                    self.write(with(&pod, "/metadata/labels/app", json!(format!("a{app}"))));
                }
            }
            Event::Node(name, cpu, zone) => {
                let mut node = node(&format!("n{name}"), &cpu.to_string(), "110");
                let labels = [("kubernetes.io/hostname", format!("n{name}")), ("zone", format!("z{zone}"))];
                node.metadata.labels = Some(labels.into_iter().map(|(k, v)| (k.to_owned(), v)).collect());
                self.state.node_applied(&node, now);
            }
            Event::NodeGone(name) => self.state.node_deleted(&format!("n{name}"), now),
            Event::Decide(works) => drop(self.decide(works)),
            Event::Pass(milliseconds) => {
                let later = now + Duration::from_millis(milliseconds);
                self.now = Some(later);
                self.state.advance(later);
            }
        }
    }

    /// Everything that events have set off comes to its end.
    fn settle(&mut self) {
        for _ in 0..=3 * self.pods.len() {
            let later = self.now() + LONGEST_BACKOFF;
            self.now = Some(later);
            self.state.advance(later);
            while self.decide(true) {}
        }
    }
}

/// Sums of requests are not more than nodes have, for pods that are bound by decisions.
fn overcommitted(state: &State, given: &BTreeMap<String, i64>) -> Option<String> {
    let over = state.cluster().nodes.values().find(|node| {
        let most = given.get(&node.name).copied().unwrap_or(0).max(node.allocatable.milli_cpu);
        node.usage.requested.milli_cpu > most
    });
    over.map(|node| format!("{node:?}"))
}

proptest! {
    /// Whatever happens, no pod that fits a node waits for longer than the back-offs, and nothing of a deleted pod is
    /// kept.
    #[test]
    fn no_pod_that_fits_is_left_waiting(events in prop::collection::vec(event(), 1..80)) {
        let mut world = World::default();
        events.into_iter().for_each(|event| world.happen(event));
        world.settle();
        let nodes: Vec<String> = world.state.cluster().nodes.keys().cloned().collect();
        let waiting = world.pods.values().filter(|pod| pod.spec.as_ref().unwrap().node_name.is_none());
        let waiting: Vec<Key> = waiting.map(|pod| PodInfo::of(pod).key()).collect();
        for key in waiting {
            for node in &nodes {
                prop_assert!(world.state.why_not(&key, node).is_some(), "{key:?} waits and fits {node}");
            }
        }
        let all: Vec<String> = world.pods.keys().cloned().collect();
        all.iter().for_each(|name| world.delete(name));
        prop_assert!(world.state.queue.is_empty(), "{:?}", world.state.queue);
        let cluster = world.state.cluster();
        prop_assert!(cluster.pods.is_empty() && nodes.iter().all(|node| cluster.nominator.on(node).next().is_none()));
    }

    /// Counts, terms and sums that are kept up to date are those of a fresh start, and no node gets more than it has.
    #[test]
    fn what_is_counted_along_is_what_is_there(events in prop::collection::vec(event(), 1..80)) {
        let mut world = World::default();
        let mut most: BTreeMap<String, i64> = BTreeMap::new();
        for event in events {
            if let Event::Node(name, cpu, _) = event {
                let most = most.entry(format!("n{name}")).or_default();
                *most = (*most).max(i64::from(cpu) * 1000);
            }
            world.happen(event);
            prop_assert_eq!(overcommitted(&world.state, &most), None);
        }
        let cluster = world.state.cluster();
        for (matcher, by_node) in cluster.counts.all() {
            let mut fresh = std::collections::HashMap::new();
            for pod in cluster.pods.values().filter(|pod| !pod.terminal && matcher.matches(pod)) {
                if let Some(node) = &pod.node {
                    *fresh.entry(node.clone()).or_insert(0i64) += 1;
                }
            }
            prop_assert_eq!(by_node, &fresh, "{:?}", matcher);
        }
        let mut fresh = crate::cache::Cluster::default();
        for node in cluster.nodes.values() {
            fresh.set_node(NodeInfo { usage: Usage::default(), ..node.clone() });
        }
        for pod in cluster.pods.values() {
            fresh.add_pod(std::sync::Arc::clone(pod));
        }
        prop_assert_eq!(&cluster.terms, &fresh.terms);
        let zero = |usage: &Usage| {
            let mut usage = usage.clone();
            usage.requested.other.retain(|_, amount| *amount != 0);
            usage
        };
        for (node, fresh) in cluster.nodes.values().zip(fresh.nodes.values()) {
            prop_assert_eq!(zero(&node.usage), zero(&fresh.usage));
        }
    }

    /// Only less important pods are preempted; none of them could have stayed; budgets are kept where another node
    /// allows that.
    #[test]
    fn victims_are_few_and_less_important(
        running in prop::collection::vec((0u8..3, 1u8..4, 0u8..3, 0u8..3, wish()), 1..16),
        (cpu, priority, app, wanted) in (1u8..4, 1u8..4, 0u8..3, wish()),
        allowed in prop::collection::vec(prop::sample::select(vec![0, 100]), 3),
    ) {
        let mut world = World::default();
        for name in 0..3 {
            world.happen(Event::Node(name, 6, name % 2));
        }
        for (app, allowed) in allowed.iter().enumerate() {
            let labels = BTreeMap::from([("app".to_owned(), format!("a{app}"))]);
            let (namespace, selector) = ("default".to_owned(), Selector::of_labels(labels));
            let budget = Budget { namespace, selector, disruptions_allowed: *allowed, disrupted: BTreeSet::new() };
            world.state.budget(("default".to_owned(), app.to_string()), Some(budget));
        }
        for (name, (node, cpu, priority, app, wish)) in (1u8..).zip(running) {
            world.add(with(&make(name, cpu, priority, app, wish), "/spec/nodeName", json!(format!("n{node}"))));
        }
        world.add(make(0, cpu, priority, app, wanted));
        let now = world.now();
        let key = PodInfo::of(&world.pods["p0"]).key();
        let before = world.pods.clone();
        let Some((_, _, Decision::Unschedulable(Refusal { preemption: Some(preemption), .. }))) = world.state.next(now)
        else { return Ok(()) };
        let victims: BTreeSet<String> = preemption.victims.iter().map(|victim| victim.name.clone()).collect();
        for name in &victims {
            let pod = PodInfo::of(&before[name]);
            prop_assert!(pod.priority < i32::from(priority) && pod.node.as_ref() == Some(&preemption.node));
        }
        // Without them it fits, and with any of them it does not.
        for stays in victims.iter().map(Some).chain([None]) {
            let mut others = World::default();
            for name in 0..3 {
                others.happen(Event::Node(name, 6, name % 2));
            }
            let staying = before.iter().filter(|(name, _)| !victims.contains(*name) || stays == Some(*name));
            staying.for_each(|(_, pod)| others.write(pod.clone()));
            let fits = others.state.why_not(&key, &preemption.node).is_none();
            prop_assert_eq!(fits, stays.is_none(), "{:?} of {:?}", stays, victims);
        }
        // A budget that allows nothing is violated only if every other node needs a violation, too. As upstream, a node
        // is not tried for a pod that wants to be with one of those that would go.
        let is_kept = |pod: &PodInfo| allowed[pod.labels["app"][1..].parse::<usize>().unwrap()] == 0;
        if wanted != Wish::Together && victims.iter().any(|name| is_kept(&PodInfo::of(&before[name]))) {
            for node in (0..3).map(|name| format!("n{name}")).filter(|node| *node != preemption.node) {
                let mut others = World::default();
                for name in 0..3 {
                    others.happen(Event::Node(name, 6, name % 2));
                }
                let goes = |pod: &PodInfo| {
                    pod.node.as_ref() == Some(&node) && pod.priority < i32::from(priority) && !is_kept(pod)
                };
                before.values().filter(|pod| !goes(&PodInfo::of(pod))).for_each(|pod| others.write(pod.clone()));
                prop_assert!(others.state.why_not(&key, &node).is_some(), "{} needs no violation", node);
            }
        }
    }
}
