//! Authenticators of tokens: those of service accounts, those of a file, and those by which nodes join.

mod bootstrap_tokens;
mod service_accounts;
mod static_tokens;
mod token_uses;

pub(crate) use bootstrap_tokens::BootstrapTokens;
pub(crate) use service_accounts::ServiceAccountTokens;
pub(crate) use static_tokens::{StaticTokens, TokenFileError};
pub(crate) use token_uses::TokenUses;

use crate::apiserver::Refused;

/// Which of the audiences that a request asks for this server is, by a token without audiences of its own; all that it is if none
/// is asked for (upstream: `authenticator.WithAudiences`).
fn of_this_server(asked: &[&str], own: &[String]) -> Result<Vec<String>, Refused> {
    let shared: Vec<String> =
        own.iter().filter(|own| asked.is_empty() || asked.contains(&own.as_str())).cloned().collect();
    if shared.is_empty() { Err(Refused::default()) } else { Ok(shared) }
}
