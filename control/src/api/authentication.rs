//! Authentication: whom a request comes from, by certificate or by the token of a service account.

use axum::http::{HeaderMap, header};
use jiff::Timestamp;
use serde_json::Value;

use super::{Api, error::ApiError};
use crate::store::Key;

/// The group of nodes.
pub(super) const NODES_GROUP: &str = "system:nodes";

/// The authenticated caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserInfo {
    /// Such as `system:node:n1`.
    pub name: String,
    /// Groups, without `system:authenticated`, which is implied.
    pub groups: Vec<String>,
}

impl UserInfo {
    /// An unauthenticated caller.
    #[must_use]
    pub fn anonymous() -> Self {
        Self { name: "system:anonymous".to_owned(), groups: vec!["system:unauthenticated".to_owned()] }
    }

    /// A component of this process, with all rights.
    #[must_use]
    pub fn internal(name: &str) -> Self {
        Self { name: name.to_owned(), groups: vec![crate::pki::MASTERS_GROUP.to_owned()] }
    }

    /// The node's agent.
    #[must_use]
    pub fn node(name: &str) -> Self {
        Self { name: format!("system:node:{name}"), groups: vec![NODES_GROUP.to_owned()] }
    }

    /// The service proxy.
    #[must_use]
    pub fn proxy() -> Self {
        Self { name: "system:kube-proxy".to_owned(), groups: Vec::new() }
    }

    /// The node's name, if the caller is a node; empty where the user name has none.
    pub(super) fn as_node(&self) -> Option<&str> {
        self.name.strip_prefix("system:node:").filter(|_| self.is_in("system:nodes"))
    }

    /// The caller of a request: a component of this process, the subject of a client certificate, or anonymous.
    pub(super) fn from_extensions(extensions: &axum::http::Extensions) -> Self {
        let peer = || {
            let peer = extensions.get::<windlass_kit::serve::ClientIdentity>()?;
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

/// WebSocket subprotocol with a token, for browsers, which cannot set headers.
pub(super) const TOKEN_PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

pub(super) fn protocols(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let all = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).into_iter().filter_map(|v| v.to_str().ok());
    all.flat_map(|v| v.split(',')).map(str::trim).filter(|p| !p.is_empty())
}

/// The token among a client's WebSocket subprotocols.
pub(super) fn protocol_token(headers: &HeaderMap) -> Option<String> {
    use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
    let protocol_token = protocols(headers).find_map(|p| p.strip_prefix(TOKEN_PROTOCOL))?;
    String::from_utf8(URL_SAFE_NO_PAD.decode(protocol_token).ok()?).ok()
}

/// Refuses impersonation, which is not supported: handled as the caller's own, the request would do what the caller
/// only wanted to try as another user.
pub(super) fn refuse_impersonation(headers: &HeaderMap) -> Result<(), ApiError> {
    match headers.keys().find(|name| name.as_str().starts_with("impersonate-")) {
        Some(name) => Err(ApiError::new(
            403,
            "Forbidden",
            format!(
                "impersonation is not supported by this API server: the request has the header {:?}; send it without (kubectl: without --as, --as-group and --as-uid)",
                name.as_str()
            ),
        )),
        None => Ok(()),
    }
}

const GROUP: &str = "system:serviceaccounts";

impl Api {
    /// The service account of a token, if the account and the object that the token is bound to exist.
    pub(super) fn authenticate_token(&self, token: &str, audiences: &[&str]) -> Option<(UserInfo, String)> {
        let claims = self.inner.tokens.as_ref()?.verify(token, Timestamp::now().as_second())?;
        let audience_matches = claims["aud"].as_array().into_iter().flatten().any(|a| audiences.iter().any(|w| a == w));
        let private = &claims["kubernetes.io"];
        let namespace = private["namespace"].as_str()?;
        let lives = |plural: &str, reference: &Value| {
            let name = reference["name"].as_str().unwrap_or("").to_owned();
            let found = self.store().get(self.store().resource(plural), &Key { namespace: namespace.to_owned(), name });
            found.is_some_and(|object| object.value()["metadata"]["uid"] == reference["uid"])
        };
        let account = &private["serviceaccount"];
        let good = audience_matches
            && lives("serviceaccounts", account)
            && (private["pod"].is_null() || lives("pods", &private["pod"]))
            && (private["secret"].is_null() || lives("secrets", &private["secret"]));
        let user = UserInfo {
            name: claims["sub"].as_str()?.to_owned(),
            groups: vec![GROUP.to_owned(), format!("{GROUP}:{namespace}")],
        };
        good.then(|| (user, account["uid"].as_str().unwrap_or("").to_owned()))
    }
}
