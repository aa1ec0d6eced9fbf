//! Metrics of slices, by upstream's names. Pure.

use windlass_kit::{
    metrics::{Counter, Metrics},
    prometheus::Text,
};

pub(super) struct SliceMetrics {
    pub(super) changes: Counter<1>,
    pub(super) syncs: Counter<1>,
}

impl Default for SliceMetrics {
    fn default() -> Self {
        Self {
            changes: Counter::new("endpoint_slice_controller_changes", "Writes of EndpointSlices.", ["operation"]),
            syncs: Counter::new("endpoint_slice_controller_syncs", "Syncs of the slices of services.", ["result"]),
        }
    }
}

impl Metrics for SliceMetrics {
    fn write(&self, page: &mut Text) {
        self.changes.write(page);
        self.syncs.write(page);
    }
}
