//! What extension API servers serve, as APIServices register it: upstream's `kube-aggregator` as a part of this API server.
//!
//! What decides has no tasks: `api_service` (what an APIService says), `availability` (its condition), `discovery` (what of an
//! answer is published), `workqueue` (when what is done again). Tasks: `registry` keeps what the catalog knows of extensions,
//! `availability_controller` their conditions, `auto_register` the APIServices of what this server serves itself.
//! `extension_server` is the way to one of them, by `crate::webhook`; requests of clients go it from
//! `apiserver/handlers/aggregation.rs`.

mod api_service;
mod auto_register;
mod availability;
mod availability_controller;
mod discovery;
mod extension_server;
mod openapi;
mod registry;
mod workqueue;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use kube::{
    Api as KubeApi, Client,
    api::{ApiResource, DynamicObject},
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    apiserver::Api,
    store::{ResourceId, Store},
    webhook::ExtensionClients,
};
pub(crate) use api_service::AVAILABLE;
use registry::Registry;

/// Upstream's names of the first looks of the controllers of APIServices.
const REGISTRATION_HOOK: &str = "apiservice-registration-controller";
const AVAILABILITY_HOOKS: [&str; 2] =
    ["apiservice-status-local-available-controller", "apiservice-status-remote-available-controller"];
const AUTO_REGISTRATION_HOOK: &str = "kube-apiserver-autoregistration";
/// As upstream's server calls itself.
const FIELD_MANAGER: &str = "kube-apiserver";
pub(crate) const GROUP_RESOURCE: &str = "apiservices.apiregistration.k8s.io";

/// The parts that tasks share.
#[derive(Debug, Clone)]
pub(crate) struct Aggregator {
    api: Api,
    clients: Arc<ExtensionClients>,
}

impl Aggregator {
    /// An aggregator for `api`, which begins to pass on requests for what is registered now.
    pub(crate) fn load(api: &Api, clients: &Arc<ExtensionClients>) -> Self {
        let aggregator = Self { api: api.clone(), clients: Arc::clone(clients) };
        Registry::new(&aggregator).publish();
        aggregator
    }

    /// Follows the APIServices until `shutdown`. `client` has all rights.
    pub(crate) async fn run(&self, client: Client, shutdown: CancellationToken) {
        tokio::join!(
            registry::run(self, &shutdown),
            availability_controller::run(self, &client, &shutdown),
            auto_register::run(self, &client, &shutdown),
        );
    }

    /// Makes the APIServices of what this server serves itself as they must be at a start. From then on the server waits for the
    /// first look at all of them, which [`run`](Self::run) begins with.
    ///
    /// # Errors
    /// The first that is no conflict.
    pub(crate) async fn register_own(&self, client: &Client) -> Result<(), kube::Error> {
        let hooks = self.api.post_start_hooks();
        hooks.add(REGISTRATION_HOOK);
        AVAILABILITY_HOOKS.into_iter().for_each(|hook| hooks.add(hook));
        hooks.run(AUTO_REGISTRATION_HOOK, auto_register::sync(self, client, auto_register::When::Start)).await
    }

    fn store(&self) -> &Store {
        self.api.store()
    }

    fn resource(&self) -> ResourceId {
        self.store().resource(GROUP_RESOURCE)
    }
}

/// Until then; for ever without a time.
async fn wait_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// The APIServices, as objects of the API.
fn api_services(client: &Client) -> KubeApi<DynamicObject> {
    let resource = ApiResource {
        group: "apiregistration.k8s.io".to_owned(),
        version: "v1".to_owned(),
        api_version: "apiregistration.k8s.io/v1".to_owned(),
        kind: "APIService".to_owned(),
        plural: "apiservices".to_owned(),
    };
    KubeApi::all_with(client.clone(), &resource)
}
