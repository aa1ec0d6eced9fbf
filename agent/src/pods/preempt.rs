//! Which pods make room for a critical one that does not fit: as few as do, the least important first. Pure.

use std::cmp::Reverse;

use windlass_kit::objects::requests::Amounts;

use super::admission::Claim;

/// Whether `victim` may be ended for `pod`: upstream spares critical pods, unless they matter less.
fn may_end(pod: &Claim, victim: &Claim) -> bool {
    (pod.critical && !victim.critical) || pod.priority > victim.priority
}

/// What is missing of each resource; a pod too many counts as one.
fn lacks(needed: &Amounts, free: &Amounts, pods_too_many: usize) -> bool {
    let other = needed.other.iter().any(|(name, amount)| *amount > free.other.get(name).copied().unwrap_or(0));
    let short = |needed: i64, free: i64| needed > 0 && needed > free;
    pods_too_many > 0
        || other
        || short(needed.milli_cpu, free.milli_cpu)
        || short(needed.memory, free.memory)
        || short(needed.ephemeral, free.ephemeral)
}

/// The pods that must end so that `pod` fits; empty when even all that may would not do.
pub(super) fn victims<'a>(
    pod: &Claim,
    allocatable: &Amounts,
    max_pods: usize,
    others: &[(&'a str, &Claim)],
) -> Vec<&'a str> {
    let mut candidates: Vec<&(&str, &Claim)> = others.iter().filter(|(_, other)| may_end(pod, other)).collect();
    // The least important first: by class, by priority, and of those alike the one that holds most, so that few do.
    candidates.sort_by_key(|(uid, c)| (Reverse(c.class), c.priority, Reverse(c.amounts.memory), *uid));
    let fits = |ended: &[&(&str, &Claim)]| {
        let stay: Vec<_> = others.iter().filter(|(uid, _)| !ended.iter().any(|(gone, _)| gone == uid)).collect();
        let mut free = allocatable.clone();
        stay.iter().for_each(|(_, claim)| free.subtract(&claim.amounts));
        !lacks(&pod.amounts, &free, (stay.len() + 1).saturating_sub(max_pods))
    };
    if !fits(&candidates) {
        return Vec::new();
    }
    // Whoever is not needed is spared, the most important first.
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

    fn claim(class: Class, priority: i32, milli_cpu: i64) -> Claim {
        let amounts = Amounts { milli_cpu, ..Amounts::default() };
        Claim { class, priority, amounts, ports: Vec::new(), critical: false }
    }

    fn critical(milli_cpu: i64) -> Claim {
        Claim { critical: true, ..claim(Class::Guaranteed, 2_000_000_000, milli_cpu) }
    }

    fn all() -> Amounts {
        Amounts { milli_cpu: 1000, memory: 1 << 30, ephemeral: 1 << 30, ..Amounts::default() }
    }

    #[test]
    fn as_few_as_do_and_the_least_important_first() {
        let (small, middle, large, vital) = (
            claim(Class::Burstable, 0, 100),
            claim(Class::Burstable, 10, 300),
            claim(Class::Guaranteed, 0, 400),
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
        let none = claim(Class::BestEffort, 0, 0);
        let others = [("a", &none), ("b", &none)];
        assert_eq!(victims(&critical(0), &all(), 2, &others).len(), 1);
        assert_eq!(victims(&claim(Class::BestEffort, 0, 0), &all(), 2, &others), [""; 0], "equals make no room");
    }

    proptest! {
        /// What is ended is enough, and none of it could be spared.
        #[test]
        fn nobody_ends_in_vain(cpus in prop::collection::vec((0i32..3, 0i64..500), 0..6), wanted in 0i64..1000) {
            let claims: Vec<(String, Claim)> = cpus.iter().enumerate()
                .map(|(i, (priority, cpu))| (i.to_string(), claim(Class::Burstable, *priority, *cpu))).collect();
            let others: Vec<(&str, &Claim)> = claims.iter().map(|(uid, c)| (uid.as_str(), c)).collect();
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
