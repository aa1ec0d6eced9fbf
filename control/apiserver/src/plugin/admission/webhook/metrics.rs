//! What is counted of webhooks, under upstream's names.
//!
//! Upstream: `k8s.io/apiserver/pkg/admission/metrics`.

use std::time::Duration;

use windlass_kit::{
    metrics::{Counter, Histogram, Metrics},
    prometheus::Text,
};

use crate::apiserver::Operation;

const DURATIONS: &[f64] = &[0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 25.0];

/// All families.
#[derive(Debug)]
pub(crate) struct WebhookMetrics {
    durations: Histogram<4>,
    requests: Counter<5>,
    rejections: Counter<5>,
    failed_open: Counter<2>,
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    Admitted,
    /// By the webhook, with a code.
    Refused(u16),
    /// It could not be called, which refuses the request.
    FailedClosed(u16),
    /// It could not be called, which is ignored.
    FailedOpen(u16),
}

impl Default for WebhookMetrics {
    fn default() -> Self {
        Self {
            durations: Histogram::new(
                "apiserver_admission_webhook_admission_duration_seconds",
                "How long calls of webhooks took.",
                ["name", "type", "operation", "rejected"],
                DURATIONS,
            ),
            requests: Counter::new(
                "apiserver_admission_webhook_request_total",
                "Calls of webhooks.",
                ["name", "type", "operation", "code", "rejected"],
            ),
            rejections: Counter::new(
                "apiserver_admission_webhook_rejection_count",
                "Requests that were refused because of a webhook, and why.",
                ["name", "type", "operation", "error_type", "rejection_code"],
            ),
            failed_open: Counter::new(
                "apiserver_admission_webhook_fail_open_count",
                "Requests that were admitted although a webhook could not be called.",
                ["name", "type"],
            ),
        }
    }
}

impl Metrics for WebhookMetrics {
    fn write(&self, page: &mut Text) {
        self.durations.write(page);
        self.requests.write(page);
        self.rejections.write(page);
        self.failed_open.write(page);
    }
}

impl WebhookMetrics {
    /// Counts a call. `kind` is upstream's word for the plugin: `admit` or `validating`.
    pub(super) fn called(&self, name: &str, kind: &str, operation: Operation, ending: Ending, took: Duration) {
        let operation = operation.name();
        let (code, error) = match ending {
            Ending::Admitted => (200, None),
            Ending::Refused(code) => (code, Some("no_error")),
            Ending::FailedClosed(code) => (code, Some("calling_webhook_error")),
            Ending::FailedOpen(code) => (code, None),
        };
        let (code, rejected) = (code.to_string(), if error.is_some() { "true" } else { "false" });
        self.durations.observe([name, kind, operation, rejected], took.as_secs_f64());
        self.requests.add([name, kind, operation, &code, rejected]);
        if let Some(error) = error {
            self.rejections.add([name, kind, operation, error, &code]);
        }
        if matches!(ending, Ending::FailedOpen(_)) {
            self.failed_open.add([name, kind]);
        }
    }
}
