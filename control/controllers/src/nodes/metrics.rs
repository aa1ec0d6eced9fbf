//! Metrics of the health of nodes, by upstream's names. Pure.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use windlass_kit::{
    metrics::{Counter, Histogram, Metrics, exponential_buckets},
    prometheus::{Kind, Text},
};

/// The nodes of a zone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ZoneSize {
    pub(super) ready: usize,
    pub(super) unready: usize,
}

pub(super) struct NodeMetrics {
    zones: Mutex<BTreeMap<String, ZoneSize>>,
    pub(super) evictions: Counter<1>,
    /// How long it takes to see to one node. There is no walk over all nodes, whose time upstream counts too.
    pub(super) update: Histogram<0>,
}

impl Default for NodeMetrics {
    fn default() -> Self {
        const ONE: &[f64] = &exponential_buckets::<8>(0.001, 4.0);
        let name = "node_collector_evictions_total";
        let update = "node_collector_update_node_health_duration_seconds";
        Self {
            zones: Mutex::default(),
            evictions: Counter::new(name, "Nodes whose pods are evicted.", ["zone"]),
            update: Histogram::new(update, "Time of an update of a node's health.", [], ONE),
        }
    }
}

impl NodeMetrics {
    /// Shows these zones from now on.
    pub(super) fn show(&self, zones: BTreeMap<String, ZoneSize>) {
        *self.zones.lock() = zones;
    }
}

#[allow(clippy::cast_precision_loss, reason = "numbers of a metric")]
impl Metrics for NodeMetrics {
    fn write(&self, page: &mut Text) {
        let zones = self.zones.lock().clone();
        let mut family = |name: &str, help: &str, value: fn(ZoneSize) -> f64| {
            page.family(name, help, Kind::Gauge);
            zones.iter().for_each(|(zone, size)| page.sample(name, &[("zone", zone)], value(*size)));
        };
        family("node_collector_zone_health", "Percentage of ready nodes of a zone.", |size| {
            100.0 * size.ready as f64 / (size.ready + size.unready).max(1) as f64
        });
        family("node_collector_zone_size", "Nodes of a zone.", |size| (size.ready + size.unready) as f64);
        family("node_collector_unhealthy_nodes_in_zone", "Nodes of a zone that are not ready.", |size| {
            size.unready as f64
        });
        self.evictions.write(page);
        self.update.write(page);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_that_are_gone_are_not_shown() {
        let metrics = NodeMetrics::default();
        let zone = |name: &str, ready, unready| (name.to_owned(), ZoneSize { ready, unready });
        metrics.show(BTreeMap::from([zone("gone", 1, 0)]));
        metrics.show(BTreeMap::from([zone("a", 3, 1)]));
        let mut page = Text::new();
        metrics.write(&mut page);
        let page = page.finish();
        for sample in [
            "node_collector_zone_health{zone=\"a\"} 75",
            "node_collector_zone_size{zone=\"a\"} 4",
            "node_collector_unhealthy_nodes_in_zone{zone=\"a\"} 1",
        ] {
            assert!(page.lines().any(|line| line == sample), "{page}");
        }
        assert!(!page.contains("gone"));
    }
}
