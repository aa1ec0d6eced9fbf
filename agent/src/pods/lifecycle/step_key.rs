//! What identifies a step in flight, and what of it others wait for. Pure.

use super::probes::ProbeType;

/// A step in flight. Two steps with equal keys are never in flight together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StepKey {
    /// A volume is set up or refreshed, by its name.
    Volume(String),
    /// All volumes are torn down.
    ReleaseVolumes,
    /// The image of a container is looked up or pulled, by the container's name.
    Image(String),
    /// A sandbox is created.
    Sandbox,
    /// A container is created, by its name.
    Create(String),
    /// A container or a sandbox is started, stopped or removed, by its id.
    Container(String),
    /// The preStop hook of a container runs, by the container's id.
    PreStop(String),
    /// The time of that hook is changed, at once.
    BoundPreStop(String),
    /// The postStart hook of a container runs, by the container's id.
    PostStart(String),
    /// A running container, or the pod as a whole, is resized. Serialized, since the order matters to the pod's cgroup.
    Resize,
    /// A container is probed, by its name.
    Probe(String, ProbeType),
    /// The grace period of a container that is being stopped is cut, by its id.
    ShortenGrace(String),
    /// The engine inspects a container, by its id.
    Inspect(String),
    /// The exit of a container's processes is awaited, by its id.
    WaitForExit(String),
    /// Network, volumes, directory and cgroups of the pod are removed.
    CleanUp,
    /// The pod is deleted from the API.
    DeleteFromApi,
    /// The status is patched.
    Status,
}

impl StepKey {
    /// Whether volumes, network and cgroup of the pod must stay while this step is in flight.
    pub(crate) fn blocks_cleanup(&self) -> bool {
        match self {
            Self::Volume(_)
            | Self::ReleaseVolumes
            | Self::Sandbox
            | Self::Create(_)
            | Self::Resize
            | Self::CleanUp
            | Self::DeleteFromApi => true,
            // Steps that start a container are done when all containers have exited, and the rest uses nothing of the
            // node.
            Self::Image(_)
            | Self::Container(_)
            | Self::PreStop(_)
            | Self::BoundPreStop(_)
            | Self::PostStart(_)
            | Self::Probe(..)
            | Self::ShortenGrace(_)
            | Self::Inspect(_)
            | Self::WaitForExit(_)
            | Self::Status => false,
        }
    }

    /// Whether the step ends with what the engine says of this container.
    pub(crate) fn reads(&self, container: &str) -> bool {
        match self {
            Self::Container(id) | Self::ShortenGrace(id) | Self::Inspect(id) => id == container,
            _ => false,
        }
    }

    /// Whether the step creates a container or a sandbox that the engine does not list yet.
    pub(crate) fn creates(&self) -> bool {
        matches!(self, Self::Sandbox | Self::Create(_))
    }

    /// Whether the engine is creating, starting, stopping or removing something, which takes as long as it takes.
    pub(crate) fn is_engine_operation(&self) -> bool {
        self.creates() || matches!(self, Self::Container(_))
    }

    /// Whether the step is cancelled when the pod terminates. A pull goes on for other pods that want the image.
    pub(crate) fn is_cancelled_on_termination(&self) -> bool {
        matches!(self, Self::Image(_) | Self::PostStart(_) | Self::Volume(_))
    }
}
