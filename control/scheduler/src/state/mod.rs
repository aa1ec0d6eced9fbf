//! What the scheduler knows and decides: the cluster, the queue, and what is under way. Pure: the clock is a value.

mod binding;
mod changes;
mod schedule;

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use tokio::time::Instant;

use super::{
    cache::Cluster,
    model::{Constraints, Key, PodInfo, PodReference},
    queue::{Retries, SchedulingQueue},
    volumes::{ClaimWrite, VolumeWrite},
};

use binding::VolumeBindings;

/// The decision for a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Bind it to this node, where it is assumed already.
    Bind { node: String },
    /// Bind its volumes; the pod is bound to this node, where it is assumed already, when that is done.
    BindVolumes { node: String, volumes: Vec<VolumeWrite>, claims: Vec<ClaimWrite> },
    /// It cannot be bound now.
    Unschedulable(Refusal),
}

/// Why a pod is not bound, and what is done about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) reason: Reason,
    pub(crate) message: String,
    pub(crate) nomination: Nomination,
    pub(crate) preemption: Option<Preemption>,
}

/// The reason of the condition PodScheduled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// It fits no node.
    Unschedulable,
    /// Something went wrong on the way.
    SchedulerError,
}

impl Reason {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Unschedulable => "Unschedulable",
            Self::SchedulerError => "SchedulerError",
        }
    }
}

/// What becomes of `status.nominatedNodeName`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Nomination {
    Keep,
    Clear,
    Set(String),
}

/// Pods that make room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Preemption {
    pub(crate) node: String,
    /// To be deleted; without those that are being deleted already.
    pub(crate) victims: Vec<PodReference>,
    /// Less important pods that are nominated to the node no longer.
    pub(crate) nominees: Vec<PodReference>,
}

/// A decision, with its pod.
pub(crate) type Decided = (Arc<PodInfo>, Arc<Constraints>, Decision);

#[derive(Debug, Default)]
pub(crate) struct State {
    cluster: Cluster,
    pub(crate) queue: SchedulingQueue,
    /// Assumed pods: bound by us, but not yet in the cache, by UID.
    assumed: HashMap<Key, String>,
    /// Victims whose deletion was decided, by UID.
    preempting: HashMap<Key, String>,
    /// Assumed pods whose volumes are being bound.
    binding: VolumeBindings,
    /// Decisions that need no attempt.
    ready: VecDeque<Decided>,
    /// Where the search for nodes begins (upstream's `nextStartNodeIndex`).
    start: usize,
}

impl State {
    /// An empty state with this retry configuration.
    pub(crate) fn new(retries: Retries) -> Self {
        Self { queue: SchedulingQueue::new(retries), ..Self::default() }
    }

    /// Moves due pods to the active queue; returns when the next one is due.
    pub(crate) fn advance(&mut self, now: Instant) -> Option<Instant> {
        self.volumes_time_out(now);
        let due = self.queue.advance(now);
        due.into_iter().chain(self.binding.next_deadline()).min()
    }

    /// What the watches have shown.
    pub(crate) const fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// How many nodes, pods, and pods that are bound by us but not in the cache yet are known.
    pub(crate) fn sizes(&self) -> [usize; 3] {
        [self.cluster.nodes.len(), self.cluster.pods.len(), self.assumed.len()]
    }

    #[cfg(test)]
    pub(crate) const fn cluster_mut(&mut self) -> &mut Cluster {
        &mut self.cluster
    }
}
