//! The results of a component's health checks as metrics: upstream's service level indicators of components.
//!
//! Upstream: `k8s.io/component-base/metrics/prometheus/slis`.

use crate::{
    metrics::{Counter, Gauge},
    prometheus::Text,
};

/// The checks of one component.
#[derive(Debug)]
pub struct HealthChecks {
    now: Gauge<2>,
    counts: Counter<3>,
}

impl Default for HealthChecks {
    fn default() -> Self {
        Self {
            now: Gauge::new(
                "kubernetes_healthcheck",
                "Whether a health check succeeded when it was made last.",
                ["name", "type"],
            ),
            counts: Counter::new(
                "kubernetes_healthchecks_total",
                "Health checks, by how they ended.",
                ["name", "status", "type"],
            ),
        }
    }
}

impl HealthChecks {
    /// A check was made for an endpoint such as `readyz`.
    pub fn record(&self, name: &str, endpoint: &str, works: bool) {
        self.now.set([name, endpoint], works.into());
        self.counts.add([name, if works { "success" } else { "error" }, endpoint]);
    }

    /// Writes both families.
    pub fn write(&self, page: &mut Text) {
        self.now.write(page);
        self.counts.write(page);
    }
}
