//! Metrics of slices, by upstream's names (`endpointslice/metrics`). Pure.

use std::collections::{BTreeMap, HashMap};

use k8s_openapi::api::core::v1::Service;
use parking_lot::Mutex;
use windlass_kit::{
    metrics::{Counter, Histogram, Metrics, exponential_buckets},
    prometheus::{Kind, Text},
};

use super::{
    slices::{Plan, Sums},
    topology,
};
use crate::runtime::Key;

const BUCKETS: &[f64] = &exponential_buckets::<15>(2.0, 2.0);
/// Buckets of a histogram for which upstream names none.
const DEFAULT_BUCKETS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

pub(super) struct SliceMetrics {
    pub(super) changes: Counter<1>,
    pub(super) syncs: Counter<1>,
    added: Histogram<0>,
    removed: Histogram<0>,
    changed: Histogram<2>,
    /// What the slices of each service come to, and how its traffic is distributed.
    services: Mutex<HashMap<Key, (Sums, Option<String>)>>,
}

impl Default for SliceMetrics {
    fn default() -> Self {
        let added = "endpoint_slice_controller_endpoints_added_per_sync";
        let removed = "endpoint_slice_controller_endpoints_removed_per_sync";
        let changed = "endpoint_slice_controller_endpointslices_changed_per_sync";
        let by = ["topology", "traffic_distribution"];
        Self {
            changes: Counter::new("endpoint_slice_controller_changes", "Writes of EndpointSlices.", ["operation"]),
            syncs: Counter::new("endpoint_slice_controller_syncs", "Syncs of the slices of services.", ["result"]),
            added: Histogram::new(added, "Endpoints that a sync of a service adds.", [], BUCKETS),
            removed: Histogram::new(removed, "Endpoints that a sync of a service removes.", [], BUCKETS),
            changed: Histogram::new(changed, "Slices that a sync of a service changes.", by, DEFAULT_BUCKETS),
            services: Mutex::default(),
        }
    }
}

/// The metric's label for the service's traffic distribution; `None` with topology hints.
fn distribution(service: &Service) -> Option<&str> {
    let wish = service.spec.as_ref().and_then(|spec| spec.traffic_distribution.as_deref());
    let known = wish.filter(|wish| matches!(*wish, "PreferClose" | "PreferSameZone" | "PreferSameNode"));
    known.filter(|_| !topology::is_wanted(service))
}

impl SliceMetrics {
    /// Counts what a plan comes to.
    #[allow(clippy::cast_precision_loss, reason = "numbers of a metric")]
    pub(super) fn planned(&self, key: &Key, service: &Service, plan: &Plan) {
        self.added.observe([], plan.sums.added as f64);
        self.removed.observe([], plan.sums.removed as f64);
        let distribution = distribution(service);
        let mut services = self.services.lock();
        services.insert(key.clone(), (plan.sums, distribution.map(str::to_owned)));
    }

    /// Counts the slices of a plan that is carried out.
    #[allow(clippy::cast_precision_loss, reason = "numbers of a metric")]
    pub(super) fn carried_out(&self, service: &Service, slices: usize) {
        let topology = if topology::is_wanted(service) { "Auto" } else { "Disabled" };
        self.changed.observe([topology, distribution(service).unwrap_or_default()], slices as f64);
    }

    /// Forgets a service that is gone or has no slices of this controller any more.
    pub(super) fn forget(&self, key: &Key) {
        self.services.lock().remove(key);
    }
}

impl Metrics for SliceMetrics {
    #[allow(clippy::cast_precision_loss, reason = "numbers of a metric")]
    fn write(&self, page: &mut Text) {
        self.changes.write(page);
        self.syncs.write(page);
        self.added.write(page);
        self.removed.write(page);
        self.changed.write(page);
        let services = self.services.lock();
        for (name, help, of) in [
            ("endpoints_desired", "Endpoints.", (|sums| sums.endpoints) as fn(&Sums) -> usize),
            ("num_endpoint_slices", "Slices.", |sums| sums.slices),
            ("desired_endpoint_slices", "Slices, if as many as possible were full.", |sums| sums.fewest_slices),
        ] {
            let name = format!("endpoint_slice_controller_{name}");
            page.family(&name, help, Kind::Gauge);
            page.sample(&name, &[], services.values().map(|(sums, _)| of(sums)).sum::<usize>() as f64);
        }
        let mut by_wish: BTreeMap<&str, usize> = BTreeMap::new();
        services
            .values()
            .filter_map(|(_, wish)| wish.as_deref())
            .for_each(|wish| *by_wish.entry(wish).or_default() += 1);
        let name = "endpoint_slice_controller_services_count_by_traffic_distribution";
        page.family(name, "Services by the distribution of their traffic.", Kind::Gauge);
        page.declare(name, &["traffic_distribution"]);
        by_wish.iter().for_each(|(wish, n)| page.sample(name, &[("traffic_distribution", wish)], *n as f64));
    }
}
