//! Compares the API's objects with the kernel's rules, for `windlass rules`.

use std::net::IpAddr;

use kube::{Api, Client, api::ListParams};

use windlass_kit::blocking::RULES;

use crate::{
    apply::{self, Backend, Runner},
    config::Config,
    explain::{Explanation, explain},
    iptables_save::SavedRuleset,
    model::Family,
    network_policy::{
        Cluster, IpSets, ROOT_CHAIN, Wanted,
        plan::{Kernel, PolicyDifference},
    },
    nfacct::INVALID_DROPPED,
    plan::{Objects, Observed, rules_of_objects},
    rules::CLUSTER_IPS_CHECK,
    sync::policies::kernel,
};

/// Why rules could not be inspected.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// The API cannot be listed.
    #[error("cannot list {what}: {}; is the API server up?", windlass_kit::client::message(.source))]
    Api {
        /// Which objects.
        what: &'static str,
        /// Why not.
        source: Box<kube::Error>,
    },
    /// iptables failed.
    #[error(transparent)]
    Iptables(#[from] apply::Error),
    /// A ruleset cannot be parsed.
    #[error(transparent)]
    Parse(#[from] crate::iptables_save::ParseError),
    /// The thread that read the kernel's rules panicked.
    #[error("failed to read the rules: {0}")]
    Panicked(#[from] windlass_kit::blocking::LaneError),
}

async fn list<K>(client: &Client, what: &'static str) -> Result<Vec<K>, InspectError>
where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let listed = Api::<K>::all(client.clone()).list(&ListParams::default()).await;
    listed.map(|l| l.items).map_err(|e| InspectError::Api { what, source: Box::new(e) })
}

/// Lists Services, EndpointSlices, Nodes and, where rules depend on them, ServiceCIDRs, reads the kernel's rules of a family
/// with their counters, and compares the two; where this node `enforces` NetworkPolicies, their rules and IP sets as well.
/// Needs root.
///
/// # Errors
/// When the API cannot be listed or the rules cannot be read.
pub async fn inspect(
    client: &Client,
    config: &Config,
    family: Family,
    enforces: bool,
) -> Result<Explanation, InspectError> {
    let mut objects = Objects {
        services: list(client, "services").await?,
        slices: list(client, "endpoint slices").await?,
        nodes: list(client, "nodes").await?,
        ..Objects::default()
    };
    let reading = config.clone();
    let kernel = RULES.call(move || kernel_rules(&reading, family)).await??;
    // The proxy probed for nfacct; its rules show the result.
    let nfacct = config.nfacct.or(Some(kernel.contains(INVALID_DROPPED)));
    // And with `windlass up` it checks cluster IPs, which a proxy alone for the same API does not.
    let cluster_ips_check = CLUSTER_IPS_CHECK.iter().any(|comment| kernel.contains(comment));
    let config = Config { nfacct, cluster_ips_check, ..config.clone() };
    if cluster_ips_check {
        objects.service_cidrs = list(client, "ServiceCIDRs").await?;
    }
    let wanted = rules_of_objects(&objects, &config, family, &Observed::of(&kernel));
    let mut explanation = explain(&wanted, &kernel)?;
    // With a command prefix the sets are those of another network namespace.
    if enforces && config.command_prefix.is_empty() {
        explanation.policy_differences = policy_differences(client, &config, family, &kernel).await?;
    }
    Ok(explanation)
}

/// Where the kernel's rules of policies differ from what the API's objects want. A pod that starts or ends meanwhile may be
/// in a set and not in the API, or the other way round.
async fn policy_differences(
    client: &Client,
    config: &Config,
    family: Family,
    kernel: &str,
) -> Result<Vec<PolicyDifference>, InspectError> {
    let mut cluster = Cluster::new(&config.node_name);
    list(client, "network policies").await?.iter().for_each(|object| cluster.put_policy(object));
    list(client, "namespaces").await?.iter().for_each(|object| cluster.put_namespace(object));
    list(client, "pods").await?.iter().for_each(|object| cluster.put_pod(object));
    let sets = IpSets::parse(kernel)?.0.into_iter().map(|(name, set)| (name, Some(set))).collect();
    let saved = SavedRuleset::parse(kernel)?;
    let wanted = cluster.wanted(&[family]).pop().unwrap_or_else(|| Wanted::nothing(family));
    Ok(Kernel::read(&saved, sets, &wanted).differences(&wanted))
}

/// All rules of a family as the kernel has them, with packet counts, as `iptables-save -c` prints them; before them, as
/// comments, the IP sets of NetworkPolicies. Needs root; blocks.
///
/// # Errors
/// When iptables does not work.
pub fn kernel_rules(config: &Config, family: Family) -> Result<String, apply::Error> {
    let backend = Backend::find(&Runner::new(config.command_prefix.clone()), family, config.variant)?;
    let text = backend.save(true)?;
    // With a command prefix the sets are those of another network namespace.
    if !text.contains(ROOT_CHAIN) || !backend.runner().in_own_netns() {
        return Ok(text);
    }
    Ok(kernel::read_sets(family)?.text(family) + &text)
}

/// The addresses of this machine's interfaces, in this thread's network namespace.
pub(crate) fn node_addresses() -> Vec<IpAddr> {
    windlass_kit::net::interface_addresses().unwrap_or_default()
}
