//! Metrics of autoscaling, by upstream's names (`pkg/controller/podautoscaler/monitor`).

use std::{collections::BTreeMap, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use windlass_kit::{
    metrics::{Counter, Histogram, Metrics, exponential_buckets},
    prometheus::{Kind, Text},
};

use super::pass::{Action, Fault};
use crate::runtime::Key;

/// Buckets in seconds, upstream's: powers of two from a millisecond.
const BUCKETS: &[f64] = &exponential_buckets::<15>(0.001, 2.0);

/// What is counted; it outlives a controller that panics.
#[derive(Debug)]
pub(crate) struct Monitor {
    reconciliations: Counter<2>,
    reconciliation_durations: Histogram<2>,
    computations: Counter<3>,
    computation_durations: Histogram<3>,
    /// The known autoscalers, each with the size that it has decided on.
    autoscalers: Mutex<BTreeMap<Key, Option<i32>>>,
}

impl Default for Monitor {
    fn default() -> Self {
        let result = ["action", "error"];
        let of_metric = ["action", "error", "metric_type"];
        Self {
            reconciliations: Counter::new(
                "horizontal_pod_autoscaler_controller_reconciliations_total",
                "Reconciliations of HorizontalPodAutoscalers, by what was done (scale_down, scale_up, none) and whose fault the first error was (spec, internal, none).",
                result,
            ),
            reconciliation_durations: Histogram::new(
                "horizontal_pod_autoscaler_controller_reconciliation_duration_seconds",
                "Time of one reconciliation of a HorizontalPodAutoscaler.",
                result,
                BUCKETS,
            ),
            computations: Counter::new(
                "horizontal_pod_autoscaler_controller_metric_computation_total",
                "Evaluations of one metric of a HorizontalPodAutoscaler, by what it asked for, whose fault an error was, and the type of the metric.",
                of_metric,
            ),
            computation_durations: Histogram::new(
                "horizontal_pod_autoscaler_controller_metric_computation_duration_seconds",
                "Time of one evaluation of a metric.",
                of_metric,
                BUCKETS,
            ),
            autoscalers: Mutex::default(),
        }
    }
}

impl Action {
    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::ScaleUp => "scale_up",
            Self::ScaleDown => "scale_down",
            Self::None => "none",
        }
    }
}

impl Fault {
    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Spec => "spec",
            Self::Internal => "internal",
            Self::None => "none",
        }
    }
}

impl Monitor {
    fn autoscalers(&self) -> MutexGuard<'_, BTreeMap<Key, Option<i32>>> {
        self.autoscalers.lock()
    }

    pub(super) fn reconciled(&self, action: Action, fault: Fault, time: Duration) {
        let labels = [action.label(), fault.label()];
        self.reconciliations.add(labels);
        self.reconciliation_durations.observe_duration(labels, time);
    }

    /// `metric_type` is one of the API's; others are refused by it.
    pub(super) fn computed(&self, action: Action, fault: Fault, metric_type: &str, time: Duration) {
        let labels = [action.label(), fault.label(), metric_type];
        self.computations.add(labels);
        self.computation_durations.observe_duration(labels, time);
    }

    pub(super) fn seen(&self, key: &Key) {
        self.autoscalers().entry(key.clone()).or_default();
    }

    pub(super) fn decided(&self, key: &Key, size: i32) {
        self.autoscalers().insert(key.clone(), Some(size));
    }

    pub(super) fn forget(&self, key: &Key) {
        self.autoscalers().remove(key);
    }

    /// Another controller begins.
    pub(super) fn forget_all(&self) {
        self.autoscalers().clear();
    }
}

impl Metrics for Monitor {
    fn write(&self, page: &mut Text) {
        self.reconciliations.write(page);
        self.reconciliation_durations.write(page);
        self.computations.write(page);
        self.computation_durations.write(page);
        let autoscalers = self.autoscalers().clone();
        let name = "horizontal_pod_autoscaler_controller_num_horizontal_pod_autoscalers";
        page.family(name, "HorizontalPodAutoscalers that there are.", Kind::Gauge);
        #[allow(clippy::cast_precision_loss, reason = "a gauge")]
        page.sample(name, &[], autoscalers.len() as f64);
        let name = "horizontal_pod_autoscaler_controller_desired_replicas";
        page.family(name, "The replicas that a HorizontalPodAutoscaler has decided on.", Kind::Gauge);
        for (key, size) in &autoscalers {
            if let Some(size) = size {
                page.sample(name, &[("namespace", &key.namespace), ("hpa_name", &key.name)], f64::from(*size));
            }
        }
    }
}
