//! What is known of Docker's API, call by call, and in one place: how long a call may take, which answers mean that there
//! is nothing left to do, and since which version of the API it can be asked. Pure. `contracts` in the tests runs all of it
//! against a real engine, which is killed after each step.

use std::{fmt, time::Duration};

/// A version of Docker's API. Its meaning changes at versions, so that requests name the one that they mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ApiVersion(pub(crate) u16, pub(crate) u16);

impl ApiVersion {
    /// Of Engine 20.10, the oldest that has what pods need.
    pub(crate) const OLDEST: Self = Self(1, 41);
    /// The newest whose changes were read, and that the tests have run against.
    pub(crate) const NEWEST: Self = Self(1, 51);
    /// Of Engine 28: images can be mounted as volumes.
    pub(crate) const IMAGE_MOUNTS: Self = Self(1, 48);

    /// Reads a version such as `1.41`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (major, minor) = text.split_once('.')?;
        Some(Self(major.parse().ok()?, minor.parse().ok()?))
    }

    /// The version to speak with an engine that speaks those from `oldest` to `newest`.
    ///
    /// # Errors
    /// When there is no common version.
    pub(crate) fn negotiate(oldest: Self, newest: Self) -> Result<Self, String> {
        let common = newest.min(Self::NEWEST);
        if common < oldest || common < Self::OLDEST {
            return Err(format!(
                "it speaks versions {oldest} to {newest} of its API, and this version of Windlass {} to {}",
                Self::OLDEST,
                Self::NEWEST
            ));
        }
        Ok(common)
    }
}

impl fmt::Display for ApiVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// One kind of call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Contract {
    /// kubelet's name of it among the operations of the container runtime; empty where kubelet has none.
    pub(super) operation: &'static str,
    /// How long to wait for the response headers; upstream's `runtimeRequestTimeout` unless known better.
    pub(super) limit: Duration,
    /// Statuses that count as success: the request was already fulfilled, or its object does not exist.
    pub(super) done: &'static [u16],
}

const fn call(operation: &'static str, seconds: u64, done: &'static [u16]) -> Contract {
    Contract { operation, limit: Duration::from_secs(seconds), done }
}

/// Seconds of most calls.
pub(super) const REQUEST_TIMEOUT: u64 = 120;

/// Whether Docker answers, and which engine it is.
pub(super) const PING: Contract = call("status", 10, &[]);
pub(super) const INFO: Contract = call("version", 10, &[]);
pub(super) const CREATE: Contract = call("create_container", REQUEST_TIMEOUT, &[]);
/// 304: it runs.
pub(super) const START: Contract = call("start_container", REQUEST_TIMEOUT, &[304]);
/// To the grace period, which Docker waits for itself. 304: it has exited; 404: it does not exist; 409: it is being
/// removed.
pub(super) const STOP: Contract = call("stop_container", 60, &[304, 404, 409]);
/// 409: it does not run.
pub(super) const KILL: Contract = call("kill_container", REQUEST_TIMEOUT, &[404, 409]);
/// A 409 means that it is being removed by another request, which may fail: see [`super::Engine::remove`].
pub(super) const REMOVE: Contract = call("remove_container", REQUEST_TIMEOUT, &[404]);
pub(super) const UPDATE: Contract = call("update_container", REQUEST_TIMEOUT, &[]);
pub(super) const INSPECT: Contract = call("container_status", REQUEST_TIMEOUT, &[404]);
pub(super) const LIST: Contract = call("list_containers", REQUEST_TIMEOUT, &[]);
/// Docker walks over the files of each container.
pub(super) const LIST_WITH_SIZES: Contract = call("list_containers", 2 * REQUEST_TIMEOUT, &[]);
pub(super) const EXEC: Contract = call("exec", REQUEST_TIMEOUT, &[]);
/// The end of a command's streams does not mean that it has exited: Docker notices that a moment later. Docker drops
/// commands together with their container, and all of them when it restarts, even if containers survive (live-restore).
pub(super) const EXEC_INSPECT: Contract = call("", REQUEST_TIMEOUT, &[404]);
/// 404 or 409: the process has ended, and its terminal with it. Some answer with a 500 then, for a moment.
pub(super) const RESIZE: Contract = call("", 10, &[404, 409]);
/// Until a client's streams are joined to the process; upstream's `DefaultStreamCreationTimeout`.
pub(super) const ATTACH: Contract = call("attach", 30, &[]);
/// Until the first line can come, which may then take for ever. A container that is gone has no log: that is an error.
pub(super) const LOGS: Contract = call("", REQUEST_TIMEOUT, &[]);
/// Docker sends the headers before the first event. Events missed between subscriptions are replayed from its last 256,
/// which do not survive a restart: each new subscription lists again.
pub(super) const EVENTS: Contract = call("", 30, &[]);
pub(super) const IMAGE_INSPECT: Contract = call("image_status", REQUEST_TIMEOUT, &[404]);
pub(super) const IMAGE_LIST: Contract = call("list_images", REQUEST_TIMEOUT, &[]);
/// 409: a container uses it, which is an error.
pub(super) const IMAGE_REMOVE: Contract = call("remove_image", REQUEST_TIMEOUT, &[404]);
/// Until Docker has asked the registry. A stream that ends without an error does not prove that the image was pulled,
/// so it is looked up afterwards: a killed Docker ends the stream in the same way.
pub(super) const PULL: Contract = call("", REQUEST_TIMEOUT, &[]);
/// The sandbox's image, of a few hundred kilobytes. It is looked up afterwards.
pub(super) const LOAD: Contract = call("", 60, &[]);
/// 404: the container has no such file.
pub(super) const DOWNLOAD: Contract = call("", REQUEST_TIMEOUT, &[404]);
pub(super) const EXPORT: Contract = call("", REQUEST_TIMEOUT, &[]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_common_version_is_spoken() {
        let version = |text: &str| ApiVersion::parse(text).unwrap();
        for (oldest, newest, spoken) in [
            // Engines 20.10, 26.1, 28.5, 29.
            ("1.12", "1.41", Some("1.41")),
            ("1.24", "1.45", Some("1.45")),
            ("1.24", "1.51", Some("1.51")),
            ("1.44", "1.52", Some("1.51")),
            ("1.12", "1.40", None),
            ("1.60", "1.70", None),
        ] {
            let common = ApiVersion::negotiate(version(oldest), version(newest)).map(|v| v.to_string());
            assert_eq!(common.as_deref().ok(), spoken, "{oldest} to {newest}: {common:?}");
        }
        let why = ApiVersion::negotiate(version("1.60"), version("1.70")).unwrap_err();
        assert_eq!(why, "it speaks versions 1.60 to 1.70 of its API, and this version of Windlass 1.41 to 1.51");
        assert!(version("1.9") < version("1.41"));
        assert!(ApiVersion::parse("1").is_none() && ApiVersion::parse("").is_none());
    }
}
