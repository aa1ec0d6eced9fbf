//! What a pod's worker knows when it decides: what runs, and what was tried. Plain data.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};

use super::{allocated::Allocated, kill::KillReason, probes::ProbeRecords, step_key::StepKey, volumes::VolumeState};
use crate::engine::{
    inspect::{Instance, Limits, State},
    names::SANDBOX_NAME,
};

/// A step that failed, in the words that the container's status shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// One of [`reasons`](super::reasons).
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    /// When it happened.
    pub(crate) at: Timestamp,
    /// When the step is retried.
    pub(crate) retry_at: Timestamp,
    /// Failures in a row.
    pub(crate) count: u32,
}

/// What is known of the image of one container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ImageState {
    /// In the engine's store. Good for one container: names of images move, and images are removed, so that each start
    /// looks it up again; until then the engine's events of images cast doubt on it.
    Present {
        id: String,
        /// What `imageID` shows: the digest in its registry, or its id.
        shown: String,
        user: String,
    },
    /// It was present under this id, and image events have followed: of other images, of its own pull, or of its name
    /// moving to another image. It is looked up, and pulled only if absent; otherwise two waiting pods would trigger
    /// each other's pulls for ever.
    Doubtful(String),
    /// Lookup or pull failed; retried later.
    Failed(Failure),
    /// The same before the container's turn had come: an init container may have to prepare what the pull needs. It is
    /// not reported, and does not count when the turn comes.
    FailedAhead(Failure),
}

/// Whether the node can give a pod the resources that its spec asks for now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ResizeDecision {
    /// The resize is allocated and being actuated.
    Granted,
    /// Not now: other pods have reserved what it needs.
    Deferred(String),
    /// Never on this node.
    Infeasible(String),
}

/// All that a worker knows of its pod beyond the object. Times are values: deciding never reads a clock.
#[derive(Debug, Clone, Default)]
pub(crate) struct Observed {
    /// Every container that the engine has of this pod, the newest attempt of each name last.
    pub(crate) instances: Vec<Instance>,
    /// Ids of sandboxes whose network is attached.
    pub(crate) network_ready: BTreeSet<String>,
    /// The pod's IP addresses, the primary family first.
    pub(crate) addresses: Vec<IpAddr>,
    /// How far each volume is, by its name; one that was not tried yet is absent.
    pub(crate) volumes: BTreeMap<String, VolumeState>,
    pub(crate) sandbox_failure: Option<Failure>,
    /// By container name.
    pub(crate) images: BTreeMap<String, ImageState>,
    /// Creating or starting failed, by container name.
    pub(crate) start_failures: BTreeMap<String, Failure>,
    /// Crashes in a row, by container name; empty after a restart of the agent.
    pub(crate) crash_counts: BTreeMap<String, u32>,
    /// The highest attempt of each container that a log exists of: the log may be all that is left of it.
    pub(crate) last_logged_attempt: BTreeMap<String, u32>,
    /// Steps in flight: never started twice.
    pub(crate) in_flight: BTreeSet<StepKey>,
    /// Containers that changed while a step read them, perhaps too early, or that the engine sent no event for: to be
    /// inspected when no step reads them.
    pub(crate) unread: BTreeSet<String>,
    /// Containers that the engine has reported as OOM-killed.
    pub(crate) out_of_memory: BTreeSet<String>,
    /// Network, volumes, directory and cgroups of the pod were removed.
    pub(crate) cleaned_up: bool,
    /// The API has deleted the pod.
    pub(crate) deleted_from_api: bool,
    /// Ids of instances whose preStop hook is over.
    pub(crate) pre_stop_done: BTreeSet<String>,
    /// Containers that are being stopped, each with when its grace period ends.
    pub(crate) stopping: BTreeMap<String, Timestamp>,
    /// Of these, those whose processes have all exited; the engine reports that a moment later.
    pub(crate) processes_exited: BTreeSet<String>,
    pub(crate) probes: ProbeRecords,
    /// By how much the clock was set since the pod had started: the API keeps that time as it was.
    pub(crate) start_shift: SignedDuration,
    /// When this agent adopted the containers of an earlier one.
    pub(crate) adopted_at: Option<Timestamp>,
    /// Resources that the node has allocated to the containers; `None` for a pod that is never resized.
    pub(crate) allocated: Option<Allocated>,
    /// The limits that the pod's own cgroup was given; `None` before it was given some.
    pub(crate) pod_limits: Option<Limits>,
    /// The decision on a resize, while the spec asks for other resources than the containers have.
    pub(crate) resize: Option<ResizeDecision>,
    pub(crate) resize_failure: Option<Failure>,
    /// Ids of instances whose postStart hook has returned, and of those that were adopted as if it had.
    pub(crate) post_start_done: BTreeSet<String>,
    /// Ids of instances that were killed since a probe or hook failed: an exit code of 0 is no success then.
    pub(crate) unhealthy: BTreeSet<String>,
    /// Set when the node ends the pod, whatever the API wants of it.
    pub(crate) kill: Option<KillReason>,
    /// When the grace period of that kill ends.
    pub(crate) kill_deadline: Option<Timestamp>,
    /// Exited containers of a terminal pod may be removed.
    pub(crate) gc_exited: bool,
    /// The volumes of a terminal pod were torn down.
    pub(crate) volumes_released: bool,
}

impl Observed {
    /// The containers that run, as the engine reports them, without the sandbox.
    pub(crate) fn running_containers(&self) -> impl Iterator<Item = &Instance> {
        self.instances.iter().filter(|i| !i.is_sandbox() && i.is_running())
    }

    /// Image names may refer to other images now.
    pub(crate) fn doubt_images(&mut self) {
        for state in self.images.values_mut() {
            if let ImageState::Present { id, .. } = state {
                *state = ImageState::Doubtful(std::mem::take(id));
            }
        }
    }

    /// The id of a container's image whose name may refer to another one now.
    pub(crate) fn doubtful_image(&self, container: &str) -> Option<&str> {
        match self.images.get(container) {
            Some(ImageState::Doubtful(id)) => Some(id),
            _ => None,
        }
    }

    /// Whether a container other than the sandbox runs.
    pub(crate) fn has_running(&self) -> bool {
        self.running_containers().next().is_some()
    }

    /// Whether a container other than the sandbox runs, or may run afterwards: the pod uses the node until it does not.
    pub(crate) fn runs_or_may_run(&self) -> bool {
        self.has_running() || self.may_start_container()
    }

    /// Those of [`running_containers`](Self::running_containers) in which a process may still run.
    pub(crate) fn live_containers(&self) -> impl Iterator<Item = &Instance> {
        self.running_containers().filter(|i| !self.processes_exited.contains(&i.id))
    }

    /// Whether a container may start later: one is being created, or was created, so that an abandoned call in the
    /// engine may still start it; or a step in flight concerns a running one.
    pub(crate) fn may_start_container(&self) -> bool {
        let is_busy = |i: &Instance| self.in_flight.contains(&StepKey::Container(i.id.clone()));
        let may_run = |i: &Instance| i.state == State::Created || (i.is_running() && is_busy(i));
        self.in_flight.iter().any(|key| matches!(key, StepKey::Create(_)))
            || self.instances.iter().any(|i| !i.is_sandbox() && may_run(i))
    }

    /// One container by its id.
    pub(crate) fn instance(&self, id: &str) -> Option<&Instance> {
        self.instances.iter().find(|i| i.id == id)
    }

    /// The attempts of one container, oldest first.
    pub(crate) fn attempts<'a>(&'a self, name: &'a str) -> impl DoubleEndedIterator<Item = &'a Instance> {
        self.instances.iter().filter(move |i| i.identity.container == name)
    }

    /// The newest attempt of one container.
    pub(crate) fn newest<'a>(&'a self, name: &'a str) -> Option<&'a Instance> {
        self.attempts(name).next_back()
    }

    /// The newest sandbox, running or not.
    pub(crate) fn sandbox(&self) -> Option<&Instance> {
        self.newest(SANDBOX_NAME)
    }

    /// Inserts or replaces what is known of one container.
    pub(crate) fn upsert(&mut self, mut instance: Instance) {
        if let State::Exited(exit) = &mut instance.state
            && self.out_of_memory.contains(&instance.id)
        {
            exit.oom_killed = true;
        }
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

    /// Whether an observation of a container is older than what is known of it: several steps read it concurrently, and
    /// their results may arrive out of order. A container's state only moves forward, unless someone restarts it by
    /// hand.
    pub(crate) fn is_outdated(&self, read: &Instance) -> bool {
        let Some(known) = self.instance(&read.id) else { return false };
        match (&read.state, &known.state) {
            (State::Created, State::Running { .. } | State::Exited(_)) => true,
            (State::Running { started_at, .. }, State::Exited(exit)) => *started_at <= exit.finished_at,
            _ => false,
        }
    }

    /// The network of the sandbox may not be attached: also of one that runs since before this agent, which was taken to be.
    pub(crate) fn network_failed(&mut self) {
        if let Some(id) = self.sandbox().map(|sandbox| sandbox.id.clone()) {
            self.network_ready.remove(&id);
        }
    }

    /// Whether a step in flight ends with what the engine says of a container.
    fn is_being_read(&self, id: &str) -> bool {
        self.in_flight.iter().any(|key| key.reads(id))
    }

    /// The containers that are to be inspected now.
    pub(crate) fn take_unread(&mut self) -> Vec<String> {
        let (later, now): (Vec<String>, Vec<String>) =
            std::mem::take(&mut self.unread).into_iter().partition(|id| self.is_being_read(id));
        self.unread.extend(later);
        now
    }

    /// Whether what is known of a container is to be read again before anything is decided on it.
    pub(super) fn is_unread(&self, id: &str) -> bool {
        self.unread.contains(id) || self.in_flight.contains(&StepKey::Inspect(id.to_owned()))
    }

    /// Whether a container that was created is being started, or may have been.
    pub(crate) fn is_starting(&self, instance: &Instance) -> bool {
        let is_busy = self.in_flight.contains(&StepKey::Container(instance.id.clone()));
        self.may_have_started(instance) || (instance.state == State::Created && !instance.is_sandbox() && is_busy)
    }

    /// Whether a container that was created may have been started, and the engine did not say so.
    pub(crate) fn may_have_started(&self, instance: &Instance) -> bool {
        instance.state == State::Created && !instance.is_sandbox() && self.is_unread(&instance.id)
    }

    /// Whether what was read of a container is the first that is heard of its having been started: its log is linked then.
    /// Not once the pod was cleaned up: nothing would take the links away again.
    pub(crate) fn begins(&self, read: &Instance) -> bool {
        let started = read.state != State::Created && !read.is_sandbox();
        let known = self.instance(&read.id);
        started && !self.cleaned_up && known.is_none_or(|known| known.state == State::Created)
    }

    /// Drops all that is known of a container that the engine no longer has, and gives what it was: the links to its log go
    /// with it.
    pub(crate) fn remove(&mut self, id: &str) -> Option<Instance> {
        let gone = self.instances.extract_if(.., |i| i.id == id).last();
        self.network_ready.remove(id);
        self.stopping.remove(id);
        self.processes_exited.remove(id);
        self.post_start_done.remove(id);
        self.pre_stop_done.remove(id);
        self.unhealthy.remove(id);
        self.out_of_memory.remove(id);
        // A step may have read it before it was removed, and will still report it.
        if self.is_being_read(id) {
            self.unread.insert(id.to_owned());
        } else {
            self.unread.remove(id);
        }
        gone
    }
}

/// First delay of both the crash and the image pull back-off; upstream's.
pub(crate) const INITIAL_BACKOFF: Duration = Duration::from_secs(10);
/// Ceiling of both; upstream's.
pub(crate) const MAX_BACKOFF: Duration = Duration::from_secs(300);
/// A run this long resets the crash count; upstream's.
pub(crate) const CRASH_COUNT_RESET_AFTER: Duration = Duration::from_secs(600);

/// How long a failed pull or start is shown with its own reason before it is shown as a back-off.
pub(crate) const FAILURE_SHOWN_FOR: Duration = Duration::from_secs(2);
