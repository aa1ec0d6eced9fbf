//! Authenticators of tokens: those of service accounts, those of a file, and those by which nodes join.

mod bootstrap_tokens;
mod service_accounts;
mod static_tokens;
mod token_uses;

pub(crate) use bootstrap_tokens::BootstrapTokens;
pub(crate) use service_accounts::ServiceAccountTokens;
pub(crate) use static_tokens::{StaticTokens, TokenFileError};
pub(crate) use token_uses::TokenUses;
