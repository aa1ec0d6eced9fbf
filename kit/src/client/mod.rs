//! Clients of a Kubernetes API over a network. [`Access`] is the address of the API and our credentials, both of which
//! may change while clients use them. Every wait has a timeout.
//!
//! A host that vanishes sends no RST: the kernel would retransmit a request for a quarter of an hour, and a watch would
//! be silent for ever. So every response has a timeout, and so has the time between two events of a watch. When one
//! expires, connections are dropped and the next request dials again: what swallowed one request swallows those on the
//! other connections of the pool, too.
//!
//! A watch without changes is silent, too: kube-apiserver sends bookmarks only where there was an event before. A
//! broken connection is detected by the node's lease, every 10 s, and ends watches as well.
//!
//! All requests of a client share one connection, as in client-go: HTTP/2, whose pings find a dead peer, or HTTP/1.1
//! if the server supports nothing else. Another connection is opened only when a server's stream limit is reached.
//!
//! Credentials are a value with an end, which one task publishes; clients read it and never make it.
//!
//! kube's own client has no such timeouts, reads credentials where a request waits for them, knows one server, and cannot
//! configure keep-alive.

mod access;
mod connections;
mod credentials;
mod error_message;
mod exec_plugin;
pub mod resolver;
mod retry;
mod servers;
mod verifier;

use std::time::Duration;

pub use access::{Access, AccessError, inlined};
pub use error_message::{innermost, message};
pub use exec_plugin::PluginError;

/// The timeouts of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// For the head of a response, dialling included, and for each further frame of its body.
    pub response: Duration,
    /// For the next event of a watch.
    pub watch: Duration,
    /// Whether requests are sent again that a server rejects and says when to (`Retry-After`).
    pub retry: bool,
}

impl Limits {
    /// For most requests: kube-apiserver's own limit on a request (`--request-timeout`), after which there is no
    /// response any more. The timeout of every watch is shorter than its limit here.
    pub const DEFAULT: Self = Self { response: Duration::from_secs(60), watch: Duration::from_secs(300), retry: true };
    /// For lease and node status: the period of kubelet's node status. The next one is due before a retry would be.
    pub const HEARTBEAT: Self = Self { response: Duration::from_secs(10), retry: false, ..Self::DEFAULT };
}

/// There are no credentials for the API, yet or any more.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the API was not asked: {0}")]
pub struct NoCredentials(String);

#[cfg(test)]
mod tests;
