//! Bootstrap tokens.

use std::{fmt, str::FromStr};

/// `abcdef.0123456789abcdef`: a public id, and a secret (`k8s.io/cluster-bootstrap/token/api`).
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    id: String,
    secret: String,
}

/// A text that is no token; never contains the text itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "it is no bootstrap token: six characters, a dot and sixteen characters, each a small letter or a digit, as abcdef.0123456789abcdef"
)]
pub struct BadToken;

const ID: usize = 6;
const SECRET: usize = 16;

impl FromStr for Token {
    type Err = BadToken;

    fn from_str(text: &str) -> Result<Self, BadToken> {
        let is = |part: &str, length: usize| {
            part.len() == length && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
        };
        let (id, secret) = text.split_once('.').ok_or(BadToken)?;
        if !is(id, ID) || !is(secret, SECRET) {
            return Err(BadToken);
        }
        Ok(Self { id: id.to_owned(), secret: secret.to_owned() })
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never the secret.
        write!(f, "Token({})", self.id)
    }
}

impl Token {
    /// The public part.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The secret part; never to be logged.
    #[must_use]
    pub fn secret(&self) -> &str {
        &self.secret
    }

    /// The complete token, for the API; never to be logged.
    #[must_use]
    pub fn bearer(&self) -> String {
        format!("{}.{}", self.id, self.secret)
    }
}
