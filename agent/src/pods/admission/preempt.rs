//! Which pods are preempted for a critical one that does not fit: as few as suffice, the least important first. Pure;
//! upstream's `pkg/kubelet/preemption`.

use std::cmp::Reverse;

use windlass_kit::objects::requests::Amounts;

use super::reservations::Reservation;

/// Whether `victim` may be preempted by `pod`: a critical pod only by one of a higher priority; upstream's rule.
fn may_preempt(pod: &Reservation, victim: &Reservation) -> bool {
    (pod.critical && !victim.critical) || pod.priority > victim.priority
}

/// Whether a resource is short; `excess_pods` is by how many pods the node's maximum would be exceeded.
fn is_short(needed: &Amounts, free: &Amounts, excess_pods: usize) -> bool {
    let other = needed.other.iter().any(|(name, amount)| *amount > free.other.get(name).copied().unwrap_or(0));
    let short = |needed: i64, free: i64| needed > 0 && needed > free;
    excess_pods > 0
        || other
        || short(needed.milli_cpu, free.milli_cpu)
        || short(needed.memory, free.memory)
        || short(needed.ephemeral, free.ephemeral)
}

/// The pods that must be killed so that `pod` fits; empty where even all candidates would not suffice.
pub(crate) fn victims<'a>(
    pod: &Reservation,
    allocatable: &Amounts,
    max_pods: usize,
    others: &[(&'a str, &Reservation)],
) -> Vec<&'a str> {
    let mut candidates: Vec<&(&str, &Reservation)> =
        others.iter().filter(|(_, other)| may_preempt(pod, other)).collect();
    // The least important first: by class, by priority, then the one that has reserved most, so that few suffice.
    candidates.sort_by_key(|(uid, c)| (Reverse(c.class), c.priority, Reverse(c.amounts.memory), *uid));
    let fits = |killed: &[&(&str, &Reservation)]| {
        let stay: Vec<_> = others.iter().filter(|(uid, _)| !killed.iter().any(|(other, _)| other == uid)).collect();
        let mut free = allocatable.clone();
        stay.iter().for_each(|(_, reservation)| free.subtract(&reservation.amounts));
        !is_short(&pod.amounts, &free, (stay.len() + 1).saturating_sub(max_pods))
    };
    if !fits(&candidates) {
        return Vec::new();
    }
    // Victims that are not needed are spared, the most important first.
    for index in (0..candidates.len()).rev() {
        let mut fewer = candidates.clone();
        fewer.remove(index);
        if fits(&fewer) {
            candidates = fewer;
        }
    }
    candidates.into_iter().map(|(uid, _)| *uid).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use windlass_kit::objects::resources::Class;

    fn reservation(class: Class, priority: i32, milli_cpu: i64) -> Reservation {
        let amounts = Amounts { milli_cpu, ..Amounts::default() };
        Reservation { class, priority, amounts, ports: Vec::new(), critical: false }
    }

    fn critical(milli_cpu: i64) -> Reservation {
        Reservation { critical: true, ..reservation(Class::Guaranteed, 2_000_000_000, milli_cpu) }
    }

    fn all() -> Amounts {
        Amounts { milli_cpu: 1000, memory: 1 << 30, ephemeral: 1 << 30, ..Amounts::default() }
    }

    #[test]
    fn as_few_as_do_and_the_least_important_first() {
        let (small, middle, large, vital) = (
            reservation(Class::Burstable, 0, 100),
            reservation(Class::Burstable, 10, 300),
            reservation(Class::Guaranteed, 0, 400),
            critical(200),
        );
        let others = [("small", &small), ("middle", &middle), ("large", &large), ("vital", &vital)];
        for (wanted, ended) in [
            (100, &["small"][..]),
            (200, &["middle"]),
            (400, &["small", "middle"]),
            (500, &["small", "large"]),
            (800, &["small", "middle", "large"]),
            (801, &[]),
        ] {
            assert_eq!(victims(&critical(wanted), &all(), 10, &others), ended, "{wanted}");
        }
    }

    #[test]
    fn a_place_is_made_too() {
        let none = reservation(Class::BestEffort, 0, 0);
        let others = [("a", &none), ("b", &none)];
        assert_eq!(victims(&critical(0), &all(), 2, &others).len(), 1);
        assert_eq!(victims(&reservation(Class::BestEffort, 0, 0), &all(), 2, &others), [""; 0], "equals make no room");
    }

    proptest! {
        /// What is ended is enough, and none of it could be spared.
        #[test]
        fn nobody_ends_in_vain(cpus in prop::collection::vec((0i32..3, 0i64..500), 0..6), wanted in 0i64..1000) {
            let reservations: Vec<(String, Reservation)> = cpus.iter().enumerate()
                .map(|(i, (priority, cpu))| (i.to_string(), reservation(Class::Burstable, *priority, *cpu))).collect();
            let others: Vec<(&str, &Reservation)> = reservations.iter().map(|(uid, c)| (uid.as_str(), c)).collect();
            let ended = victims(&critical(wanted), &all(), 100, &others);
            let held = |without: Option<&str>| -> i64 {
                others.iter().filter(|(uid, _)| !ended.contains(uid) || without == Some(uid)).map(|(_, c)| c.amounts.milli_cpu).sum()
            };
            if !ended.is_empty() {
                prop_assert!(wanted <= 1000 - held(None));
                for uid in &ended {
                    prop_assert!(wanted > 1000 - held(Some(uid)), "{uid} could have stayed");
                }
            }
        }
    }
}
