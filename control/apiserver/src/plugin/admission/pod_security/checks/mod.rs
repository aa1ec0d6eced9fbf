//! What the pod security standards demand of a pod, one function for each check and version of it. Pure.

mod baseline;
mod fields;
mod restricted;

use serde_json::Value;

use super::policy::{Level, LevelVersion, Version};

/// Why a check refuses a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Violation {
    /// What is wrong, without names.
    pub(super) reason: String,
    /// Where, and what would be right; may be empty.
    detail: String,
}

impl Violation {
    fn new(reason: &str, detail: String) -> Self {
        Self { reason: reason.to_owned(), detail }
    }
}

/// A pod or the template of one: metadata and spec.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pod<'a> {
    pub(super) metadata: &'a Value,
    pub(super) spec: &'a Value,
}

/// Decides on one aspect of a pod.
type Check = fn(Pod<'_>) -> Option<Violation>;

/// The versions of one check: the first minor release of each, oldest first.
struct Versioned {
    /// The check of the level `baseline` that this one replaces, if any.
    replaces: Option<&'static str>,
    name: &'static str,
    versions: &'static [(u32, Check)],
}

impl Versioned {
    fn at(&self, version: Version) -> Option<Check> {
        let of = |first: u32| Version::Minor(first) <= version;
        self.versions.iter().rev().find(|(first, _)| of(*first)).map(|(_, check)| *check)
    }
}

/// All violations of a level by a pod, in upstream's order: by name, those of `baseline` first.
pub(super) fn violations(of: LevelVersion, pod: Pod<'_>) -> Vec<Violation> {
    let restricted: &[Versioned] = if of.level == Level::Restricted { restricted::CHECKS } else { &[] };
    let baseline: &[Versioned] = if of.level == Level::Privileged { &[] } else { baseline::CHECKS };
    let replaced = |name: &str| restricted.iter().any(|by| by.replaces == Some(name) && by.at(of.version).is_some());
    let checks = baseline.iter().filter(|check| !replaced(check.name)).chain(restricted);
    checks.filter_map(|check| check.at(of.version)?(pod)).collect()
}

/// The violations as one text.
pub(super) fn describe(violations: &[Violation]) -> String {
    let one = |Violation { reason, detail }: &Violation| {
        if detail.is_empty() { reason.clone() } else { format!("{reason} ({detail})") }
    };
    violations.iter().map(one).collect::<Vec<_>>().join(", ")
}
