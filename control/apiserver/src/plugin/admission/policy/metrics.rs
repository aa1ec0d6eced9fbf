//! What is counted of policies, under upstream's names.
//!
//! Upstream: `policy/validating/metrics` and `policy/mutating/metrics`.

use std::time::Duration;

use windlass_cel::OUT_OF_BUDGET;
use windlass_kit::{
    metrics::{Counter, Histogram, Metrics},
    prometheus::Text,
};

const DURATIONS: &[f64] = &[0.000_000_5, 0.001, 0.01, 0.1, 1.0];

/// All families.
#[derive(Debug)]
pub(crate) struct PolicyMetrics {
    checks: Counter<4>,
    check_durations: Histogram<4>,
    mutations: Counter<3>,
    mutation_durations: Histogram<3>,
}

impl Default for PolicyMetrics {
    fn default() -> Self {
        Self {
            checks: Counter::new(
                "apiserver_validating_admission_policy_check_total",
                "Checks by validating admission policies that had a consequence, and which.",
                ["policy", "policy_binding", "error_type", "enforcement_action"],
            ),
            check_durations: Histogram::new(
                "apiserver_validating_admission_policy_check_duration_seconds",
                "How long checks by validating admission policies took.",
                ["policy", "policy_binding", "error_type", "enforcement_action"],
                DURATIONS,
            ),
            mutations: Counter::new(
                "apiserver_mutating_admission_policy_check_total",
                "Mutations by mutating admission policies.",
                ["policy", "policy_binding", "error_type"],
            ),
            mutation_durations: Histogram::new(
                "apiserver_mutating_admission_policy_check_duration_seconds",
                "How long mutations by mutating admission policies took.",
                ["policy", "policy_binding", "error_type"],
                DURATIONS,
            ),
        }
    }
}

impl Metrics for PolicyMetrics {
    fn write(&self, page: &mut Text) {
        self.checks.write(page);
        self.check_durations.write(page);
        self.mutations.write(page);
        self.mutation_durations.write(page);
    }
}

/// What kind of error a message is about. Upstream's `ErrorType`.
pub(super) fn error_type(message: &str) -> &'static str {
    if message.starts_with("compilation") {
        "compile_error"
    } else if message.starts_with(OUT_OF_BUDGET) {
        "out_of_budget"
    } else {
        "invalid_error"
    }
}

impl PolicyMetrics {
    /// Counts a check that had a consequence: `allow`, `deny`, `audit` or `warn`.
    pub(super) fn checked(&self, [policy, binding]: [&str; 2], error: &str, action: &str, took: Duration) {
        self.checks.add([policy, binding, error, action]);
        self.check_durations.observe([policy, binding, error, action], took.as_secs_f64());
    }

    /// Counts a mutation.
    pub(super) fn mutated(&self, [policy, binding]: [&str; 2], error: &str, took: Duration) {
        self.mutations.add([policy, binding, error]);
        self.mutation_durations.observe([policy, binding, error], took.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_upstreams_types() {
        for (message, wanted) in [
            ("compilation error: compilation failed: …", "compile_error"),
            (OUT_OF_BUDGET, "out_of_budget"),
            ("expression 'a' resulted in error: no such key: b", "invalid_error"),
        ] {
            assert_eq!(error_type(message), wanted, "{message}");
        }
    }
}
