//! Metrics of claims and volumes, by upstream's names (`pkg/controller/volume/persistentvolume/metrics`).

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use parking_lot::Mutex;
use windlass_kit::{
    metrics::{Counter, Metrics},
    prometheus::Text,
};

use crate::{
    gauges::counted,
    runtime::Cache,
    storage::{PROVISIONED_BY, annotation, claim_phase, class_of_claim, class_of_volume, volume_phase},
};

type Caches = (Cache<PersistentVolumeClaim>, Cache<PersistentVolume>);

pub(super) struct VolumeMetrics {
    /// Claims that got the default class after they were made.
    pub(super) assigned: Counter<0>,
    pub(super) failed: Counter<0>,
    caches: Mutex<Option<Caches>>,
}

impl Default for VolumeMetrics {
    fn default() -> Self {
        let failed = "Claims that were to get the default class later and could not.";
        Self {
            assigned: Counter::new("retroactive_storageclass_total", "Claims that got the default class later.", []),
            failed: Counter::new("retroactive_storageclass_errors_total", failed, []),
            caches: Mutex::default(),
        }
    }
}

impl VolumeMetrics {
    /// Counts what these caches hold from now on.
    pub(super) fn show(&self, claims: Cache<PersistentVolumeClaim>, volumes: Cache<PersistentVolume>) {
        *self.caches.lock() = Some((claims, volumes));
    }
}

impl Metrics for VolumeMetrics {
    fn write(&self, page: &mut Text) {
        self.assigned.write(page);
        self.failed.write(page);
        if let Some((claims, volumes)) = &*self.caches.lock() {
            write(&claims.shown(), &volumes.shown(), page);
        }
    }
}

/// Writes how many claims and volumes there are.
fn write(claims: &[Arc<PersistentVolumeClaim>], volumes: &[Arc<PersistentVolume>], page: &mut Text) {
    let mode = |v: &PersistentVolume| v.spec.as_ref().and_then(|s| s.volume_mode.clone());
    let plugin = |v: &PersistentVolume| annotation(&v.metadata, PROVISIONED_BY).unwrap_or("N/A").to_owned();
    let by_plugin = volumes.iter().map(|v| vec![plugin(v), mode(v).unwrap_or_else(|| "Filesystem".to_owned())]);
    counted(page, "pv_collector_total_pv_count", "Volumes.", ["plugin_name", "volume_mode"], by_plugin);
    for (bound, name, help) in [
        (true, "pv_collector_bound_pv_count", "Volumes that are bound."),
        (false, "pv_collector_unbound_pv_count", "Volumes that are not bound."),
    ] {
        let those = volumes.iter().filter(|volume| (volume_phase(volume) == "Bound") == bound);
        counted(page, name, help, ["storage_class"], those.map(|volume| vec![class_of_volume(volume).to_owned()]));
    }
    let attributes = |c: &PersistentVolumeClaim| c.spec.as_ref().and_then(|s| s.volume_attributes_class_name.clone());
    for (bound, name, help) in [
        (true, "pv_collector_bound_pvc_count", "Claims that are bound."),
        (false, "pv_collector_unbound_pvc_count", "Claims that are not bound."),
    ] {
        let those = claims.iter().filter(|claim| (claim_phase(claim) == "Bound") == bound).map(|claim| {
            let namespace = claim.metadata.namespace.clone().unwrap_or_default();
            vec![namespace, class_of_claim(claim).to_owned(), attributes(claim).unwrap_or_default()]
        });
        counted(page, name, help, ["namespace", "storage_class", "volume_attributes_class"], those);
    }
}
