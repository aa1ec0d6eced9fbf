//! Deletes events after an hour, as upstream's `--event-ttl`.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::api::{Api, DeleteParams};
use tokio_util::sync::CancellationToken;

use crate::store::Store;

/// Seconds.
const TTL_SECONDS: i64 = 3600;
const SWEEP_INTERVAL: Duration = Duration::from_secs(300);

/// Deletes expired events periodically.
pub(crate) async fn sweep(store: &Store, client: &kube::Client, shutdown: &CancellationToken) {
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(SWEEP_INTERVAL) => {}
        }
        let now = Timestamp::now();
        let (events, _) = store.list(store.resource("events"), None);
        for event in events.into_iter().filter(|event| is_expired(&event.bytes, now)) {
            let events: Api<Event> = Api::namespaced(client.clone(), &event.key.namespace);
            let _ = events.delete(&event.key.name, &DeleteParams::default()).await;
        }
    }
}

/// Whether an event, as JSON, was last seen longer ago than the TTL. An event without times has expired.
fn is_expired(event: &[u8], now: Timestamp) -> bool {
    // Only the times are decoded: all events are checked.
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Times {
        last_timestamp: Option<Timestamp>,
        event_time: Option<Timestamp>,
        first_timestamp: Option<Timestamp>,
        metadata: Metadata,
    }
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata {
        creation_timestamp: Option<Timestamp>,
    }
    let times = serde_json::from_slice::<Times>(event).ok();
    let last =
        times.and_then(|t| t.last_timestamp.or(t.event_time).or(t.first_timestamp).or(t.metadata.creation_timestamp));
    last.is_none_or(|t| now.as_second() - t.as_second() > TTL_SECONDS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_lives_for_an_hour_after_it_was_last_seen() {
        let now: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        let made = r#""metadata":{"name":"e","creationTimestamp":"2026-01-01T10:00:00Z"}"#;
        for (times, old) in [
            (r#""lastTimestamp":"2026-01-01T11:00:00Z","#, false),
            (r#""lastTimestamp":"2026-01-01T10:59:59Z","#, true),
            (r#""firstTimestamp":"2026-01-01T10:00:00Z","lastTimestamp":"2026-01-01T11:30:00Z","#, false),
            (r#""eventTime":"2026-01-01T11:59:00.123456Z","lastTimestamp":null,"firstTimestamp":null,"#, false),
            (r#""firstTimestamp":"2026-01-01T11:59:00Z","#, false),
            (r#""type":"Normal","#, true),
        ] {
            assert_eq!(is_expired(format!("{{{times}{made}}}").as_bytes(), now), old, "{times}");
        }
        assert!(is_expired(br#"{"metadata":{}}"#, now) && is_expired(b"", now), "what does not say when goes");
    }
}
