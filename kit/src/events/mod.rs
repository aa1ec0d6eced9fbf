//! Records core/v1 Events through a Kubernetes client, with client-go's rules: a repeated event raises its count, many
//! similar ones are aggregated (EventAggregator), and an object with too many events of one type is rate limited
//! (EventSourceObjectSpamFilter). Progress is handled separately: one event, whose message is replaced. Events that the
//! API cannot take now are retried.

mod correlator;

use std::{
    collections::BTreeMap,
    hash::{BuildHasher as _, RandomState},
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Api, Patch, PatchParams, PostParams};
use tokio::sync::mpsc;

use correlator::{Correlator, Observed};

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

/// What shares a budget, besides the object and the type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    /// Something happened.
    Occurrence,
    /// How far something is.
    Progress,
}

impl Class {
    const fn word(self) -> &'static str {
        match self {
            Self::Occurrence => "occurrence",
            Self::Progress => "progress",
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
    component: Arc<str>,
}

#[derive(Debug, Clone)]
struct PendingEvent {
    object: ObjectReference,
    severity: Severity,
    class: Class,
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
        Self { queue, component: component.into() }
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
        self.enqueue(object, severity, Class::Occurrence, reason, message.into(), annotations);
    }

    /// Records how far something is: one event for an object and a reason, whose message is replaced by the next one. It
    /// uses up nothing of what other events of the object may need.
    pub fn record_progress(&self, object: &ObjectReference, reason: &str, message: impl Into<String>) {
        self.enqueue(object, Severity::Normal, Class::Progress, reason, message.into(), BTreeMap::new());
    }

    fn enqueue(
        &self,
        object: &ObjectReference,
        severity: Severity,
        class: Class,
        reason: &str,
        message: String,
        annotations: BTreeMap<String, String>,
    ) {
        let (object, reason, at) = (object.clone(), reason.to_owned(), jiff::Timestamp::now());
        let pending = PendingEvent { object, severity, class, reason, message, annotations, at };
        if let Err(unsent) = self.queue.try_send(pending) {
            let reason = unsent.into_inner().reason;
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

/// Tries of one event (client-go's `maxTriesPerEvent`).
const MAX_TRIES: u32 = 12;
/// The time between two of them (client-go's `defaultSleepDuration`).
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// Whether the API may take the event another time: it did not answer, or it could not. What it refuses, it refuses again.
fn may_pass(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => status.code == 429 || status.code >= 500,
        kube::Error::SerdeError(_) | kube::Error::BuildRequest(_) => false,
        _ => true,
    }
}

async fn send(
    client: kube::Client,
    source: EventSource,
    mut events: mpsc::Receiver<PendingEvent>,
    on_unchanged: impl Fn(&str),
) {
    let mut correlator = Correlator::default();
    let mut serial: u64 = 0;
    while let Some(mut pending) = events.recv().await {
        serial += 1;
        let name = name_of(&pending, serial);
        let Some((key, observed)) = correlator.correlate(&mut pending, || name, Instant::now()) else { continue };
        let event = event_of(&pending, &source, &observed);
        let mut tries = 1;
        let written = loop {
            match write(&client, &event, &observed).await {
                Err(error) if tries < MAX_TRIES && may_pass(&error) => {
                    tracing::debug!(%error, reason = pending.reason, tries, "failed to write an event; trying again");
                    tokio::time::sleep(if tries == 1 { any_part(RETRY_INTERVAL) } else { RETRY_INTERVAL }).await;
                    tries += 1;
                }
                written => break written,
            }
        };
        match written {
            Ok(written) => {
                let version = written.metadata.resource_version;
                let before = correlator.written(&key, version.clone());
                if before.is_some() && before == version {
                    on_unchanged(&observed.name);
                }
            }
            Err(error) => tracing::debug!(%error, reason = pending.reason, "failed to write an event; dropping it"),
        }
    }
}

/// Writes a new event, or what is new of one that the API has; that is made again if it has expired meanwhile.
async fn write(client: &kube::Client, event: &Event, observed: &Observed) -> Result<Event, kube::Error> {
    let api: Api<Event> = Api::namespaced(client.clone(), &observed.namespace);
    if observed.version.is_some() {
        let changed = serde_json::json!({
            "count": event.count, "lastTimestamp": event.last_timestamp, "message": event.message});
        match api.patch(&observed.name, &PatchParams::default(), &Patch::Merge(changed)).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            answer => return answer,
        }
    }
    api.create(&PostParams::default(), event).await
}

/// A part of a time, so that those who began to wait together do not end so.
fn any_part(time: Duration) -> Duration {
    #[allow(clippy::cast_possible_truncation, reason = "below 1000")]
    let thousandths = (RandomState::new().hash_one(0) % 1000) as u32;
    time / 1000 * thousandths
}

/// The namespace and the name of a new event.
fn name_of(pending: &PendingEvent, serial: u64) -> (String, String) {
    // Events about objects without a namespace are in `default`, as client-go's.
    let namespace = pending.object.namespace.clone().filter(|n| !n.is_empty()).unwrap_or_else(|| "default".to_owned());
    let stamp = pending.at.as_nanosecond().wrapping_add(i128::from(serial));
    let mut object_name = pending.object.name.clone().unwrap_or_default();
    truncate(&mut object_name, 200);
    (namespace, format!("{object_name}.{stamp:x}"))
}

/// The event as the API gets it.
fn event_of(pending: &PendingEvent, source: &EventSource, observed: &Observed) -> Event {
    let mut message = pending.message.clone();
    // The API rejects longer messages.
    truncate(&mut message, 1024);
    Event {
        metadata: ObjectMeta {
            name: Some(observed.name.clone()),
            namespace: Some(observed.namespace.clone()),
            annotations: Some(pending.annotations.clone()).filter(|a| !a.is_empty()),
            ..ObjectMeta::default()
        },
        involved_object: pending.object.clone(),
        reason: Some(pending.reason.clone()),
        message: Some(message),
        type_: Some(pending.severity.word().to_owned()),
        source: Some(source.clone()),
        reporting_component: source.component.clone(),
        reporting_instance: source.host.clone(),
        first_timestamp: Some(Time(observed.first)),
        last_timestamp: Some(Time(pending.at)),
        count: Some(observed.count),
        ..Event::default()
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    fn object(name: &str) -> ObjectReference {
        ObjectReference { kind: Some("Pod".into()), name: Some(name.into()), ..ObjectReference::default() }
    }

    fn refused(code: u16) -> kube::Error {
        kube::Error::Api(Box::new(kube::core::Status { code, ..kube::core::Status::default() }))
    }

    #[test]
    fn what_the_api_could_not_take_is_sent_again_and_what_it_refuses_is_not() {
        for (code, again) in
            [(403, false), (404, false), (409, false), (422, false), (429, true), (500, true), (503, true)]
        {
            assert_eq!(may_pass(&refused(code)), again, "{code}");
        }
        assert!(may_pass(&kube::Error::Service("connection refused".into())));
    }

    /// An API that answers with these codes, then takes everything; and what it took.
    fn api(codes: &'static [u16]) -> (kube::Client, Arc<Mutex<Vec<serde_json::Value>>>) {
        let (codes, taken) = (Mutex::new(codes.iter().copied()), Arc::new(Mutex::new(Vec::new())));
        let (codes, seen) = (Arc::new(codes), Arc::clone(&taken));
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let (codes, seen) = (Arc::clone(&codes), Arc::clone(&seen));
            async move {
                let body = request.into_body().collect_bytes().await?;
                let code = codes.lock().next().unwrap_or(200);
                let answer = if code == 200 {
                    let mut event: serde_json::Value = serde_json::from_slice(&body).unwrap();
                    seen.lock().push(event.clone());
                    event["involvedObject"] = serde_json::json!({});
                    event["metadata"]["resourceVersion"] = serde_json::json!(seen.lock().len().to_string());
                    event
                } else {
                    serde_json::json!({"kind": "Status", "status": "Failure", "code": code, "reason": "", "message": ""})
                };
                let answer = kube::client::Body::from(answer.to_string().into_bytes());
                Ok::<_, tower::BoxError>(http::Response::builder().status(code).body(answer).unwrap())
            }
        });
        (kube::Client::new(service, "default"), taken)
    }

    async fn until(taken: &Mutex<Vec<serde_json::Value>>, count: usize) -> Vec<serde_json::Value> {
        for _ in 0..10_000 {
            let now = taken.lock().clone();
            if now.len() >= count {
                return now;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("never came: {count} events; there are {:?}", taken.lock());
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_outlives_an_outage_of_the_api() {
        let (client, taken) = api(&[503, 503, 503, 200, 503]);
        let recorder = Recorder::new(client, "kubelet", "node");
        recorder.record(&object("a"), Severity::Warning, "Failed", "no");
        let first = until(&taken, 1).await;
        assert_eq!((&first[0]["message"], &first[0]["count"]), (&"no".into(), &1.into()));
        // The same once more, over another outage: it stays the same event.
        recorder.record(&object("a"), Severity::Warning, "Failed", "no");
        assert_eq!(until(&taken, 2).await[1]["count"], 2);
        // What is refused is dropped.
        let (client, taken) = api(&[403]);
        let recorder = Recorder::new(client, "kubelet", "node");
        recorder.record(&object("a"), Severity::Warning, "Failed", "refused");
        recorder.record(&object("a"), Severity::Warning, "Failed", "taken");
        assert_eq!(until(&taken, 1).await[0]["message"], "taken");
    }

    #[test]
    fn messages_are_cut_at_a_character() {
        let mut text = "ä".repeat(600);
        truncate(&mut text, 1023);
        assert_eq!(text.len(), 1022);
    }
}
