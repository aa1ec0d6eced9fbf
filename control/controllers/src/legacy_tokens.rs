//! Unused service account tokens without expiry: those that the API created by itself, as its older versions did, are
//! marked invalid after a year without use, and removed after another one. Upstream's `LegacySATokenCleaner`, which
//! checks all secrets once a day; here each is checked when it is due.

use std::time::Duration;

use jiff::{Timestamp, ToSpan as _, civil::Date, tz::TimeZone};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, ServiceAccount};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams},
};
use serde_json::json;
use windlass_identity::service_account_tokens::{INVALID_SINCE, LAST_USED, TRACKED_SINCE, TRACKING};
use windlass_kit::objects::pod_secrets::secret_names;

use super::{
    runtime::{
        Cache, CachedSecret, Context, Controller, During as _, Error, Key, Live, Outcome, Proof, error, same_version,
    },
    service_account_tokens::{NAME, UID, with_token},
};

/// How long a token may be unused (upstream: `--legacy-service-account-token-clean-up-period`).
const PERIOD: Duration = Duration::from_secs(365 * 24 * 3600);
/// How often a secret is looked at that may go (upstream: `SyncInterval`).
const INTERVAL: Duration = Duration::from_secs(24 * 3600);

pub(crate) struct LegacyTokenCleaner {
    client: Client,
    secrets: Cache<CachedSecret>,
}

impl Controller for LegacyTokenCleaner {
    const NAME: &'static str = "legacy-serviceaccount-token-cleaner-controller";
    type Key = Key;
    type Config = ();

    fn subscribe(context: &mut Context<Key>, (): ()) -> Self {
        let secrets = context.informer::<CachedSecret>();
        secrets.queue_where(context.queue(), |secret| with_token(secret).is_some());
        Self { client: context.client(), secrets: secrets.cache() }
    }

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let cached = self.secrets.get(&key);
        let Some(secret) = cached.as_deref().and_then(with_token) else { return Ok(Outcome::Done) };
        let now = Timestamp::now();
        match due(secret, now) {
            Due::Never => return Ok(Outcome::Done),
            Due::In(left) => return Ok(Outcome::After(left)),
            Due::Now => {}
        }
        if !self.tracked_long_enough(now).await? {
            return Ok(Outcome::After(INTERVAL));
        }
        let Some(unused) = self.unused(&key, secret).await? else { return Ok(Outcome::After(INTERVAL)) };
        match invalid_since(secret) {
            None => self.mark(&key, secret, now, &unused).await?,
            Some(since) if since < last_day(now) => self.delete(&key, secret, &unused).await?,
            Some(_) => return Ok(Outcome::After(INTERVAL)),
        }
        Ok(Outcome::Done)
    }
}

impl LegacyTokenCleaner {
    /// Whether uses have been recorded for the whole period.
    async fn tracked_long_enough(&self, now: Timestamp) -> Result<bool, Error> {
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), "kube-system");
        let map = maps.get_opt(TRACKING).await.during("read since when uses of tokens are recorded from", &TRACKING)?;
        let since = map.and_then(|map| map.data?.get(TRACKED_SINCE).and_then(|day| read(day)));
        // Of a day that cannot be read nothing is known; the first day counts from its end.
        let from = since.and_then(|day| day.checked_add(1.day()).ok());
        let from = from.and_then(|day| day.to_zoned(TimeZone::UTC).ok()).map(|day| day.timestamp());
        Ok(from.is_some_and(|from| now.duration_since(from).unsigned_abs() >= PERIOD && now > from))
    }

    /// Asks the API whether a secret is one that an account names, and that no pod uses.
    async fn unused(&self, key: &Key, secret: &Secret) -> Result<Option<Proof>, Error> {
        let Some(account) = secret.annotations().get(NAME).filter(|name| !name.is_empty()) else { return Ok(None) };
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), &key.namespace);
        let account = accounts.get_opt(account).await.during("read the service account of", key)?;
        let uid = secret.annotations().get(UID).filter(|uid| !uid.is_empty());
        let is_named = account.is_some_and(|account| {
            let mut names = account.secrets.iter().flatten();
            uid.is_none_or(|uid| account.metadata.uid.as_ref() == Some(uid))
                && names.any(|reference| reference.name.as_deref() == Some(key.name.as_str()))
        });
        if !is_named {
            return Ok(None);
        }
        let pods: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &key.namespace, &ApiResource::erase::<Pod>(&()));
        let pods = Live::list(&pods).await.during("look for pods that use", key)?;
        Ok(pods.shows(|pods| !pods.iter().any(|pod| secret_names(&pod.data).contains(&key.name.as_str()))))
    }

    async fn mark(&self, key: &Key, secret: &Secret, now: Timestamp, _: &Proof) -> Result<(), Error> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &key.namespace);
        let labels = json!({INVALID_SINCE: TimeZone::UTC.to_datetime(now).date().to_string()});
        let patch = json!({"metadata": {"uid": secret.metadata.uid, "labels": labels}});
        let patched = secrets.patch(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await;
        error::ignore_deleted(patched).during("mark the unused token as invalid in", key)?;
        tracing::info!(secret = %key, "the token of this secret was not used for a year and is not taken any more; remove its label kubernetes.io/legacy-token-invalid-since to use it again");
        Ok(())
    }

    async fn delete(&self, key: &Key, secret: &Secret, _: &Proof) -> Result<(), Error> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &key.namespace);
        // A use since then has changed the label, and with it the version.
        let params = DeleteParams::default().preconditions(same_version(&secret.metadata));
        error::ignore_deleted(secrets.delete(&key.name, &params).await).during("delete the unused token", key)?;
        Ok(())
    }
}

/// When something may have to be done about a secret.
#[derive(Debug, PartialEq, Eq)]
enum Due {
    Never,
    In(Duration),
    Now,
}

/// The last day of which nothing counts any more. Pure.
fn last_day(now: Timestamp) -> Date {
    TimeZone::UTC.to_datetime(now - PERIOD).date()
}

/// A day as upstream writes it. Pure.
fn read(day: &str) -> Option<Date> {
    day.parse::<Date>().ok().filter(|date| date.to_string() == day)
}

fn invalid_since(secret: &Secret) -> Option<Date> {
    secret.labels().get(INVALID_SINCE).and_then(|day| read(day))
}

/// Pure.
fn due(secret: &Secret, now: Timestamp) -> Due {
    if secret.metadata.deletion_timestamp.is_some() {
        return Due::Never;
    }
    let Some(made) = secret.metadata.creation_timestamp.as_ref() else { return Due::Never };
    let age = Duration::try_from(now.duration_since(made.0)).unwrap_or_default();
    if age <= PERIOD {
        return Due::In(PERIOD - age + Duration::from_secs(1));
    }
    match secret.labels().get(LAST_USED) {
        // Not since uses are recorded.
        None => Due::Now,
        Some(used) => match read(used) {
            // Unreadable: a correction of the label queues the secret again.
            None => Due::Never,
            Some(used) if used >= last_day(now) => Due::In(INTERVAL),
            Some(_) => Due::Now,
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_secret_is_due_a_year_after_it_was_made_and_last_used() {
        let now: Timestamp = "2026-06-10T12:00:00Z".parse().unwrap();
        let secret = |made: &str, labels: Value| -> Secret {
            let metadata = json!({"name": "s", "creationTimestamp": made, "labels": labels});
            serde_json::from_value(json!({"metadata": metadata})).unwrap()
        };
        let used = |day: &str| json!({LAST_USED: day});
        for (made, labels, expected) in [
            ("2025-06-10T12:00:00Z", json!({}), Due::In(Duration::from_secs(1))),
            ("2025-06-10T11:59:59Z", json!({}), Due::Now),
            ("2025-01-01T00:00:00Z", used("2025-06-10"), Due::In(INTERVAL)),
            ("2025-01-01T00:00:00Z", used("2025-06-09"), Due::Now),
            ("2025-01-01T00:00:00Z", used("9. 6. 2025"), Due::Never),
            ("2025-01-01T00:00:00Z", used("2025-6-9"), Due::Never),
        ] {
            assert_eq!(due(&secret(made, labels.clone()), now), expected, "{made} {labels}");
        }
        // A mark that cannot be read is made again.
        let mark = |day: &str| invalid_since(&secret("2025-01-01T00:00:00Z", json!({INVALID_SINCE: day})));
        assert_eq!((mark("soon"), mark("2025-06-09")), (None, Some("2025-06-09".parse().unwrap())));
    }
}
