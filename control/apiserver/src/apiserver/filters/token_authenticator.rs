//! What knows users by their tokens, for authentication and for reviews of tokens. Upstream: `authenticator.Token`.

use std::fmt;

use crate::apiserver::request::user::User;

/// Knows users by their tokens.
pub trait TokenAuthenticator: Send + Sync + fmt::Debug {
    /// The user of a token for one of the audiences; the server's own audience if there are none.
    ///
    /// # Errors
    /// Why a token that it knows is not good; nothing of all others.
    fn authenticate(&self, token: &str, audiences: &[&str]) -> Result<Authenticated, Refused>;
}

/// Why a token is not taken.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Refused {
    /// In upstream's words; empty for a token that is not known.
    pub why: String,
    /// What the audit log says of it.
    pub audit: Option<AuditNote>,
}

impl From<String> for Refused {
    fn from(why: String) -> Self {
        Self { why, audit: None }
    }
}

/// A key of the audit log, and its value.
pub type AuditNote = (&'static str, String);

/// The user of a token, and the requested audiences that the token is for.
#[derive(Debug, Clone)]
pub struct Authenticated {
    /// The user.
    pub user: User,
    /// The audiences.
    pub audiences: Vec<String>,
    /// What else is to be said of it.
    pub remarks: Remarks,
}

/// What an authenticator says of a token that it takes.
#[derive(Debug, Clone, Default)]
pub struct Remarks {
    /// To the client.
    pub warning: Option<&'static str>,
    /// In the audit log.
    pub audit: Option<AuditNote>,
}
