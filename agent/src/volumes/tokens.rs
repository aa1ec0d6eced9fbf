//! Service account tokens for projected volumes: requested from the API, bound to the pod, cached, and renewed in time.

use std::{collections::HashMap, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec},
    core::v1::{Pod, ServiceAccount, ServiceAccountTokenProjection},
};
use kube::{Api, Client, api::PostParams};
use parking_lot::Mutex;
use windlass_kit::duration;

use crate::node_authorizer::retry_forbidden;

/// Default validity of a token in seconds; the API's.
const DEFAULT_SECONDS: i64 = 3600;
/// Tokens are renewed after this at the latest; upstream's.
const MAX_TOKEN_AGE: SignedDuration = SignedDuration::from_hours(24);
/// Spreads the renewals of pods that started together.
const RENEWAL_JITTER_MS: u64 = 10_000;
/// Delay of a failed renewal while the old token is valid.
const RETRY_DELAY: SignedDuration = SignedDuration::from_secs(60);

/// The key of a cached token.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct TokenKey {
    pod: String,
    account: String,
    audience: String,
    seconds: i64,
}

#[derive(Clone)]
pub(super) struct Token {
    pub(super) text: String,
    /// When it is due for renewal.
    pub(super) renew_at: Timestamp,
    ends_at: Timestamp,
}

/// The token cache, in memory only; clones share it.
#[derive(Clone)]
pub(super) struct Tokens {
    client: Client,
    cached: Arc<Mutex<HashMap<TokenKey, Token>>>,
}

impl Tokens {
    pub(super) fn new(client: Client) -> Self {
        Self { client, cached: Arc::default() }
    }

    /// The token of a source, from the cache until it is due for renewal.
    ///
    /// # Errors
    /// The API's error, if no valid token is cached.
    pub(super) async fn get(
        &self,
        pod: &Pod,
        source: &ServiceAccountTokenProjection,
        now: Timestamp,
    ) -> Result<Token, String> {
        let account = pod.spec.as_ref().and_then(|s| s.service_account_name.clone()).filter(|n| !n.is_empty());
        let key = TokenKey {
            pod: pod.metadata.uid.clone().unwrap_or_default(),
            account: account.unwrap_or_else(|| "default".to_owned()),
            audience: source.audience.clone().unwrap_or_default(),
            seconds: source.expiration_seconds.unwrap_or(DEFAULT_SECONDS),
        };
        let cached = self.lock().get(&key).cloned();
        if let Some(token) = cached.clone().filter(|t| t.renew_at > now) {
            return Ok(token);
        }
        let fresh = match self.request_token(pod, &key, now).await {
            Ok(fresh) => fresh,
            Err(why) => {
                let Some(old) = cached.filter(|t| t.ends_at > now) else { return Err(why) };
                tracing::warn!(pod = pod.metadata.name, account = key.account, "{why}; using the old token meanwhile");
                Token { renew_at: now.saturating_add(RETRY_DELAY).unwrap_or(now), ..old }
            }
        };
        self.lock().insert(key, fresh.clone());
        Ok(fresh)
    }

    async fn request_token(&self, pod: &Pod, key: &TokenKey, now: Timestamp) -> Result<Token, String> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                audiences: Some(key.audience.clone()).filter(|a| !a.is_empty()).map(|a| vec![a]),
                expiration_seconds: Some(key.seconds),
                bound_object_ref: Some(BoundObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("Pod".to_owned()),
                    name: pod.metadata.name.clone(),
                    uid: pod.metadata.uid.clone(),
                }),
            }),
            ..TokenRequest::default()
        };
        let api: Api<ServiceAccount> = Api::namespaced(self.client.clone(), namespace);
        let params = PostParams::default();
        let answer = retry_forbidden(|| api.create_token_request(&key.account, &params, &request)).await;
        let failed =
            |why: String| format!("a token of service account {namespace}/{} was not given: {why}", key.account);
        let status = answer.map_err(|e| failed(e.to_string()))?.status;
        let given = status.and_then(|s| s.token.zip(s.expiration_timestamp));
        let (text, ends_at) = given.ok_or_else(|| failed("the answer holds none".to_owned()))?;
        Ok(Token { text, renew_at: renew_at(now, ends_at.0, renewal_jitter(&key.pod)), ends_at: ends_at.0 })
    }

    /// Drops the tokens of a pod.
    pub(super) fn remove_pod(&self, uid: &str) {
        self.lock().retain(|key, _| key.pod != uid);
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, HashMap<TokenKey, Token>> {
        self.cached.lock()
    }
}

/// Renewal is due after 80 % of the validity or a day, minus jitter; upstream's rule.
fn renew_at(now: Timestamp, ends_at: Timestamp, jitter: Duration) -> Timestamp {
    let life = ends_at.duration_since(now).max(SignedDuration::ZERO);
    let jitter = SignedDuration::try_from(jitter).unwrap_or(SignedDuration::ZERO);
    let after = ((life / 5).saturating_mul(4)).min(MAX_TOKEN_AGE).saturating_sub(jitter).max(SignedDuration::ZERO);
    now.saturating_add(after).unwrap_or(now)
}

/// The jitter of a pod's renewals.
fn renewal_jitter(uid: &str) -> Duration {
    Duration::from_millis(duration::stable_jitter(RENEWAL_JITTER_MS, uid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_renewed_in_time() {
        let now = Timestamp::UNIX_EPOCH;
        let at = |life: i64, jitter: u64| {
            let ends = Timestamp::from_second(life).unwrap();
            renew_at(now, ends, Duration::from_secs(jitter)).as_second()
        };
        assert_eq!(at(3600, 0), 2880);
        assert_eq!(at(3600, 10), 2870);
        assert_eq!(at(86400 * 365, 0), 86400);
        assert_eq!(at(5, 10), 0);
        assert_eq!(at(-5, 0), 0, "an end that is past is renewed at once");
        assert!(renewal_jitter("a-b-c") < Duration::from_secs(10) && renewal_jitter("a") != renewal_jitter("b"));
    }
}
