//! Tokens by which nodes join, each in a secret of `kube-system` as kubeadm makes it (upstream:
//! `plugin/pkg/auth/authenticator/token/bootstrap`). Their users may do what somebody has given their groups; by itself nothing.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use windlass_identity::bootstrap_secret::{NAMESPACE, groups_of, name_of};
use windlass_kit::bootstrap::Token;

use super::of_this_server;
use crate::{
    apiserver::{Authenticated, Refused, Remarks, TokenAuthenticator, User},
    store::{Key, Store},
};

/// What the names of the users begin with; the public part of the token follows.
const USER: &str = "system:bootstrap:";

/// Knows users by the tokens in secrets, as the store has them now.
#[derive(Debug)]
pub(crate) struct BootstrapTokens {
    pub(crate) store: Store,
    /// What this server is as an audience.
    pub(crate) audiences: Vec<String>,
}

impl TokenAuthenticator for BootstrapTokens {
    fn authenticate(&self, token: &str, audiences: &[&str]) -> Result<Authenticated, Refused> {
        let audiences = of_this_server(audiences, &self.audiences)?;
        let token: Token = token.parse().map_err(|_| Refused::default())?;
        let key = Key { namespace: NAMESPACE.to_owned(), name: name_of(token.id()) };
        let found = self.store.get(self.store.resource("secrets"), &key).ok_or_else(Refused::default)?;
        let secret: Result<Secret, String> = serde_json::from_value(found.value()).map_err(|why| why.to_string());
        let groups = secret.and_then(|secret| groups_of(&secret, &token, Timestamp::now())).map_err(|why| {
            tracing::debug!(secret = key.name, why, "the secret of a bootstrap token does not let it in");
            Refused::default()
        })?;
        let user = User { name: format!("{USER}{}", token.id()), groups, ..User::default() };
        Ok(Authenticated { user, audiences, remarks: Remarks::default() })
    }
}
