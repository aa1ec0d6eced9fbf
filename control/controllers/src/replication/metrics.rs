//! Metrics of the deletion of pods, by upstream's names. Pure.

use std::sync::Arc;

use jiff::Timestamp;
use windlass_kit::{
    metrics::{Histogram, Metrics, exponential_buckets},
    prometheus::Text,
};

use crate::{pods, runtime::CachedPod};

pub(super) struct SortingMetrics {
    pub(super) deletion_age_ratio: Histogram<0>,
}

impl Default for SortingMetrics {
    fn default() -> Self {
        const BUCKETS: &[f64] = &exponential_buckets::<6>(0.25, 2.0);
        let name = "replicaset_controller_sorting_deletion_age_ratio";
        let help = "Age of each ready pod that is deleted, in ages of the youngest ready pod.";
        Self { deletion_age_ratio: Histogram::new(name, help, [], BUCKETS) }
    }
}

impl Metrics for SortingMetrics {
    fn write(&self, page: &mut Text) {
        self.deletion_age_ratio.write(page);
    }
}

/// How many times older than the youngest of all ready pods each ready victim is.
pub(super) fn age_ratios(all: &[Arc<CachedPod>], victims: &[Arc<CachedPod>], now: Timestamp) -> Vec<f64> {
    let age = |pod: &Arc<CachedPod>| {
        let made = pod.metadata.creation_timestamp.as_ref().filter(|_| pods::is_ready(pod))?;
        Some(now.duration_since(made.0).as_secs_f64())
    };
    let active = all.iter().filter(|pod| pods::is_active(pod));
    let youngest = active.filter_map(age).fold(f64::INFINITY, f64::min).max(0.001);
    victims.iter().filter_map(age).map(|age| age / youngest).collect()
}
