//! Users: who sends a request. Pure.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// The group of nodes.
pub(crate) const NODES_GROUP: &str = "system:nodes";
/// The group of all authenticated users.
pub(crate) const AUTHENTICATED_GROUP: &str = "system:authenticated";
/// The group of all service accounts.
const SERVICE_ACCOUNTS_GROUP: &str = "system:serviceaccounts";
/// The group of requests without credentials.
pub(crate) const UNAUTHENTICATED_GROUP: &str = "system:unauthenticated";
/// The name of requests without credentials.
pub(crate) const ANONYMOUS: &str = "system:anonymous";
/// The name of the API server itself.
pub(crate) const API_SERVER: &str = "system:apiserver";

/// A user, as authentication found it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct User {
    /// Such as `system:node:n1`.
    pub name: String,
    /// Identifies the user over time; empty where the credentials have none.
    pub uid: String,
    /// Groups.
    pub groups: Vec<String>,
    /// What else the credentials say.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    fn of(name: impl Into<String>, groups: &[&str]) -> Self {
        Self { name: name.into(), groups: groups.iter().map(|g| (*g).to_owned()).collect(), ..Self::default() }
    }

    /// A caller without credentials.
    #[must_use]
    pub fn anonymous() -> Self {
        Self::of(ANONYMOUS, &[UNAUTHENTICATED_GROUP])
    }

    /// A component of this process, with all rights.
    #[must_use]
    pub fn internal(name: &str) -> Self {
        Self::of(name, &[windlass_identity::pki::MASTERS_GROUP])
    }

    /// The API server itself.
    #[must_use]
    pub fn api_server() -> Self {
        Self::internal(API_SERVER)
    }

    /// Whether it is the API server itself.
    pub(crate) fn is_api_server(&self) -> bool {
        self.name == API_SERVER && self.groups.iter().any(|group| group == windlass_identity::pki::MASTERS_GROUP)
    }

    /// The node's agent.
    #[must_use]
    pub fn node(name: &str) -> Self {
        Self::of(format!("system:node:{name}"), &[NODES_GROUP])
    }

    /// A service account, as its tokens name it, but for what authentication adds.
    #[must_use]
    pub fn service_account(namespace: &str, name: &str) -> Self {
        let groups = [SERVICE_ACCOUNTS_GROUP, &format!("{SERVICE_ACCOUNTS_GROUP}:{namespace}")];
        Self::of(format!("system:serviceaccount:{namespace}:{name}"), &groups)
    }

    /// The service proxy.
    #[must_use]
    pub fn proxy() -> Self {
        Self::of("system:kube-proxy", &[])
    }

    /// What makes rules of NetworkPolicies: as a role of its own allows, which kube-proxy's does not.
    #[must_use]
    pub fn network_policies() -> Self {
        Self::of("system:windlass:network-policies", &[])
    }

    /// The node's name, if the user is a node; empty where the user name has none.
    pub(crate) fn as_node(&self) -> Option<&str> {
        self.name.strip_prefix("system:node:").filter(|_| self.is_in(NODES_GROUP))
    }

    pub(crate) fn is_anonymous(&self) -> bool {
        self.name == ANONYMOUS
    }

    pub(crate) fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|g| g == group)
    }

    /// The user with the group of all authenticated ones, unless it is anonymous.
    pub(crate) fn authenticated(mut self) -> Self {
        if !self.is_anonymous() && !self.is_in(AUTHENTICATED_GROUP) {
            self.groups.push(AUTHENTICATED_GROUP.to_owned());
        }
        self
    }

    /// The user as reviews show it.
    pub(crate) fn user_info(&self) -> Value {
        let mut info = json!({"username": self.name, "groups": self.groups});
        if !self.uid.is_empty() {
            info["uid"] = json!(self.uid);
        }
        if !self.extra.is_empty() {
            info["extra"] = json!(self.extra);
        }
        info
    }
}

/// How a request was authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Credentials {
    /// The caller is a component of this process.
    InProcess,
    /// A client certificate.
    Certificate,
    /// A token, or nothing.
    Other,
}

/// The key in a user's extra information that identifies the credential.
pub(crate) const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";
