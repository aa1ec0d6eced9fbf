//! Metrics of StatefulSets, by upstream's names (`pkg/controller/statefulset/metrics`).

use k8s_openapi::api::apps::v1::StatefulSet;
use parking_lot::Mutex;
use windlass_kit::{
    metrics::Metrics,
    prometheus::{Kind, Text},
};

use crate::runtime::Cache;

#[derive(Default)]
pub(super) struct SetMetrics(Mutex<Option<Cache<StatefulSet>>>);

impl SetMetrics {
    /// Shows the sets of this cache from now on.
    pub(super) fn show(&self, sets: Cache<StatefulSet>) {
        *self.0.lock() = Some(sets);
    }
}

impl Metrics for SetMetrics {
    fn write(&self, page: &mut Text) {
        const NAME: &str = "statefulset_controller_statefulset_unavailable_replicas";
        page.family(NAME, "Pods of a set that are not available.", Kind::Gauge);
        page.declare(NAME, &["statefulset_namespace", "statefulset_name", "pod_management_policy"]);
        let sets = self.0.lock().as_ref().map(Cache::shown);
        for set in sets.unwrap_or_default() {
            let Some(spec) = &set.spec else { continue };
            let labels = [
                ("statefulset_namespace", set.metadata.namespace.as_deref().unwrap_or_default()),
                ("statefulset_name", set.metadata.name.as_deref().unwrap_or_default()),
                ("pod_management_policy", spec.pod_management_policy.as_deref().unwrap_or("OrderedReady")),
            ];
            let available = set.status.as_ref().and_then(|status| status.available_replicas).unwrap_or(0);
            page.sample(NAME, &labels, f64::from((spec.replicas.unwrap_or(1) - available).max(0)));
        }
    }
}
