//! Levels and versions of the pod security standards, and the labels by which a namespace chooses them. Pure.

use std::fmt;

use serde_json::Value;

use crate::apiserver::{Errors, FieldError};

const PREFIX: &str = "pod-security.kubernetes.io/";

/// How much a pod may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    /// Everything.
    Privileged,
    /// What gives no known way out of the container.
    Baseline,
    /// What is hardened.
    Restricted,
}

impl Level {
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        match text {
            "privileged" => Ok(Self::Privileged),
            "baseline" => Ok(Self::Baseline),
            "restricted" => Ok(Self::Restricted),
            _ => Err("must be one of privileged, baseline, restricted"),
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Privileged => "privileged",
            Self::Baseline => "baseline",
            Self::Restricted => "restricted",
        })
    }
}

/// The release whose standard is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Version {
    /// `v1.N`.
    Minor(u32),
    /// `latest`, which is newer than all others.
    Latest,
}

impl Version {
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        const WRONG: &str = "must be \"latest\" or \"v1.x\"";
        if text == "latest" {
            return Ok(Self::Latest);
        }
        let minor = text.strip_prefix("v1.").ok_or(WRONG)?;
        let plain = minor.bytes().all(|b| b.is_ascii_digit()) && (minor == "0" || !minor.starts_with('0'));
        minor.parse().ok().filter(|_| plain).map(Self::Minor).ok_or(WRONG)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Minor(minor) => write!(f, "v1.{minor}"),
            Self::Latest => f.write_str("latest"),
        }
    }
}

/// A level as one release defines it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LevelVersion {
    pub(super) level: Level,
    pub(super) version: Version,
}

impl LevelVersion {
    const PRIVILEGED: Self = Self { level: Level::Privileged, version: Version::Latest };

    /// Whether a change from `old` to this one can refuse pods that were allowed before.
    pub(super) fn tightens(self, old: Self) -> bool {
        self != old && self.level != Level::Privileged && !(self.version == old.version && self.level <= old.level)
    }
}

impl fmt::Display for LevelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.level, self.version)
    }
}

/// What a namespace demands of its pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Policy {
    /// What violates it is refused.
    pub(super) enforce: LevelVersion,
    /// What violates it is noted in the audit log.
    pub(super) audit: LevelVersion,
    /// What violates it gets a warning.
    pub(super) warn: LevelVersion,
}

/// Everything is allowed.
impl Default for Policy {
    fn default() -> Self {
        let privileged = LevelVersion::PRIVILEGED;
        Self { enforce: privileged, audit: privileged, warn: privileged }
    }
}

impl Policy {
    /// Whether it allows everything without a word.
    pub(super) fn is_privileged(&self) -> bool {
        [self.enforce, self.audit, self.warn].iter().all(|of| of.level == Level::Privileged)
    }

    /// The policy of a namespace by its labels, or the defaults, and what is wrong with the labels. What `enforce` says wrongly is taken as
    /// `restricted`, what the others say wrongly as `privileged`.
    pub(super) fn of_labels(labels: &Value, defaults: Self) -> (Self, Vec<FieldError>) {
        let mut policy = defaults;
        let mut errors = Errors::default();
        let label = |name: &str| labels[&format!("{PREFIX}{name}")].as_str();
        let mut enforces = false;
        for (name, part, on_error) in [
            ("enforce", &mut policy.enforce, Level::Restricted),
            ("audit", &mut policy.audit, Level::Privileged),
            ("warn", &mut policy.warn, Level::Privileged),
        ] {
            if let Some(text) = label(name) {
                part.level = Level::parse(text).unwrap_or_else(|why| {
                    errors.invalid_text(path(name), text, why);
                    on_error
                });
                enforces |= name == "enforce" && Level::parse(text).is_ok();
            }
            let name = format!("{name}-version");
            if let Some(text) = label(&name) {
                part.version = Version::parse(text).unwrap_or_else(|why| {
                    errors.invalid_text(path(&name), text, why);
                    Version::Latest
                });
            }
        }
        // Who enforces a level warns about it, so that the templates of pods are covered.
        if enforces && label("warn").is_none() && policy.enforce.level > policy.warn.level {
            policy.warn.level = policy.enforce.level;
            if label("warn-version").is_none() {
                policy.warn.version = policy.enforce.version;
            }
        }
        (policy, errors.0)
    }
}

/// What labels say of an exempt namespace, without what allows everything.
pub(super) fn ignored(policy: &Policy, labels: &Value) -> String {
    let is_said = |name: &str| {
        [name.to_owned(), format!("{name}-version")].iter().any(|name| !labels[&format!("{PREFIX}{name}")].is_null())
    };
    let parts = [("enforce", policy.enforce), ("audit", policy.audit), ("warn", policy.warn)];
    let said = parts.into_iter().filter(|(name, of)| is_said(name) && of.level != Level::Privileged);
    said.map(|(name, of)| format!("{name}={of}")).collect::<Vec<_>>().join(", ")
}

fn path(label: &str) -> String {
    format!("metadata.labels[{PREFIX}{label}]")
}
