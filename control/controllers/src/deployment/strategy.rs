//! How many pods a Deployment wants, and how many more or fewer a rolling update may have. Pure.

use k8s_openapi::{
    api::apps::v1::{Deployment, DeploymentSpec},
    apimachinery::pkg::util::intstr::IntOrString,
};
use windlass_kit::objects::int_or_percent::{Rounding, scaled};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    pub(super) replicas: i32,
    /// Pods above `replicas`; none for the strategy Recreate.
    pub(super) surge: i32,
    /// Pods below `replicas` that need not be available; none for the strategy Recreate.
    pub(super) unavailable: i32,
}

impl Limits {
    pub(super) fn of(spec: &DeploymentSpec) -> Self {
        let replicas = spec.replicas.unwrap_or(1).max(0);
        if is_recreate(spec) {
            return Self { replicas, surge: 0, unavailable: 0 };
        }
        let rolling = spec.strategy.as_ref().and_then(|strategy| strategy.rolling_update.as_ref());
        let number = |value: Option<&IntOrString>, rounding| {
            value.and_then(|value| scaled(value, replicas, rounding)).unwrap_or(0).max(0)
        };
        let surge = number(rolling.and_then(|r| r.max_surge.as_ref()), Rounding::Up);
        let unavailable = number(rolling.and_then(|r| r.max_unavailable.as_ref()), Rounding::Down);
        // Both zero, perhaps by rounding: nothing could ever move.
        let unavailable = if surge == 0 && unavailable == 0 { 1 } else { unavailable };
        Self { replicas, surge, unavailable: unavailable.min(replicas) }
    }

    /// The most pods of all ReplicaSets together.
    pub(super) fn most(self) -> i32 {
        self.replicas.saturating_add(self.surge)
    }

    /// The fewest available pods of all ReplicaSets together.
    pub(super) fn fewest_available(self) -> i32 {
        self.replicas - self.unavailable
    }
}

pub(super) fn is_recreate(spec: &DeploymentSpec) -> bool {
    spec.strategy.as_ref().and_then(|strategy| strategy.type_.as_deref()) == Some("Recreate")
}

/// How long a rollout may stand still; `None` for ever.
pub(super) fn progress_deadline(deployment: &Deployment) -> Option<i32> {
    deployment.spec.as_ref()?.progress_deadline_seconds.filter(|seconds| *seconds != i32::MAX)
}
