//! ServiceAccount, and the tokens that are requested for it.

mod token_request;

use std::sync::Arc;

use serde_json::Value;
use windlass_identity::service_account_tokens::TokenIssuer;

use crate::{
    apiserver::{
        Strategy,
        types::{Definition, Resource, Serves, Subresource, VersionSpec},
    },
    kinds::types,
};
pub(crate) use token_request::uid_mismatch;
use token_request::{TOKEN_REQUEST, TokenRequest};

/// The annotation by which an account limits its pods to the Secrets that it names.
pub(crate) const ENFORCE_MOUNTABLE_SECRETS: &str = "kubernetes.io/enforce-mountable-secrets";

/// The resource. Without an issuer no tokens are given, `max_token_seconds` is their maximum lifetime.
pub(crate) fn definition(tokens: Option<Arc<TokenIssuer>>, max_token_seconds: Option<i64>) -> Definition {
    let mut resource = Resource::new("", "serviceaccounts", "ServiceAccount", ServiceAccount);
    resource.short_names = vec!["sa".into()];
    resource.returns_deleted = true;
    let mut v1 = VersionSpec::new("v1", types::built_in("v1", "ServiceAccount"));
    let handler = Serves::custom(TokenRequest { tokens, max_token_seconds });
    v1.subresources = vec![Subresource::of_kind("token", TOKEN_REQUEST, &["create"], handler)];
    Definition::single(resource, v1)
}

#[derive(Debug)]
struct ServiceAccount;

impl Strategy for ServiceAccount {
    fn warnings(&self, new: &Value, old: Option<&Value>) -> Vec<String> {
        let limits = |account: &Value| !account["metadata"]["annotations"][ENFORCE_MOUNTABLE_SECRETS].is_null();
        if !limits(new) || old.is_some_and(limits) {
            return Vec::new();
        }
        let why = "deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets";
        vec![format!("metadata.annotations[{ENFORCE_MOUNTABLE_SECRETS}]: {why}")]
    }
}
