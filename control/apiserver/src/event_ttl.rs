//! Deletes events an hour after they were last written, as upstream's `--event-ttl`. The times in an event are those of its
//! client, whose clock may be another, and a series moves none of those that every event has: what counts is when this server
//! has stored it.

use std::{collections::HashMap, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Event;
use kube::api::{Api, DeleteParams, Preconditions};
use tokio_util::sync::CancellationToken;

use crate::store::{Key, Store};

const TTL: SignedDuration = SignedDuration::from_hours(1);
const SWEEP_INTERVAL: Duration = Duration::from_secs(300);

/// Deletes expired events periodically.
pub(crate) async fn sweep(store: &Store, client: &kube::Client, shutdown: &CancellationToken) {
    let mut writes = Writes::default();
    loop {
        let (events, _) = store.list(store.resource("events"), None);
        let now = Timestamp::now();
        let expired = writes.expired(events.iter().map(|event| (&event.key, event.revision, &*event.bytes)), now);
        for (key, preconditions) in expired {
            let events: Api<Event> = Api::namespaced(client.clone(), &key.namespace);
            let params = DeleteParams::default().preconditions(preconditions);
            if let Err(error) = events.delete(&key.name, &params).await {
                tracing::debug!(%error, event = key.name, "failed to delete an expired event; the next sweep tries again");
            }
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(SWEEP_INTERVAL) => {}
        }
    }
}

/// When each event was last written, as far as this process has seen it.
#[derive(Debug, Default)]
struct Writes(HashMap<Key, (u64, Timestamp)>);

impl Writes {
    /// The events whose last write is longer ago than the TTL, given with their revision and as JSON.
    fn expired<'a>(
        &mut self,
        events: impl Iterator<Item = (&'a Key, u64, &'a [u8])>,
        now: Timestamp,
    ) -> Vec<(Key, Preconditions)> {
        let (mut seen, mut expired) = (HashMap::new(), Vec::new());
        for (key, revision, bytes) in events {
            let at = match self.0.get(key) {
                Some((known, at)) if *known == revision => *at,
                // Written since the last sweep.
                Some(_) => now,
                None => Stamps::read(bytes).last_write().map_or(now, |at| at.min(now)),
            };
            if now.duration_since(at) > TTL {
                let resource_version = Some(revision.to_string());
                expired.push((key.clone(), Preconditions { uid: Stamps::read(bytes).metadata.uid, resource_version }));
            }
            seen.insert(key.clone(), (revision, at));
        }
        self.0 = seen;
        expired
    }
}

/// What this server has put into an event.
#[derive(Debug, Default, serde::Deserialize)]
struct Stamps {
    #[serde(default)]
    metadata: Metadata,
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    uid: Option<String>,
    creation_timestamp: Option<Timestamp>,
    managed_fields: Vec<Managed>,
}

#[derive(Debug, serde::Deserialize)]
struct Managed {
    time: Option<Timestamp>,
}

impl Stamps {
    fn read(event: &[u8]) -> Self {
        serde_json::from_slice(event).unwrap_or_default()
    }

    /// Of an event that was written before this process began: its creation, or a later change of its fields.
    fn last_write(&self) -> Option<Timestamp> {
        let changes = self.metadata.managed_fields.iter().filter_map(|managed| managed.time);
        changes.chain(self.metadata.creation_timestamp).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn expired(writes: &mut Writes, events: &[(&str, u64, &str)], now: &str) -> Vec<String> {
        let keys: Vec<Key> =
            events.iter().map(|(name, ..)| Key { namespace: "n".into(), name: (*name).into() }).collect();
        let all = keys.iter().zip(events).map(|(key, (_, revision, bytes))| (key, *revision, bytes.as_bytes()));
        writes.expired(all, at(now)).into_iter().map(|(key, _)| key.name).collect()
    }

    #[test]
    fn an_event_lives_for_an_hour_after_it_was_last_written() {
        // The clocks of clients: one is behind, one ahead, one reports only its series.
        let event = |times: &str| {
            format!(r#"{{{times}"metadata":{{"name":"e","uid":"u","creationTimestamp":"2026-01-01T10:00:00Z"}}}}"#)
        };
        let behind = event(r#""lastTimestamp":"2026-01-01T01:00:00Z","#);
        let ahead = event(r#""lastTimestamp":"2027-01-01T01:00:00Z","#);
        let series = event(
            r#""eventTime":"2026-01-01T10:00:00.000001Z","series":{"lastObservedTime":"2026-01-01T11:30:00.000001Z"},"#,
        );
        let mut writes = Writes::default();
        let mut sweep = |revision: u64, now: &str| {
            let events = [("behind", 1, &*behind), ("ahead", 2, &*ahead), ("series", revision, &*series)];
            expired(&mut writes, &events, now)
        };
        assert!(sweep(3, "2026-01-01T10:55:00Z").is_empty());
        // The series was written once more.
        assert_eq!(sweep(9, "2026-01-01T11:00:01Z"), ["behind", "ahead"]);
        assert_eq!(sweep(9, "2026-01-01T12:00:01Z").len(), 2);
        assert_eq!(sweep(9, "2026-01-01T12:00:02Z").len(), 3);
    }

    #[test]
    fn after_a_start_the_servers_own_times_count() {
        let meta =
            |more: &str| format!(r#"{{"metadata":{{"uid":"u",{more}"creationTimestamp":"2026-01-01T10:00:00Z"}}}}"#);
        let changed = meta(r#""managedFields":[{"manager":"kubelet","time":"2026-01-01T11:00:00Z"}],"#);
        let events = [("old", 1, &*meta("")), ("changed", 2, &*changed), ("bad", 3, "{}")];
        assert_eq!(expired(&mut Writes::default(), &events, "2026-01-01T11:30:00Z"), ["old"]);
        let mut writes = Writes::default();
        let keys = [Key { namespace: "n".into(), name: "old".into() }];
        let bytes = meta("");
        let found = writes.expired([(&keys[0], 7, bytes.as_bytes())].into_iter(), at("2026-01-01T11:30:00Z"));
        let only = Preconditions { uid: Some("u".into()), resource_version: Some("7".into()) };
        assert_eq!(found[0].1, only, "one that is written meanwhile stays");
    }
}
