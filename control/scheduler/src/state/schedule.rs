//! One attempt to schedule a pod (upstream's `schedulingCycle`). Pure.

use std::sync::Arc;

use tokio::time::Instant;

use super::{Decided, Decision, Nomination, Preemption, Reason, Refusal, State};
use crate::{
    cycle::{Cycle, NodeView},
    filters::{self, Failure, inter_pod_affinity},
    messages::{self, Histogram},
    model::{Constraints, Key, NodeInfo, PodInfo},
    preemption::{self, Candidate},
    queue::Demands,
    scores,
};

/// Below this number all nodes are looked at (upstream's `minFeasibleNodesToFind`).
const MIN_FEASIBLE_NODES: usize = 100;
const MIN_FEASIBLE_NODES_PERCENTAGE: usize = 5;

/// The reason of nodes that the pod's affinity does not name.
const NOT_NAMED: &str = "node(s) didn't satisfy plugin(s) [NodeAffinity]";

/// How many feasible nodes are enough (upstream's `numFeasibleNodesToFind`).
fn feasible_nodes_to_find(all: usize) -> usize {
    if all < MIN_FEASIBLE_NODES {
        return all;
    }
    let percentage = 50usize.saturating_sub(all / 125).max(MIN_FEASIBLE_NODES_PERCENTAGE);
    (all * percentage / 100).max(MIN_FEASIBLE_NODES)
}

/// The nodes that a pod fits, and why others do not.
#[derive(Debug, Default)]
struct Found {
    feasible: Vec<String>,
    failures: Vec<(String, Failure)>,
    /// Nodes that the pod's affinity does not name.
    unnamed: usize,
}

impl State {
    /// The next decision: one that is ready, else that for the next pod by priority, then by age in the queue.
    pub(crate) fn next(&mut self, now: Instant) -> Option<Decided> {
        if let Some(ready) = self.ready.pop_front() {
            return Some(ready);
        }
        loop {
            let (key, serial) = self.queue.pop(now)?;
            let pod = self.cluster.pods.get(&key).filter(|pod| pod.node.is_none()).cloned();
            let Some((pod, constraints)) = pod.and_then(|pod| pod.constraints.clone().map(|c| (pod, c))) else {
                self.queue.remove(&key, now);
                continue;
            };
            let tie = usize::try_from(serial).unwrap_or(0);
            let decision = self.schedule(&pod, &constraints, tie, now);
            return Some((pod, constraints, decision));
        }
    }

    fn schedule(&mut self, pod: &Arc<PodInfo>, constraints: &Arc<Constraints>, tie: usize, now: Instant) -> Decision {
        let key = pod.key();
        let cycle = match Cycle::new(&mut self.cluster, pod, constraints) {
            Ok(cycle) => cycle,
            Err(why) => {
                let message = messages::pre_filter_error(self.cluster.nodes.len(), &why);
                let (reason, nomination) = (Reason::Unschedulable, Nomination::Keep);
                let refusal = Refusal { reason, message, nomination, preemption: None };
                self.queue.failed(pod, self.watched_claims(pod), None, false, now);
                return Decision::Unschedulable(refusal);
            }
        };
        let found = self.find_nodes(&key, &cycle);
        match scores::best(&mut self.cluster, &cycle, &found.feasible, tie) {
            Some(best) => {
                let node = found.feasible[best].clone();
                let plan = self.cluster.nodes.get(&node).map(|node| self.cluster.storage.find(&cycle.claims, node));
                self.assume(pod, &node, now);
                self.queue.bound(&key, now);
                match plan {
                    Some(Ok(plan)) if !plan.is_empty() => self.bind_volumes(&key, constraints, &node, plan, now),
                    _ => Decision::Bind { node },
                }
            }
            None => {
                let refusal = self.refused(&cycle, &found, tie, now);
                let unwanted = found.failures.iter().any(|(_, failure)| {
                    failure.plugin == inter_pod_affinity::NAME
                        && failure.reasons.iter().any(|r| r == inter_pod_affinity::EXISTING_ANTI_AFFINITY)
                });
                let Cycle { constraints, claims, .. } = cycle;
                let demands = Demands {
                    pod: Arc::clone(pod),
                    constraints,
                    claims,
                    exclusive: self.exclusive_claims(pod),
                    nominated: self.cluster.nominator.node(&key).map(str::to_owned),
                    unwanted,
                };
                self.queue.failed(pod, self.watched_claims(pod), Some(demands), false, now);
                Decision::Unschedulable(refusal)
            }
        }
    }

    /// Nodes that the pod fits (upstream's `findNodesThatFitPod`): the one that it is nominated to, if that fits; else
    /// as many as are enough, beginning where the search for the pod before ended.
    fn find_nodes(&mut self, key: &Key, cycle: &Cycle) -> Found {
        self.cluster.arrange();
        let cluster = &self.cluster;
        let mut found = Found::default();
        let fits = |node: &NodeInfo| filters::run_with_nominated(cluster, cycle, &NodeView::of(node));
        let nominated = cluster.nominator.node(key).and_then(|name| cluster.nodes.get(name));
        if let Some(node) = nominated.filter(|node| cycle.nodes.as_ref().is_none_or(|names| names.contains(&node.name)))
            && fits(node).is_ok()
        {
            found.feasible.push(node.name.clone());
            return found;
        }
        let all = cluster.nodes.len();
        let enough = feasible_nodes_to_find(all);
        let nodes: Box<dyn Iterator<Item = &NodeInfo>> = match &cycle.nodes {
            Some(names) => {
                let named: Vec<&NodeInfo> = names.iter().filter_map(|name| cluster.nodes.get(name)).collect();
                found.unnamed = all - named.len();
                Box::new(named.into_iter())
            }
            // Lazily: enough are often found long before the end.
            None => Box::new(cluster.nodes_from(self.start)),
        };
        for node in nodes {
            match fits(node) {
                Ok(()) => found.feasible.push(node.name.clone()),
                Err(failure) => found.failures.push((node.name.clone(), failure)),
            }
            if found.feasible.len() >= enough {
                break;
            }
        }
        let examined = found.feasible.len() + found.failures.len();
        self.start = if all == 0 { 0 } else { (self.start + examined) % all };
        found
    }

    /// The pod fits no node; perhaps it does when others go (upstream's `PostFilter`).
    fn refused(&mut self, cycle: &Cycle, found: &Found, tie: usize, now: Instant) -> Refusal {
        let nodes = self.cluster.nodes.len();
        let mut reasons = Histogram::default();
        for reason in found.failures.iter().flat_map(|(_, failure)| &failure.reasons) {
            reasons.add(reason, 1);
        }
        reasons.add(NOT_NAMED, found.unnamed);
        let (why_not, nomination, preemption) = match self.preempt(cycle, found, tie, now) {
            Ok(preemption) => (None, Nomination::Set(preemption.node.clone()), Some(preemption)),
            Err((why, nomination)) => (Some(why), nomination, None),
        };
        let message = messages::fit_error(nodes, &reasons, cycle.constraints.claims_devices, why_not.as_deref());
        Refusal { reason: Reason::Unschedulable, message, nomination, preemption }
    }

    /// # Errors
    /// Why preemption does not help, and what becomes of the pod's nomination.
    fn preempt(
        &mut self,
        cycle: &Cycle,
        found: &Found,
        tie: usize,
        now: Instant,
    ) -> Result<Preemption, (String, Nomination)> {
        let key = cycle.pod.key();
        self.eligible(cycle, found).map_err(|why| (why.to_owned(), Nomination::Keep))?;
        let cluster = &self.cluster;
        let helpful = found.failures.iter().filter(|(_, failure)| failure.preemptible);
        let nodes: Vec<&NodeInfo> = helpful.filter_map(|(name, _)| cluster.nodes.get(name)).collect();
        let (candidates, failures) = preemption::candidates(cluster, cycle, &nodes, tie);
        let Some(best) = preemption::pick(candidates) else {
            let mut tried = Histogram::default();
            let reasons = failures.iter().flat_map(|(_, failure)| &failure.reasons);
            reasons.for_each(|reason| tried.add(reason, 1));
            let why = messages::no_candidates(cluster.nodes.len(), failures.len(), tried);
            return Err((why, self.clear_nomination(&key, now)));
        };
        Ok(self.evict(&key, cycle.pod.priority, &best, now))
    }

    /// Whether a pod may preempt others (upstream's `PodEligibleToPreemptOthers`): not while victims of its earlier
    /// preemption terminate.
    fn eligible(&self, cycle: &Cycle, found: &Found) -> Result<(), &'static str> {
        if !cycle.constraints.preempts {
            return Err(messages::NEVER_PREEMPTS);
        }
        let Some(node) = self.cluster.nominator.node(&cycle.pod.key()) else { return Ok(()) };
        let failure = found.failures.iter().find(|(name, _)| name == node).map(|(_, failure)| failure);
        // No preemption on that node helps any longer: another one is looked for.
        if failure.is_none_or(|failure| !failure.preemptible) {
            return Ok(());
        }
        let mut lower = self.cluster.pods_of(node).filter(|pod| pod.priority < cycle.pod.priority);
        let terminates =
            |pod: &Arc<PodInfo>| (pod.deleting && pod.preempted) || self.preempting.get(&pod.key()) == Some(&pod.uid);
        if lower.any(terminates) { Err(messages::VICTIM_TERMINATES) } else { Ok(()) }
    }

    /// The victims go, and the pod is nominated to their node (upstream's `prepareCandidate`).
    fn evict(&mut self, preemptor: &Key, priority: i32, best: &Candidate, now: Instant) -> Preemption {
        let mut victims = Vec::new();
        for victim in &best.victims {
            if !victim.deleting && self.preempting.get(&victim.key()) != Some(&victim.uid) {
                self.preempting.insert(victim.key(), victim.uid.clone());
                victims.push(victim.reference());
            }
        }
        let nominees: Vec<Key> = self.cluster.nominator.on(&best.node).cloned().collect();
        let nominees = nominees.into_iter().filter_map(|key| {
            let pod = self.cluster.pods.get(&key).filter(|pod| pod.priority < priority)?.reference();
            self.cluster.nominate(&key, None);
            // Another node may suit it.
            self.queue.retry(&key, now);
            Some(pod)
        });
        let nominees = nominees.collect();
        self.nominate(preemptor, Some(&best.node), None, now);
        Preemption { node: best.node.clone(), victims, nominees }
    }

    /// Victims could not be deleted: the preemptor looks again.
    pub(crate) fn preemption_failed(&mut self, preemptor: &PodInfo, preemption: &Preemption, now: Instant) {
        for victim in &preemption.victims {
            let key = (victim.namespace.clone(), victim.name.clone());
            if self.preempting.get(&key) == Some(&victim.uid) {
                self.preempting.remove(&key);
            }
        }
        self.queue.retry(&preemptor.key(), now);
    }

    fn clear_nomination(&mut self, key: &Key, now: Instant) -> Nomination {
        if self.cluster.nominator.node(key).is_none() {
            return Nomination::Keep;
        }
        self.nominate(key, None, None, now);
        Nomination::Clear
    }

    /// From now on the pod counts on this node.
    fn assume(&mut self, pod: &Arc<PodInfo>, node: &str, now: Instant) {
        let key = pod.key();
        self.nominate(&key, None, Some(node), now);
        self.assumed.insert(key.clone(), pod.uid.clone());
        self.cluster.remove_pod(&key);
        let placed = Arc::new(PodInfo { node: Some(node.to_owned()), constraints: None, ..PodInfo::clone(pod) });
        self.cluster.add_pod(Arc::clone(&placed));
        self.pod_concerns(&placed, now);
    }

    /// The pod, whose queue entry stays, is no longer on its node.
    pub(super) fn leave_node(&mut self, pod: &Arc<PodInfo>, now: Instant) {
        self.cluster.remove_pod(&pod.key());
        self.pod_left(pod, now);
    }

    /// The claims, and classes of unbound claims, whose changes may help a pod.
    pub(super) fn watched_claims(&self, pod: &PodInfo) -> Vec<Key> {
        let storage = &self.cluster.storage;
        let class = |claim: &Key| storage.class_of(claim).filter(|class| !class.is_empty()).map(str::to_owned);
        let classes: Vec<Key> = pod.claim_keys().filter_map(|claim| Some((String::new(), class(&claim)?))).collect();
        pod.claim_keys().chain(classes).collect()
    }

    pub(super) fn exclusive_claims(&self, pod: &PodInfo) -> Vec<Key> {
        pod.claim_keys().filter(|claim| self.cluster.storage.is_of_one_pod(claim)).collect()
    }

    /// Why a waiting pod does not fit a node.
    #[cfg(test)]
    pub(crate) fn why_not(&mut self, key: &Key, node: &str) -> Option<Failure> {
        let pod = self.cluster.pods.get(key).cloned()?;
        let cycle = Cycle::new(&mut self.cluster, &pod, pod.constraints.as_ref()?).ok()?;
        let node = self.cluster.nodes.get(node)?;
        filters::run_with_nominated(&self.cluster, &cycle, &NodeView::of(node)).err()
    }
}
