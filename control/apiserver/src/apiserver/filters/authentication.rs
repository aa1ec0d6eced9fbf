//! Authentication: whom a request comes from, by its connection, its client certificate or a token.

use axum::http::{Extensions, HeaderMap, header};
use windlass_kit::serve::{self, Caller, ClientIdentity, headers};

use super::token_authenticator::{AuditNote, Authenticated, Refused, Remarks};
use crate::apiserver::{
    Api,
    request::{
        error::ApiError,
        user::{CREDENTIAL_ID, Credentials, User},
    },
};

/// A request that could not be authenticated.
#[derive(Debug)]
pub(in crate::apiserver) struct Unauthenticated {
    pub(in crate::apiserver) error: Box<ApiError>,
    pub(in crate::apiserver) audit: Option<AuditNote>,
}

impl From<ApiError> for Unauthenticated {
    fn from(error: ApiError) -> Self {
        Self { error: Box::new(error), audit: None }
    }
}

/// WebSocket subprotocol with a token, for browsers, which cannot set headers.
const TOKEN_PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

/// A client's WebSocket subprotocols.
fn protocols(headers: &HeaderMap) -> impl Iterator<Item = String> {
    headers::items(headers, header::SEC_WEBSOCKET_PROTOCOL.as_str())
}

/// A client's WebSocket subprotocols without the token among them, for those behind this server.
pub(crate) fn protocols_without_token(headers: &HeaderMap) -> Vec<String> {
    protocols(headers).filter(|protocol| !protocol.starts_with(TOKEN_PROTOCOL)).collect()
}

/// The token among a client's WebSocket subprotocols.
///
/// # Errors
/// When there is one that cannot be read, or more than one.
pub(crate) fn protocol_token(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
    let tokens: Vec<String> = protocols(headers).filter(|protocol| protocol.starts_with(TOKEN_PROTOCOL)).collect();
    let encoded = match tokens.as_slice() {
        [] => return Ok(None),
        [one] => &one[TOKEN_PROTOCOL.len()..],
        _ => return Err(ApiError::unauthorized()),
    };
    let decoded = URL_SAFE_NO_PAD.decode(encoded).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    decoded.map(Some).ok_or_else(ApiError::unauthorized)
}

impl Api {
    /// The user of a request: a component of this process, the subject of a client certificate, the user of a token, or
    /// anonymous.
    ///
    /// # Errors
    /// When no authenticator accepts the request's token.
    pub(in crate::apiserver) fn authenticate(
        &self,
        extensions: &Extensions,
        headers: &HeaderMap,
    ) -> Result<(User, Credentials, Remarks), Unauthenticated> {
        if let Some(user) = extensions.get::<User>() {
            return Ok((user.clone().authenticated(), Credentials::InProcess, Remarks::default()));
        }
        if let Some(peer) = extensions.get::<ClientIdentity>() {
            let mut user = User { name: peer.name.clone(), groups: peer.groups.clone(), ..User::default() };
            if !user.is_anonymous() {
                if let Some(ends) = peer.ends_at {
                    self.inner.requests.certificate(ends);
                }
                if !peer.fingerprint.is_empty() {
                    user.extra.insert(CREDENTIAL_ID.to_owned(), vec![format!("X509SHA256={}", peer.fingerprint)]);
                }
                return Ok((user.authenticated(), Credentials::Certificate, Remarks::default()));
            }
        }
        let shown = serve::bearer(headers).map_err(ApiError::from)?;
        let websocket_token = protocol_token(headers)?;
        let Some(token) = shown.or(websocket_token.as_deref()) else {
            return Ok((User::anonymous(), Credentials::Other, Remarks::default()));
        };
        let caller = extensions.get::<Caller>();
        let known = self.authenticate_token(token.trim(), &[]).map_err(|Refused { why, audit }| {
            let client = caller.and_then(Caller::address).map(|address| address.ip().to_string());
            tracing::warn!(client, why, "unauthenticated request: token is invalid or has expired");
            Unauthenticated { error: Box::new(ApiError::unauthorized()), audit }
        })?;
        if let Some(caller) = caller {
            caller.authenticated();
        }
        Ok((known.user.authenticated(), Credentials::Other, known.remarks))
    }

    /// The user of a token.
    ///
    /// # Errors
    /// Why no authenticator accepts it, in upstream's words.
    pub(crate) fn authenticate_token(&self, token: &str, audiences: &[&str]) -> Result<Authenticated, Refused> {
        const INVALID: &str = "invalid bearer token";
        let (mut reasons, mut note) = (Vec::new(), None);
        for authenticator in &self.inner.token_authenticators {
            match authenticator.authenticate(token, audiences) {
                Ok(known) => return Ok(known),
                Err(Refused { why, audit }) => {
                    reasons.extend((!why.is_empty()).then_some(why));
                    note = note.or(audit);
                }
            }
        }
        let why = if reasons.is_empty() { INVALID.to_owned() } else { format!("[{INVALID}, {}]", reasons.join(", ")) };
        Err(Refused { why, audit: note })
    }
}
