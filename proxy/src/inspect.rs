//! Asks the API what should be and the kernel what is, for `windlass rules`.

use k8s_openapi::api::{
    core::v1::{Node, Service},
    discovery::v1::EndpointSlice,
};
use kube::{Api, Client, api::ListParams};

use crate::{
    apply::{self, Backend, Runner},
    config::{Config, rules_from_objects},
    explain::{Explanation, explain},
    model::Family,
};

/// Why rules could not be inspected.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// The API did not answer.
    #[error("cannot list {what}: {source}; is the API server up?")]
    Api {
        /// What was asked for.
        what: &'static str,
        /// Why not.
        source: Box<kube::Error>,
    },
    /// iptables did not answer.
    #[error(transparent)]
    Iptables(#[from] apply::Error),
    /// A text is not a rule set.
    #[error(transparent)]
    Parse(#[from] crate::kernel::ParseError),
    /// The thread that asked the kernel ended.
    #[error("the rules could not be read: {0}")]
    Broken(#[from] tokio::task::JoinError),
}

/// Lists Services, slices and Nodes, reads the kernel's rules of a family with their counters, and
/// sets the two beside each other. Needs root for the kernel.
///
/// # Errors
/// When the API or the kernel does not answer.
pub async fn inspect(client: &Client, config: &Config, family: Family) -> Result<Explanation, InspectError> {
    async fn list<K>(client: &Client, what: &'static str) -> Result<Vec<K>, InspectError>
    where
        K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
    {
        let listed = Api::<K>::all(client.clone()).list(&ListParams::default()).await;
        listed.map(|l| l.items).map_err(|e| InspectError::Api { what, source: Box::new(e) })
    }
    let services: Vec<Service> = list(client, "services").await?;
    let slices: Vec<EndpointSlice> = list(client, "endpoint slices").await?;
    let nodes: Vec<Node> = list(client, "nodes").await?;
    let wanted = rules_from_objects(&services, &slices, &nodes, config, family);
    let (prefix, variant) = (config.command_prefix.clone(), config.variant);
    let kernel = tokio::task::spawn_blocking(move || {
        Backend::find(&Runner::new(prefix), family, variant).and_then(|backend| backend.save(true))
    })
    .await??;
    Ok(explain(&wanted, &kernel)?)
}
