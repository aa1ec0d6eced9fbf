//! Which events are the same, and which are alike: client-go's `EventAggregator` and `eventLogger`. Pure: time is a value.

use std::{
    collections::{BTreeSet, HashMap},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;

use super::{MAX_REMEMBERED, PendingEvent, key_of};

/// So many different messages with one reason become one event …
const MAX_SIMILAR: usize = 10;
/// … unless so much time passed between two of them.
const SIMILAR_INTERVAL: Duration = Duration::from_secs(600);
/// What is put before the message of such an event.
const COMBINED: &str = "(combined from similar events): ";

/// An event that the API has, as it was written last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) count: i32,
    pub(super) first: Timestamp,
    /// Its resourceVersion after the last write.
    pub(super) version: Option<String>,
}

#[derive(Debug)]
struct Similar {
    messages: BTreeSet<String>,
    at: Instant,
}

/// What is remembered of earlier events.
#[derive(Debug, Default)]
pub(super) struct Correlator {
    similar: HashMap<String, Similar>,
    sent: HashMap<String, (Sent, Instant)>,
}

impl Correlator {
    /// The key of the event that this one is, by which its earlier occurrence is known; its message becomes that of similar
    /// events when there are many.
    pub(super) fn correlate(&mut self, pending: &mut PendingEvent, now: Instant) -> String {
        forget(&mut self.similar, |similar| now.duration_since(similar.at) <= SIMILAR_INTERVAL);
        let group = group_of(&pending.object, pending.severity.word(), &pending.reason);
        let fresh = || Similar { messages: BTreeSet::new(), at: now };
        let similar = self.similar.entry(group.clone()).or_insert_with(fresh);
        if now.duration_since(similar.at) > SIMILAR_INTERVAL {
            *similar = fresh();
        }
        similar.at = now;
        similar.messages.insert(pending.message.clone());
        if similar.messages.len() < MAX_SIMILAR {
            return format!("{group}|{:?}|{}", pending.object.field_path, pending.message);
        }
        // As many as are needed to combine the next one, too.
        similar.messages.pop_first();
        pending.message.insert_str(0, COMBINED);
        pending.annotations.clear();
        group
    }

    /// The event with this key, if it was sent before.
    pub(super) fn sent(&self, key: &str) -> Option<&Sent> {
        self.sent.get(key).map(|(sent, _)| sent)
    }

    /// An event is in the API now.
    pub(super) fn remember(&mut self, key: String, sent: Sent, now: Instant) {
        forget(&mut self.sent, |(_, at)| now.duration_since(*at) < SIMILAR_INTERVAL);
        self.sent.insert(key, (sent, now));
    }
}

/// Without the message, and without the part of the object.
fn group_of(object: &ObjectReference, severity: &str, reason: &str) -> String {
    format!("{}|{:?}|{severity}|{reason}", key_of(object), object.api_version)
}

/// Forgets what is not `fresh` when there is too much, and all when that is not enough.
pub(super) fn forget<T>(all: &mut HashMap<String, T>, fresh: impl Fn(&T) -> bool) {
    if all.len() >= MAX_REMEMBERED {
        all.retain(|_, one| fresh(one));
        if all.len() >= MAX_REMEMBERED {
            all.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Severity, *};

    fn pending(message: &str) -> PendingEvent {
        PendingEvent {
            object: ObjectReference { kind: Some("Pod".into()), name: Some("a".into()), ..ObjectReference::default() },
            severity: Severity::Warning,
            reason: "FailedMount".to_owned(),
            message: message.to_owned(),
            annotations: std::collections::BTreeMap::new(),
            at: Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn many_similar_events_become_one() {
        let (mut correlator, start) = (Correlator::default(), Instant::now());
        let mut seen = |i: usize, at| {
            let mut event = pending(&format!("try {i}"));
            let key = correlator.correlate(&mut event, at);
            (event.message, key)
        };
        let first: Vec<(String, String)> = (0..9).map(|i| seen(i, start)).collect();
        assert!(first.iter().enumerate().all(|(i, (message, _))| *message == format!("try {i}")));
        assert_eq!(first.iter().map(|(_, key)| key).collect::<BTreeSet<_>>().len(), 9);
        let (tenth, key) = seen(9, start);
        assert_eq!(tenth, "(combined from similar events): try 9");
        let (next, same) = seen(10, start + Duration::from_secs(600));
        assert_eq!((next.as_str(), same), ("(combined from similar events): try 10", key));
        assert_eq!(seen(11, start + Duration::from_secs(1201)).0, "try 11", "they are apart");
    }

    #[test]
    fn the_same_event_has_the_same_key() {
        let (mut correlator, now) = (Correlator::default(), Instant::now());
        let key = correlator.correlate(&mut pending("m"), now);
        assert_eq!(correlator.correlate(&mut pending("m"), now), key);
        assert_eq!(correlator.sent(&key), None);
        let sent =
            Sent { namespace: "n".into(), name: "a.1".into(), count: 1, first: Timestamp::UNIX_EPOCH, version: None };
        correlator.remember(key.clone(), sent.clone(), now);
        assert_eq!(correlator.sent(&key), Some(&sent));
    }
}
