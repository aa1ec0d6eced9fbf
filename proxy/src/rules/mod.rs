//! Renders rules as `iptables-restore` input: chain names, static chains, dispatch trees and the chains of service
//! ports. Pure: no kernel, no clock; imports only the model and the topology.

mod dispatch;
mod names;
mod service_port;
mod settings;
mod static_chains;
#[cfg(test)]
mod tests;

pub use dispatch::{DispatchRules, DispatchTree, LineKey, MAX_FLAT_LINES, is_tree_chain};
pub(crate) use names::hashed_name;
pub use names::{ChainId, ChainKind, MAX_TREE_LEVELS, is_service_chain};
pub use service_port::{PerPolicy, ServicePortRules, probability, service_port_rules};
pub use settings::{Layout, LocalTraffic, NodePortDestinations, Settings};
pub use static_chains::{
    CLUSTER_IPS_CHECK, DispatchChain, JUMPS, Jump, StaticChain, Table, base_chain_jumps, constant_rules,
    with_base_chains, writes_kubelet_firewall,
};
