//! Pods that have a node and wait there for their volumes (upstream's PreBind of VolumeBinding). Pure.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::{Decision, Nomination, Reason, Refusal, State};
use crate::{
    messages,
    model::{Constraints, Key, PodInfo},
    queue::Demands,
    volumes::{BindingPlan, Progress},
};

/// How long volumes may take (upstream's default `bindTimeoutSeconds`).
const BIND_TIMEOUT: Duration = Duration::from_secs(600);

/// A pod that waits for its volumes.
#[derive(Debug)]
pub(super) struct Waiting {
    node: String,
    constraints: Arc<Constraints>,
    plan: BindingPlan,
    deadline: Instant,
    /// Our writes were answered.
    written: bool,
}

#[derive(Debug, Default)]
pub(crate) struct VolumeBindings {
    pods: HashMap<Key, Waiting>,
    by_claim: HashMap<Key, BTreeSet<Key>>,
    deadlines: BTreeSet<(Instant, Key)>,
}

impl VolumeBindings {
    fn remove(&mut self, pod: &Key) -> Option<Waiting> {
        let waiting = self.pods.remove(pod)?;
        self.deadlines.remove(&(waiting.deadline, pod.clone()));
        for claim in waiting.plan.claims() {
            if let Some(pods) = self.by_claim.get_mut(claim) {
                pods.remove(pod);
                if pods.is_empty() {
                    self.by_claim.remove(claim);
                }
            }
        }
        Some(waiting)
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }
}

impl State {
    /// The pod, which is assumed on its node, gets its volumes there.
    pub(super) fn bind_volumes(
        &mut self,
        pod: &Key,
        constraints: &Arc<Constraints>,
        node: &str,
        plan: BindingPlan,
        now: Instant,
    ) -> Decision {
        let (volumes, claims) = self.cluster.storage.assume(&plan, node);
        let deadline = now + BIND_TIMEOUT;
        for claim in plan.claims() {
            self.binding.by_claim.entry(claim.clone()).or_default().insert(pod.clone());
        }
        self.binding.deadlines.insert((deadline, pod.clone()));
        let (node, constraints) = (node.to_owned(), Arc::clone(constraints));
        let waiting = Waiting { node: node.clone(), constraints, plan, deadline, written: false };
        self.binding.pods.insert(pod.clone(), waiting);
        Decision::BindVolumes { node, volumes, claims }
    }

    /// The writes for a pod's volumes were answered.
    pub(crate) fn volumes_written(&mut self, pod: &PodInfo, result: Result<(), String>, now: Instant) {
        let key = pod.key();
        if self.assumed.get(&key) != Some(&pod.uid) {
            return;
        }
        match (self.binding.pods.get_mut(&key), result) {
            (None, _) => {}
            (Some(_), Err(why)) => self.volumes_failed(&key, &why, now),
            (Some(waiting), Ok(())) => {
                waiting.written = true;
                self.check_volumes(&key, now);
            }
        }
    }

    /// A claim, or its volume, has changed.
    pub(super) fn volumes_changed(&mut self, claim: &Key, now: Instant) {
        let pods: Vec<Key> = self.binding.by_claim.get(claim).into_iter().flatten().cloned().collect();
        pods.iter().for_each(|pod| self.check_volumes(pod, now));
    }

    /// Pods that wait on a node that is gone do not get their volumes there.
    pub(super) fn node_gone(&mut self, node: &str, now: Instant) {
        let pods = self.binding.pods.iter().filter(|(_, waiting)| waiting.node == node);
        let pods: Vec<Key> = pods.map(|(pod, _)| pod.clone()).collect();
        pods.iter().for_each(|pod| self.check_volumes(pod, now));
    }

    fn check_volumes(&mut self, key: &Key, now: Instant) {
        let Some(waiting) = self.binding.pods.get(key).filter(|waiting| waiting.written) else { return };
        let progress = match self.cluster.nodes.get(&waiting.node) {
            Some(node) => self.cluster.storage.progress(&waiting.plan, node),
            None => Progress::Failed(format!("node {:?} not found", waiting.node)),
        };
        match progress {
            Progress::Waiting => {}
            Progress::Failed(why) => self.volumes_failed(key, &why, now),
            Progress::Done => {
                let Some(waiting) = self.forget_volumes(key) else { return };
                if let Some(pod) = self.cluster.pods.get(key) {
                    let decision = Decision::Bind { node: waiting.node };
                    self.ready.push_back((Arc::clone(pod), waiting.constraints, decision));
                }
            }
        }
    }

    pub(super) fn volumes_time_out(&mut self, now: Instant) {
        while let Some((at, pod)) = self.binding.deadlines.first().cloned() {
            if at > now {
                break;
            }
            self.volumes_failed(&pod, "context deadline exceeded", now);
        }
    }

    /// The volumes cannot be had on this node.
    fn volumes_failed(&mut self, key: &Key, why: &str, now: Instant) {
        if let Some(Waiting { constraints, .. }) = self.forget_volumes(key) {
            self.give_up(key, &constraints, messages::volumes_not_bound(why), now);
        }
    }

    /// Nothing is waited for any longer.
    pub(super) fn forget_volumes(&mut self, key: &Key) -> Option<Waiting> {
        let waiting = self.binding.remove(key)?;
        self.cluster.storage.revert(&waiting.plan);
        Some(waiting)
    }

    /// The binding failed.
    pub(crate) fn bind_failed(&mut self, bound: &PodInfo, constraints: &Arc<Constraints>, why: &str, now: Instant) {
        let key = bound.key();
        if self.assumed.get(&key) == Some(&bound.uid) {
            self.give_up(&key, constraints, messages::not_bound(why), now);
        }
    }

    /// An assumed pod does not get its node: it is reported as unschedulable, and retried (upstream's
    /// `handleBindingCycleError`).
    fn give_up(&mut self, key: &Key, constraints: &Arc<Constraints>, message: String, now: Instant) {
        let Some(pod) = self.cluster.pods.get(key).cloned() else { return };
        self.unassume(&pod, constraints, now);
        let (reason, nomination) = (Reason::SchedulerError, Nomination::Clear);
        let refusal = Refusal { reason, message, nomination, preemption: None };
        self.ready.push_back((pod, Arc::clone(constraints), Decision::Unschedulable(refusal)));
    }

    /// An assumed pod has no node again, and is retried.
    fn unassume(&mut self, pod: &Arc<PodInfo>, constraints: &Arc<Constraints>, now: Instant) {
        let key = pod.key();
        self.assumed.remove(&key);
        let waiting =
            Arc::new(PodInfo { node: None, constraints: Some(Arc::clone(constraints)), ..PodInfo::clone(pod) });
        let demands = self.cluster.storage.claims_of(pod).ok().map(|claims| Demands {
            pod: Arc::clone(&waiting),
            constraints: Arc::clone(constraints),
            exclusive: self.exclusive_claims(pod),
            claims,
            nominated: None,
            unwanted: false,
        });
        let watched = self.watched_claims(&waiting);
        self.queue.failed(&waiting, watched, demands, true, now);
        self.leave_node(pod, now);
        self.cluster.add_pod(waiting);
    }
}
