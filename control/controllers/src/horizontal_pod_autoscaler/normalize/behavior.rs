//! The rules of an autoscaler's `behavior`, with defaults for what is not set. Pure.

use std::time::Duration;

use k8s_openapi::{
    api::autoscaling::v2::{HPAScalingPolicy, HPAScalingRules, HorizontalPodAutoscalerBehavior},
    apimachinery::pkg::api::resource::Quantity as ApiQuantity,
};
use windlass_kit::quantity::Quantity;

use super::{DOWNSCALE_STABILIZATION, history::History};
use crate::horizontal_pod_autoscaler::replica_calculator::Tolerances;

/// Which policy decides where several would.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Select {
    Max,
    Min,
    Disabled,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Pods(i32),
    Percent(i32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Policy {
    change: Change,
    period: Duration,
}

/// The rules of one direction.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Rules {
    pub(super) window: Duration,
    select: Select,
    policies: Vec<Policy>,
    tolerance: Option<f64>,
}

#[derive(Debug, Clone, PartialEq)]
pub(in super::super) struct Behavior {
    pub(super) up: Rules,
    pub(super) down: Rules,
}

fn seconds(count: i32) -> Duration {
    Duration::from_secs(u64::try_from(count).unwrap_or(0))
}

impl Policy {
    fn of(policy: &HPAScalingPolicy) -> Option<Self> {
        let change = match policy.type_.as_str() {
            "Pods" => Change::Pods(policy.value),
            "Percent" => Change::Percent(policy.value),
            _ => return None,
        };
        Some(Self { change, period: seconds(policy.period_seconds) })
    }
}

fn ratio(quantity: &ApiQuantity) -> Option<f64> {
    quantity.0.parse::<Quantity>().ok().map(Quantity::approximate)
}

/// `percent` of a count, with the rounding errors of upstream's floats, which users see.
#[allow(clippy::cast_precision_loss, reason = "counts are small")]
fn scaled(count: i64, percent: f64) -> f64 {
    count as f64 * percent
}

#[allow(clippy::cast_possible_truncation, reason = "truncates and saturates")]
fn whole(count: f64) -> i64 {
    count as i64
}

impl Rules {
    fn of(rules: Option<&HPAScalingRules>, window: Duration, policies: &[Policy]) -> Self {
        let given = rules.and_then(|rules| rules.policies.as_ref());
        Self {
            window: rules.and_then(|rules| rules.stabilization_window_seconds).map_or(window, seconds),
            select: match rules.and_then(|rules| rules.select_policy.as_deref()) {
                Some("Min") => Select::Min,
                Some("Disabled") => Select::Disabled,
                _ => Select::Max,
            },
            policies: given.map_or_else(|| policies.to_vec(), |all| all.iter().filter_map(Policy::of).collect()),
            tolerance: rules.and_then(|rules| rules.tolerance.as_ref()).and_then(ratio),
        }
    }

    /// `calculateScaleUpLimitWithScalingRules`.
    pub(super) fn most(&self, current: i32, history: &History, now: Duration) -> i32 {
        let proposed = self.policies.iter().map(|policy| {
            let start = history.at_start_of(policy.period, current, now);
            match policy.change {
                Change::Pods(count) => start + i64::from(count),
                // Rounded up, as one pod would never become more than one.
                Change::Percent(percent) => whole(scaled(start, 1.0 + f64::from(percent) / 100.0).ceil()),
            }
        });
        self.select(proposed, current, Iterator::max, Iterator::min)
    }

    /// `calculateScaleDownLimitWithBehaviors`.
    pub(super) fn least(&self, current: i32, history: &History, now: Duration) -> i32 {
        let proposed = self.policies.iter().map(|policy| {
            let start = history.at_start_of(policy.period, current, now);
            match policy.change {
                Change::Pods(count) => start - i64::from(count),
                Change::Percent(percent) => whole(scaled(start, 1.0 - f64::from(percent) / 100.0)),
            }
        });
        self.select(proposed, current, Iterator::min, Iterator::max)
    }

    /// The proposal of the policy that decides; without one, nothing changes.
    fn select<I: Iterator<Item = i64>>(
        &self,
        proposed: I,
        current: i32,
        largest: impl Fn(I) -> Option<i64>,
        smallest: impl Fn(I) -> Option<i64>,
    ) -> i32 {
        let chosen = match self.select {
            Select::Disabled => None,
            Select::Max => largest(proposed),
            Select::Min => smallest(proposed),
        };
        let count = chosen.unwrap_or(i64::from(current));
        i32::try_from(count).unwrap_or(if count < 0 { i32::MIN } else { i32::MAX })
    }
}

impl Behavior {
    /// The rules, with the API's defaults.
    pub(in super::super) fn of(behavior: &HorizontalPodAutoscalerBehavior) -> Self {
        let quarter = Duration::from_secs(15);
        let double = Policy { change: Change::Percent(100), period: quarter };
        let four = Policy { change: Change::Pods(4), period: quarter };
        Self {
            up: Rules::of(behavior.scale_up.as_ref(), Duration::ZERO, &[four, double]),
            down: Rules::of(behavior.scale_down.as_ref(), DOWNSCALE_STABILIZATION, &[double]),
        }
    }

    pub(in super::super) fn tolerances(&self) -> Tolerances {
        let default = Tolerances::default();
        Tolerances { down: self.down.tolerance.unwrap_or(default.down), up: self.up.tolerance.unwrap_or(default.up) }
    }

    /// The longest time for which changes matter.
    pub(in super::super) fn longest_period(&self) -> Duration {
        let all = self.up.policies.iter().chain(&self.down.policies);
        all.map(|policy| policy.period).max().unwrap_or_default()
    }
}
