//! What looks again after a while, in case that a main path has lost something: an event, a change, an answer. Each such repair has
//! a name here, and so have some main paths, since a test that passes by either of two proves neither: the end-to-end tests run
//! with all repairs off, so that what is lost shows as a failure and not as a delay, and one test of each repair with its main path
//! off. Programs that are built for use know no such setting.
//!
//! The setting is per process; a component that a test runs several times at once takes its own [`Repairs`].

use std::{sync::OnceLock, time::Duration};

/// The setting of tests: `off`, or a list such as `off,engine-relist=2s,engine-events=off`, of which the last word counts.
const VARIABLE: &str = "WINDLASS_TEST_REPAIRS";
/// Longer than anything runs.
const NEVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// A repair that comes by time alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repair {
    /// The containers of pods are listed, whatever Docker's events say.
    EngineRelist,
    /// The same for containers of others.
    UnmanagedRelist,
    /// The directory of static pods is read, whatever inotify says.
    StaticPodRescan,
    /// The same for the directory of manifests.
    ManifestRescan,
    /// Controllers see all cached objects as if they were new.
    InformerReplay,
    /// Quotas are counted again.
    QuotaResync,
    /// The generation of nf_tables is asked for, whatever the monitor says.
    NftCheck,
    /// Rules of services are compared with the wanted ones.
    ProxySync,
    /// The same for the rules of the pod network, and what could not be done to them is done.
    PodNetworkCheck,
    /// The values of pods' cgroups are compared with the wanted ones.
    CgroupUpdate,
    /// Pods that fit nowhere are tried once more.
    UnschedulableFlush,
    /// Collects unused images if there are too many or they are too old.
    ImageCollection,
}

/// A path that has a [`Repair`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MainPath {
    /// Docker's events of all containers, ours and others'.
    EngineEvents,
    /// The kernel's word that a container's first process has ended.
    ContainerEnds,
    /// inotify's events of directories of manifests.
    DirectoryChanges,
    /// The kernel's events of changed rules.
    NftMonitor,
    /// Informers' notifications of changed objects to controllers.
    ObjectChanges,
    /// What the scheduler concludes of changes of the cluster for pods that fit nowhere.
    QueueingHints,
}

const REPAIRS: [(&str, Repair); 12] = [
    ("engine-relist", Repair::EngineRelist),
    ("unmanaged-relist", Repair::UnmanagedRelist),
    ("static-pod-rescan", Repair::StaticPodRescan),
    ("manifest-rescan", Repair::ManifestRescan),
    ("informer-replay", Repair::InformerReplay),
    ("quota-resync", Repair::QuotaResync),
    ("nft-check", Repair::NftCheck),
    ("proxy-sync", Repair::ProxySync),
    ("pod-network-check", Repair::PodNetworkCheck),
    ("cgroup-update", Repair::CgroupUpdate),
    ("unschedulable-flush", Repair::UnschedulableFlush),
    ("image-collection", Repair::ImageCollection),
];

const MAIN_PATHS: [(&str, MainPath); 6] = [
    ("engine-events", MainPath::EngineEvents),
    ("container-ends", MainPath::ContainerEnds),
    ("directory-changes", MainPath::DirectoryChanges),
    ("nft-monitor", MainPath::NftMonitor),
    ("object-changes", MainPath::ObjectChanges),
    ("queueing-hints", MainPath::QueueingHints),
];

impl Repair {
    /// How long to wait before it, where that is `usual` in the field.
    #[must_use]
    pub fn period(self, usual: Duration) -> Duration {
        Repairs::of_process().period(self, usual)
    }
}

impl MainPath {
    /// Whether a test has switched it off.
    #[must_use]
    pub fn is_off(self) -> bool {
        Repairs::of_process().is_off(self)
    }
}

/// What a test has set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Repairs {
    all_off: bool,
    periods: Vec<(Repair, Duration)>,
    main_paths_off: Vec<MainPath>,
}

impl Repairs {
    /// The setting of this process: all as in the field, if no test has started it.
    ///
    /// # Panics
    /// When it cannot be read: a test would pass for another reason than it says.
    #[must_use]
    pub fn of_process() -> &'static Self {
        static SETTING: OnceLock<Repairs> = OnceLock::new();
        SETTING.get_or_init(|| {
            let given = if cfg!(debug_assertions) { std::env::var(VARIABLE).ok() } else { None };
            let parsed = given.map_or_else(|| Ok(Self::default()), |text| Self::parse(&text));
            parsed.unwrap_or_else(|why| panic!("{VARIABLE}, a setting of tests, cannot be read: {why}"))
        })
    }

    /// Reads `off`, or a list such as `off,engine-relist=2s,engine-events=off`, of which the last word counts.
    ///
    /// # Errors
    /// Names the word that is not known.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut setting = Self::default();
        for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            if word == "off" {
                setting.all_off = true;
                continue;
            }
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            let repair = REPAIRS.iter().find(|(known, _)| *known == name);
            let main_path = MAIN_PATHS.iter().find(|(known, _)| *known == name);
            let period = if value == "off" { Some(NEVER) } else { crate::duration::parse(value) };
            match (repair, main_path, period) {
                (Some((_, repair)), _, Some(period)) => setting.periods.insert(0, (*repair, period)),
                (_, Some((_, path)), _) if value == "off" => setting.main_paths_off.push(*path),
                (None, None, _) => return Err(format!("{name:?} is neither a repair nor a main path")),
                _ => return Err(format!("{word:?} says neither off nor a duration such as 2s")),
            }
        }
        Ok(setting)
    }

    /// How long to wait before a repair, where that is `usual` in the field.
    #[must_use]
    pub fn period(&self, repair: Repair, usual: Duration) -> Duration {
        let own = self.periods.iter().find(|(of, _)| *of == repair);
        own.map_or(if self.all_off { NEVER } else { usual }, |(_, period)| *period)
    }

    /// Whether a main path is off.
    #[must_use]
    pub fn is_off(&self, path: MainPath) -> bool {
        self.main_paths_off.contains(&path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Duration = Duration::from_secs(60);

    #[test]
    fn all_are_off_but_those_that_have_a_period() {
        let setting = Repairs::parse("off, engine-relist=2s ,engine-events=off").unwrap();
        assert_eq!(setting.period(Repair::EngineRelist, USUAL), Duration::from_secs(2));
        assert_eq!(setting.period(Repair::QuotaResync, USUAL), NEVER);
        assert_eq!(setting.main_paths_off, [MainPath::EngineEvents]);
        let later = Repairs::parse("engine-relist=2s,engine-relist=off").unwrap();
        assert_eq!(later.period(Repair::EngineRelist, USUAL), NEVER);
    }

    #[test]
    fn nothing_is_off_by_itself() {
        for (_, repair) in REPAIRS {
            assert_eq!(Repairs::parse("").unwrap().period(repair, USUAL), USUAL);
        }
        assert!(!MainPath::EngineEvents.is_off() && !MainPath::NftMonitor.is_off());
    }

    /// A test that misspells what it switches off would pass for another reason.
    #[test]
    fn words_that_are_not_known_are_refused() {
        for text in ["engine-relists=off", "engine-relist", "engine-relist=soon", "engine-events=2s", "on"] {
            assert!(Repairs::parse(text).is_err(), "{text}");
        }
    }
}
