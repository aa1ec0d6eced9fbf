//! What a step results in, for the worker that started it.

use k8s_openapi::api::core::v1::Pod;

use super::{hooks::HookResult, prober::ProbeResult};
use crate::{
    engine::{EngineError, inspect::Instance},
    go_text::in_words_of_go,
    pods::lifecycle::{observed::ImageState, probes::ProbeType},
    volumes::PreparedVolume,
};

/// Why a step failed, in the words that statuses and events show.
#[derive(Debug, Clone)]
pub(crate) struct StepError {
    /// One of [`reasons`](crate::pods::lifecycle::reasons).
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    /// The engine did not answer: nothing is wrong with the pod.
    pub(crate) unreachable: bool,
}

impl StepError {
    pub(crate) fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: in_words_of_go(&message.into()), unreachable: false }
    }

    pub(crate) fn of(reason: &'static str, error: &EngineError) -> Self {
        Self { reason, message: in_words_of_go(&error.to_string()), unreachable: error.is_unreachable() }
    }
}

#[derive(Debug)]
pub(crate) enum Outcome {
    Image {
        container: String,
        /// Before the container's turn has come.
        ahead: bool,
        result: Result<ImageState, StepError>,
    },
    /// A volume was set up or refreshed; an error comes with whether the volume's source is not ready yet.
    VolumePrepared {
        volume: String,
        result: Result<PreparedVolume, (StepError, bool)>,
    },
    SandboxCreated(Result<Instance, StepError>),
    SandboxStarted(Result<Instance, StepError>),
    Created {
        container: String,
        result: Result<Instance, StepError>,
    },
    Started {
        container: String,
        result: Result<Option<Instance>, (StepError, Option<Instance>)>,
    },
    /// The step was cancelled.
    Cancelled,
    /// The engine's present state of one container; `None` when it has no such container.
    Inspected {
        id: String,
        result: Result<Option<Instance>, EngineError>,
    },
    /// No process of the container runs any more; its exit code is not known yet.
    ProcessesExited {
        id: String,
    },
    /// A preStop hook has returned, or was cut.
    PreStopDone {
        id: String,
    },
    /// A postStart hook has returned, perhaps with an error.
    PostStartDone {
        id: String,
        result: HookResult,
    },
    Probed {
        container: String,
        id: String,
        probe: ProbeType,
        result: ProbeResult,
    },
    /// The engine's state of the container after a resize.
    Resized {
        id: String,
        result: Result<Option<Instance>, StepError>,
    },
    /// The pod's own cgroup was resized.
    PodResized(Result<(), StepError>),
    Removed {
        id: String,
        result: Result<(), StepError>,
    },
    VolumesReleased(Result<(), StepError>),
    CleanedUp(Result<(), StepError>),
    DeletedFromApi(Result<(), StepError>),
    StatusPatched {
        /// The resourceVersion of the object that the patch was computed from.
        from: u64,
        result: Result<Box<Pod>, kube::Error>,
    },
}
