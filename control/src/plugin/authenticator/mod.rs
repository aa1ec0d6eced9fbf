//! Authenticators of tokens: those of service accounts, and those of a file.

mod service_accounts;
mod static_tokens;
mod token_uses;

pub(crate) use service_accounts::ServiceAccountTokens;
pub(crate) use static_tokens::{StaticTokens, TokenFileError};
pub(crate) use token_uses::TokenUses;
