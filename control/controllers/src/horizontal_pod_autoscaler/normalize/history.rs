//! What was recommended and changed lately. It is lost at a restart: the first recommendation after it is what there is, so
//! that nothing is scaled down before a window has passed. Pure.

use std::time::Duration;

/// What is remembered of one autoscaler, each with its steady time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in super::super) struct History {
    /// Before they were stabilized.
    recommendations: Vec<(Duration, i32)>,
    /// Replicas added and removed, for policies.
    added: Vec<(Duration, i32)>,
    removed: Vec<(Duration, i32)>,
}

/// Whether `at` is within the last `window`, which ends now.
fn within(at: Duration, window: Duration, now: Duration) -> bool {
    now.saturating_sub(at) < window
}

impl History {
    /// `recordInitialRecommendation`.
    pub(in super::super) fn start(&mut self, current: i32, now: Duration) {
        if self.recommendations.is_empty() {
            self.recommendations.push((now, current));
        }
    }

    /// `stabilizeRecommendation`: the highest of the window, the new one included.
    pub(super) fn stabilize_down(&mut self, wanted: i32, window: Duration, now: Duration) -> i32 {
        // Here the end of the window belongs to it.
        self.recommendations.retain(|(at, _)| now.saturating_sub(*at) <= window);
        self.recommendations.push((now, wanted));
        self.recommendations.iter().map(|(_, count)| *count).max().unwrap_or(wanted)
    }

    /// `stabilizeRecommendationWithBehaviors`: the least change that brings `current` between the lowest of the window for
    /// scaling up and the highest of the one for scaling down.
    pub(super) fn stabilize(
        &mut self,
        wanted: i32,
        current: i32,
        (up, down): (Duration, Duration),
        now: Duration,
    ) -> i32 {
        self.recommendations.retain(|(at, _)| within(*at, up.max(down), now));
        let of = |window| {
            let recent = self.recommendations.iter().filter(move |(at, _)| within(*at, window, now));
            recent.map(|(_, count)| *count).chain([wanted])
        };
        let (lowest, highest) = (of(up).min().unwrap_or(wanted), of(down).max().unwrap_or(wanted));
        self.recommendations.push((now, wanted));
        current.max(lowest).min(highest)
    }

    /// `storeScaleEvent`; what is older than the longest period of a policy is forgotten.
    pub(in super::super) fn scaled(&mut self, from: i32, to: i32, longest: Duration, now: Duration) {
        for changes in [&mut self.added, &mut self.removed] {
            changes.retain(|(at, _)| within(*at, longest, now));
        }
        let changes = if to > from { &mut self.added } else { &mut self.removed };
        changes.push((now, to.abs_diff(from).try_into().unwrap_or(i32::MAX)));
    }

    /// The replicas at the beginning of a period that ends now.
    pub(super) fn at_start_of(&self, period: Duration, current: i32, now: Duration) -> i64 {
        let sum = |changes: &[(Duration, i32)]| {
            let recent = changes.iter().filter(|(at, _)| within(*at, period, now));
            recent.map(|(_, change)| i64::from(*change)).sum::<i64>()
        };
        i64::from(current) - sum(&self.added) + sum(&self.removed)
    }
}
