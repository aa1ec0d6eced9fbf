//! Secrets of type `kubernetes.io/service-account-token` get a token of their account, which has no end, with the CA's
//! certificates and the namespace; they are deleted with the account. Upstream's `TokensController`.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::{
    ByteString,
    api::core::v1::{Secret, ServiceAccount},
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
    core::PartialObjectMeta,
};
use serde_json::{Value, json};
use tokio::sync::watch;
use windlass_identity::service_account_tokens::{LEGACY_ISSUER, SECRET_TYPE, TokenIssuer};

use super::runtime::{
    Cache, CachedSecret, Context, Controller, During as _, Error, Index, Key, Outcome, error, same_object,
};

pub(super) const NAME: &str = "kubernetes.io/service-account.name";
pub(super) const UID: &str = "kubernetes.io/service-account.uid";
const TOKEN: &str = "token";
const CA: &str = "ca.crt";
const NAMESPACE: &str = "namespace";

/// Secrets with tokens by the account that they name.
const SECRETS_BY_ACCOUNT: Index<CachedSecret> = Index::new("service account", |secret| {
    let account = with_token(secret).and_then(|secret| secret.annotations().get(NAME));
    account.map(|name| Key::new(secret.namespace().unwrap_or_default(), name).to_string()).into_iter().collect()
});

/// When a secret is looked at again whose account the API has and the cache does not.
const UNCACHED_ACCOUNT_RETRY: Duration = Duration::from_secs(10);

/// What the controller is made of besides the API.
#[derive(Clone)]
pub(crate) struct TokensConfig {
    /// Signs the tokens.
    pub(crate) issuer: Arc<TokenIssuer>,
    /// Certificates of the API server's CA.
    pub(crate) root_ca: watch::Receiver<String>,
}

pub(crate) struct TokensController {
    client: Client,
    secrets: Cache<CachedSecret>,
    accounts: Cache<PartialObjectMeta<ServiceAccount>>,
    config: TokensConfig,
}

impl Controller for TokensController {
    const NAME: &'static str = "serviceaccount-token-controller";
    const QUEUE: &'static str = "serviceaccount_tokens_service";
    type Key = Key;
    type Config = TokensConfig;

    fn subscribe(context: &mut Context<Key>, config: TokensConfig) -> Self {
        let secrets = context.informer::<CachedSecret>();
        let accounts = context.informer::<PartialObjectMeta<ServiceAccount>>();
        secrets.index(&SECRETS_BY_ACCOUNT);
        secrets.queue_where(context.queue(), |secret| with_token(secret).is_some());
        let (queue, cache) = (context.queue(), secrets.cache());
        accounts.on_change(move |old, new| {
            // Of changes only those of the uid matter.
            if let (Some(old), Some(new)) = (old, new)
                && old.metadata.uid == new.metadata.uid
            {
                return;
            }
            let Some(account) = new.or(old) else { return };
            let secrets = cache.by_index(&SECRETS_BY_ACCOUNT, &Key::of(&account.metadata).to_string());
            secrets.iter().for_each(|secret| queue.add(Key::of(&secret.metadata)));
        });
        Self { client: context.client(), secrets: secrets.cache(), accounts: accounts.cache(), config }
    }

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let cached = self.secrets.get(&key);
        let Some(secret) = cached.as_deref().and_then(with_token) else { return Ok(Outcome::Done) };
        let Some(name) = secret.annotations().get(NAME) else { return Ok(Outcome::Done) };
        let account = Key::new(&key.namespace, name);
        let mut uid = self.accounts.get(&account).and_then(|account| account.metadata.uid.clone());
        let is_cached = fits(secret, uid.as_deref());
        // An account that is deleted before the cache has seen it causes no event.
        let done = || Ok(if is_cached { Outcome::Done } else { Outcome::After(UNCACHED_ACCOUNT_RETRY) });
        if !is_cached {
            // The cache may be behind.
            let api: Api<ServiceAccount> = Api::namespaced(self.client.clone(), &key.namespace);
            let found = api.get_metadata_opt(name).await.during("read the service account", &account)?;
            uid = found.and_then(|account| account.metadata.uid);
        }
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &key.namespace);
        let Some(uid) = uid.filter(|uid| fits(secret, Some(uid))) else {
            let params = DeleteParams::default().preconditions(same_object(&secret.metadata));
            error::ignore_deleted(api.delete(&key.name, &params).await).during("delete the token secret", &key)?;
            return Ok(Outcome::Done);
        };
        let root_ca = self.config.root_ca.borrow().clone();
        let Some(mut change) = missing(secret, &uid, &root_ca) else { return done() };
        if !has_token(secret) {
            let claims = claims(&key, name, &uid);
            match self.config.issuer.sign(&claims) {
                Ok(token) => change["data"][TOKEN] = json!(ByteString(token.into_bytes())),
                Err(why) => {
                    tracing::warn!(secret = %key, %why, "token could not be signed; retrying");
                    return Ok(Outcome::Failed);
                }
            }
        }
        change["metadata"]["resourceVersion"] = json!(secret.metadata.resource_version);
        let patched = api.patch(&key.name, &PatchParams::default(), &Patch::Merge(change)).await;
        error::ignore_deleted(patched).during("give a token to the secret", &key)?;
        done()
    }
}

/// The secret, if it is one with the token of a service account.
pub(super) fn with_token(secret: &CachedSecret) -> Option<&Secret> {
    secret.with_token().filter(|secret| secret.type_.as_deref() == Some(SECRET_TYPE))
}

fn has_token(secret: &Secret) -> bool {
    secret.data.as_ref().and_then(|data| data.get(TOKEN)).is_some_and(|token| !token.0.is_empty())
}

/// Whether a secret may be that of the account with this uid, if there is one. Pure.
fn fits(secret: &Secret, uid: Option<&str>) -> bool {
    let wanted = secret.annotations().get(UID).filter(|uid| !uid.is_empty());
    uid.is_some_and(|uid| wanted.is_none_or(|wanted| wanted == uid))
}

/// The patch that completes a secret, but for its token; `None` if nothing is missing. Pure.
fn missing(secret: &Secret, uid: &str, root_ca: &str) -> Option<Value> {
    let namespace = secret.namespace().unwrap_or_default();
    let mut wanted = BTreeMap::from([(NAMESPACE, namespace.as_str())]);
    if !root_ca.is_empty() {
        wanted.insert(CA, root_ca);
    }
    let empty = BTreeMap::new();
    let data = secret.data.as_ref().unwrap_or(&empty);
    // The namespace is the user's to change, as upstream.
    wanted.retain(|field, value| match data.get(*field) {
        Some(there) => *field == CA && there.0 != value.as_bytes(),
        None => true,
    });
    let named = secret.annotations().get(UID).is_some_and(|named| named == uid);
    if wanted.is_empty() && named && has_token(secret) {
        return None;
    }
    let data: BTreeMap<&str, ByteString> =
        wanted.into_iter().map(|(field, value)| (field, ByteString(value.as_bytes().to_vec()))).collect();
    Some(json!({"metadata": {"annotations": {UID: uid}}, "data": data}))
}

/// What a token without an end says. Pure.
fn claims(secret: &Key, account: &str, uid: &str) -> Value {
    json!({
        "iss": LEGACY_ISSUER,
        "sub": format!("system:serviceaccount:{}:{account}", secret.namespace),
        "kubernetes.io/serviceaccount/namespace": secret.namespace,
        "kubernetes.io/serviceaccount/secret.name": secret.name,
        "kubernetes.io/serviceaccount/service-account.name": account,
        "kubernetes.io/serviceaccount/service-account.uid": uid,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(annotations: Value, data: Value) -> Secret {
        let metadata = json!({"name": "s", "namespace": "n", "annotations": annotations});
        serde_json::from_value(json!({"metadata": metadata, "type": SECRET_TYPE, "data": data})).unwrap()
    }

    #[test]
    fn a_secret_is_completed_once() {
        let all = json!({"ca.crt": "Y2E=", "namespace": "bg==", "token": "dA=="});
        let uid = json!({"metadata": {"annotations": {UID: "u"}}, "data": {}});
        let with = |data: Value| json!({"metadata": {"annotations": {UID: "u"}}, "data": data});
        for (annotations, data, expected) in [
            (json!({UID: "u"}), all.clone(), None),
            (json!({}), all.clone(), Some(uid.clone())),
            (json!({UID: "u"}), json!({"ca.crt": "Y2E=", "namespace": "bg==", "token": ""}), Some(uid.clone())),
            (json!({UID: "u"}), json!({}), Some(with(json!({"ca.crt": "Y2E=", "namespace": "bg=="})))),
            (json!({UID: "u"}), json!({"ca.crt": "Y2E=", "namespace": "bg=="}), Some(uid.clone())),
            (
                json!({UID: "u"}),
                json!({"ca.crt": "b2xk", "namespace": "eA==", "token": "dA=="}),
                Some(with(json!({"ca.crt": "Y2E="}))),
            ),
        ] {
            assert_eq!(missing(&secret(annotations, data.clone()), "u", "ca"), expected, "{data}");
        }
    }

    #[test]
    fn a_secret_is_of_one_account() {
        let (free, bound) = (secret(json!({}), json!({})), secret(json!({UID: "u"}), json!({})));
        for (secret, uid, expected) in
            [(&free, Some("u"), true), (&free, None, false), (&bound, Some("u"), true), (&bound, Some("v"), false)]
        {
            assert_eq!(fits(secret, uid), expected, "{uid:?}");
        }
    }
}
