//! Clients of a Kubernetes API over a network: [`Access`] is how it is reached and who we are there, both of which may
//! change below clients in use; and nothing waits without an end.
//!
//! A machine that vanishes sends no RST: the kernel would go on sending a request again for a quarter of an hour, and a
//! watch would be silent for ever. So every answer has a time limit, and so has the silence between two events of a
//! watch. When a limit is passed, connections are given up and the next request dials anew: what swallowed one
//! request swallows those on the other connections of the pool too.
//!
//! A watch of what does not change is silent although all is well: kube-apiserver has bookmarks only where it has seen an
//! event before. That somebody swallows what is sent is found by the node's lease, every 10 s, and ends watches too.
//!
//! kube's own client has neither limit, reads credentials once, knows one server, and its connector cannot be told about
//! keep-alive.

mod access;
mod connections;
mod names;
mod servers;

use std::time::Duration;

pub use access::{Access, Unusable, inlined};

/// How patient a client is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// For the head of an answer, dialling included, and for each further piece of its body.
    pub answer: Duration,
    /// For the next event of a watch.
    pub watch: Duration,
    /// Whether what a busy server puts off (429, 503, 504) is asked again.
    pub retry: bool,
}

impl Limits {
    /// For most requests: kube-apiserver's own limit on a request (`--request-timeout`), after which there is no
    /// answer any more. No watch is asked for that lasts as long as the limit of its silence.
    pub const USUAL: Self = Self { answer: Duration::from_secs(60), watch: Duration::from_secs(300), retry: true };
    /// For lease and node status: kubelet's, which is the period of its node status. The next one is due before what
    /// was put off would be asked again.
    pub const HEARTBEAT: Self = Self { answer: Duration::from_secs(10), retry: false, ..Self::USUAL };
}

/// There is no way to show the API who we are, yet or any more.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the API was not asked: {0}")]
pub struct NoIdentity(String);

#[cfg(test)]
mod tests;
