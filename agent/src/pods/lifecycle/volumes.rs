//! Progress of a pod's volumes. Each is independent: a failure of one, its retries and its back-off keep no other from
//! being set up, refreshed, or given a new token. Pure.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodSpec;
use windlass_kit::backoff::delay_after;

use super::{
    observed::{Failure, Observed},
    time::saturating_add,
};

/// How far a volume is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum VolumeState {
    Ready {
        /// When its files are to be rewritten.
        refresh_at: Option<Timestamp>,
        /// Failures in a row of rewriting them.
        failures: u32,
    },
    /// Setting it up failed; retried later.
    Failed {
        failure: Failure,
        /// Its source is not ready, for example its claim is unbound: nothing was tried on the node.
        pending: bool,
    },
}

/// The first and the longest delay before a volume is tried again.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// The same for one that is pending; upstream looks again in 100 ms, too.
const PENDING_RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(60));
/// So often a volume is found pending, in about six seconds, before that is an event: binding a claim takes a moment.
const SILENT_TRIES: u32 = 6;
/// A pod that waits longer for its volumes gets an event that lists them, again and again; upstream's
/// `podAttachAndMountTimeout`.
pub(crate) const MOUNT_TIMEOUT: Duration = Duration::from_secs(123);

impl Observed {
    /// The volumes of a spec that are not set up.
    fn unmounted<'a>(&'a self, spec: &'a PodSpec) -> impl Iterator<Item = &'a str> {
        let names = spec.volumes.iter().flatten().map(|v| v.name.as_str());
        names.filter(|name| !matches!(self.volumes.get(*name), Some(VolumeState::Ready { .. })))
    }

    /// Whether all volumes of a spec are set up.
    pub(crate) fn are_volumes_ready(&self, spec: &PodSpec) -> bool {
        self.unmounted(spec).next().is_none()
    }

    /// The message of a pod whose volumes were not set up in time; upstream's.
    pub(crate) fn unmounted_message(&self, spec: &PodSpec) -> String {
        let words = |names: Vec<&str>| format!("[{}]", names.join(" "));
        let pending = |name: &&str| matches!(self.volumes.get(*name), Some(VolumeState::Failed { pending: true, .. }));
        format!(
            "Unable to attach or mount volumes: unmounted volumes={}, unattached volumes=[], failed to process volumes={}: context deadline exceeded",
            words(self.unmounted(spec).collect()),
            words(self.unmounted(spec).filter(pending).collect()),
        )
    }

    /// A volume was set up or refreshed; a token in it is due for renewal at `renew_at`.
    pub(crate) fn volume_prepared(&mut self, volume: String, renew_at: Option<Timestamp>) {
        // What has changed meanwhile is refreshed as soon as it was to be.
        let asked = match self.volumes.get(&volume) {
            Some(VolumeState::Ready { refresh_at, .. }) => *refresh_at,
            _ => None,
        };
        let refresh_at = asked.into_iter().chain(renew_at).min();
        self.volumes.insert(volume, VolumeState::Ready { refresh_at, failures: 0 });
    }

    /// A volume could not be set up or refreshed. Files that there are stay as they are until they can be written.
    /// Gives whether that is worth an event.
    pub(crate) fn volume_failed(
        &mut self,
        volume: String,
        (reason, message): (&'static str, String),
        pending: bool,
        now: Timestamp,
    ) -> bool {
        let (first, longest) = if pending { PENDING_RETRY } else { RETRY };
        let retry_at = |failures: u32| saturating_add(now, delay_after(first, longest, failures - 1));
        let count = match self.volumes.get_mut(&volume) {
            Some(VolumeState::Ready { refresh_at, failures }) => {
                *failures += 1;
                refresh_at.get_or_insert(retry_at(*failures));
                *failures
            }
            known => {
                let count = match known {
                    Some(VolumeState::Failed { failure, pending: was }) if *was == pending => failure.count + 1,
                    _ => 1,
                };
                let failure = Failure { reason, message, at: now, retry_at: retry_at(count), count };
                self.volumes.insert(volume, VolumeState::Failed { failure, pending });
                count
            }
        };
        !pending || count > SILENT_TRIES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::lifecycle::reasons;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn fail(observed: &mut Observed, volume: &str, pending: bool, now: Timestamp) -> bool {
        let why = (reasons::FAILED_MOUNT, format!("configmap {volume:?} not found"));
        observed.volume_failed(volume.to_owned(), why, pending, now)
    }

    #[test]
    fn a_volume_fails_alone() {
        let mut observed = Observed::default();
        observed.volume_prepared("token".to_owned(), Some(at(2880)));
        observed.volume_prepared("settings".to_owned(), None);
        // As when a refresh begins.
        let begin = |observed: &mut Observed| {
            if let Some(VolumeState::Ready { refresh_at, .. }) = observed.volumes.get_mut("settings") {
                *refresh_at = None;
            }
        };
        for (now, retry) in [(10, 11), (11, 13), (13, 17)] {
            begin(&mut observed);
            assert!(fail(&mut observed, "settings", false, at(now)));
            let VolumeState::Ready { refresh_at, .. } = observed.volumes["settings"] else { panic!("{observed:?}") };
            assert_eq!(refresh_at, Some(at(retry)));
        }
        assert_eq!(observed.volumes["token"], VolumeState::Ready { refresh_at: Some(at(2880)), failures: 0 });
        begin(&mut observed);
        observed.volume_prepared("settings".to_owned(), None);
        assert_eq!(observed.volumes["settings"], VolumeState::Ready { refresh_at: None, failures: 0 });
    }

    #[test]
    fn what_changed_meanwhile_is_refreshed_at_once() {
        let mut observed = Observed::default();
        let asked = VolumeState::Ready { refresh_at: Some(at(5)), failures: 0 };
        observed.volumes.insert("v".to_owned(), asked.clone());
        assert!(fail(&mut observed, "v", false, at(6)));
        assert_eq!(observed.volumes["v"], VolumeState::Ready { refresh_at: Some(at(5)), failures: 1 });
        observed.volume_prepared("v".to_owned(), Some(at(100)));
        assert_eq!(observed.volumes["v"], asked);
    }

    #[test]
    fn a_claim_that_is_bound_in_a_moment_is_no_event() {
        let mut observed = Observed::default();
        for _ in 0..SILENT_TRIES {
            assert!(!fail(&mut observed, "data", true, at(0)));
        }
        assert!(fail(&mut observed, "data", true, at(7)));
        assert!(fail(&mut observed, "data", false, at(8)), "a mount that fails is told at once");
        observed.volume_prepared("data".to_owned(), None);
        assert!(matches!(observed.volumes["data"], VolumeState::Ready { .. }));
    }

    #[test]
    fn volumes_that_do_not_come_are_listed() {
        let spec = serde_json::from_value(
            serde_json::json!({"containers": [], "volumes": [{"name": "a"}, {"name": "b"}, {"name": "c"}]}),
        );
        let spec: PodSpec = spec.unwrap();
        let mut observed = Observed::default();
        observed.volume_prepared("b".to_owned(), None);
        fail(&mut observed, "a", false, at(0));
        fail(&mut observed, "c", true, at(0));
        assert!(!observed.are_volumes_ready(&spec));
        assert_eq!(
            observed.unmounted_message(&spec),
            "Unable to attach or mount volumes: unmounted volumes=[a c], unattached volumes=[], failed to process volumes=[c]: context deadline exceeded"
        );
    }
}
