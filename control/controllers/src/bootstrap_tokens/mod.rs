//! Tokens by which nodes join, as kubeadm makes them: what joining nodes read is signed with each of them (`signer`), and
//! expired ones are removed (`cleaner`). Upstream's `pkg/controller/bootstrap`.

mod cleaner;
mod signer;

use k8s_openapi::api::core::v1::Secret;
use windlass_identity::bootstrap_secret::is_token;

use crate::runtime::CachedSecret;

pub(crate) use cleaner::BootstrapTokenCleaner;
pub(crate) use signer::BootstrapSigner;

/// The secret, if it is one with such a token.
fn token(secret: &CachedSecret) -> Option<&Secret> {
    secret.with_token().filter(|secret| is_token(secret))
}
