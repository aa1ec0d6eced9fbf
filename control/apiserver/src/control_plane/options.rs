//! What kube-apiserver has flags for and `windlass up` decides itself: the servers of other programs' tests (`windlass envtest`)
//! take it from their command line.

use windlass_identity::{pki::Pair, service_account_tokens::IssuerNames};

/// The options. Their default is what `windlass up` does.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// The serving certificate of the API; `None` for one of the cluster's own authority.
    pub serving: Option<Pair>,
    /// Whose client certificates are accepted.
    pub client_ca: ClientAuthority,
    /// By what tokens of service accounts are signed; `None` for the cluster's own key.
    pub service_accounts: Option<ServiceAccountIssuer>,
    /// Who decides about requests, after the administrators' group.
    pub authorization: Vec<AuthorizationMode>,
    /// Admission plugins that do not run, by name.
    pub disabled_admission_plugins: Vec<String>,
    /// Whether nodes join by tokens in secrets.
    pub bootstrap_tokens: bool,
    /// Whether containers may be privileged.
    pub privileged_containers: bool,
    /// Whether the API has what upstream's has only from other components: `metrics.k8s.io` with the usage of nodes, and the
    /// roles of parts of this process.
    pub node_components: bool,
    /// What survives a crash of the machine.
    pub durability: Durability,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            serving: None,
            client_ca: ClientAuthority::Cluster,
            service_accounts: None,
            authorization: vec![AuthorizationMode::Node, AuthorizationMode::Rbac],
            disabled_admission_plugins: Vec::new(),
            bootstrap_tokens: true,
            privileged_containers: true,
            node_components: true,
            durability: Durability::Synced,
        }
    }
}

/// Whose client certificates are accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientAuthority {
    /// Those of the cluster's own authority.
    Cluster,
    /// Those of these authorities, in PEM.
    Given(String),
    /// None.
    None,
}

/// The key and the names of an issuer of tokens.
#[derive(Clone)]
pub struct ServiceAccountIssuer {
    /// The private key, in PEM.
    pub key_pem: String,
    /// What tokens say of it.
    pub names: IssuerNames,
}

impl std::fmt::Debug for ServiceAccountIssuer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Never the key.
        f.debug_struct("ServiceAccountIssuer").field("names", &self.names).finish_non_exhaustive()
    }
}

/// An authorizer, by upstream's name of it (`--authorization-mode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthorizationMode {
    /// Everybody may do everything.
    AlwaysAllow,
    /// Nobody may do anything.
    AlwaysDeny,
    /// Nodes may do what their pods need.
    Node,
    /// By roles and bindings.
    Rbac,
}

/// What survives a crash of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// All that was acknowledged.
    Synced,
    /// What the kernel has written by then: for data that is of no use after it.
    Unsynced,
}
