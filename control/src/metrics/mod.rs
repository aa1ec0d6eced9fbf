//! Usage of nodes and pods for `metrics.k8s.io`. Each node is a source of its own: the one in this process pushes its
//! [`Readings`] ([`crate::ControlPlane::follow_usage`]), all others are asked for their `/metrics/resource` by
//! [`scraper`], as metrics-server does. The last two samples of each container are stored, and rates between them are
//! returned.

mod api_types;
mod resource_page;
mod samples;
mod scraper;
mod stored;

#[cfg(test)]
pub(crate) mod tests;

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
};

use tokio::time::Instant;

pub(crate) use api_types::{node_metrics, pod_metrics};
pub use samples::{ContainerReading, Reading, Readings, Run, SampledAt};
pub(crate) use samples::{NodeSamples, PodRates, Rate};
pub(crate) use scraper::Scraper;
pub(crate) use stored::{Measured, MeasuredCache};

/// The samples of all nodes, which recording and reading share.
#[derive(Debug, Clone, Default)]
pub(crate) struct Usage(Arc<RwLock<HashMap<String, Arc<NodeSamples>>>>);

impl Usage {
    /// Adds a sample of a node; only one source may tell of a node.
    pub(crate) fn record(&self, readings: &Readings) {
        let before = self.stored(&readings.node);
        let after = NodeSamples::advance(before.as_deref(), readings, Instant::now());
        let mut nodes = self.0.write().unwrap_or_else(PoisonError::into_inner);
        nodes.insert(readings.node.clone(), Arc::new(after));
    }

    /// The samples of a node, unless they are too old.
    pub(crate) fn of_node(&self, node: &str) -> Option<Arc<NodeSamples>> {
        self.stored(node).filter(|samples| samples.is_fresh(Instant::now()))
    }

    /// Forgets nodes that exist no longer.
    pub(crate) fn retain(&self, exists: impl Fn(&str) -> bool) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).retain(|node, _| exists(node));
    }

    fn stored(&self, node: &str) -> Option<Arc<NodeSamples>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(node).cloned()
    }
}
