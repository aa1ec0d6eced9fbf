//! What a pod's worker knows when it decides: what runs, and what was tried. Plain data.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use jiff::Timestamp;

use super::{allocated::Allocated, orders::Ended, plan::Key, probes::Records, resize};
use crate::engine::instance::{Instance, State};

/// Why something could not be done, in the words that the container's status shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// Upstream's word, such as `ErrImagePull`.
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    /// When it happened.
    pub(crate) at: Timestamp,
    /// When it is tried again.
    pub(crate) retry_at: Timestamp,
    /// How often it failed in a row.
    pub(crate) times: u32,
}

/// What is known of the image of one container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ImageState {
    /// In Docker's store.
    Present {
        id: String,
        /// What statuses show of it: the digest of its registry, or its id.
        shown: String,
        user: String,
    },
    /// Not to be had; tried again later.
    Failed(Failure),
}

/// The whole of a worker's knowledge. Times are values: deciding never reads a clock.
#[derive(Debug, Clone, Default)]
pub(crate) struct Observed {
    /// Every container that Docker has of this pod, the newest attempt of each name last.
    pub(crate) instances: Vec<Instance>,
    /// Sandboxes whose network is attached.
    pub(crate) attached: BTreeSet<String>,
    /// The pod's own, the first family first.
    pub(crate) addresses: Vec<IpAddr>,
    /// Volumes are in place for this pod's spec.
    pub(crate) volumes: bool,
    pub(crate) volumes_failure: Option<Failure>,
    /// Since or from when the files of volumes are to be written anew.
    pub(crate) stale: Option<Timestamp>,
    pub(crate) sandbox_failure: Option<Failure>,
    /// By container.
    pub(crate) images: BTreeMap<String, ImageState>,
    /// Creating or starting failed, by container.
    pub(crate) start_failures: BTreeMap<String, Failure>,
    /// Restarts in a row, by container; absent after a restart of the agent.
    pub(crate) crashes: BTreeMap<String, u32>,
    /// The highest attempt at each container whose log is there: it may be all that is left of it.
    pub(crate) logged: BTreeMap<String, u32>,
    /// Actions under way: never begun twice.
    pub(crate) in_flight: BTreeSet<Key>,
    /// Everything that the pod had of the node was taken away.
    pub(crate) torn_down: bool,
    /// The API has forgotten the pod.
    pub(crate) forgotten: bool,
    /// Containers that are being stopped, each with when it is killed.
    pub(crate) stopping: BTreeMap<String, Timestamp>,
    /// Of these, those whose processes have all ended: Docker tells it a moment later.
    pub(crate) silent: BTreeSet<String>,
    pub(crate) probes: Records,
    /// When this agent found what ran before it.
    pub(crate) found_at: Option<Timestamp>,
    /// What the node has allocated to the containers; `None` for what is never resized.
    pub(crate) allocated: Option<Allocated>,
    /// What became of the wish for other resources than the containers run with.
    pub(crate) resize: Option<resize::Verdict>,
    pub(crate) resize_failure: Option<Failure>,
    /// Instances whose postStart hook has ended well, and those that were found running.
    pub(crate) hooked: BTreeSet<String>,
    /// Instances that were ended because a probe or hook failed: an exit of 0 is no success then.
    pub(crate) condemned: BTreeSet<String>,
    /// The node ends the pod, whatever the API wants of it.
    pub(crate) ended: Option<Ended>,
    /// What a pod that is over has left may go.
    pub(crate) drop_dead: bool,
    /// The volumes of a pod that is over were taken away.
    pub(crate) cleared: bool,
    /// When the grace of that order runs out.
    pub(crate) end_by: Option<Timestamp>,
}

impl Observed {
    /// The containers that run, as Docker has it; the sandbox does not count.
    pub(crate) fn running(&self) -> impl Iterator<Item = &Instance> {
        self.instances.iter().filter(|i| !i.is_sandbox() && i.is_running())
    }

    /// Whether a container runs.
    pub(crate) fn runs(&self) -> bool {
        self.running().next().is_some()
    }

    /// Those in which a process may still run.
    pub(crate) fn alive(&self) -> impl Iterator<Item = &Instance> {
        self.running().filter(|i| !self.silent.contains(&i.id))
    }

    /// Whether a container is being made, started or stopped: it may run yet.
    pub(crate) fn in_the_making(&self) -> bool {
        let may_run = |i: &Instance| !i.is_sandbox() && !matches!(i.state, State::Exited(_));
        self.in_flight.iter().any(|key| match key {
            Key::Create(_) => true,
            Key::Container(id) => self.instances.iter().any(|i| i.id == *id && may_run(i)),
            _ => false,
        })
    }

    /// The attempts at one container, oldest first.
    pub(crate) fn attempts<'a>(&'a self, name: &'a str) -> impl DoubleEndedIterator<Item = &'a Instance> {
        self.instances.iter().filter(move |i| i.identity.container == name)
    }

    /// The newest attempt at one container.
    pub(crate) fn newest<'a>(&'a self, name: &'a str) -> Option<&'a Instance> {
        self.attempts(name).next_back()
    }

    /// The newest sandbox, running or not.
    pub(crate) fn sandbox(&self) -> Option<&Instance> {
        self.newest(crate::engine::names::SANDBOX_NAME)
    }

    /// Puts what Docker says of one container in its place.
    pub(crate) fn put(&mut self, instance: Instance) {
        self.instances.retain(|i| i.id != instance.id);
        self.instances.push(instance);
        self.instances.sort_by(|a, b| {
            (&a.identity.container, a.identity.attempt, a.created_at).cmp(&(
                &b.identity.container,
                b.identity.attempt,
                b.created_at,
            ))
        });
    }

    /// Forgets a container that is gone.
    pub(crate) fn forget(&mut self, id: &str) {
        self.instances.retain(|i| i.id != id);
        self.attached.remove(id);
        self.stopping.remove(id);
        self.silent.remove(id);
        self.hooked.remove(id);
        self.condemned.remove(id);
    }
}

/// First delay and ceiling of both the crash and the image back-off; upstream's.
pub(crate) const BACKOFF_BASE: Duration = Duration::from_secs(10);
pub(crate) const BACKOFF_CAP: Duration = Duration::from_secs(300);
/// A run this long clears the crash back-off; upstream's.
pub(crate) const LONG_RUN: Duration = Duration::from_secs(600);

/// How long a failed pull is shown as such before it is shown as being held back.
pub(crate) const PULL_FAILURE_SHOWN: Duration = Duration::from_secs(2);

/// `at` plus a duration; the far end of time instead of an overflow.
pub(crate) fn later(at: Timestamp, by: Duration) -> Timestamp {
    jiff::SignedDuration::try_from(by).ok().and_then(|by| at.checked_add(by).ok()).unwrap_or(Timestamp::MAX)
}
