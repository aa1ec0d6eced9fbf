//! Records core/v1 Events through a Kubernetes client, with client-go's rules: a repeated event raises its count
//! (EventAggregator), and an object with too many events is rate limited (EventSourceObjectSpamFilter).

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Api, Patch, PatchParams, PostParams};
use tokio::sync::mpsc;

/// The type of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Severity {
    /// Something happened as expected.
    Normal,
    /// Something needs attention.
    Warning,
}

impl Severity {
    const fn word(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// Sends events in the background; recording never waits and never fails the caller.
///
/// Clones share one queue of 1,024 events; when it is full, further ones are dropped, which is logged. Must be created
/// within a runtime; the sending task ends when the last clone is dropped.
#[derive(Debug, Clone)]
pub struct Recorder {
    queue: mpsc::Sender<PendingEvent>,
    spam_filter: Arc<Mutex<SpamFilter>>,
    component: Arc<str>,
}

#[derive(Debug)]
struct PendingEvent {
    object: ObjectReference,
    severity: Severity,
    reason: String,
    message: String,
    annotations: BTreeMap<String, String>,
    at: jiff::Timestamp,
}

impl Recorder {
    /// A recorder for `component` (such as `kubelet` or `default-scheduler`) on `host`, empty when
    /// the component is not tied to a node.
    #[must_use]
    pub fn new(client: kube::Client, component: &str, host: &str) -> Self {
        Self::counting(client, component, host, |_| {})
    }

    /// The same; calls `on_unchanged` with the name of each event whose write changed nothing in the API.
    #[must_use]
    pub fn counting(
        client: kube::Client,
        component: &str,
        host: &str,
        on_unchanged: impl Fn(&str) + Send + Sync + 'static,
    ) -> Self {
        let (queue, events) = mpsc::channel(1024);
        let source =
            EventSource { component: Some(component.to_owned()), host: (!host.is_empty()).then(|| host.to_owned()) };
        tokio::spawn(send(client, source, events, on_unchanged));
        Self { queue, spam_filter: Arc::default(), component: component.into() }
    }

    /// Records one event about `object`. Reasons are CamelCase words, upstream's where it has one.
    pub fn record(&self, object: &ObjectReference, severity: Severity, reason: &str, message: impl Into<String>) {
        self.record_annotated(object, severity, reason, message, BTreeMap::new());
    }

    /// The same, with annotations on the event, for programs that read events.
    pub fn record_annotated(
        &self,
        object: &ObjectReference,
        severity: Severity,
        reason: &str,
        message: impl Into<String>,
        annotations: BTreeMap<String, String>,
    ) {
        let allowed = self.spam_filter.lock().unwrap_or_else(PoisonError::into_inner).allow(object, Instant::now());
        if !allowed {
            return;
        }
        let mut message = message.into();
        // The API rejects longer messages.
        truncate(&mut message, 1024);
        let pending = PendingEvent {
            object: object.clone(),
            severity,
            reason: reason.to_owned(),
            message,
            annotations,
            at: jiff::Timestamp::now(),
        };
        if self.queue.try_send(pending).is_err() {
            tracing::warn!(component = %self.component, reason, "the queue of unsent events is full; dropping an event");
        }
    }
}

/// Cuts `text` to at most `bytes`, at a character boundary.
fn truncate(text: &mut String, bytes: usize) {
    if text.len() > bytes {
        let mut end = bytes;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
    }
}

/// client-go's spam filter: a token bucket for each object, 25 events at once, then one every five minutes.
#[derive(Debug, Default)]
struct SpamFilter {
    buckets: HashMap<String, (f64, Instant)>,
}

const BURST: f64 = 25.0;
const REFILL: Duration = Duration::from_secs(300);
const MAX_REMEMBERED: usize = 4096;

impl SpamFilter {
    fn allow(&mut self, object: &ObjectReference, now: Instant) -> bool {
        if self.buckets.len() >= MAX_REMEMBERED {
            self.buckets.retain(|_, (_, at)| now.duration_since(*at) < REFILL);
            if self.buckets.len() >= MAX_REMEMBERED {
                self.buckets.clear();
            }
        }
        let (tokens, at) = self.buckets.entry(key_of(object)).or_insert((BURST, now));
        *tokens = (*tokens + now.duration_since(*at).as_secs_f64() / REFILL.as_secs_f64()).min(BURST);
        *at = now;
        if *tokens < 1.0 {
            return false;
        }
        *tokens -= 1.0;
        true
    }
}

fn key_of(object: &ObjectReference) -> String {
    let part = |s: &Option<String>| s.clone().unwrap_or_default();
    format!("{}/{}/{}/{}", part(&object.kind), part(&object.namespace), part(&object.name), part(&object.uid))
}

#[derive(Debug)]
struct Sent {
    namespace: String,
    name: String,
    count: i32,
    at: Instant,
    /// Its resourceVersion after the last write.
    version: Option<String>,
}

async fn send(
    client: kube::Client,
    source: EventSource,
    mut events: mpsc::Receiver<PendingEvent>,
    on_unchanged: impl Fn(&str),
) {
    let mut sent: HashMap<String, Sent> = HashMap::new();
    let mut serial: u64 = 0;
    while let Some(pending) = events.recv().await {
        if sent.len() >= MAX_REMEMBERED {
            sent.retain(|_, s| s.at.elapsed() < Duration::from_secs(600));
            if sent.len() >= MAX_REMEMBERED {
                sent.clear();
            }
        }
        let key = format!(
            "{}|{:?}|{}|{}",
            key_of(&pending.object),
            pending.object.field_path,
            pending.reason,
            pending.message
        );
        if let Some(earlier) = sent.get_mut(&key) {
            earlier.count = earlier.count.saturating_add(1);
            earlier.at = Instant::now();
            let patch = serde_json::json!({"count": earlier.count, "lastTimestamp": Time(pending.at)});
            let api: Api<Event> = Api::namespaced(client.clone(), &earlier.namespace);
            if let Ok(event) = api.patch(&earlier.name, &PatchParams::default(), &Patch::Merge(patch)).await {
                let before = std::mem::replace(&mut earlier.version, event.metadata.resource_version);
                if before.is_some() && before == earlier.version {
                    on_unchanged(&earlier.name);
                }
                continue;
            }
            // Expired or deleted meanwhile: create it again.
            sent.remove(&key);
        }
        serial += 1;
        let event = event_of(&pending, &source, serial);
        let (namespace, name) =
            (event.metadata.namespace.clone().unwrap_or_default(), event.metadata.name.clone().unwrap_or_default());
        let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
        match api.create(&PostParams::default(), &event).await {
            Ok(event) => {
                let version = event.metadata.resource_version;
                sent.insert(key, Sent { namespace, name, count: 1, at: Instant::now(), version });
            }
            Err(error) => {
                tracing::debug!(%error, reason = pending.reason, "failed to create an event; dropping it");
            }
        }
    }
}

fn event_of(pending: &PendingEvent, source: &EventSource, serial: u64) -> Event {
    // Events about objects without a namespace are in `default`, as client-go's.
    let namespace = pending.object.namespace.clone().filter(|n| !n.is_empty()).unwrap_or_else(|| "default".to_owned());
    let stamp = pending.at.as_nanosecond().wrapping_add(i128::from(serial));
    let mut object_name = pending.object.name.clone().unwrap_or_default();
    truncate(&mut object_name, 200);
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{object_name}.{stamp:x}")),
            namespace: Some(namespace),
            annotations: Some(pending.annotations.clone()).filter(|a| !a.is_empty()),
            ..ObjectMeta::default()
        },
        involved_object: pending.object.clone(),
        reason: Some(pending.reason.clone()),
        message: Some(pending.message.clone()),
        type_: Some(pending.severity.word().to_owned()),
        source: Some(source.clone()),
        reporting_component: source.component.clone(),
        reporting_instance: source.host.clone(),
        first_timestamp: Some(Time(pending.at)),
        last_timestamp: Some(Time(pending.at)),
        count: Some(1),
        ..Event::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &str) -> ObjectReference {
        ObjectReference { kind: Some("Pod".into()), name: Some(name.into()), ..ObjectReference::default() }
    }

    #[test]
    fn one_chatty_object_is_silenced_and_others_are_not() {
        let (mut spam_filter, start) = (SpamFilter::default(), Instant::now());
        assert_eq!((0..40).filter(|_| spam_filter.allow(&object("a"), start)).count(), 25);
        assert!(spam_filter.allow(&object("b"), start));
        assert!(spam_filter.allow(&object("a"), start + Duration::from_secs(301)));
        assert!(!spam_filter.allow(&object("a"), start + Duration::from_secs(302)));
    }

    #[test]
    fn messages_are_cut_at_a_character() {
        let mut text = "ä".repeat(600);
        truncate(&mut text, 1023);
        assert_eq!(text.len(), 1022);
    }
}
