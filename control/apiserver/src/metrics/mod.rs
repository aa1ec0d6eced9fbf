//! Usage of nodes and pods for `metrics.k8s.io`. Each node is a source of its own: the one in this process pushes its
//! [`Readings`] ([`crate::ControlPlane::record_usage`]), all others are asked for their `/metrics/resource` by
//! [`scraper`], as metrics-server does. The last two samples of each container are stored, and rates between them are
//! returned.

mod api_types;
mod resource_page;
mod samples;
mod scraper;
mod stored;

#[cfg(test)]
pub(crate) mod tests;

use std::{collections::HashMap, sync::Arc};

use parking_lot::RwLock;
use tokio::time::Instant;

pub(crate) use api_types::{node_metrics, pod_metrics};
pub use samples::{ContainerReading, Containers, Reading, Readings, Run, SampledAt};
pub(crate) use samples::{NodeSamples, PodRates, Rate};
pub(crate) use scraper::Scraper;
pub(crate) use stored::{Measured, MeasuredCache};

/// The samples of all nodes, which recording and reading share.
#[derive(Debug, Clone, Default)]
pub(crate) struct Usage(Arc<RwLock<HashMap<String, NodeSamples>>>);

impl Usage {
    /// Adds a sample of a node; each node must have a single source.
    pub(crate) fn record(&self, readings: &Readings) {
        let mut nodes = self.0.write();
        if !nodes.contains_key(&readings.node) {
            nodes.insert(readings.node.clone(), NodeSamples::new(Instant::now()));
        }
        if let Some(samples) = nodes.get_mut(&readings.node) {
            samples.record(readings, Instant::now());
        }
    }

    /// What the samples of a node say, unless they are too old. It is read under a lock: one look at one pod.
    pub(crate) fn of_node<T>(&self, node: &str, read: impl FnOnce(&NodeSamples) -> Option<T>) -> Option<T> {
        let nodes = self.0.read();
        read(nodes.get(node).filter(|samples| samples.is_fresh(Instant::now()))?)
    }

    /// Forgets nodes that exist no longer.
    pub(crate) fn retain(&self, exists: impl Fn(&str) -> bool) {
        self.0.write().retain(|node, _| exists(node));
    }
}
