//! What tests of clients of the API stand on: the real API server over a store in memory, and what can go wrong on the way to it.

use std::{net::Ipv4Addr, time::Duration};

use kube::Client;
use windlass_control::{apiserver::User, in_memory::InMemory};
use windlass_tests::api_faults::{Faults, Way};

/// The node whose agent it is.
pub(crate) const NODE: &str = "n1";
/// How long is waited, on tokio's clock. Shorter than the timeout of a watch, after which everything would be asked for again.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// A server that has nothing yet.
pub(crate) fn server() -> InMemory {
    InMemory::new((Ipv4Addr::new(10, 96, 0, 0), 24), 30000..=30099)
}

/// A client with all rights, without injected faults.
pub(crate) fn user(server: &InMemory) -> Client {
    Client::new(Way { router: server.router(User::internal("test")), faults: None }, "default")
}

/// The node's client.
pub(crate) fn of_node(server: &InMemory, faults: &Faults) -> Client {
    Client::new(Way { router: server.router(User::node(NODE)), faults: Some(faults.clone()) }, "default")
}
