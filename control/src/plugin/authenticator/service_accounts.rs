//! Tokens of service accounts: signed by this server, and good for as long as the account and the object that the token is
//! bound to exist.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    apiserver::{Authenticated, CREDENTIAL_ID, TokenAuthenticator, User},
    service_account_tokens::{ISSUER, TokenIssuer},
    store::{Key, Store},
};

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
    /// Whether an object of a claim exists with the claim's uid.
    fn exists(&self, plural: &str, namespace: &str, reference: &Value) -> bool {
        let name = reference["name"].as_str().unwrap_or("").to_owned();
        let found = self.store.get(self.store.resource(plural), &Key { namespace: namespace.to_owned(), name });
        found.is_some_and(|object| object.value()["metadata"]["uid"] == reference["uid"])
    }
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
        let exists = self.exists("serviceaccounts", namespace, &json!({"name": account, "uid": uid}));
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
        let audiences = if audiences.is_empty() { &[ISSUER][..] } else { audiences };
        let nobody = String::new;
        if let Some(claims) = self.tokens.verify_legacy(token) {
            let shared: Vec<String> = audiences.iter().filter(|a| **a == ISSUER).map(|a| (*a).to_owned()).collect();
            let user = self.legacy_user(token, &claims).filter(|_| !shared.is_empty());
            return user.map(|user| Authenticated { user, audiences: shared }).ok_or_else(nobody);
        }
        let claims = self.tokens.verify(token, Timestamp::now().as_second()).ok_or_else(nobody)?;
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
        let good = self.exists("serviceaccounts", namespace, account)
            && (private["pod"].is_null() || self.exists("pods", namespace, &private["pod"]))
            && (private["secret"].is_null() || self.exists("secrets", namespace, &private["secret"]))
            // With a pod the node is that of the pod, and told only.
            && (private["node"].is_null() || !private["pod"].is_null() || self.exists("nodes", "", &private["node"]));
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
