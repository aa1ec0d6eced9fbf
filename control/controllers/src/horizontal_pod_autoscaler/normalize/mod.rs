//! What becomes of the replicas that metrics ask for: recommendations are stabilized over time, and changes limited in
//! speed and size. Upstream's `normalizeDesiredReplicas` and `normalizeDesiredReplicasWithBehaviors`
//! (`pkg/controller/podautoscaler/horizontal.go`). Pure: may not import tokio or kube's client.

use std::time::Duration;

use super::{
    conditions::Condition,
    messages::{self, Limit},
};

mod behavior;
mod history;

pub(super) use behavior::Behavior;
pub(super) use history::History;

/// `--horizontal-pod-autoscaler-downscale-stabilization`.
const DOWNSCALE_STABILIZATION: Duration = Duration::from_secs(300);
/// `scaleUpLimitFactor` and `scaleUpLimitMinimum`: without a behavior, one pass doubles at most.
const SCALE_UP_LIMIT_FACTOR: i32 = 2;
const SCALE_UP_LIMIT_MINIMUM: i32 = 4;

/// What an autoscaler may choose from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bounds {
    pub(super) current: i32,
    pub(super) least: i32,
    pub(super) most: i32,
}

/// The replicas to have, and the conditions that say why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Normalized {
    pub(super) desired: i32,
    pub(super) conditions: [Condition; 2],
}

/// Decides on `wanted`, and remembers it. `now` is a steady time.
pub(super) fn normalize(
    wanted: i32,
    bounds: &Bounds,
    behavior: Option<&Behavior>,
    history: &mut History,
    now: Duration,
) -> Normalized {
    let (stabilized, desired, limit) = match behavior {
        None => {
            let stabilized = history.stabilize_down(wanted, DOWNSCALE_STABILIZATION, now);
            let (desired, limit) = within_rules(stabilized, bounds);
            (stabilized, desired, limit)
        }
        Some(behavior) => {
            let windows = (behavior.up.window, behavior.down.window);
            let stabilized = history.stabilize(wanted, bounds.current, windows, now);
            let (desired, limit) = within_rates(stabilized, bounds, behavior, history, now);
            (stabilized, desired, limit)
        }
    };
    let able = if stabilized == wanted {
        messages::ready_for_new_scale()
    } else if behavior.is_some() && wanted >= bounds.current {
        messages::scale_up_stabilized()
    } else {
        messages::scale_down_stabilized()
    };
    Normalized { desired, conditions: [able, messages::limited(limit, desired != stabilized)] }
}

/// `convertDesiredReplicasWithRules`.
fn within_rules(wanted: i32, bounds: &Bounds) -> (i32, Limit) {
    let up = bounds.current.saturating_mul(SCALE_UP_LIMIT_FACTOR).max(SCALE_UP_LIMIT_MINIMUM);
    let (most, limit) = if bounds.most > up { (up, Limit::ScaleUp) } else { (bounds.most, Limit::TooManyReplicas) };
    if wanted < bounds.least {
        (bounds.least, Limit::TooFewReplicas)
    } else if wanted > most {
        (most, limit)
    } else {
        (wanted, Limit::Within)
    }
}

/// `convertDesiredReplicasWithBehaviorRate`.
fn within_rates(wanted: i32, bounds: &Bounds, behavior: &Behavior, history: &History, now: Duration) -> (i32, Limit) {
    let current = bounds.current;
    if wanted > current {
        // Behind the last changes, there may be no room at all.
        let up = behavior.up.most(current, history, now).max(current);
        let (most, limit) = if bounds.most > up { (up, Limit::ScaleUp) } else { (bounds.most, Limit::TooManyReplicas) };
        if wanted > most {
            return (most, limit);
        }
    } else if wanted < current {
        let down = behavior.down.least(current, history, now).min(current);
        let (least, limit) =
            if bounds.least < down { (down, Limit::ScaleDown) } else { (bounds.least, Limit::TooFewReplicas) };
        if wanted < least {
            return (least, limit);
        }
    }
    (wanted, Limit::Within)
}
