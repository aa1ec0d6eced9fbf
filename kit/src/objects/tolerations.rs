//! Taints and tolerations. Used by the scheduler, the taint eviction controller and the node. Pure.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Taint, Toleration};

/// Whether one toleration covers one taint.
#[must_use]
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let key = toleration.key.as_deref().unwrap_or_default();
    let effect = toleration.effect.as_deref().unwrap_or_default();
    if !effect.is_empty() && effect != taint.effect {
        return false;
    }
    if !key.is_empty() && key != taint.key {
        return false;
    }
    match toleration.operator.as_deref().unwrap_or_default() {
        "" | "Equal" => {
            !key.is_empty() && toleration.value.as_deref().unwrap_or("") == taint.value.as_deref().unwrap_or("")
        }
        "Exists" => true,
        _ => false,
    }
}

/// The first taint with one of `effects` that no toleration tolerates.
#[must_use]
pub fn untolerated<'a>(taints: &'a [Taint], tolerations: &[Toleration], effects: &[&str]) -> Option<&'a Taint> {
    taints
        .iter()
        .filter(|taint| effects.contains(&taint.effect.as_str()))
        .find(|taint| !tolerations.iter().any(|t| tolerates(t, taint)))
}

/// When a pod is evicted from a node with NoExecute taints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EvictAfter {
    /// Every such taint is tolerated without a time limit.
    Never,
    /// After this time since the taints were noticed; zero means at once.
    Delay(Duration),
}

/// When a pod with these tolerations is evicted under these taints.
#[must_use]
pub fn evict_after(taints: &[Taint], tolerations: &[Toleration]) -> EvictAfter {
    let mut shortest: Option<Duration> = None;
    for taint in taints.iter().filter(|t| t.effect == "NoExecute") {
        let mut covered = false;
        for toleration in tolerations.iter().filter(|t| tolerates(t, taint)) {
            covered = true;
            if let Some(seconds) = toleration.toleration_seconds {
                let time = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
                shortest = Some(shortest.map_or(time, |s| s.min(time)));
            }
        }
        if !covered {
            return EvictAfter::Delay(Duration::ZERO);
        }
    }
    shortest.map_or(EvictAfter::Never, EvictAfter::Delay)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taint(key: &str, value: &str, effect: &str) -> Taint {
        Taint { key: key.into(), value: Some(value.into()), effect: effect.into(), time_added: None }
    }

    fn toleration(key: &str, operator: &str, value: &str, effect: &str, seconds: Option<i64>) -> Toleration {
        let text = |s: &str| (!s.is_empty()).then(|| s.to_owned());
        Toleration {
            key: text(key),
            operator: text(operator),
            value: text(value),
            effect: text(effect),
            toleration_seconds: seconds,
        }
    }

    #[test]
    fn tolerations_cover_taints() {
        let taint = taint("gpu", "yes", "NoSchedule");
        for (toleration, expected) in [
            (toleration("gpu", "", "yes", "", None), true),
            (toleration("gpu", "Equal", "no", "", None), false),
            (toleration("gpu", "Exists", "", "NoSchedule", None), true),
            (toleration("gpu", "Exists", "", "NoExecute", None), false),
            (toleration("", "Exists", "", "", None), true),
            (toleration("", "Equal", "yes", "", None), false),
            (toleration("cpu", "Exists", "", "", None), false),
        ] {
            assert_eq!(tolerates(&toleration, &taint), expected, "{toleration:?}");
        }
    }

    #[test]
    fn stays_as_long_as_the_shortest_toleration() {
        let taints = [taint("a", "", "NoExecute"), taint("b", "", "NoExecute"), taint("c", "", "NoSchedule")];
        let a = |s| toleration("a", "Exists", "", "", s);
        let b = |s| toleration("b", "Exists", "", "", s);
        assert_eq!(evict_after(&taints, &[a(None)]), EvictAfter::Delay(Duration::ZERO));
        assert_eq!(evict_after(&taints, &[a(None), b(None)]), EvictAfter::Never);
        assert_eq!(evict_after(&taints, &[a(Some(300)), b(Some(30))]), EvictAfter::Delay(Duration::from_secs(30)));
        assert_eq!(evict_after(&taints, &[a(Some(-5)), b(None)]), EvictAfter::Delay(Duration::ZERO));
        assert_eq!(evict_after(&[], &[]), EvictAfter::Never);
    }
}
