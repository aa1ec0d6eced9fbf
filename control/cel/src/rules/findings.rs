//! What rules have found, and what they may cost.

use windlass_apimachinery::{effort::Effort, field::FieldError};

use crate::eval::{Budget, PER_CALL_EFFORT, PER_CALL_LIMIT, RUNTIME_COST_BUDGET};

/// What all rules may take for one object, whatever they cost.
const EFFORT: u64 = 4 * PER_CALL_EFFORT;

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
    effort: Effort,
}

impl RuleBudget {
    /// A budget of so many units for all expressions, and for each of them.
    #[must_use]
    pub const fn new(all: u64, each: u64) -> Self {
        Self { left: Some(all), per_call: each, effort: Effort::new(EFFORT) }
    }

    /// The same for what takes no longer than an effort.
    #[must_use]
    pub const fn within(self, effort: Effort) -> Self {
        Self { effort, ..self }
    }

    /// Whether it was too little effort that has ended evaluation.
    #[must_use]
    pub const fn took_too_long(&self) -> bool {
        self.effort.is_exceeded()
    }

    /// What is left; nothing if no other rule is evaluated.
    #[must_use]
    pub const fn left(&self) -> Option<u64> {
        self.left
    }

    /// The budget of one expression.
    pub(super) const fn of_call(&self) -> Budget {
        Budget::new(self.per_call).within(self.effort)
    }

    /// Spends what an expression has spent; `false`, and nothing is left, if there is not so much.
    #[must_use]
    pub(super) fn spend(&mut self, of_call: Budget) -> bool {
        let is_quick = self.effort.take(of_call.effort());
        self.left = self.left.and_then(|left| left.checked_sub(of_call.spent())).filter(|_| is_quick);
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
