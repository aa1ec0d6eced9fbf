//! Every container of pods that the engine has, sandboxes and exited ones included: from the workers of the pods to those who
//! ask the agent for them. The running ones alone, which usage is measured of, are [`RunningContainers`].
//!
//! [`RunningContainers`]: crate::RunningContainers

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

#[cfg(feature = "cri")]
use windlass_kit::published_map::Follower;
use windlass_kit::published_map::{Published, Publisher};

use crate::engine::inspect::Instance;

/// The containers of one pod.
pub(crate) type Instances = Arc<Vec<Instance>>;

/// The containers of all pods. Clones share them. Nothing is kept unless somebody may ask: it is a second copy of what the
/// workers know.
#[derive(Debug, Clone, Default)]
pub(crate) struct PodContainers(Option<Arc<Table>>);

#[derive(Debug)]
struct Table {
    publisher: Publisher<Arc<str>, Instances>,
    by_pod: Published<Arc<str>, Instances>,
    listed: AtomicBool,
}

impl PodContainers {
    /// Sets the containers of a pod.
    pub(crate) fn set(&self, uid: &str, instances: &[Instance]) {
        let Some(table) = &self.0 else { return };
        if table.by_pod.get(uid).is_none_or(|known| known.as_slice() != instances) {
            table.publisher.set(uid.into(), Arc::new(instances.to_vec()));
        }
    }

    /// Nothing is left of a pod.
    pub(crate) fn remove(&self, uid: &str) {
        if let Some(table) = &self.0 {
            table.publisher.remove(uid);
        }
    }

    /// The engine was listed: what it had before the agent is known.
    pub(crate) fn set_listed(&self) {
        if let Some(table) = &self.0 {
            table.listed.store(true, Ordering::Release);
        }
    }
}

#[cfg(feature = "cri")]
impl PodContainers {
    /// Keeps them.
    pub(crate) fn kept() -> Self {
        let publisher = Publisher::default();
        let by_pod = publisher.subscribe();
        Self(Some(Arc::new(Table { publisher, by_pod, listed: AtomicBool::new(false) })))
    }

    /// All of them, by pod; `None` before the engine was listed.
    pub(crate) fn all(&self) -> Option<Vec<Instances>> {
        let table = self.0.as_ref().filter(|table| table.listed.load(Ordering::Acquire))?;
        Some(table.by_pod.values())
    }

    /// Their changes.
    pub(crate) fn follow(&self) -> Option<Follower<Arc<str>, Instances>> {
        self.0.as_ref().map(|table| table.by_pod.follow())
    }
}
