//! Renders the complete rules of a model or of API objects.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use super::{BatchLimit, RulesetState, TableBatch};
use crate::{
    config::Config,
    model::{Family, Model, NodeFacts, Port, Service, objects},
    network_policy::{self, Cluster},
    rules::{ChainId, ChainKind, Settings},
};

/// Above this number of endpoints the comments of endpoint rules are left out: kube-proxy's
/// `largeClusterEndpointsThreshold`.
pub(crate) const LARGE_CLUSTER_ENDPOINTS: usize = 1000;
/// At this number they come back. kube-proxy has no such hysteresis.
const SMALL_CLUSTER_ENDPOINTS: usize = 900;

/// The API's objects that rules are made of.
#[derive(Debug, Clone, Default)]
#[allow(missing_docs, reason = "the fields are the API's kinds")]
pub struct Objects {
    pub services: Vec<objects::Service>,
    pub slices: Vec<objects::EndpointSlice>,
    pub nodes: Vec<objects::Node>,
    pub service_cidrs: Vec<objects::ServiceCidr>,
    pub network_policies: Vec<network_policy::objects::NetworkPolicy>,
    pub namespaces: Vec<network_policy::objects::Namespace>,
    pub pods: Vec<network_policy::objects::Pod>,
}

/// Renders the rules of API objects as `iptables-restore` input, without touching the kernel. Zone, addresses and pod
/// CIDRs are those of the Node with the configured name, if it is among `nodes`.
#[must_use]
pub fn rules_from_objects(objects: &Objects, config: &Config, family: Family) -> String {
    rules_of_objects(objects, config, family, &Observed::default())
}

/// Renders what all nodes together have of the NetworkPolicies of API objects: sets as comments, then chains as
/// `iptables-restore` input, with the jump to them. Empty where no policy selects a pod that has a network of its own. A
/// namespace that is not among the objects has the label that the API gives each.
#[must_use]
pub fn policies_from_objects(objects: &Objects, family: Family) -> String {
    let mut cluster = Cluster::of_all_nodes();
    objects.namespaces.iter().for_each(|namespace| cluster.put_namespace(namespace));
    objects.pods.iter().for_each(|pod| cluster.put_pod(pod));
    cluster.name_namespaces();
    objects.network_policies.iter().for_each(|policy| cluster.put_policy(policy));
    cluster.wanted(&[family]).first().map(network_policy::Wanted::text).unwrap_or_default()
}

/// What the rules of a proxy depend on that neither objects nor configuration say: what its kernel lacks, and what was
/// before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Observed {
    /// The cluster was a large one.
    large: bool,
    drop_invalid: bool,
    recent: bool,
    sctp: bool,
    /// Service ports without endpoints, or whose rules the kernel refuses, which have the same rules.
    refused: BTreeSet<String>,
    /// Service ports whose endpoints have comments.
    commented: BTreeSet<String>,
    /// The chains of service ports with endpoints.
    balancing: BTreeSet<ChainId>,
}

impl Default for Observed {
    fn default() -> Self {
        Self {
            large: false,
            drop_invalid: true,
            recent: true,
            sctp: true,
            refused: BTreeSet::new(),
            commented: BTreeSet::new(),
            balancing: BTreeSet::new(),
        }
    }
}

impl Observed {
    /// Reads it from the rules that a proxy has written. A kernel without any is one with everything.
    pub(crate) fn of(kernel: &str) -> Self {
        if !kernel.contains("KUBE-FORWARD") {
            return Self::default();
        }
        let ports = |before: &str| -> BTreeSet<String> {
            let comments = kernel.lines().filter_map(|line| line.split_once("--comment \""));
            comments.filter_map(|(_, comment)| comment.split_once(before)).map(|(port, _)| port.to_owned()).collect()
        };
        let chains = kernel.lines().filter_map(|line| ChainId::parse(line.strip_prefix(':')?.split(' ').next()?));
        Self {
            // The comments of endpoints depend on earlier numbers of endpoints.
            large: kernel.contains("KUBE-SEP-") && !kernel.contains(" -> "),
            drop_invalid: kernel.contains("--ctstate INVALID"),
            recent: kernel.contains("-m recent "),
            sctp: kernel.contains("-p sctp "),
            refused: ports(" has no endpoints\""),
            commented: ports(" -> "),
            balancing: chains.filter(|id| BALANCING.contains(&id.kind())).collect(),
        }
    }

    /// Whether a Service was written as in a large cluster; `None` if its rules do not show it.
    fn lacks_comments(&self, service: &Service) -> Option<bool> {
        if service.ports.iter().any(|port| self.commented.contains(&*port.full_name)) {
            return Some(false);
        }
        let chain = |port: &Port, kind| ChainId::of_port(kind, &port.full_name, port.protocol);
        let chains = || service.ports.iter().flat_map(|port| BALANCING.map(|kind| chain(port, kind)));
        chains().any(|id| self.balancing.contains(&id)).then_some(true)
    }
}

/// Chains whose rules jump to endpoints, and have their comments.
const BALANCING: [ChainKind; 2] = [ChainKind::Service, ChainKind::ServiceLocal];

/// The same, as a proxy with what was observed of it writes them.
pub(crate) fn rules_of_objects(objects: &Objects, config: &Config, family: Family, observed: &Observed) -> String {
    let node = objects
        .nodes
        .iter()
        .find(|n| n.metadata.name.as_deref() == Some(&config.node_name))
        .map(NodeFacts::of)
        .unwrap_or_default();
    let mut model = Model::default();
    for service in &objects.services {
        model.put_service(service);
    }
    for slice in &objects.slices {
        model.put_slice(slice, &config.node_name);
    }
    for range in &objects.service_cidrs {
        model.service_cidrs.put(range);
    }
    // Every node has the loopback addresses, too.
    let loopback = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    let local: Vec<IpAddr> = loopback.into_iter().chain(config.node_ips.iter().copied()).collect();
    model.take_changes();
    let settings = Settings {
        large: is_large_cluster(&model, family, observed.large),
        drop_invalid: observed.drop_invalid,
        recent: observed.recent,
        sctp: observed.sctp,
        service_cidrs: model.service_cidrs.of(family),
        ..config.settings(family, &node, &local)
    };
    let mut ruleset = RulesetState::new(settings);
    for port in &observed.refused {
        ruleset.quarantine_port(&model, port);
    }
    let large = ruleset.settings().large;
    for (id, _) in model.services().filter(|(_, service)| observed.lacks_comments(service) == Some(!large)) {
        ruleset.keep_other_comments(id);
    }
    let mut out = String::new();
    for_each_batch(&model, ruleset, BatchLimit::None, |batch| out.push_str(&batch.text));
    out
}

/// Whether the cluster counts as large, given whether it `was` large before: the hysteresis keeps an autoscaler that
/// works around the threshold from rewriting all rules each time.
pub(crate) fn is_large_cluster(model: &Model, family: Family, was: bool) -> bool {
    model.endpoint_count(family) > if was { SMALL_CLUSTER_ENDPOINTS } else { LARGE_CLUSTER_ENDPOINTS }
}

/// Renders all rules of a model in batches, whatever the kernel's rules are.
pub(crate) fn for_each_batch(
    model: &Model,
    mut ruleset: RulesetState,
    limit: BatchLimit,
    mut then: impl FnMut(&TableBatch),
) {
    ruleset.mark_all_dirty(model);
    while let Some(batch) = ruleset.next_batch(model, limit) {
        then(&batch);
        ruleset.commit(&batch);
    }
}
