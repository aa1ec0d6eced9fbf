//! A façade of CRI on a Unix socket, for programs that ask a node's container runtime rather than its kubelet: OpenKruise's
//! kruise-daemon, and crictl. They see the containers of pods as this agent knows them, may stop one, which the agent then
//! starts again by its pod's restart policy, run a command in one, and pull images. Pods are made through the Kubernetes API
//! alone, so that everything else is answered with `Unimplemented`.
//!
//! | file | what it does |
//! |---|---|
//! | `messages` | the messages, with the numbers of their fields; pure |
//! | `grpc` | frames, codes and time limits of gRPC; pure |
//! | `filter`, `convert` | which containers a request means, and how one is shown; pure |
//! | `socket` | the socket's file: made for root alone, and made again when it is gone |
//! | `service` | a request, from its path to its answer |
//! | `runtime`, `images`, `stats` | the calls |
//!
//! What it says comes from the table that the pods' workers keep ([`PodContainers`]), from the image module and from usage;
//! Docker is asked only for what nobody here has. Imports `pods` only for how a Pod is read, never `server`.

mod convert;
mod filter;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod grpc;
mod images;
mod messages;
mod runtime;
mod service;
mod socket;
mod stats;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use windlass_cadvisor::Usage;
use windlass_kit::serve;

pub use socket::SocketError;
pub(crate) use socket::SocketListener;

use crate::{
    engine::{Engine, Health},
    images::Images,
    network::Readiness,
    pod_containers::PodContainers,
};

/// Connections at most; with more, the one that has asked nothing for longest is closed.
const MAX_CONNECTIONS: usize = 64;
/// Calls at most, until their answers are sent; with more, the newest fail.
const MAX_CALLS: usize = 64;

/// What the façade shows, and through whom it acts.
#[derive(Debug)]
pub(crate) struct Cri {
    pub(crate) engine: Engine,
    pub(crate) images: Images,
    pub(crate) containers: PodContainers,
    pub(crate) pods: watch::Receiver<Arc<Vec<Arc<Pod>>>>,
    pub(crate) docker: watch::Receiver<Health>,
    pub(crate) network: watch::Receiver<Readiness>,
    pub(crate) usage: Usage,
}

/// Serves the façade until `shutdown`.
pub(crate) async fn run(cri: Cri, listener: SocketListener, shutdown: CancellationToken) {
    let router = service::router(Arc::new(cri), Arc::new(Semaphore::new(MAX_CALLS)));
    serve::serve_local("cri", listener, MAX_CONNECTIONS, router, shutdown).await;
}
