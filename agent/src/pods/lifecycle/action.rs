//! The actions that a plan consists of. Pure data.

use jiff::Timestamp;

use super::{probes::ProbeType, resize::ResizeStep, step_key::StepKey};
use crate::cgroup::tree::Resource;

/// One step that a worker starts. The steps of one plan do not depend on each other and run side by side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Set up a volume.
    PrepareVolume {
        volume: String,
    },
    /// Rewrite the files of a volume whose sources changed, or whose token is due for renewal.
    RefreshVolume {
        volume: String,
    },
    /// Look the image up, and pull it if the pull policy says so.
    EnsureImage {
        container: String,
        /// The container's turn has not come: failures are not reported yet.
        ahead: bool,
    },
    CreateSandbox {
        attempt: u32,
    },
    /// Start the sandbox and attach its network.
    StartSandbox {
        id: String,
    },
    Create {
        container: String,
        attempt: u32,
        sandbox: String,
    },
    Start {
        container: String,
        id: String,
    },
    /// Run the hook of a container that has just started.
    PostStart {
        container: String,
        id: String,
    },
    Probe {
        container: String,
        id: String,
        probe: ProbeType,
    },
    /// Apply one resource of the spec to a running container.
    Resize(ResizeStep),
    /// Apply one resource of the spec to the pod's own cgroup.
    ResizePod {
        resource: Resource,
    },
    /// Cut the grace period of a container that is being stopped.
    ShortenGrace {
        id: String,
        grace: i64,
    },
    /// Run the preStop hook of a container, which begins its grace period.
    PreStop {
        container: String,
        id: String,
        grace: i64,
        message: String,
    },
    /// The container of a hook must exit sooner.
    ShortenPreStop {
        id: String,
        grace: i64,
    },
    /// A hook has used up its container's grace period.
    CutPreStop {
        id: String,
    },
    /// Stop a container whose hook is over, or that has none.
    Stop {
        container: String,
        id: String,
        grace: i64,
        message: String,
    },
    /// Remove an exited container.
    Remove {
        id: String,
    },
    /// Detach, kill and remove a sandbox.
    RemoveSandbox {
        id: String,
    },
    /// Tear down the volumes of a terminal pod.
    ReleaseVolumes,
    /// Remove volumes, address, directories, cgroups.
    CleanUp,
    /// The pod has terminated and nothing of it is left on the node: delete it from the API.
    DeleteFromApi,
}

impl Action {
    /// Two actions with the same key are never in flight together.
    pub(crate) fn key(&self) -> StepKey {
        match self {
            Self::PrepareVolume { volume } | Self::RefreshVolume { volume } => StepKey::Volume(volume.clone()),
            Self::ReleaseVolumes => StepKey::ReleaseVolumes,
            Self::EnsureImage { container, .. } => StepKey::Image(container.clone()),
            Self::CreateSandbox { .. } => StepKey::Sandbox,
            Self::StartSandbox { id } | Self::RemoveSandbox { id } => StepKey::Container(id.clone()),
            Self::Create { container, .. } => StepKey::Create(container.clone()),
            Self::Start { id, .. } | Self::Stop { id, .. } | Self::Remove { id } => StepKey::Container(id.clone()),
            Self::PreStop { id, .. } => StepKey::PreStop(id.clone()),
            Self::ShortenPreStop { id, .. } | Self::CutPreStop { id } => StepKey::BoundPreStop(id.clone()),
            Self::PostStart { id, .. } => StepKey::PostStart(id.clone()),
            Self::Resize(_) | Self::ResizePod { .. } => StepKey::Resize,
            Self::Probe { container, probe, .. } => StepKey::Probe(container.clone(), *probe),
            Self::ShortenGrace { id, .. } => StepKey::ShortenGrace(id.clone()),
            Self::CleanUp => StepKey::CleanUp,
            Self::DeleteFromApi => StepKey::DeleteFromApi,
        }
    }
}

/// What to do, and when to plan again if nothing happens before.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) actions: Vec<Action>,
    pub(crate) wake_at: Option<Timestamp>,
    /// The pod terminates: steps that nothing waits for any more are cancelled.
    pub(crate) terminates: bool,
}

impl Plan {
    /// The plan of a pod that terminates, with no action yet.
    pub(super) fn terminating() -> Self {
        Self { terminates: true, ..Self::default() }
    }

    pub(super) fn push(&mut self, action: Action) {
        self.actions.push(action);
    }

    /// Plans again at this time, unless an earlier one is set.
    pub(super) fn wake(&mut self, at: Timestamp) {
        self.wake_at = Some(self.wake_at.map_or(at, |earlier| earlier.min(at)));
    }
}
