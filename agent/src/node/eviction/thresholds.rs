//! Eviction thresholds, parsed from kubelet's settings. Pure.

use std::{collections::BTreeMap, time::Duration};

use windlass_kit::{duration, quantity::Quantity};

/// An eviction signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Signal {
    /// Available memory of the machine.
    Memory,
    /// Memory left to all pods together.
    AllocatableMemory,
    /// Free bytes of the nodefs: volumes and logs.
    NodeFs,
    /// Its inodes.
    NodeFsInodes,
    /// Free bytes of the imagefs: Docker's data root.
    ImageFs,
    /// Its inodes.
    ImageFsInodes,
    /// Free process ids.
    Pid,
}

/// The signals' names in settings; `allocatableMemory.available` is derived and cannot be set.
const SIGNAL_NAMES: [(&str, Signal); 6] = [
    ("memory.available", Signal::Memory),
    ("nodefs.available", Signal::NodeFs),
    ("nodefs.inodesFree", Signal::NodeFsInodes),
    ("imagefs.available", Signal::ImageFs),
    ("imagefs.inodesFree", Signal::ImageFsInodes),
    ("pid.available", Signal::Pid),
];

/// The node condition of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Condition {
    /// `MemoryPressure`
    Memory,
    /// `DiskPressure`
    Disk,
    /// `PIDPressure`
    Pid,
}

impl Signal {
    fn named(name: &str) -> Option<Self> {
        SIGNAL_NAMES.iter().find(|(known, _)| *known == name).map(|(_, signal)| *signal)
    }

    /// Upstream's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        SIGNAL_NAMES.iter().find(|(_, signal)| *signal == self).map_or("allocatableMemory.available", |(name, _)| *name)
    }

    /// Its node condition.
    #[must_use]
    pub const fn condition(self) -> Condition {
        match self {
            Self::Memory | Self::AllocatableMemory => Condition::Memory,
            Self::NodeFs | Self::NodeFsInodes | Self::ImageFs | Self::ImageFsInodes => Condition::Disk,
            Self::Pid => Condition::Pid,
        }
    }

    /// The starved resource, in upstream's words.
    #[must_use]
    pub const fn resource(self) -> &'static str {
        match self {
            Self::Memory | Self::AllocatableMemory => "memory",
            Self::NodeFs | Self::ImageFs => "ephemeral-storage",
            Self::NodeFsInodes | Self::ImageFsInodes => "inodes",
            Self::Pid => "pids",
        }
    }

    /// Whether it is counted in bytes.
    #[must_use]
    pub const fn is_bytes(self) -> bool {
        matches!(self, Self::Memory | Self::AllocatableMemory | Self::NodeFs | Self::ImageFs)
    }
}

/// An absolute amount, or a percentage of the capacity.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Amount {
    /// Bytes, inodes or processes.
    Of(i64),
    /// Percent of the capacity.
    Percent(f64),
}

impl Amount {
    /// The amount for this capacity.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "a part of a size is not exact")]
    pub fn of(self, capacity: i64) -> i64 {
        match self {
            Self::Of(amount) => amount,
            Self::Percent(percent) => (capacity as f64 * percent / 100.0) as i64,
        }
    }

    fn parse(text: &str) -> Result<Self, String> {
        if let Some(number) = text.strip_suffix('%') {
            let percent: f64 = number.trim().parse().map_err(|_| format!("{text:?} is not a number of percent"))?;
            if !(0.0..=100.0).contains(&percent) {
                return Err(format!("{text:?} is not between 0% and 100%"));
            }
            return Ok(Self::Percent(percent));
        }
        let quantity: Quantity = text.parse().map_err(|e| format!("{e}, or a percentage such as 10%"))?;
        if quantity.is_negative() {
            return Err(format!("{text:?} is below zero"));
        }
        Ok(Self::Of(quantity.units()))
    }

    /// Upstream takes 0, 0% and 100% for disabled.
    #[allow(clippy::float_cmp, reason = "the two are exact in what people write")]
    fn is_off(self) -> bool {
        self == Self::Of(0) || self == Self::Percent(0.0) || self == Self::Percent(100.0)
    }
}

/// An eviction threshold.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Threshold {
    /// The signal.
    pub signal: Signal,
    /// It is met when less than this is available.
    pub amount: Amount,
    /// The grace period of a soft threshold; `None` for a hard one.
    pub soft: Option<Duration>,
    /// The minimum reclaim: what must be available beyond it once it was met.
    pub reclaim: Amount,
}

/// A map of kubelet's settings, by signal.
pub type ThresholdMap = BTreeMap<String, String>;

/// The default of `evictionHard`; upstream's.
#[must_use]
pub fn default_hard() -> ThresholdMap {
    let all = [
        ("memory.available", "100Mi"),
        ("nodefs.available", "10%"),
        ("nodefs.inodesFree", "5%"),
        ("imagefs.available", "15%"),
        ("imagefs.inodesFree", "5%"),
    ];
    all.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Parses the four settings. A hard memory threshold also applies to all pods together.
///
/// # Errors
/// Every invalid setting, by its name.
pub fn parse(
    hard: &ThresholdMap,
    soft: &ThresholdMap,
    soft_graces: &ThresholdMap,
    reclaim: &ThresholdMap,
) -> Result<Vec<Threshold>, Vec<String>> {
    let mut wrong = Vec::new();
    let mut amounts = |setting: &'static str, of: &ThresholdMap| -> BTreeMap<Signal, Amount> {
        let mut found = BTreeMap::new();
        for (name, text) in of {
            let known = SIGNAL_NAMES.map(|(name, _)| name).join(", ");
            let signal = Signal::named(name).ok_or_else(|| format!("there is no such signal; those are {known}"));
            match signal.and_then(|signal| Ok((signal, Amount::parse(text.trim())?))) {
                Ok((signal, amount)) => drop(found.insert(signal, amount)),
                Err(why) => wrong.push(format!("{setting} {name}: {why}")),
            }
        }
        found
    };
    let hard = amounts("evictionHard", hard);
    let soft = amounts("evictionSoft", soft);
    let reclaim = amounts("evictionMinimumReclaim", reclaim);
    let mut graces = BTreeMap::new();
    for (name, text) in soft_graces {
        match (Signal::named(name), duration::parse(text.trim())) {
            (Some(signal), Some(grace)) if soft.contains_key(&signal) => drop(graces.insert(signal, grace)),
            (_, None) => {
                wrong.push(format!("evictionSoftGracePeriod {name}: {text:?} is not a duration such as 90s or 1m30s"))
            }
            _ => wrong.push(format!("evictionSoftGracePeriod {name}: evictionSoft has no such signal")),
        }
    }
    for (signal, _) in soft.iter().filter(|(signal, amount)| !amount.is_off() && !graces.contains_key(signal)) {
        let name = signal.name();
        wrong.push(format!("evictionSoft {name}: evictionSoftGracePeriod must say how long it may last"));
    }
    if !wrong.is_empty() {
        return Err(wrong);
    }
    let threshold = |(signal, amount): (&Signal, &Amount), soft: Option<Duration>| Threshold {
        signal: *signal,
        amount: *amount,
        soft,
        reclaim: reclaim.get(signal).copied().unwrap_or(Amount::Of(0)),
    };
    let mut all: Vec<Threshold> = hard.iter().map(|one| threshold(one, None)).collect();
    all.extend(soft.iter().map(|one| threshold(one, graces.get(one.0).copied())));
    all.retain(|t| !t.amount.is_off());
    let of_pods = all.iter().find(|t| t.signal == Signal::Memory && t.soft.is_none());
    if let Some(memory) = of_pods.copied() {
        all.push(Threshold { signal: Signal::AllocatableMemory, ..memory });
    }
    // Memory first, which runs out fastest.
    all.sort_by_key(|t| (t.signal.condition(), t.signal, t.soft.is_some()));
    Ok(all)
}

/// What hard thresholds reserve of a capacity; upstream's `HardEvictionReservation`.
#[must_use]
pub fn hard_eviction_reservation(thresholds: &[Threshold], signal: Signal, capacity: i64) -> i64 {
    let hard = thresholds.iter().filter(|t| t.signal == signal && t.soft.is_none());
    hard.map(|t| t.amount.of(capacity)).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use windlass_fixtures::facts::{rows, value_of};

    use super::*;

    fn setting(all: &[(&str, &str)]) -> ThresholdMap {
        all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn the_defaults_are_upstreams() {
        let none = ThresholdMap::new();
        let all = parse(&default_hard(), &none, &none, &none).unwrap();
        let found: Vec<(&str, i64)> = all.iter().map(|t| (t.signal.name(), t.amount.of(1000 << 20))).collect();
        assert_eq!(
            found,
            [
                ("memory.available", 100 << 20),
                ("allocatableMemory.available", 100 << 20),
                ("nodefs.available", 100 << 20),
                ("nodefs.inodesFree", 50 << 20),
                ("imagefs.available", 150 << 20),
                ("imagefs.inodesFree", 50 << 20),
            ]
        );
        assert!(all.iter().all(|t| t.soft.is_none()));
    }

    #[test]
    fn soft_thresholds_have_a_grace_period() {
        let all = parse(
            &setting(&[("nodefs.available", "0%"), ("pid.available", "100%")]),
            &setting(&[("memory.available", "1.5Gi")]),
            &setting(&[("memory.available", "1m30s")]),
            &setting(&[("memory.available", "5%")]),
        )
        .unwrap();
        let wanted = Threshold {
            signal: Signal::Memory,
            amount: Amount::Of(3 << 29),
            soft: Some(Duration::from_secs(90)),
            reclaim: Amount::Percent(5.0),
        };
        assert_eq!(all, [wanted], "none and all are off");
    }

    #[test]
    fn invalid_settings() {
        let none = ThresholdMap::new();
        for (hard, soft, graces, reclaim, words) in [
            (
                &[("memory.free", "1")][..],
                &[][..],
                &[][..],
                &[][..],
                "evictionHard memory.free: there is no such signal",
            ),
            (&[("allocatableMemory.available", "1")], &[], &[], &[], "no such signal"),
            (&[("memory.available", "lots")], &[], &[], &[], "evictionHard memory.available: \"lots\""),
            (&[("memory.available", "-1")], &[], &[], &[], "below zero"),
            (&[("nodefs.available", "101%")], &[], &[], &[], "between 0% and 100%"),
            (&[("nodefs.available", "x%")], &[], &[], &[], "number of percent"),
            (&[], &[("memory.available", "1Gi")], &[], &[], "evictionSoftGracePeriod must say"),
            (&[], &[("memory.available", "1Gi")], &[("memory.available", "soon")], &[], "not a duration"),
            (&[], &[], &[("memory.available", "1m")], &[], "evictionSoft has no such signal"),
            (&[], &[], &[], &[("memory.available", "?")], "evictionMinimumReclaim memory.available"),
        ] {
            let wrong = parse(&setting(hard), &setting(soft), &setting(graces), &setting(reclaim)).unwrap_err();
            let text = wrong.join("; ");
            assert!(text.contains(words), "{words}: {text}");
        }
        assert_eq!(parse(&none, &none, &none, &none), Ok(Vec::new()));
    }

    static UPSTREAM: &str = include_str!("../../../../facts/eviction_thresholds.tsv");

    fn amount(value: &serde_json::Value) -> Amount {
        value.as_str().map_or_else(
            || Amount::Percent(value.as_f64().unwrap() * 100.0),
            |text| Amount::Of(text.parse::<Quantity>().unwrap().units()),
        )
    }

    /// Percentages to a millionth: upstream's are floats of 32 bits.
    fn same(one: Amount, other: Amount) -> bool {
        match (one, other) {
            (Amount::Percent(one), Amount::Percent(other)) => (one - other).abs() < 1e-4,
            // Upstream's amount of nothing is the quantity or the part of that.
            (Amount::Percent(part), Amount::Of(0)) | (Amount::Of(0), Amount::Percent(part)) => part == 0.0,
            (one, other) => one == other,
        }
    }

    fn holds(row: &[&str]) {
        let ["TestParseThresholdConfig", name, of_pods, hard, soft, graces, reclaim, expected] = *row else {
            let [_, text, expected] = *row else { panic!("{row:?}") };
            let found = if text.contains('%') { Amount::parse(text) } else { Err("no percentage".to_owned()) };
            let percent = expected.parse::<f64>().ok().map(|part| Amount::Percent(part * 100.0));
            return assert_eq!(found.ok(), percent, "{text}");
        };
        let setting = |cell: &str| value_of::<Option<ThresholdMap>>(cell).unwrap_or_default();
        let found = parse(&setting(hard), &setting(soft), &setting(graces), &setting(reclaim));
        if expected == "refused" {
            return assert!(found.is_err(), "{name}");
        }
        let expected: serde_json::Value = serde_json::from_str(expected).unwrap();
        let expected = expected.as_array().unwrap();
        let mut found = found.unwrap();
        // Here the limit of all pods together is always enforced.
        found.retain(|t| of_pods == "true" || t.signal != Signal::AllocatableMemory);
        assert_eq!(found.len(), expected.len(), "{name}: {found:?}");
        for one in expected {
            let grace = Duration::from_nanos(one[2].as_u64().unwrap());
            let is = |t: &&Threshold| t.signal.name() == one[0] && t.soft.unwrap_or_default() == grace;
            let threshold = found.iter().find(is).unwrap_or_else(|| panic!("{name}: {one}"));
            assert!(same(threshold.amount, amount(&one[1])), "{name}: {threshold:?} {one}");
            assert!(same(threshold.reclaim, amount(&one[3])), "{name}: {threshold:?} {one}");
        }
    }

    #[test]
    fn thresholds_are_read_as_upstreams_tests_say() {
        let seen = rows(UPSTREAM).inspect(|row| holds(row)).count();
        assert!(seen > 25, "{seen}");
    }

    #[test]
    fn only_hard_thresholds_reserve() {
        let all = parse(
            &setting(&[("memory.available", "100")]),
            &setting(&[("memory.available", "500")]),
            &setting(&[("memory.available", "1s")]),
            &ThresholdMap::new(),
        )
        .unwrap();
        assert_eq!(hard_eviction_reservation(&all, Signal::Memory, 1000), 100);
        assert_eq!(hard_eviction_reservation(&all, Signal::NodeFs, 1000), 0);
    }
}
