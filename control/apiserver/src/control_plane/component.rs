//! As whom the parts of this process use its API.

use kube::Client;

use super::ControlPlane;
use crate::apiserver::User;

/// A part of the process that is a client of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Component {
    /// The controllers.
    Controllers,
    /// The scheduler.
    Scheduler,
    /// The cluster's DNS.
    Dns,
    /// What applies the directory of manifests.
    Manifests,
    /// The service proxy.
    Proxy,
    /// What makes rules of NetworkPolicies.
    NetworkPolicies,
}

impl Component {
    fn user(self) -> User {
        match self {
            Self::Controllers => User::internal("system:kube-controller-manager"),
            Self::Scheduler => User::internal("system:kube-scheduler"),
            Self::Dns => User::internal("system:coredns"),
            Self::Manifests => User::internal("system:manifests"),
            Self::Proxy => User::proxy(),
            Self::NetworkPolicies => User::network_policies(),
        }
    }
}

impl ControlPlane {
    /// A client for a part of this process, with its rights.
    #[must_use]
    pub fn client_of(&self, component: Component) -> Client {
        self.client(component.user())
    }

    /// A client with the rights of the node of this name.
    #[must_use]
    pub fn client_of_node(&self, name: &str) -> Client {
        self.client(User::node(name))
    }
}
