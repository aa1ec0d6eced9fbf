//! Tokens of service accounts for the files of pods: asked of the API, bound to the pod, and renewed in time.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec},
    core::v1::{Pod, ServiceAccount, ServiceAccountTokenProjection},
};
use kube::{Api, Client, api::PostParams};
use windlass_kit::duration;

use crate::node_authorizer::past_lag;

/// How long a token is good for where nothing is said; the API's default.
const DEFAULT_SECONDS: i64 = 3600;
/// No token is kept longer; upstream's.
const LONGEST_USE: SignedDuration = SignedDuration::from_hours(24);
/// Pods of one start do not renew at one moment.
const SPREAD_MS: u64 = 10_000;
/// The next try of a renewal that failed while the old token is good.
const RETRY: SignedDuration = SignedDuration::from_secs(60);

/// Whose token, for whom, and for how long.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Wanted {
    pod: String,
    account: String,
    audience: String,
    seconds: i64,
}

#[derive(Clone)]
pub(super) struct Token {
    pub(super) text: String,
    /// When it is asked for anew.
    pub(super) renew_at: Timestamp,
    ends_at: Timestamp,
}

/// The tokens of all pods, in memory alone; clones share them.
#[derive(Clone)]
pub(super) struct Tokens {
    client: Client,
    held: Arc<Mutex<HashMap<Wanted, Token>>>,
}

impl Tokens {
    pub(super) fn new(client: Client) -> Self {
        Self { client, held: Arc::default() }
    }

    /// The token that a source asks for: the one at hand until it is to be renewed.
    ///
    /// # Errors
    /// What the API said, when there is no good token at hand.
    pub(super) async fn get(
        &self,
        pod: &Pod,
        source: &ServiceAccountTokenProjection,
        now: Timestamp,
    ) -> Result<Token, String> {
        let account = pod.spec.as_ref().and_then(|s| s.service_account_name.clone()).filter(|n| !n.is_empty());
        let wanted = Wanted {
            pod: pod.metadata.uid.clone().unwrap_or_default(),
            account: account.unwrap_or_else(|| "default".to_owned()),
            audience: source.audience.clone().unwrap_or_default(),
            seconds: source.expiration_seconds.unwrap_or(DEFAULT_SECONDS),
        };
        let held = self.lock().get(&wanted).cloned();
        if let Some(token) = held.clone().filter(|t| t.renew_at > now) {
            return Ok(token);
        }
        let fresh = match self.ask(pod, &wanted, now).await {
            Ok(fresh) => fresh,
            Err(why) => {
                let Some(old) = held.filter(|t| t.ends_at > now) else { return Err(why) };
                tracing::warn!(
                    pod = pod.metadata.name,
                    account = wanted.account,
                    "{why}; the old token is used meanwhile"
                );
                Token { renew_at: now.saturating_add(RETRY).unwrap_or(now), ..old }
            }
        };
        self.lock().insert(wanted, fresh.clone());
        Ok(fresh)
    }

    async fn ask(&self, pod: &Pod, wanted: &Wanted, now: Timestamp) -> Result<Token, String> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                audiences: Some(wanted.audience.clone()).filter(|a| !a.is_empty()).map(|a| vec![a]),
                expiration_seconds: Some(wanted.seconds),
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
        let answer = past_lag(|| api.create_token_request(&wanted.account, &params, &request)).await;
        let failed =
            |why: String| format!("a token of service account {namespace}/{} was not given: {why}", wanted.account);
        let status = answer.map_err(|e| failed(e.to_string()))?.status;
        let given = status.and_then(|s| s.token.zip(s.expiration_timestamp));
        let (text, ends_at) = given.ok_or_else(|| failed("the answer holds none".to_owned()))?;
        Ok(Token { text, renew_at: renew_at(now, ends_at.0, spread(&wanted.pod)), ends_at: ends_at.0 })
    }

    /// Drops what a pod held.
    pub(super) fn forget(&self, uid: &str) {
        self.lock().retain(|wanted, _| wanted.pod != uid);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Wanted, Token>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// After four fifths of its life, or a day, and a little sooner so that not all come at once; upstream's rule.
fn renew_at(now: Timestamp, ends_at: Timestamp, sooner: Duration) -> Timestamp {
    let life = ends_at.duration_since(now).max(SignedDuration::ZERO);
    let sooner = SignedDuration::try_from(sooner).unwrap_or(SignedDuration::ZERO);
    let after = ((life / 5).saturating_mul(4)).min(LONGEST_USE).saturating_sub(sooner).max(SignedDuration::ZERO);
    now.saturating_add(after).unwrap_or(now)
}

/// How much sooner than others a pod renews.
fn spread(uid: &str) -> Duration {
    Duration::from_millis(duration::stable_jitter(SPREAD_MS, uid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_renewed_in_time() {
        let now = Timestamp::UNIX_EPOCH;
        let at = |life: i64, sooner: u64| {
            let ends = Timestamp::from_second(life).unwrap();
            renew_at(now, ends, Duration::from_secs(sooner)).as_second()
        };
        assert_eq!(at(3600, 0), 2880);
        assert_eq!(at(3600, 10), 2870);
        assert_eq!(at(86400 * 365, 0), 86400);
        assert_eq!(at(5, 10), 0);
        assert_eq!(at(-5, 0), 0, "an end that is past is renewed at once");
        assert!(spread("a-b-c") < Duration::from_secs(10) && spread("a") != spread("b"));
    }
}
