//! NetworkPolicies of networking.k8s.io/v1 on the built-in pod network: which packets between pods the kernel drops.
//!
//! A pure function makes chains and IP sets of one address family out of policies, namespaces, and pods with their
//! addresses and named ports; [`plan`] turns what the kernel has into that; `sync::policies` owns both. Pure:
//! imports the model, the names of chains and `iptables_save`.
//!
//! **Where.** Chain `WINDLASS-POLICY` of the mangle table, from FORWARD. Every packet of a pod to or from anything but
//! its own node is forwarded, since each pod has a routed link and no bridge. mangle comes before filter, so that no
//! ACCEPT of another program (Docker, firewalld, the pod network's own) can let a packet past it, whoever inserts rules
//! where; and behind DNAT and before masquerading, so that addresses are those of pods. Its own table keeps changes
//! of a policy from the price of a table with ten thousand services.
//!
//! **What.**
//! - Replies pass: conntrack state ESTABLISHED or RELATED. An INVALID packet is judged as a first one.
//! - A pod reaches itself through a Service: the set of its address and its own link, matched as source and outgoing
//!   interface.
//! - Packets between a pod and its own node, and the node's host-network pods, are not forwarded, and so never
//!   dropped: probes and the cluster's DNS work under any policy. Upstream documents it so: traffic to and from the node
//!   where a pod is running is always allowed.
//! - The pods of a node that the same policies select in a direction share one chain, a profile: `WINDLASS-NI-…` for
//!   ingress, `WINDLASS-NE-…` for egress. Each allowed combination of peer and port returns to the dispatching chain;
//!   the last rule drops, with the policies' names in its comment. A pod is in a profile by a set of addresses of the
//!   same name, so that one more pod of a Deployment is an entry of a set, and no rule. Where there are many profiles, a
//!   tree of chains leads to them, `WINDLASS-NTI-…` and `WINDLASS-NTE-…`, whose sets have the addresses of all profiles below
//!   each ([`dispatch`]): a packet's price grows with the logarithm of their number, and a new profile is two chains.
//! - Peers are sets, shared by all rules that name the same ones: the pods of a selector (`hash:ip`), those of a named
//!   port with its number (`hash:ip,port`), and what an `ipBlock` excepts (`hash:net`). A set is named by what it means,
//!   so that a policy that changes leads to other sets, and never gives a rule in force another meaning.
//!
//! **Why IP sets.** A packet's cost is one hash lookup for each peer, whatever the number of pods and policies; a pod that
//! comes or goes elsewhere in the cluster is one netlink message, where a change of rules costs a run of
//! `iptables-restore`. Both back ends have the match `set`, and the kernel's netlink needs no program `ipset`. Trees of
//! rules by address would do without, at thousands of rules for each selector.
//!
//! **Order.** Sets and their new entries, then the rules in one transaction, then entries and sets that nothing names any
//! more. A pod that changes its profile is in both for a moment: what is not known to be allowed is dropped.
//!
//! **A new pod.** The agent announces it before its link goes up and waits ([`windlass_kit::announced_pod`]): until the lists of
//! policies, namespaces and pods are complete and what they make is in the kernel. A pod that the API has bound to this node
//! has its profile before it has an address, so that its start waits for entries of sets alone.
//!
//! **What cannot be read allows nobody.** A policy whose selector is unreadable isolates all pods of its namespace; an
//! unreadable peer, port or rule allows nothing. The API accepts no such object.

mod cluster;
mod dispatch;
pub mod objects;
pub mod plan;
mod policy;
mod profile;
#[cfg(test)]
mod reference;
mod rules;
mod sets;
#[cfg(test)]
mod tests;

pub use cluster::{Cluster, PodId};
pub use rules::{
    BASE_CHAIN, DIRECTIONS, Direction, JUMP, ROOT_CHAIN, TABLE, Wanted, is_policy_chain, is_policy_set, set_suffix,
};
pub use sets::{Entry, IpSet, IpSets, SetKind};
