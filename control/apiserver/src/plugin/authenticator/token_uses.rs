//! Uses of tokens without expiry: noted in memory by the authenticator without waiting, and written to the labels of
//! their secrets by a separate task. Upstream writes within the request (`patchSecretWithLastUsedDate`).

use std::collections::BTreeMap;

use jiff::{Span, Timestamp, tz::TimeZone};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use windlass_identity::service_account_tokens::LAST_USED;
use windlass_kit::{
    metrics::{Counter, Metrics},
    prometheus::Text,
};

use crate::store::Key;

/// What is counted and to be written.
#[derive(Debug)]
pub(crate) struct TokenUses {
    /// The uid of each secret whose token was used. A secret stands here once, so that there are no more than secrets.
    used: Mutex<BTreeMap<(String, String), Value>>,
    changed: Notify,
    pub(super) all: Counter<0>,
    pub(super) by_hand: Counter<0>,
    pub(super) generated: Counter<0>,
    pub(super) invalid: Counter<0>,
}

impl Default for TokenUses {
    fn default() -> Self {
        let counter = |name, help| Counter::new(name, help, []);
        Self {
            used: Mutex::default(),
            changed: Notify::new(),
            all: counter("serviceaccount_legacy_tokens_total", "Uses of tokens without an end."),
            by_hand: counter(
                "serviceaccount_legacy_manual_token_uses_total",
                "Those of secrets that were made by hand.",
            ),
            generated: counter("serviceaccount_legacy_auto_token_uses_total", "Those of secrets that accounts name."),
            invalid: counter("serviceaccount_invalid_legacy_auto_token_uses_total", "Those that were marked invalid."),
        }
    }
}

impl Metrics for TokenUses {
    fn write(&self, page: &mut Text) {
        for counter in [&self.all, &self.by_hand, &self.generated, &self.invalid] {
            counter.write(page);
        }
    }
}

/// The day of a time, in UTC.
fn day(time: Timestamp) -> String {
    time.strftime("%Y-%m-%d").to_string()
}

/// Whether a label says already that the token was used today; with a clock that is ahead, tomorrow. Pure.
fn is_noted(label: &Value, now: Timestamp) -> bool {
    let tomorrow = now.to_zoned(TimeZone::UTC).checked_add(Span::new().days(1)).map(|time| day(time.timestamp()));
    label.as_str().is_some_and(|label| label == day(now) || tomorrow.is_ok_and(|tomorrow| label == tomorrow))
}

impl TokenUses {
    /// Notes that the token of a secret was used.
    pub(super) fn note(&self, key: &Key, metadata: &Value, now: Timestamp) {
        if is_noted(&metadata["labels"][LAST_USED], now) {
            return;
        }
        let mut used = self.used.lock();
        used.insert((key.namespace.clone(), key.name.clone()), metadata["uid"].clone());
        drop(used);
        self.changed.notify_one();
    }

    /// Writes what is noted, until `shutdown`. What cannot be written is written after the next use.
    pub(crate) async fn write_labels(&self, client: &Client, shutdown: &CancellationToken) {
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = self.changed.notified() => {}
            }
            let used = std::mem::take(&mut *self.used.lock());
            for ((namespace, name), uid) in used {
                let secrets: Api<Secret> = Api::namespaced(client.clone(), &namespace);
                let patch = json!({"metadata": {"uid": uid, "labels": {LAST_USED: day(Timestamp::now())}}});
                if let Err(error) = secrets.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await {
                    tracing::warn!(namespace, name, %error, "failed to note in the label of a service account's secret that its token was used; its next use tries again");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_is_noted_once() {
        let now: Timestamp = "2026-02-28T23:59:59Z".parse().unwrap();
        for (label, noted) in [
            (json!("2026-02-28"), true),
            (json!("2026-03-01"), true),
            (json!("2026-02-27"), false),
            (json!("2026-03-02"), false),
            (json!("nonsense"), false),
            (Value::Null, false),
        ] {
            assert_eq!(is_noted(&label, now), noted, "{label}");
        }
    }
}
