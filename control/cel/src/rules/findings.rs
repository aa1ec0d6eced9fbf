//! What rules have found, and what they may cost.

use windlass_apimachinery::field::FieldError;

use crate::eval::{PER_CALL_LIMIT, RUNTIME_COST_BUDGET};

/// What rules say of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Findings {
    /// Why it is refused.
    pub errors: Vec<FieldError>,
    /// What it would be refused for, if that were not as it was before.
    pub warnings: Vec<String>,
}

/// What the rules of one object may cost, and what is left of that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuleBudget {
    /// Nothing if it is spent, or an expression has cost too much: then no other rule is evaluated.
    left: Option<u64>,
    per_call: u64,
}

impl RuleBudget {
    /// A budget of so many units for all expressions, and for each of them.
    #[must_use]
    pub const fn new(all: u64, each: u64) -> Self {
        Self { left: Some(all), per_call: each }
    }

    /// What is left; nothing if no other rule is evaluated.
    #[must_use]
    pub const fn left(&self) -> Option<u64> {
        self.left
    }

    pub(super) const fn per_call(&self) -> u64 {
        self.per_call
    }

    /// Spends of it; `false`, and nothing is left, if there is not so much.
    #[must_use]
    pub(super) fn spend(&mut self, cost: u64) -> bool {
        self.left = self.left.and_then(|left| left.checked_sub(cost));
        self.left.is_some()
    }

    pub(super) const fn end(&mut self) {
        self.left = None;
    }

    pub(super) const fn has_ended(&self) -> bool {
        self.left.is_none()
    }
}

/// Upstream's limits.
impl Default for RuleBudget {
    fn default() -> Self {
        Self::new(RUNTIME_COST_BUDGET, PER_CALL_LIMIT)
    }
}
