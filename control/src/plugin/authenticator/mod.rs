//! Tokens of service accounts: signed by this server, and good for as long as the account and the object that the token is
//! bound to exist.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use crate::{
    apiserver::{Authenticated, TokenAuthenticator, User},
    service_account_tokens::{ISSUER, TokenIssuer},
    store::{Key, Store},
};

const GROUP: &str = "system:serviceaccounts";

/// Authenticates service accounts.
#[derive(Debug)]
pub(crate) struct ServiceAccountTokens {
    pub(crate) store: Store,
    pub(crate) tokens: Arc<TokenIssuer>,
}

impl ServiceAccountTokens {
    /// Whether an object of a claim exists with the claim's uid.
    fn exists(&self, plural: &str, namespace: &str, reference: &Value) -> bool {
        let name = reference["name"].as_str().unwrap_or("").to_owned();
        let found = self.store.get(self.store.resource(plural), &Key { namespace: namespace.to_owned(), name });
        found.is_some_and(|object| object.value()["metadata"]["uid"] == reference["uid"])
    }
}

impl TokenAuthenticator for ServiceAccountTokens {
    fn authenticate(&self, token: &str, audiences: &[&str]) -> Option<Authenticated> {
        let audiences = if audiences.is_empty() { &[ISSUER][..] } else { audiences };
        let claims = self.tokens.verify(token, Timestamp::now().as_second())?;
        let has = |wanted: &str| claims["aud"].as_array().into_iter().flatten().any(|a| a == wanted);
        let private = &claims["kubernetes.io"];
        let namespace = private["namespace"].as_str()?;
        let account = &private["serviceaccount"];
        let good = audiences.iter().any(|wanted| has(wanted))
            && self.exists("serviceaccounts", namespace, account)
            && (private["pod"].is_null() || self.exists("pods", namespace, &private["pod"]))
            && (private["secret"].is_null() || self.exists("secrets", namespace, &private["secret"]));
        let user = User {
            name: claims["sub"].as_str()?.to_owned(),
            uid: account["uid"].as_str().unwrap_or("").to_owned(),
            groups: vec![GROUP.to_owned(), format!("{GROUP}:{namespace}")],
            extra: extra(&claims),
        };
        let audiences = audiences.iter().map(|a| (*a).to_owned()).collect();
        good.then_some(Authenticated { user, audiences })
    }
}

/// What a token says of itself and of the pod that it is bound to.
fn extra(claims: &Value) -> std::collections::BTreeMap<String, Vec<String>> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let pod = &claims["kubernetes.io"]["pod"];
    let all = [
        ("authentication.kubernetes.io/credential-id", text(&claims["jti"]).map(|id| format!("JTI={id}"))),
        ("authentication.kubernetes.io/pod-name", text(&pod["name"])),
        ("authentication.kubernetes.io/pod-uid", text(&pod["uid"])),
    ];
    all.into_iter().filter_map(|(key, value)| Some((key.to_owned(), vec![value?]))).collect()
}
