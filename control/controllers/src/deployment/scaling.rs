//! Sizes of ReplicaSets: the steps of a rolling update, and a Deployment that gets another size in the middle of one. Pure.

use super::{
    annotations,
    replica_sets::{Set, total},
    steps::{Step, Update},
    strategy::Limits,
};

/// Gives a ReplicaSet another size, with the annotations of the Deployment's size. Returns whether the size changes.
pub(super) fn resize(set: &mut Set, to: i32, limits: Limits, steps: &mut Vec<Step>) -> bool {
    let annotations = annotations::for_size(&set.object, limits);
    let scaled = (set.replicas != to).then_some((set.replicas, to));
    if scaled.is_some() || !annotations.is_empty() {
        let set = set.object.clone();
        steps.push(Step::Update(Update { set, annotations, min_ready_seconds: None, scaled }));
    }
    set.replicas = to;
    scaled.is_some()
}

/// The next size of the new ReplicaSet of a rolling update, when all together have `total` pods. Upstream's `NewRSNewReplicas`.
///
/// 10 replicas, a surge of 3: with 10 old pods there is room for 3 new ones, then for as many as old ones have ended; with 2
/// old pods and 8 new ones the new set gets 10, not 11, for it never exceeds the Deployment's own size.
pub(super) fn next_size_of_new(new: i32, total: i32, limits: Limits) -> i32 {
    let room = limits.most().saturating_sub(total);
    if room <= 0 {
        return new;
    }
    new + room.min(limits.replicas - new)
}

/// Lets the new ReplicaSet grow as far as the surge allows, or shrink to the Deployment's size.
pub(super) fn grow_new(new: &mut Set, old: &[Set], limits: Limits, steps: &mut Vec<Step>) -> bool {
    let size = if new.replicas > limits.replicas {
        limits.replicas
    } else {
        next_size_of_new(new.replicas, total(old).saturating_add(new.replicas), limits)
    };
    new.replicas != size && resize(new, size, limits, steps)
}

/// Lets old ReplicaSets (oldest first) shrink as far as enough pods stay available: unhealthy pods first, as they cost no
/// availability. Upstream's `reconcileOldReplicaSets`, with `cleanupUnhealthyReplicas` and
/// `scaleDownOldReplicaSetsForRollingUpdate`.
///
/// 10 replicas, of which 2 may be unavailable: 8 must be available. The old set has 10, the new one 3, of which one is
/// available. Of the 13 pods, 8 must stay and 2 are new ones that may yet become available: at most 3 may go.
/// - All 10 old pods are available: 11 are, 3 more than must be, and the old set shrinks to 7.
/// - 4 of them are not: those go first, 3 of them, and the old set shrinks to 7. Of the 7 that are available then none can
///   be spared.
pub(super) fn shrink_old(new: &Set, old: &mut [Set], limits: Limits, steps: &mut Vec<Step>) -> bool {
    let unavailable_of_new = new.replicas - new.available_at_least();
    let most_down =
        total(old).saturating_add(new.replicas).saturating_sub(limits.fewest_available() + unavailable_of_new);
    if total(old) == 0 || most_down <= 0 {
        return false;
    }
    let mut scaled = false;
    let mut left = most_down;
    for set in old.iter_mut() {
        let down = (set.replicas - set.available_at_most()).min(left);
        if down > 0 {
            left -= down;
            scaled |= resize(set, set.replicas - down, limits, steps);
        }
    }
    let available = old.iter().map(Set::available_at_least).sum::<i32>() + new.available_at_least();
    let mut left = available - limits.fewest_available();
    for set in old.iter_mut() {
        let down = set.replicas.min(left);
        if down > 0 {
            left -= down;
            scaled |= resize(set, set.replicas - down, limits, steps);
        }
    }
    scaled
}

/// Whether an active ReplicaSet was scaled for another size of the Deployment. Upstream's `isScalingEvent`.
pub(super) fn is_scaling_event(new: Option<&Set>, old: &[Set], limits: Limits) -> bool {
    let mut active = old.iter().chain(new).filter(|set| set.is_active());
    active.any(|set| annotations::desired_replicas(&set.object).is_some_and(|desired| desired != limits.replicas))
}

/// Upstream's `scale`: fits the ReplicaSets (old ones oldest first) to the Deployment's size, whatever rollout is under way. `observed` are the
/// replicas of the Deployment's status, `rolling` whether it has a rolling update.
pub(super) fn scale(
    new: Option<&mut Set>,
    old: &mut [Set],
    limits: Limits,
    observed: i32,
    rolling: bool,
    steps: &mut Vec<Step>,
) {
    let active = old.iter().chain(new.as_deref()).filter(|set| set.is_active()).count();
    let saturated = new.as_deref().is_some_and(|new| is_saturated(new, limits));
    if active > 1 && saturated {
        // Old ReplicaSets may have been adopted while the new one had all pods.
        for set in old.iter_mut().filter(|set| set.is_active()) {
            resize(set, 0, limits, steps);
        }
        return;
    }
    let mut all: Vec<&mut Set> = old.iter_mut().chain(new).collect();
    if active == 0 {
        if let Some(newest) = all.last_mut() {
            resize(newest, limits.replicas, limits, steps);
        }
        return;
    }
    all.retain(|set| set.is_active());
    if let [only] = all.as_mut_slice() {
        // Also when it has the size already, for the annotations: with others, each pass would find a scaling event.
        resize(only, limits.replicas, limits, steps);
    } else if rolling {
        proportionally(all, limits, observed, steps);
    }
}

/// Upstream's `IsSaturated`.
fn is_saturated(new: &Set, limits: Limits) -> bool {
    new.replicas == limits.replicas
        && annotations::desired_replicas(&new.object) == Some(limits.replicas)
        && new.available_at_least() == limits.replicas
}

/// Shares what is to be added or removed between ReplicaSets by their sizes; the largest gets what rounding leaves. Upstream's
/// proportional scaling in `scale`.
///
/// In the middle of a rollout of 10 replicas with a surge of 3 the sets have 8 and 5 pods. With 20 replicas there may be 23, 10
/// more: 8 × 23 ∕ 13 is 14.2 and 5 × 23 ∕ 13 is 8.8, so the sets get 14 and 9.
fn proportionally(mut sets: Vec<&mut Set>, limits: Limits, observed: i32, steps: &mut Vec<Step>) {
    let present = sets.iter().fold(0_i32, |sum, set| sum.saturating_add(set.replicas));
    let allowed = if limits.replicas > 0 { limits.most() } else { 0 };
    let to_add = allowed - present;
    sets.sort_by(|one, other| {
        let by_age = if to_add > 0 { other.by_age(one) } else { one.by_age(other) };
        other.replicas.cmp(&one.replicas).then(by_age)
    });
    let mut added = 0;
    let mut sizes = Vec::with_capacity(sets.len());
    for set in &sets {
        let (share, left) = (fraction(set, limits, observed), to_add - added);
        let share = match to_add {
            0 => 0,
            1.. => share.min(left),
            _ => share.max(left),
        };
        added += share;
        sizes.push(set.replicas + share);
    }
    if let Some(largest) = sizes.first_mut() {
        *largest = (*largest + to_add - added).max(0);
    }
    for (set, size) in sets.into_iter().zip(sizes) {
        resize(set, size, limits, steps);
    }
}

/// By how much a ReplicaSet changes when the Deployment has another size than the set was scaled for. Upstream's
/// `getReplicaSetFraction`.
fn fraction(set: &Set, limits: Limits, observed: i32) -> i32 {
    if limits.replicas == 0 {
        return -set.replicas;
    }
    let before = i64::from(annotations::max_replicas(&set.object).filter(|most| *most > 0).unwrap_or(observed));
    if before <= 0 {
        return 0;
    }
    // Rounded to the nearest number, halves up.
    let product = 2 * i64::from(set.replicas) * i64::from(limits.most());
    let size = (product + before).div_euclid(2 * before);
    i32::try_from(size).unwrap_or(i32::MAX).saturating_sub(set.replicas)
}
