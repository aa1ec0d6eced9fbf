//! Who asks.

/// The group of nodes.
pub(super) const NODES: &str = "system:nodes";

/// The caller, as authentication found it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserInfo {
    /// Such as `system:node:n1`.
    pub name: String,
    /// Groups, without `system:authenticated`, which is implied.
    pub groups: Vec<String>,
}

impl UserInfo {
    /// Nobody in particular.
    #[must_use]
    pub fn anonymous() -> Self {
        Self { name: "system:anonymous".to_owned(), groups: vec!["system:unauthenticated".to_owned()] }
    }

    /// A part of this process, which may do everything.
    #[must_use]
    pub fn internal(name: &str) -> Self {
        Self { name: name.to_owned(), groups: vec![crate::pki::MASTERS.to_owned()] }
    }

    /// The node's agent.
    #[must_use]
    pub fn node(name: &str) -> Self {
        Self { name: format!("system:node:{name}"), groups: vec![NODES.to_owned()] }
    }

    /// The service proxy.
    #[must_use]
    pub fn proxy() -> Self {
        Self { name: "system:kube-proxy".to_owned(), groups: Vec::new() }
    }

    /// The name of the node that this is; empty where the user does not tell it.
    pub(super) fn as_node(&self) -> Option<&str> {
        self.name.strip_prefix("system:node:").filter(|_| self.is_in("system:nodes"))
    }

    /// Who a request comes from: a part of this process, the holder of a certificate, or nobody known.
    pub(super) fn of(extensions: &axum::http::Extensions) -> Self {
        let peer = || {
            let peer = extensions.get::<windlass_kit::serve::Peer>()?;
            Some(Self { name: peer.name.clone(), groups: peer.groups.clone() })
        };
        extensions.get::<Self>().cloned().or_else(peer).unwrap_or_else(Self::anonymous)
    }

    pub(super) fn is_anonymous(&self) -> bool {
        self.name == "system:anonymous"
    }

    pub(super) fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|g| g == group)
    }
}
