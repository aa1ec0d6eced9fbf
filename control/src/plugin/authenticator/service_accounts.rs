//! Tokens of service accounts: signed by this server, and good for as long as the account and the object that the token is
//! bound to exist.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::{
    apiserver::{Authenticated, CREDENTIAL_ID, TokenAuthenticator, User},
    service_account_tokens::{ISSUER, TokenIssuer},
    store::{Key, Store},
};

/// How long tokens are good after their object was deleted: upstream's `jwt.DefaultLeeway`, for clocks that differ.
const LEEWAY: SignedDuration = SignedDuration::from_mins(1);

const GROUP: &str = "system:serviceaccounts";
/// The label of secrets whose token is not taken any more.
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";

/// Authenticates service accounts.
#[derive(Debug)]
pub(crate) struct ServiceAccountTokens {
    pub(crate) store: Store,
    pub(crate) tokens: Arc<TokenIssuer>,
}

impl ServiceAccountTokens {
    /// Whether an object of a claim exists with the claim's uid, and was not deleted long ago: a finalizer or a node that is
    /// gone may hold it for any time.
    fn exists(&self, plural: &str, namespace: &str, reference: &Value, now: Timestamp) -> bool {
        let found = self.metadata(plural, namespace, reference["name"].as_str().unwrap_or(""));
        found.is_some_and(|metadata| metadata["uid"] == reference["uid"] && counts(&metadata["deletionTimestamp"], now))
    }

    fn metadata(&self, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        let key = Key { namespace: namespace.to_owned(), name: name.to_owned() };
        Some(self.store.get(self.store.resource(plural), &key)?.value()["metadata"].take())
    }
}

/// Whether an object with this time of deletion still stands for a token; a time that cannot be read is long ago. Pure.
fn counts(deleted: &Value, now: Timestamp) -> bool {
    let Some(deleted) = deleted.as_str() else { return deleted.is_null() };
    let until = deleted.parse::<Timestamp>().and_then(|deleted| deleted.checked_add(LEEWAY));
    until.is_ok_and(|until| now <= until)
}

impl ServiceAccountTokens {
    /// The user of a token without an end: that of the account, while the secret with this token is there.
    fn legacy_user(&self, token: &str, claims: &Value) -> Option<User> {
        use base64::{Engine as _, engine::general_purpose::STANDARD};
        let claim = |name: &str| claims[&format!("kubernetes.io/serviceaccount/{name}")].as_str();
        let (namespace, account) = (claim("namespace")?, claim("service-account.name")?);
        let uid = claim("service-account.uid")?;
        let key = Key { namespace: namespace.to_owned(), name: claim("secret.name")?.to_owned() };
        let secret = self.store.get(self.store.resource("secrets"), &key)?.value();
        let is_its = secret["data"]["token"] == STANDARD.encode(token)
            && secret["metadata"]["deletionTimestamp"].is_null()
            && secret["metadata"]["labels"][INVALID_SINCE].is_null();
        // As of the secret, a deletion counts at once: nothing renews these tokens.
        let exists = self
            .metadata("serviceaccounts", namespace, account)
            .is_some_and(|metadata| metadata["uid"] == uid && metadata["deletionTimestamp"].is_null());
        (is_its && exists).then(|| User {
            name: format!("system:serviceaccount:{namespace}:{account}"),
            uid: uid.to_owned(),
            groups: vec![GROUP.to_owned(), format!("{GROUP}:{namespace}")],
            extra: std::collections::BTreeMap::new(),
        })
    }
}

impl TokenAuthenticator for ServiceAccountTokens {
    fn authenticate(&self, token: &str, audiences: &[&str]) -> Result<Authenticated, String> {
        self.authenticate_at(token, audiences, Timestamp::now())
    }
}

impl ServiceAccountTokens {
    /// The user of a token at a time.
    ///
    /// # Errors
    /// As [`TokenAuthenticator::authenticate`].
    pub(crate) fn authenticate_at(
        &self,
        token: &str,
        audiences: &[&str],
        now: Timestamp,
    ) -> Result<Authenticated, String> {
        let audiences = if audiences.is_empty() { &[ISSUER][..] } else { audiences };
        let nobody = String::new;
        if let Some(claims) = self.tokens.verify_legacy(token) {
            let shared: Vec<String> = audiences.iter().filter(|a| **a == ISSUER).map(|a| (*a).to_owned()).collect();
            let user = self.legacy_user(token, &claims).filter(|_| !shared.is_empty());
            return user.map(|user| Authenticated { user, audiences: shared }).ok_or_else(nobody);
        }
        let claims = self.tokens.verify(token, now.as_second()).ok_or_else(nobody)?;
        let of: Vec<&str> = claims["aud"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let shared: Vec<String> = audiences.iter().filter(|a| of.contains(a)).map(|a| (*a).to_owned()).collect();
        if shared.is_empty() {
            let quoted = |all: &[&str]| all.iter().map(|a| format!("{a:?}")).collect::<Vec<_>>().join(" ");
            return Err(format!(
                "token audiences [{}] is invalid for the target audiences [{}]",
                quoted(&of),
                quoted(audiences)
            ));
        }
        let private = &claims["kubernetes.io"];
        let namespace = private["namespace"].as_str().ok_or_else(nobody)?;
        let account = &private["serviceaccount"];
        let exists = |plural, namespace, of: &Value| self.exists(plural, namespace, of, now);
        let good = exists("serviceaccounts", namespace, account)
            && (private["pod"].is_null() || exists("pods", namespace, &private["pod"]))
            && (private["secret"].is_null() || exists("secrets", namespace, &private["secret"]))
            // With a pod the node is that of the pod, and told only.
            && (private["node"].is_null() || !private["pod"].is_null() || exists("nodes", "", &private["node"]));
        let user = User {
            name: claims["sub"].as_str().ok_or_else(nobody)?.to_owned(),
            uid: account["uid"].as_str().unwrap_or("").to_owned(),
            groups: vec![GROUP.to_owned(), format!("{GROUP}:{namespace}")],
            extra: extra(&claims),
        };
        if good { Ok(Authenticated { user, audiences: shared }) } else { Err(nobody()) }
    }
}

/// What a token says of itself, of the pod that it is bound to and of the node.
fn extra(claims: &Value) -> std::collections::BTreeMap<String, Vec<String>> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let (pod, node) = (&claims["kubernetes.io"]["pod"], &claims["kubernetes.io"]["node"]);
    let all = [
        (CREDENTIAL_ID, text(&claims["jti"]).map(|id| format!("JTI={id}"))),
        ("authentication.kubernetes.io/pod-name", text(&pod["name"])),
        ("authentication.kubernetes.io/pod-uid", text(&pod["uid"])),
        ("authentication.kubernetes.io/node-name", text(&node["name"])),
        ("authentication.kubernetes.io/node-uid", text(&node["uid"])),
    ];
    all.into_iter().filter_map(|(key, value)| Some((key.to_owned(), vec![value?]))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_deleted_object_stands_for_its_tokens_for_a_minute() {
        let now: Timestamp = "2026-01-01T00:10:00Z".parse().unwrap();
        for (deleted, good) in [
            (json!(null), true),
            // The end of a pod's grace period, which is to come.
            (json!("2026-01-01T00:10:30Z"), true),
            (json!("2026-01-01T00:09:00Z"), true),
            (json!("2026-01-01T00:08:59Z"), false),
            (json!("2025-01-01T00:00:00Z"), false),
            (json!("nonsense"), false),
            (json!(0), false),
        ] {
            assert_eq!(counts(&deleted, now), good, "{deleted}");
        }
    }
}
