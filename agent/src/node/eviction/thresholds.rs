//! Thresholds: how little of something the node may have left. Read from settings in kubelet's words. Pure.

use std::{collections::BTreeMap, time::Duration};

use windlass_kit::{duration, quantity::Quantity};

/// What may run short.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Signal {
    /// Memory of the machine.
    Memory,
    /// Memory that all pods together may have.
    AllocatableMemory,
    /// Bytes of the file system of volumes and logs.
    NodeFs,
    /// Its inodes.
    NodeFsInodes,
    /// Bytes of the file system of Docker's data root.
    ImageFs,
    /// Its inodes.
    ImageFsInodes,
    /// Process ids.
    Pid,
}

/// The names that settings use; `allocatableMemory.available` is derived and cannot be set.
const NAMES: [(&str, Signal); 6] = [
    ("memory.available", Signal::Memory),
    ("nodefs.available", Signal::NodeFs),
    ("nodefs.inodesFree", Signal::NodeFsInodes),
    ("imagefs.available", Signal::ImageFs),
    ("imagefs.inodesFree", Signal::ImageFsInodes),
    ("pid.available", Signal::Pid),
];

/// The condition of the node that a signal speaks of.
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
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, signal)| *signal)
    }

    /// Upstream's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(_, signal)| *signal == self).map_or("allocatableMemory.available", |(name, _)| *name)
    }

    /// The condition of the node that it decides.
    #[must_use]
    pub const fn condition(self) -> Condition {
        match self {
            Self::Memory | Self::AllocatableMemory => Condition::Memory,
            Self::NodeFs | Self::NodeFsInodes | Self::ImageFs | Self::ImageFsInodes => Condition::Disk,
            Self::Pid => Condition::Pid,
        }
    }

    /// The resource that pods starve of, in upstream's words.
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

/// An amount, or a part of what there is.
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

    /// Upstream takes none and all for "off".
    #[allow(clippy::float_cmp, reason = "the two are exact in what people write")]
    fn is_off(self) -> bool {
        self == Self::Of(0) || self == Self::Percent(0.0) || self == Self::Percent(100.0)
    }
}

/// What happens when how little is left.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Threshold {
    /// Of what.
    pub signal: Signal,
    /// It is met when less than this is left.
    pub amount: Amount,
    /// How long a soft one must be met before anything is done; `None` for a hard one.
    pub soft: Option<Duration>,
    /// What must be free beyond it once it was met.
    pub reclaim: Amount,
}

/// The settings as kubelet's file has them, by signal.
pub type Setting = BTreeMap<String, String>;

/// What is left to whoever sets nothing; upstream's.
#[must_use]
pub fn default_hard() -> Setting {
    let all = [
        ("memory.available", "100Mi"),
        ("nodefs.available", "10%"),
        ("nodefs.inodesFree", "5%"),
        ("imagefs.available", "15%"),
        ("imagefs.inodesFree", "5%"),
    ];
    all.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Reads the four settings. A hard memory threshold also holds for what pods may have together.
///
/// # Errors
/// Every setting that cannot be used, by its name.
pub fn parse(
    hard: &Setting,
    soft: &Setting,
    soft_graces: &Setting,
    reclaim: &Setting,
) -> Result<Vec<Threshold>, Vec<String>> {
    let mut wrong = Vec::new();
    let mut amounts = |setting: &'static str, of: &Setting| -> BTreeMap<Signal, Amount> {
        let mut found = BTreeMap::new();
        for (name, text) in of {
            let known = NAMES.map(|(name, _)| name).join(", ");
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
    for signal in soft.keys().filter(|signal| !graces.contains_key(signal)) {
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
    // Memory first: it kills fastest.
    all.sort_by_key(|t| (t.signal.condition(), t.signal, t.soft.is_some()));
    Ok(all)
}

/// What hard thresholds keep back of a capacity, as allocatable resources count it.
#[must_use]
pub fn kept_back(thresholds: &[Threshold], signal: Signal, capacity: i64) -> i64 {
    let hard = thresholds.iter().filter(|t| t.signal == signal && t.soft.is_none());
    hard.map(|t| t.amount.of(capacity)).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(all: &[(&str, &str)]) -> Setting {
        all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn the_defaults_are_upstreams() {
        let none = Setting::new();
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
    fn soft_ones_have_a_grace_and_a_reclaim() {
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
    fn what_is_wrong_is_named() {
        let none = Setting::new();
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

    #[test]
    fn only_hard_ones_keep_back() {
        let all = parse(
            &setting(&[("memory.available", "100")]),
            &setting(&[("memory.available", "500")]),
            &setting(&[("memory.available", "1s")]),
            &Setting::new(),
        )
        .unwrap();
        assert_eq!(kept_back(&all, Signal::Memory, 1000), 100);
        assert_eq!(kept_back(&all, Signal::NodeFs, 1000), 0);
    }
}
