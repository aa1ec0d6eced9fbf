//! The steps that carry out a plan's actions: each is a future that ends in an [`Outcome`]. The folder that acts on the
//! world: Docker, the network, volumes, cgroups, files of the host, the API.
//!
//! [`context`] is what all of them share. Imports `container`, `admission` and `lifecycle`, never `worker` or
//! `dispatcher`.

mod cgroups;
mod cleanup;
mod container_files;
mod containers;
pub(crate) mod context;
mod hooks;
mod host_facts;
pub(crate) mod host_files;
mod images;
mod mounts;
pub(crate) mod outcome;
pub(crate) mod pidfd;
mod probe;
pub(crate) mod prober;
pub(crate) mod runtime_class;
mod sandbox;
mod stop;
pub(crate) mod teardown;
#[cfg(test)]
mod upstream_tests;
mod volumes;

use std::{net::IpAddr, sync::Arc};

use k8s_openapi::api::core::v1::{Container, Pod};

pub(crate) use cleanup::{clean_up, delete_from_api};
pub(crate) use containers::{CreateRequest, begun, create, gone, resize, resize_pod, start};
pub(crate) use hooks::HookResult;
pub(crate) use images::ensure_image;
pub(crate) use probe::{post_start, probe};
pub(crate) use sandbox::{create_sandbox, reattach_sandbox, remove_sandbox, start_sandbox};
pub(crate) use stop::{pre_stop, remove, stop};
pub(crate) use volumes::{prepare_volume, release_volumes};

use self::{context::PodContext, outcome::Outcome, prober::ProbeTarget};

/// One container of a pod whose hooks or probes are to be run, or that is resized.
#[derive(Debug, Clone)]
pub(crate) struct ContainerRef {
    pub(crate) pod: Arc<Pod>,
    pub(crate) container: Container,
    pub(crate) id: String,
    pub(crate) address: Option<IpAddr>,
}

impl ContainerRef {
    fn probe_target(&self) -> ProbeTarget<'_> {
        ProbeTarget { container: &self.container, id: &self.id, address: self.address }
    }
}

/// Asks the engine for the present state of a container.
pub(crate) async fn inspect(context: Arc<PodContext>, id: String) -> Outcome {
    let result = match context.node.engine.inspect(&id).await {
        Ok(Some(instance)) => Ok(Some(host_files::with_message(&context, instance).await)),
        other => other,
    };
    Outcome::Inspected { id, result }
}
