//! What came of an action, as the worker takes it in.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use super::{handlers::Answer, observed::ImageState, probes::Kind};
use crate::{
    engine::{EngineError, instance::Instance},
    volumes::Prepared,
};

/// Reason of a sandbox that was not made because no pod can be connected at present; upstream's.
pub(crate) const NETWORK_NOT_READY: &str = "NetworkNotReady";

/// Why a step failed, in the words that statuses and events show.
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    /// Docker did not answer: nothing is wrong with the pod.
    pub(crate) unreachable: bool,
}

impl Refusal {
    pub(crate) fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), unreachable: false }
    }

    pub(crate) fn of(reason: &'static str, error: &EngineError) -> Self {
        Self { reason, message: error.to_string(), unreachable: error.is_unreachable() }
    }
}

#[derive(Debug)]
pub(crate) enum Outcome {
    Image {
        container: String,
        result: Result<ImageState, Refusal>,
    },
    Volumes(Result<Prepared, Refusal>),
    /// When the volumes' files are due again.
    Refreshed(Result<Option<Timestamp>, Refusal>),
    SandboxCreated(Result<Instance, Refusal>),
    SandboxStarted {
        result: Result<Instance, Refusal>,
    },
    Created {
        container: String,
        result: Result<Instance, Refusal>,
    },
    Started {
        container: String,
        result: Result<Option<Instance>, (Refusal, Option<Instance>)>,
    },
    /// It was given up before its end.
    GivenUp,
    /// What Docker says now of one container; `None` when it is gone.
    Seen {
        id: String,
        result: Result<Option<Instance>, EngineError>,
    },
    /// No process of the container runs any more; how it ended Docker will tell.
    Silent {
        id: String,
    },
    /// A postStart hook has ended; what it said against it.
    Hooked {
        id: String,
        result: Result<(), String>,
    },
    Probed {
        container: String,
        id: String,
        kind: Kind,
        answer: Answer,
    },
    /// What Docker says of the container afterwards.
    Resized {
        id: String,
        result: Result<Option<Instance>, Refusal>,
    },
    Removed {
        id: String,
        result: Result<(), Refusal>,
    },
    VolumesCleared(Result<(), Refusal>),
    TornDown(Result<(), Refusal>),
    Forgotten(Result<(), Refusal>),
    /// `from` is the version of the object that the patch was made from.
    Patched {
        from: u64,
        result: Result<Box<Pod>, kube::Error>,
    },
}
