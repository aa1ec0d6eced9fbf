//! Which events are equal, which are similar, and which are too many: client-go's `EventAggregator`, `eventLogger` and
//! `EventSourceObjectSpamFilter`, in this order, so that events that are not sent are still counted. Pure: time is a
//! value.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;

use super::{Class, PendingEvent};
use crate::lru::Lru;

/// Entries that each cache of client-go's correlator has (`maxLruCacheEntries`).
const MAX_ENTRIES: usize = 4096;

/// So many different messages with one reason become one event …
const MAX_SIMILAR: usize = 10;
/// … unless so much time passed between two of them.
const SIMILAR_INTERVAL: Duration = Duration::from_secs(600);
/// What is put before the message of such an event.
const COMBINED: &str = "(combined from similar events): ";
/// So many events at once …
const BURST: f64 = 25.0;
/// … and then one in this time.
const REFILL: Duration = Duration::from_secs(300);

/// An event as it was observed last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Observed {
    pub(super) namespace: String,
    pub(super) name: String,
    /// How often it was observed, sent or not.
    pub(super) count: i32,
    pub(super) first: Timestamp,
    /// Its resourceVersion after the last write; `None` if the API does not have it.
    pub(super) version: Option<String>,
}

#[derive(Debug)]
struct Similar {
    messages: BTreeSet<String>,
    at: Instant,
}

/// A token bucket.
#[derive(Debug)]
struct Budget {
    tokens: f64,
    at: Instant,
}

impl Budget {
    fn take(&mut self, now: Instant) -> bool {
        let refilled = now.saturating_duration_since(self.at).as_secs_f64() / REFILL.as_secs_f64();
        self.tokens = (self.tokens + refilled).min(BURST);
        self.at = now;
        let allowed = self.tokens >= 1.0;
        if allowed {
            self.tokens -= 1.0;
        }
        allowed
    }
}

/// What is remembered of earlier events.
#[derive(Debug)]
pub(super) struct Correlator {
    similar: Lru<String, Similar>,
    observed: Lru<String, Observed>,
    budgets: Lru<String, Budget>,
}

impl Default for Correlator {
    fn default() -> Self {
        Self { similar: Lru::new(MAX_ENTRIES), observed: Lru::new(MAX_ENTRIES), budgets: Lru::new(MAX_ENTRIES) }
    }
}

impl Correlator {
    /// Observes an event; its message becomes that of similar events when there are many. `name` is for a new one. Gives
    /// the key by which it is known and how it was observed; `None` if its object has had too many events.
    pub(super) fn correlate(
        &mut self,
        pending: &mut PendingEvent,
        name: impl FnOnce() -> (String, String),
        now: Instant,
    ) -> Option<(String, Observed)> {
        let key = self.aggregate(pending, now);
        let at = pending.at;
        let observed = self.observed.entry(&key, 1, || {
            let (namespace, name) = name();
            Observed { namespace, name, count: 0, first: at, version: None }
        });
        observed.count = observed.count.saturating_add(1);
        let observed = observed.clone();
        let budget = self.budgets.entry(&budget_of(pending), 1, || Budget { tokens: BURST, at: now });
        budget.take(now).then_some((key, observed))
    }

    /// The key of the event that this one is.
    fn aggregate(&mut self, pending: &mut PendingEvent, now: Instant) -> String {
        let group = group_of(pending);
        if pending.class == Class::Progress {
            return format!("{group}|{:?}|{}", pending.object.field_path, pending.class.word());
        }
        let fresh = || Similar { messages: BTreeSet::new(), at: now };
        let similar = self.similar.entry(&group, 1, fresh);
        if now.saturating_duration_since(similar.at) > SIMILAR_INTERVAL {
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

    /// An event is in the API now; gives its version of before.
    pub(super) fn written(&mut self, key: &str, version: Option<String>) -> Option<String> {
        // Forgotten while it was written, if it had to wait long enough.
        self.observed.peek(key).and_then(|observed| std::mem::replace(&mut observed.version, version))
    }
}

fn object_of(object: &ObjectReference) -> String {
    let ObjectReference { kind, namespace, name, uid, api_version, .. } = object;
    format!("{kind:?}|{namespace:?}|{name:?}|{uid:?}|{api_version:?}")
}

/// Without the message, and without the part of the object.
fn group_of(pending: &PendingEvent) -> String {
    format!("{}|{}|{}", object_of(&pending.object), pending.severity.word(), pending.reason)
}

/// What shares a budget: Normal events cannot use up that of Warnings, nor progress that of either.
fn budget_of(pending: &PendingEvent) -> String {
    format!("{}|{}|{}", object_of(&pending.object), pending.severity.word(), pending.class.word())
}

#[cfg(test)]
mod tests {
    use windlass_fixtures::facts::{json_of, rows};

    use super::{super::Severity, *};

    fn event(reason: &str, message: &str) -> PendingEvent {
        PendingEvent {
            object: ObjectReference {
                kind: Some("Pod".into()),
                name: Some("my-pod".into()),
                namespace: Some("my-ns".into()),
                ..ObjectReference::default()
            },
            severity: Severity::Normal,
            class: Class::Occurrence,
            reason: reason.to_owned(),
            message: message.to_owned(),
            annotations: std::collections::BTreeMap::new(),
            at: Timestamp::UNIX_EPOCH,
        }
    }

    fn of_container(container: &str, message: &str) -> PendingEvent {
        let mut event = event("similar", message);
        event.object.field_path = Some(format!("spec.containers{{{container}}}"));
        event
    }

    fn warning(message: &str) -> PendingEvent {
        PendingEvent { severity: Severity::Warning, ..event("Failed", message) }
    }

    fn times(count: usize, one: impl Fn(usize) -> PendingEvent) -> Vec<PendingEvent> {
        (0..count).map(one).collect()
    }

    /// What comes of the last of these events, one each `interval` seconds: its count and message, or nothing.
    fn last(interval: u64, events: Vec<PendingEvent>) -> Option<(i32, String)> {
        let (mut correlator, start) = (Correlator::default(), Instant::now());
        let mut outcome = None;
        for (i, mut event) in (0u64..).zip(events) {
            let now = start + Duration::from_secs(i * interval);
            let observed = correlator.correlate(&mut event, || ("my-ns".to_owned(), format!("e.{i}")), now);
            outcome = observed.map(|(_, observed)| (observed.count, event.message));
        }
        outcome
    }

    /// The facts of client-go's own table of its correlator, and what follows from its keys.
    #[test]
    fn events_are_counted_combined_and_limited_as_client_go_does() {
        let same = |_| event("duplicate", "me again");
        let similar = |i: usize| of_container("container1", &format!("similar message-{i}"));
        let noise = |i: usize| event("Pulling", &format!("{i} of 100"));
        let then = |mut before: Vec<PendingEvent>, event| {
            before.push(event);
            before
        };
        let combined = |i: usize| format!("{COMBINED}similar message-{i}");
        for (what, interval, events, expected) in [
            ("a single event", 5, times(1, same), Some((1, "me again".to_owned()))),
            ("the same event just counts", 5, times(2, same), Some((2, "me again".to_owned()))),
            ("also more often than similar ones", 30, times(11, same), Some((11, "me again".to_owned()))),
            ("too often it is spam", 1, times(27, same), None),
            (
                "many events of many objects",
                5,
                then(
                    times(30, |i| {
                        let mut other = event("reason", "message");
                        other.object.name = Some(format!("pod-{i}"));
                        other
                    }),
                    event("unique", "snowflake"),
                ),
                Some((1, "snowflake".to_owned())),
            ),
            ("similar events are combined", 5, times(10, similar), Some((1, combined(9)))),
            ("what they are combined to counts", 5, times(11, similar), Some((2, combined(10)))),
            (
                "another container is another event",
                5,
                vec![of_container("container2", "m"), of_container("container1", "m")],
                Some((1, "m".to_owned())),
            ),
            ("similar events that are far apart", 601, times(10, similar), Some((1, "similar message-9".to_owned()))),
            (
                "a Warning after any number of Normal events",
                0,
                then(times(100, noise), warning("no space left")),
                Some((1, "no space left".to_owned())),
            ),
            ("and of Warnings not more than client-go sends", 0, times(26, |i| warning(&format!("{i}"))), None),
        ] {
            assert_eq!(last(interval, events), expected, "{what}");
        }
    }

    static UPSTREAM: &str = include_str!("../../../facts/event_correlator.tsv");

    fn upstreams(event: &serde_json::Value) -> PendingEvent {
        let text = |at: usize| event[at].as_str().unwrap().to_owned();
        let object = ObjectReference {
            kind: Some("Pod".into()),
            namespace: Some(text(2)),
            name: Some(text(3)),
            field_path: Some(text(4)),
            ..ObjectReference::default()
        };
        PendingEvent { object, ..self::event(&text(0), &text(1)) }
    }

    #[test]
    fn events_are_correlated_as_upstreams_tests_say() {
        let mut seen = 0;
        for row in rows(UPSTREAM) {
            let mut events: Vec<PendingEvent> = json_of(row[3]).as_array().unwrap().iter().map(upstreams).collect();
            let (interval, expected) = match *row {
                ["TestEventCorrelator", _, seconds, _, "skipped"] => (seconds.parse().unwrap(), None),
                ["TestEventCorrelator", _, seconds, _, count, message] => {
                    (seconds.parse().unwrap(), Some((count.parse().unwrap(), message.to_owned())))
                }
                ["TestEventSpamFilter", _, burst, _, verdict] => {
                    // Upstream's burst is a setting of the test, ours is not one.
                    let before = times(BURST as usize + 1 - burst.parse::<usize>().unwrap(), |_| events[0].clone());
                    events.splice(0..0, before);
                    (0, (verdict == "sent").then(|| (1, String::new())))
                }
                _ => panic!("{row:?}"),
            };
            assert_eq!(last(interval, events), expected, "{}", row[1]);
            seen += 1;
        }
        assert!(seen > 9, "{seen}");
    }

    #[test]
    fn progress_is_one_event_and_uses_up_nothing() {
        let progress = |i: usize| PendingEvent { class: Class::Progress, ..event("Pulling", &format!("{i} of 100")) };
        let mut events = times(20, progress);
        assert_eq!(last(30, events.clone()), Some((20, "19 of 100".to_owned())), "it is not combined, but replaced");
        events.extend(times(100, progress));
        events.push(event("Pulled", "done"));
        assert_eq!(last(0, events.clone()), Some((1, "done".to_owned())));
        events.pop();
        assert_eq!(last(0, events), None, "it has a limit of its own");
    }

    #[test]
    fn the_budget_of_an_object_is_refilled_slowly() {
        let (mut correlator, start) = (Correlator::default(), Instant::now());
        let mut allowed = |seconds| {
            let now = start + Duration::from_secs(seconds);
            correlator.correlate(&mut event("a", "b"), Default::default, now).map(|(_, observed)| observed.count)
        };
        assert_eq!((0..40).filter_map(|_| allowed(0)).max(), Some(25));
        assert_eq!((allowed(301), allowed(302)), (Some(41), None), "what was not sent was counted");
    }

    #[test]
    fn what_was_written_is_known() {
        let (mut correlator, now) = (Correlator::default(), Instant::now());
        let name = || ("n".to_owned(), "a.1".to_owned());
        let (key, first) = correlator.correlate(&mut event("a", "b"), name, now).unwrap();
        assert_eq!((first.version.as_deref(), first.count), (None, 1));
        assert_eq!(correlator.written(&key, Some("7".to_owned())), None);
        let (same, second) = correlator.correlate(&mut event("a", "b"), || unreachable!(), now).unwrap();
        assert_eq!((same, second.version.as_deref(), second.count), (key.clone(), Some("7"), 2));
        assert_eq!(correlator.written(&key, Some("7".to_owned())).as_deref(), Some("7"));
    }
}
