//! What is under way for a pod, and what of it others wait for. Pure.

use super::Kind;

/// A step under way. Two that are equal are never under way together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    /// Volumes are set up, refreshed or taken away.
    Volumes,
    /// The image of a container, by the container's name.
    Image(String),
    /// A sandbox is created.
    Sandbox,
    /// A container is created, by its name.
    Create(String),
    /// A container or a sandbox is started, stopped or removed, by its id.
    Container(String),
    /// The postStart hook of a container, by its id.
    PostStart(String),
    /// A container gets other resources, by its id.
    Resize(String),
    /// A probe of a container, by the container's name.
    Probe(String, Kind),
    /// A container that is being stopped is stopped sooner, by its id.
    Hasten(String),
    /// Docker is asked for a container, by its id.
    Look(String),
    /// The end of a container's processes is waited for, by its id.
    Exit(String),
    TearDown,
    Forget,
    /// The status is written.
    Status,
}

impl Key {
    /// Whether volumes, network and cgroup of the pod can be taken away only when this is over.
    pub(crate) fn blocks_teardown(&self) -> bool {
        match self {
            Self::Volumes | Self::Sandbox | Self::Create(_) | Self::Resize(_) | Self::TearDown | Self::Forget => true,
            // Those that start one are over when all containers are dead, and the rest holds nothing of the node.
            Self::Image(_)
            | Self::Container(_)
            | Self::PostStart(_)
            | Self::Probe(..)
            | Self::Hasten(_)
            | Self::Look(_)
            | Self::Exit(_)
            | Self::Status => false,
        }
    }

    /// Whether a container or a sandbox that Docker does not show yet comes of this.
    pub(crate) fn creates(&self) -> bool {
        matches!(self, Self::Sandbox | Self::Create(_))
    }

    /// Whether Docker is making, starting, stopping or removing something, as it does in its own time.
    pub(crate) fn is_of_docker(&self) -> bool {
        self.creates() || matches!(self, Self::Container(_))
    }

    /// Whether nobody waits for this any longer when the pod ends. A pull goes on for others that want the image.
    pub(crate) fn is_given_up_at_the_end(&self) -> bool {
        matches!(self, Self::Image(_) | Self::PostStart(_) | Self::Volumes)
    }
}
